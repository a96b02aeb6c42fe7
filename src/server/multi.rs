//! `RL.MULTI`: several limiters, all charged or none.

use std::ffi::c_int;

use smallvec::SmallVec;

use super::api::{self, Argv, Context, Handle, OK, Text};
use super::check::{self, wire};
use super::clock::Time;
use super::failure::Failure;
use super::keyspace::{self, Slot};
use super::value::Value;
use super::{commands, stats};
use crate::args::{self, Clause};
use crate::limit::{Call, Decision, ForAlgorithm, Limiter, Mode};

pub fn command(context: Context, argv: Argv<'_>) -> c_int {
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

/// A clause, and what becomes of it.
struct Limit {
    clause: Clause,
    /// What its key holds.
    value: Option<Value>,
    /// `None` until the key is looked at.
    decision: Option<Decision>,
}

/// The limits of a call, in order. A few of them need no memory of their own.
type Limits = SmallVec<[Limit; 4]>;

/// What all limits of a call share.
#[derive(Clone, Copy)]
struct Asked {
    now_us: u64,
    mode: Mode,
}

impl Limit {
    #[inline]
    const fn call(&self, Asked { now_us, mode }: Asked) -> Call {
        let Clause { policy, cost, .. } = self.clause;
        Call {
            policy,
            now_us,
            cost,
            mode,
        }
    }

    fn steps(&self) -> &'static Steps {
        self.clause.algorithm.run(StepsOf)
    }

    fn is_denied(&self) -> bool {
        let denied = |decision: &Decision| decision.verdict.allowed == 0;
        self.decision.as_ref().is_some_and(denied)
    }

    fn charges(&self) -> bool {
        let charges = |decision: &Decision| decision.units.is_some();
        self.decision.as_ref().is_some_and(charges)
    }
}

/// One algorithm's part in a call of several.
struct Steps {
    fits_key: fn(&Handle) -> Result<(), Failure>,
    decide: fn(&Handle, &mut Limit, Asked) -> Result<(), Failure>,
    charge: fn(&Handle, &Limit, Asked) -> Result<(), Failure>,
    follow: fn(Context, Text, &Limit, Asked),
}

struct StepsOf;

impl ForAlgorithm for StepsOf {
    type Output = &'static Steps;

    #[inline]
    fn with<L: Limiter>(self) -> &'static Steps {
        const {
            &Steps {
                fits_key: |handle| Slot::<L>::new(handle).map(|_| ()),
                decide: |handle, limit, asked| {
                    limit.value = keyspace::value(handle)?;
                    // SAFETY: it is the key's value.
                    let slot = unsafe { Slot::<L>::with(handle, limit.value) }?;
                    limit.decision = Some(slot.decide(&limit.call(asked))?);
                    Ok(())
                },
                charge: |handle, limit, asked| {
                    if let Some(decision) = &limit.decision
                        && let Some(charge) = decision.charge(&limit.call(asked))
                    {
                        // It was found there when the call was decided, so this does not fail.
                        // SAFETY: nothing else ran since, so it still is the key's value.
                        let slot = unsafe { Slot::<L>::with(handle, limit.value) }?;
                        slot.charge(charge, decision.verdict.reset_after_us);
                    }
                    Ok(())
                },
                follow: |context, key, limit, asked| {
                    if let Some(decision) = &limit.decision {
                        check::follow::<L>(context, key, &limit.call(asked), decision);
                    }
                },
            }
        }
    }
}

fn multi(context: Context, argv: Argv<'_>, limits: &mut Limits) -> Result<(), Failure> {
    let (now, mode) = args::parse_multi(&argv.from(1), |clause| {
        limits.push(Limit {
            clause,
            value: None,
            decision: None,
        });
    })?;
    let time = Time::of(context, now)?;
    let now_us = time.us;
    let asked = Asked { now_us, mode };
    let keys = argv.from(FIRST_KEY).all();
    let opened = keys.iter().take(limits.len());
    let handles: SmallVec<[Handle; 4]> = opened.map(|&key| Handle::open(context, key)).collect();
    // All keys are open before the first is looked at: opening one may expire it, and others hear of that.
    for (index, (limit, handle)) in limits.iter_mut().zip(&handles).enumerate() {
        if let Err(failure) = (limit.steps().decide)(handle, limit, asked) {
            drop(handles);
            return Err(first_failure(context, argv, limits, index, failure));
        }
    }
    let denied = mode == Mode::Charge && limits.iter().any(Limit::is_denied);
    for (limit, handle) in limits.iter_mut().zip(&handles) {
        if !denied {
            (limit.steps().charge)(handle, limit, asked)?;
        } else if !limit.is_denied() {
            // Nothing is charged: the limiter is as a look finds it.
            let mode = Mode::Peek;
            (limit.steps().decide)(handle, limit, Asked { now_us, mode })?;
        }
    }
    drop(handles);
    let mut charged = false;
    for (limit, &key) in limits.iter().zip(keys) {
        // One that would have been allowed is not counted: nothing came of it.
        if !denied || limit.is_denied() {
            (limit.steps().follow)(context, key, limit, asked);
        }
        charged |= limit.charges();
    }
    if charged && api::replicates_by_key() {
        let charges = limits.iter().zip(keys).filter(|(limit, _)| limit.charges());
        for (limit, &key) in charges {
            context.replicate_charge(limit.clause.algorithm, key, &limit.call(asked));
        }
    } else if charged {
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
    limits: &Limits,
    failed: usize,
    failure: Failure,
) -> Failure {
    let mut first = (failed, failure);
    if matches!(first.1, Failure::Debt) {
        let keys = argv.from(FIRST_KEY).all();
        for (index, (limit, &key)) in limits.iter().zip(keys).enumerate().skip(failed) {
            if let Err(failure) = (limit.steps().fits_key)(&Handle::open(context, key)) {
                first = (index, failure);
                break;
            }
        }
    }
    let (index, failure) = first;
    if let Some(limit) = limits.get(index) {
        stats::of(limit.clause.algorithm).errors.add(1);
    }
    Failure::InClause {
        number: index.saturating_add(1),
        failure: Box::new(failure),
    }
}

fn reply(context: Context, limits: &Limits) -> c_int {
    let verdicts = || {
        limits
            .iter()
            .filter_map(|limit| Some(limit.decision.as_ref()?.verdict))
    };
    let mut allowed = 1;
    // −1, for never, is longer than any wait.
    let mut longest = 0;
    for verdict in verdicts() {
        let wait = check::retry_after(verdict.retry, check::millis);
        if verdict.allowed == 0 {
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
    for verdict in verdicts() {
        context.reply_integers(&wire(&verdict));
    }
    OK
}
