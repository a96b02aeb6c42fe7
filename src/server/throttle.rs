//! Names that clients of other limiters speak, on the engine of `RL.GCRA`: `CL.THROTTLE` of
//! redis-cell with its alias `RL.THROTTLE`, and the `GCRA` that Redis had in a milestone.
//!
//! All three reply `[limited, limit, remaining, retry_after_s, reset_after_s]`. What they charge
//! is replicated as the `RL.GCRA` it amounts to, so a replica need not know the names.

use std::ffi::c_int;

use super::api::{Argv, Context};
use super::check::{count, judge, retry_after};
use super::clock::Time;
use super::failure::Failure;
use super::stats;
use crate::args::{self, Throttle};
use crate::limit::{Algorithm, Call, Gcra, Mode, Retry, Verdict};

/// How a name's arguments are read.
type Parse = fn(&Argv<'_>) -> Result<Throttle, args::Error>;

/// `CL.THROTTLE key max_burst count period [quantity]`
pub fn cl_throttle(context: Context, argv: Argv<'_>) -> c_int {
    serve(context, argv, |args| args::parse_throttle(args, false))
}

/// `RL.THROTTLE key max_burst count period [quantity [now]]`
pub fn rl_throttle(context: Context, argv: Argv<'_>) -> c_int {
    serve(context, argv, |args| args::parse_throttle(args, true))
}

/// `GCRA key max_burst tokens_per_period period [TOKENS n]`
pub fn gcra(context: Context, argv: Argv<'_>) -> c_int {
    serve(context, argv, |args| args::parse_gcra(args))
}

fn serve(context: Context, argv: Argv<'_>, parse: Parse) -> c_int {
    match throttle(context, argv, parse) {
        Ok(verdict) => context.reply_integers(&wire(&verdict)),
        Err(failure) => {
            stats::of(Algorithm::Gcra).errors.add(1);
            failure.reply(context)
        }
    }
}

fn throttle(context: Context, argv: Argv<'_>, parse: Parse) -> Result<Verdict, Failure> {
    let key = argv.text(1).ok_or(args::Error::Arity)?;
    let Throttle { policy, cost, now } = parse(&argv.from(2))?;
    let time = Time::of(context, now)?;
    let call = Call {
        policy,
        now_us: time.us,
        cost,
        mode: Mode::Charge,
    };
    let decision = judge::<Gcra>(context, key, &call)?;
    if decision.units.is_some() {
        context.replicate_charge(Algorithm::Gcra, key, &call);
    }
    Ok(decision.verdict)
}

/// Times in whole seconds, rounded up: a call that is denied for a while never says 0.
fn wire(verdict: &Verdict) -> [i64; 5] {
    let seconds = |us: u64| count(us.div_ceil(1_000_000));
    let limited = verdict.allowed == 0;
    [
        i64::from(limited),
        count(verdict.limit),
        count(verdict.remaining),
        // What is allowed now has no time to wait for, and neither has what never will be.
        if verdict.retry == Retry::Now {
            -1
        } else {
            retry_after(verdict.retry, seconds)
        },
        seconds(verdict.reset_after_us),
    ]
}
