//! `RL.FIXED`, `RL.SLIDINGLOG`, `RL.SLIDINGCOUNTER`, `RL.TOKEN` and `RL.GCRA`, and what every
//! command that charges has in common with them.

use std::ffi::c_int;

use super::api::{Argv, Context, Handle, Text};
use super::clock::Time;
use super::failure::Failure;
use super::keyspace::{self, Slot};
use super::raw;
use super::{denials, stats};
use crate::args;
use crate::limit::{Call, Decision, Limiter, Mode, Retry, Verdict};

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
        Err(failure) => {
            stats::of(L::ALGORITHM).errors.add(1);
            failure.reply(context)
        }
    }
}

/// Where `now` stands in a call.
const NOW_INDEX: usize = 4;

#[inline(always)]
fn check<L: Limiter>(context: Context, argv: Argv<'_>) -> Result<Verdict, Failure> {
    let key = argv.text(1).ok_or(args::Error::Arity)?;
    let check = args::parse_check(L::ALGORITHM, &argv.from(2))?;
    let time = Time::of(context, check.now)?;
    let call = Call {
        policy: check.policy,
        now_us: time.us,
        cost: check.cost,
        mode: check.mode,
    };
    let decision = judge::<L>(context, key, &call)?;
    if decision.units.is_some() {
        time.replicate(context, argv, NOW_INDEX);
    }
    Ok(decision.verdict)
}

/// Decides a call on a key and charges it. Replicating a charge is left to the caller.
#[inline(always)]
pub fn judge<L: Limiter>(context: Context, key: Text, call: &Call) -> Result<Decision, Failure> {
    let handle = Handle::open(context, key);
    let slot = Slot::<L>::new(&handle)?;
    let decision = slot.decide(call)?;
    if let Some(charge) = decision.charge(call) {
        slot.charge(charge, decision.verdict.reset_after_us);
    }
    drop(handle);
    follow::<L>(context, key, call, &decision);
    Ok(decision)
}

/// What follows a decision once its key is closed, but for replication.
#[inline(always)]
pub fn follow<L: Limiter>(context: Context, key: Text, call: &Call, decision: &Decision) {
    stats::of(L::ALGORITHM).decided(call, decision);
    if decision.units.is_some() {
        keyspace::announce_charge(context, key);
        denials::allowed(context, key);
    } else if decision.verdict.allowed == 0 && call.mode != Mode::Peek && call.cost > 0 {
        denials::denied(context, key);
    }
}

/// The five integers of a reply: times in whole milliseconds, rounded up.
pub fn wire(verdict: &Verdict) -> [i64; 5] {
    [
        count(verdict.allowed),
        count(verdict.limit),
        count(verdict.remaining),
        retry_after(verdict.retry, millis),
        millis(verdict.reset_after_us),
    ]
}

/// 0 if allowed, −1 if never, else the wait in the unit of `time`.
pub fn retry_after(retry: Retry, time: impl Fn(u64) -> i64) -> i64 {
    match retry {
        Retry::Now => 0,
        Retry::AfterUs(wait_us) => time(wait_us),
        Retry::Never => -1,
    }
}

pub fn millis(us: u64) -> i64 {
    count(us.div_ceil(1000))
}

pub fn count(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}
