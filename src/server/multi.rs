//! `RL.MULTI`: several limiters, all charged or none.

use std::ffi::c_int;

use redis_module::raw;
use smallvec::SmallVec;

use super::api::{Argv, Context, Handle, Text};
use super::check::{self, wire};
use super::clock::Time;
use super::failure::Failure;
use super::keyspace::{self, Slot};
use crate::args::{self, Clause, Clauses};
use crate::limit::{
    Algorithm, Call, Decision, Fixed, Gcra, Limiter, Mode, Retry, SlidingCounter, SlidingLog, Token,
};

pub unsafe extern "C" fn command(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let context = Context(ctx);
    // SAFETY: the server hands over its arguments for the time of the call.
    let argv = unsafe { Argv::new(argv, argc) };
    let mut limits = Limits::new();
    match multi(context, argv, &mut limits) {
        Ok(()) => reply(context, &limits),
        Err(failure) => failure.reply(context),
    }
}

/// A key with its clause, and what becomes of it.
struct Limit {
    key: Text,
    handle: Handle,
    call: Call,
    steps: &'static Steps,
    decision: Decision,
}

/// The limits of a call, in order.
type Limits = SmallVec<[Limit; 4]>;

/// One algorithm's part in a call of several.
struct Steps {
    decide: fn(&Handle, &Call) -> Result<Decision, Failure>,
    charge: fn(Context, &Limit),
    note: fn(Context, &Limit),
    fits_key: fn(&Handle) -> Result<(), Failure>,
}

const fn steps<L: Limiter>() -> Steps {
    Steps {
        decide: |handle, call| Slot::<L>::new(handle)?.decide(call),
        charge: |context, limit| {
            if let (Some(charge), Ok(slot)) = (
                limit.decision.charge(&limit.call),
                Slot::<L>::new(&limit.handle),
            ) {
                slot.charge(charge);
                keyspace::charged(
                    context,
                    limit.key,
                    &limit.handle,
                    limit.decision.verdict.reset_after_us,
                );
            }
        },
        note: |context, limit| check::note::<L>(context, limit.key, &limit.call, &limit.decision),
        fits_key: |handle| Slot::<L>::new(handle).map(|_| ()),
    }
}

const fn steps_of(algorithm: Algorithm) -> &'static Steps {
    match algorithm {
        Algorithm::Fixed => &const { steps::<Fixed>() },
        Algorithm::SlidingLog => &const { steps::<SlidingLog>() },
        Algorithm::SlidingCounter => &const { steps::<SlidingCounter>() },
        Algorithm::Token => &const { steps::<Token>() },
        Algorithm::Gcra => &const { steps::<Gcra>() },
    }
}

fn multi(context: Context, argv: Argv<'_>, limits: &mut Limits) -> Result<(), Failure> {
    let mut clauses = Clauses::new();
    let (now, mode) = args::parse_multi(&argv.from(1), &mut clauses)?;
    let time = Time::of(context, now)?;
    for (clause, &key) in clauses.iter().zip(argv.from(FIRST_KEY).all()) {
        let &Clause {
            algorithm,
            policy,
            cost,
        } = clause;
        let steps = steps_of(algorithm);
        let handle = Handle::open(context, key);
        let call = Call {
            policy,
            now_us: time.us,
            cost,
            mode,
        };
        match (steps.decide)(&handle, &call) {
            Ok(decision) => limits.push(Limit {
                key,
                handle,
                call,
                steps,
                decision,
            }),
            Err(failure) => {
                drop(handle);
                return Err(first_failure(
                    context,
                    argv,
                    &clauses,
                    limits.len(),
                    failure,
                ));
            }
        }
    }
    let denied = |limit: &Limit| limit.decision.verdict.allowed == 0;
    if mode == Mode::Charge && limits.iter().any(denied) {
        for limit in limits.iter_mut() {
            if denied(limit) {
                (limit.steps.note)(context, limit);
            }
            // Nothing is charged: each limiter is as a look finds it.
            limit.decision = (limit.steps.decide)(
                &limit.handle,
                &Call {
                    mode: Mode::Peek,
                    ..limit.call
                },
            )?;
        }
        return Ok(());
    }
    for limit in limits.iter() {
        (limit.steps.charge)(context, limit);
        (limit.steps.note)(context, limit);
    }
    if limits.iter().any(|limit| limit.decision.units.is_some()) {
        time.replicate(context, argv, FIRST_KEY.saturating_add(limits.len()));
    }
    Ok(())
}

/// `RL.MULTI numkeys key … now …`
const FIRST_KEY: usize = 2;

/// The failure to be told where the clause at `failed` has one: a key of a wrong type goes before
/// a debt that is too large, wherever it stands.
#[cold]
fn first_failure(
    context: Context,
    argv: Argv<'_>,
    clauses: &[Clause],
    failed: usize,
    failure: Failure,
) -> Failure {
    let mut first = (failed, failure);
    if matches!(first.1, Failure::Debt) {
        let keys = argv.from(FIRST_KEY).all();
        for (index, (clause, &key)) in clauses.iter().zip(keys).enumerate().skip(failed) {
            if let Err(failure) = (steps_of(clause.algorithm).fits_key)(&Handle::open(context, key))
            {
                first = (index, failure);
                break;
            }
        }
    }
    Failure::InClause {
        number: first.0.saturating_add(1),
        failure: Box::new(first.1),
    }
}

fn reply(context: Context, limits: &Limits) -> c_int {
    let verdicts = || limits.iter().map(|limit| &limit.decision.verdict);
    let allowed = verdicts().all(|verdict| verdict.allowed > 0);
    let never = verdicts().any(|verdict| verdict.retry == Retry::Never);
    let longest = verdicts()
        .map(|verdict| check::retry_after(verdict.retry, check::millis))
        .max()
        .unwrap_or(0);
    context.reply_array(3);
    context.reply_integer(i64::from(allowed));
    context.reply_integer(if never { -1 } else { longest });
    context.reply_array(limits.len());
    for verdict in verdicts() {
        context.reply_integers(&wire(verdict));
    }
    super::api::OK
}
