//! `RL.FIXED`, `RL.SLIDINGLOG`, `RL.SLIDINGCOUNTER`, `RL.TOKEN` and `RL.GCRA`.

use std::ffi::c_int;

use redis_module::raw;

use super::api::{self, Argv, Context, Handle};
use super::denials;
use super::failure::Failure;
use super::keyspace::{self, Slot};
use crate::args::{self, Millis, Now};
use crate::limit::{Call, Limiter, Mode, Retry, Verdict};

/// The command of algorithm `L`.
pub unsafe extern "C" fn command<L: Limiter>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let context = Context(ctx);
    // SAFETY: the server hands over its arguments for the time of the call.
    let argv = unsafe { Argv::new(argv, argc) };
    match check::<L>(context, argv) {
        Ok(verdict) => context.reply_integers(&wire(&verdict)),
        Err(failure) => failure.reply(context),
    }
}

#[inline]
fn check<L: Limiter>(context: Context, argv: Argv<'_>) -> Result<Verdict, Failure> {
    let key = argv.text(1).ok_or(args::Error::Arity)?;
    let check = args::parse_check(L::ALGORITHM, &argv.from(2))?;
    let (now_us, now_given) = match check.now {
        Now::Us(now_us) => (now_us, true),
        Now::Server => (api::now_us(), false),
    };
    let call = Call {
        policy: check.policy,
        now_us,
        cost: check.cost,
        mode: check.mode,
    };
    let handle = Handle::open(context, key);
    let slot = Slot::<L>::new(&handle)?;
    let decision = slot.decide(&call)?;
    let verdict = decision.verdict;
    if let Some(charge) = decision.charge {
        slot.charge(charge);
        keyspace::keep_for(&handle, verdict.reset_after_us);
        keyspace::charged(context, key);
        denials::allowed(context, key);
        if now_given {
            context.replicate_verbatim();
        } else {
            context.replicate_with(argv, NOW_INDEX, Millis(now_us).to_string().as_bytes());
        }
    } else if verdict.allowed == 0 && call.mode != Mode::Peek && call.cost > 0 {
        denials::denied(context, key);
    }
    Ok(verdict)
}

/// Where `now` stands in a call.
const NOW_INDEX: usize = 4;

/// The five integers of a reply: times in whole milliseconds, rounded up.
pub fn wire(verdict: &Verdict) -> [i64; 5] {
    let retry_after = match verdict.retry {
        Retry::Now => 0,
        Retry::AfterUs(wait_us) => millis(wait_us),
        Retry::Never => -1,
    };
    [
        count(verdict.allowed),
        count(verdict.limit),
        count(verdict.remaining),
        retry_after,
        millis(verdict.reset_after_us),
    ]
}

pub fn millis(us: u64) -> i64 {
    count(us.div_ceil(1000))
}

pub fn count(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}
