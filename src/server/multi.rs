//! `RL.MULTI`: several limiters, all charged or none.

use std::ffi::c_int;

use redis_module::raw;
use smallvec::SmallVec;

use super::api::{Argv, Context, Handle, OK, Text};
use super::check::{self, wire};
use super::clock::Time;
use super::failure::Failure;
use super::keyspace::{self, Slot};
use super::value::Value;
use super::{commands, stats};
use crate::args::{self, Clause, Clauses};
use crate::limit::{Call, Decision, ForAlgorithm, Limiter, Mode};

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
    let mut limits = Limits::new();
    match multi(context, argv, &mut limits) {
        Ok(()) => reply(context, &limits),
        Err(failure) => failure.reply(context),
    }
}

/// A key with its clause, and what becomes of it.
struct Limit {
    key: Text,
    /// What the key holds.
    value: Option<Value>,
    call: Call,
    steps: &'static Steps,
    decision: Decision,
}

/// The limits of a call, in order. A few of them need no memory of their own.
type Limits = SmallVec<[Limit; 4]>;

/// One algorithm's part in a call of several.
struct Steps {
    fits_key: fn(&Handle) -> Result<(), Failure>,
    /// Decides, and adds the limit to the others.
    decide: fn(Text, &Handle, Call, &mut Limits) -> Result<(), Failure>,
    peek: fn(&Handle, &mut Limit) -> Result<(), Failure>,
    charge: fn(&Handle, &Limit) -> Result<(), Failure>,
    follow: fn(Context, &Limit),
}

struct StepsOf;

impl ForAlgorithm for StepsOf {
    type Output = &'static Steps;

    #[inline]
    fn with<L: Limiter>(self) -> &'static Steps {
        const {
            &Steps {
                fits_key: |handle| Slot::<L>::new(handle).map(|_| ()),
                decide: |key, handle, call, limits| {
                    let value = keyspace::value(handle)?;
                    let decision = Slot::<L>::with(handle, value)?.decide(&call)?;
                    limits.push(Limit {
                        key,
                        value,
                        call,
                        steps: StepsOf.with::<L>(),
                        decision,
                    });
                    Ok(())
                },
                peek: |handle, limit| {
                    let slot = Slot::<L>::with(handle, limit.value)?;
                    limit.decision = slot.decide(&Call {
                        mode: Mode::Peek,
                        ..limit.call
                    })?;
                    Ok(())
                },
                charge: |handle, limit| {
                    if let Some(charge) = limit.decision.charge(&limit.call) {
                        let slot = Slot::<L>::with(handle, limit.value)?;
                        slot.charge(charge, limit.decision.verdict.reset_after_us);
                    }
                    Ok(())
                },
                follow: |context, limit| {
                    check::follow::<L>(context, limit.key, &limit.call, &limit.decision);
                },
            }
        }
    }
}

fn multi(context: Context, argv: Argv<'_>, limits: &mut Limits) -> Result<(), Failure> {
    let mut clauses = Clauses::new();
    let (now, mode) = args::parse_multi(&argv.from(1), &mut clauses)?;
    let time = Time::of(context, now)?;
    let mut handles = SmallVec::<[Handle; 4]>::new();
    for (clause, &key) in clauses.iter().zip(argv.from(FIRST_KEY).all()) {
        let call = Call {
            policy: clause.policy,
            now_us: time.us,
            cost: clause.cost,
            mode,
        };
        let handle = Handle::open(context, key);
        let decided = (clause.algorithm.run(StepsOf).decide)(key, &handle, call, limits);
        handles.push(handle);
        if let Err(failure) = decided {
            drop(handles);
            let failed = limits.len();
            return Err(first_failure(context, argv, &clauses, failed, failure));
        }
    }
    let denied = mode == Mode::Charge && limits.iter().any(is_denied);
    for (limit, handle) in limits.iter_mut().zip(&handles) {
        if !denied {
            (limit.steps.charge)(handle, limit)?;
        } else if !is_denied(limit) {
            // Nothing is charged: the limiter is as a look finds it.
            (limit.steps.peek)(handle, limit)?;
        }
    }
    drop(handles);
    for limit in limits.iter() {
        // One that would have been allowed is not counted: nothing came of it.
        if !denied || is_denied(limit) {
            (limit.steps.follow)(context, limit);
        }
    }
    if limits.iter().any(|limit| limit.decision.units.is_some()) {
        time.replicate(context, argv, FIRST_KEY.saturating_add(limits.len()));
    }
    Ok(())
}

fn is_denied(limit: &Limit) -> bool {
    limit.decision.verdict.allowed == 0
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
            let fits_key = clause.algorithm.run(StepsOf).fits_key;
            if let Err(failure) = fits_key(&Handle::open(context, key)) {
                first = (index, failure);
                break;
            }
        }
    }
    let (index, failure) = first;
    if let Some(Clause { algorithm, .. }) = clauses.get(index) {
        stats::of(*algorithm).errors.add(1);
    }
    Failure::InClause {
        number: index.saturating_add(1),
        failure: Box::new(failure),
    }
}

fn reply(context: Context, limits: &Limits) -> c_int {
    let mut allowed = 1;
    // −1, for never, is longer than any wait.
    let mut longest = 0;
    for Limit { decision, .. } in limits {
        let wait = check::retry_after(decision.verdict.retry, check::millis);
        if decision.verdict.allowed == 0 {
            allowed = 0;
        }
        if longest != -1 && (wait == -1 || wait > longest) {
            longest = wait;
        }
    }
    context.reply_array(3);
    context.reply_integer(allowed);
    context.reply_integer(longest);
    context.reply_array(limits.len());
    for Limit { decision, .. } in limits {
        context.reply_integers(&wire(&decision.verdict));
    }
    OK
}
