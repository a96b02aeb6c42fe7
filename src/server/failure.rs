//! What a command answers instead of a reply. Nothing has changed then.

use std::borrow::Cow;

use super::api::Context;
use crate::limit::{Algorithm, DebtTooLarge, MAX_UNITS};
use crate::{args, codec};

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
}

impl Failure {
    pub fn reply(&self, context: Context) -> std::ffi::c_int {
        let message: Cow<'static, str> = match self {
            Self::Arguments(args::Error::Arity) => return context.reply_wrong_arity(),
            Self::Arguments(error) => format!("ERR {error}").into(),
            Self::NotALimiter(holds) => {
                format!("WRONGTYPE the key holds a {holds}, not a rate limiter").into()
            }
            Self::OtherAlgorithm { holds, asked } => format!(
                "WRONGTYPE the key holds a {} limiter, not a {} one",
                holds.name().to_uppercase(),
                asked.name().to_uppercase()
            )
            .into(),
            Self::Debt => {
                format!("ERR debt must be at most {MAX_UNITS} units and drain within 1000 years")
                    .into()
            }
            Self::Codec(refusal) => format!("ERR {refusal}").into(),
            Self::Busy => "BUSYKEY the key exists already".into(),
        };
        context.reply_error(&message)
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
