//! `RL.MULTI`: several limiters, all charged or none.

use std::ffi::c_int;

use redis_module::raw;
use smallvec::SmallVec;

use super::api::{Argv, Context, Handle, OK, Text};
use super::check::{self, wire};
use super::clock::Time;
use super::failure::Failure;
use super::keyspace::Slot;
use super::{commands, stats};
use crate::args::{self, Clause, Clauses};
use crate::limit::{Call, Decision, ForAlgorithm, Limiter, Mode, Retry};

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
    /// `None` once the key is closed.
    handle: Option<Handle>,
    call: Call,
    steps: Steps,
    decision: Decision,
}

/// The limits of a call, in order.
type Limits = SmallVec<[Limit; 4]>;

/// One algorithm's part in a call of several.
#[derive(Clone, Copy)]
struct Steps {
    fits_key: fn(&Handle) -> Result<(), Failure>,
    decide: fn(&Handle, &Call) -> Result<Decision, Failure>,
    charge: fn(&Handle, &Call, &Decision) -> Result<(), Failure>,
    follow: fn(Context, Text, &Call, &Decision),
}

struct StepsOf;

impl ForAlgorithm for StepsOf {
    type Output = Steps;

    #[inline]
    fn with<L: Limiter>(self) -> Steps {
        Steps {
            fits_key: |handle| Slot::<L>::new(handle).map(|_| ()),
            decide: |handle, call| Slot::<L>::new(handle)?.decide(call),
            charge: |handle, call, decision| {
                if let Some(charge) = decision.charge(call) {
                    Slot::<L>::new(handle)?.charge(charge, decision.verdict.reset_after_us);
                }
                Ok(())
            },
            follow: check::follow::<L>,
        }
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
        let steps = algorithm.run(StepsOf);
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
                handle: Some(handle),
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
    let denied = mode == Mode::Charge && limits.iter().any(is_denied);
    for limit in limits.iter_mut() {
        let Some(handle) = &limit.handle else {
            continue;
        };
        if denied {
            // Nothing is charged: each limiter is as a look finds it.
            limit.decision = (limit.steps.decide)(
                handle,
                &Call {
                    mode: Mode::Peek,
                    ..limit.call
                },
            )?;
        } else {
            (limit.steps.charge)(handle, &limit.call, &limit.decision)?;
        }
    }
    for limit in limits.iter_mut() {
        limit.handle = None;
    }
    for limit in limits.iter() {
        // One that would have been allowed is not counted: nothing came of it.
        if !denied || is_denied(limit) {
            (limit.steps.follow)(context, limit.key, &limit.call, &limit.decision);
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
    let verdicts = || limits.iter().map(|limit| &limit.decision.verdict);
    let allowed = verdicts().all(|verdict| verdict.allowed > 0);
    let never = verdicts().any(|verdict| verdict.retry == Retry::Never);
    let waits = verdicts().map(|verdict| check::retry_after(verdict.retry, check::millis));
    let longest = waits.max().unwrap_or(0);
    context.reply_array(3);
    context.reply_integer(i64::from(allowed));
    context.reply_integer(if never { -1 } else { longest });
    context.reply_array(limits.len());
    for verdict in verdicts() {
        context.reply_integers(&wire(verdict));
    }
    OK
}
