//! `RL.MULTI`: several limiters, all charged or none.

use std::ffi::c_int;

use redis_module::raw;

use super::api::{Argv, Context, Handle, OK, Text};
use super::check::{self, wire};
use super::clock::Time;
use super::commands;
use super::failure::Failure;
use super::keyspace::{self, Slot};
use super::stats;
use crate::args::{self, Clause};
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
    if context.is_keys_request() {
        for index in args::multi_keys(&argv.from(1)) {
            // The command's name comes before all.
            context.key_at(index.saturating_add(1), commands::CHARGE);
        }
        return OK;
    }
    match multi(context, argv) {
        Ok(decisions) => reply(context, &decisions),
        Err(failure) => failure.reply(context),
    }
}

/// A key with its clause, and how the clause's algorithm is worked.
struct Limit {
    key: Text,
    handle: Handle,
    algorithm: Algorithm,
    call: Call,
    steps: &'static Steps,
}

/// One algorithm's part in a call of several.
struct Steps {
    fits_key: fn(&Handle) -> Result<(), Failure>,
    decide: fn(&Handle, &Call) -> Result<Decision, Failure>,
    charge: fn(Context, &Limit, &Decision) -> Result<(), Failure>,
    note: fn(Context, Text, &Call, &Decision),
}

const fn steps<L: Limiter>() -> Steps {
    Steps {
        fits_key: |handle| Slot::<L>::new(handle).map(|_| ()),
        decide: |handle, call| Slot::<L>::new(handle)?.decide(call),
        charge: |context, limit, decision| {
            if let Some(charge) = decision.charge {
                Slot::<L>::new(&limit.handle)?.charge(charge);
                keyspace::charged(
                    context,
                    limit.key,
                    &limit.handle,
                    decision.verdict.reset_after_us,
                );
            }
            Ok(())
        },
        note: check::note::<L>,
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

fn multi(context: Context, argv: Argv<'_>) -> Result<Vec<Decision>, Failure> {
    let multi = args::parse_multi(&argv.from(1))?;
    let time = Time::of(context, multi.now)?;
    let keys = argv.from(2).all();
    let limits: Vec<Limit> = multi
        .clauses
        .iter()
        .zip(keys)
        .map(
            |(
                &Clause {
                    algorithm,
                    policy,
                    cost,
                },
                &key,
            )| Limit {
                key,
                handle: Handle::open(context, key),
                algorithm,
                call: Call {
                    policy,
                    now_us: time.us,
                    cost,
                    mode: multi.mode,
                },
                steps: steps_of(algorithm),
            },
        )
        .collect();
    in_clauses(&limits, |limit| (limit.steps.fits_key)(&limit.handle))?;
    let decisions = in_clauses(&limits, |limit| {
        (limit.steps.decide)(&limit.handle, &limit.call)
    })?;
    if multi.mode == Mode::Charge
        && decisions
            .iter()
            .any(|decision| decision.verdict.allowed == 0)
    {
        for (limit, decision) in limits.iter().zip(&decisions) {
            if decision.verdict.allowed == 0 {
                (limit.steps.note)(context, limit.key, &limit.call, decision);
            }
        }
        // Nothing is charged: each limiter is as a look finds it.
        return in_clauses(&limits, |limit| {
            (limit.steps.decide)(
                &limit.handle,
                &Call {
                    mode: Mode::Peek,
                    ..limit.call
                },
            )
        });
    }
    for (limit, decision) in limits.iter().zip(&decisions) {
        (limit.steps.charge)(context, limit, decision)?;
        (limit.steps.note)(context, limit.key, &limit.call, decision);
    }
    if decisions.iter().any(|decision| decision.charge.is_some()) {
        time.replicate(context, argv, keys_end(decisions.len()));
    }
    Ok(decisions)
}

/// `RL.MULTI numkeys key …`: where the keys end, and `now` stands.
const fn keys_end(numkeys: usize) -> usize {
    numkeys.saturating_add(2)
}

/// Does `step` for each clause in turn; a failure names the clause.
fn in_clauses<T>(
    limits: &[Limit],
    step: impl Fn(&Limit) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    let numbered = |(index, limit): (usize, &Limit)| {
        step(limit).map_err(|failure| {
            stats::of(limit.algorithm).errors.add(1);
            Failure::InClause {
                number: index.saturating_add(1),
                failure: Box::new(failure),
            }
        })
    };
    limits.iter().enumerate().map(numbered).collect()
}

fn reply(context: Context, decisions: &[Decision]) -> c_int {
    let verdicts = || decisions.iter().map(|decision| &decision.verdict);
    let allowed = verdicts().all(|verdict| verdict.allowed > 0);
    let never = verdicts().any(|verdict| verdict.retry == Retry::Never);
    let longest = verdicts()
        .map(|verdict| check::retry_after(verdict.retry, check::millis))
        .max()
        .unwrap_or(0);
    context.reply_array(3);
    context.reply_integer(i64::from(allowed));
    context.reply_integer(if never { -1 } else { longest });
    context.reply_array(decisions.len());
    for verdict in verdicts() {
        context.reply_integers(&wire(verdict));
    }
    OK
}
