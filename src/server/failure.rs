//! What a command answers instead of a reply. Nothing has changed then.

use super::api::Context;
use crate::args::{self, Millis};
use crate::codec;
use crate::limit::{Algorithm, DebtTooLarge, MAX_UNITS};

pub enum Failure {
    Arguments(args::Error),
    /// The key holds something that is no limiter.
    NotALimiter(&'static str),
    /// The key holds a limiter of another algorithm.
    OtherAlgorithm {
        holds: Algorithm,
        asked: Algorithm,
    },
    Debt,
    Codec(codec::Refusal),
    Busy,
    /// The caller's clock is further from the server's than configured.
    Skew {
        now_us: u64,
        server_us: u64,
        max_skew_ms: i64,
    },
    /// In the clause of `RL.MULTI` with this number, from 1.
    InClause {
        number: usize,
        failure: Box<Failure>,
    },
}

impl Failure {
    pub fn reply(&self, context: Context) -> std::ffi::c_int {
        if let Self::Arguments(args::Error::Arity) = self {
            return context.reply_wrong_arity();
        }
        let (class, text) = self.class_and_text();
        context.reply_error(&format!("{class} {text}"))
    }

    /// The first word of the error, by which clients tell classes, and the rest.
    fn class_and_text(&self) -> (&'static str, String) {
        match self {
            Self::Arguments(error) => ("ERR", error.to_string()),
            Self::NotALimiter(holds) => (
                "WRONGTYPE",
                format!("the key holds a {holds}, not a rate limiter"),
            ),
            Self::OtherAlgorithm { holds, asked } => {
                let [holds, asked] =
                    [holds, asked].map(|algorithm| algorithm.name().to_uppercase());
                (
                    "WRONGTYPE",
                    format!("the key holds a {holds} limiter, not a {asked} one"),
                )
            }
            Self::Debt => (
                "ERR",
                format!("debt must be at most {MAX_UNITS} units and drain within 1000 years"),
            ),
            Self::Codec(refusal) => ("ERR", refusal.to_string()),
            Self::Busy => ("BUSYKEY", "the key exists already".to_owned()),
            Self::Skew {
                now_us,
                server_us,
                max_skew_ms,
            } => (
                "ERR",
                format!(
                    "now must be within {max_skew_ms} ms of the server's clock, which is {}, got {}",
                    Millis(*server_us),
                    Millis(*now_us)
                ),
            ),
            Self::InClause { number, failure } => {
                let (class, text) = failure.class_and_text();
                (class, format!("clause {number}: {text}"))
            }
        }
    }
}

impl From<args::Error> for Failure {
    fn from(error: args::Error) -> Self {
        Self::Arguments(error)
    }
}

impl From<DebtTooLarge> for Failure {
    fn from(_: DebtTooLarge) -> Self {
        Self::Debt
    }
}

impl From<codec::Refusal> for Failure {
    fn from(refusal: codec::Refusal) -> Self {
        Self::Codec(refusal)
    }
}
