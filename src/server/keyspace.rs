//! A key: what it holds, what a charge does to it, and how long it lives.

use std::sync::atomic::Ordering;

use super::api::{Context, Handle, Held, Text};
use super::failure::Failure;
use super::value::{Found, Place, Value};
use super::{config, data_type};
use crate::limit::{Call, Charge, Decision, Limiter, State, decide};

/// A key opened for a limiter of algorithm `L`.
pub struct Slot<'a, L> {
    handle: &'a Handle,
    /// `None`: the key is missing.
    found: Option<Found<'a, L>>,
}

impl<'a, L: Limiter> Slot<'a, L> {
    /// Fails if the key holds anything else.
    #[inline(always)]
    pub fn new(handle: &'a Handle) -> Result<Self, Failure> {
        let value = value(handle)?;
        // SAFETY: it is the key's value.
        unsafe { Self::with(handle, value) }
    }

    /// The same where the key's [`value`] is known.
    ///
    /// # Safety
    /// `value` is what the key holds.
    #[inline(always)]
    pub unsafe fn with(handle: &'a Handle, value: Option<Value>) -> Result<Self, Failure> {
        let other = |holds| Failure::OtherAlgorithm {
            holds,
            asked: L::ALGORITHM,
        };
        let found = match value {
            // SAFETY: the caller's promise; and nothing else runs while the handle is open.
            Some(value) => Some(unsafe { value.find::<L>() }.map_err(other)?),
            None => None,
        };
        Ok(Self { handle, found })
    }

    #[inline(always)]
    pub fn decide(&self, call: &Call) -> Result<Decision, Failure> {
        let state = match &self.found {
            Some(Found::Narrow(_, state)) => Some(state),
            Some(Found::Boxed(state)) => Some(&**state),
            None => None,
        };
        Ok(decide(&L::view(state, call.policy, call.now_us), call)?)
    }

    /// Charges, and lets the key live until what is charged is forgotten.
    #[inline(always)]
    pub fn charge(self, charge: Charge, reset_after_us: u64) {
        match self.found {
            Some(Found::Narrow(words, mut state)) => {
                state.charge(charge);
                match state.pack() {
                    // SAFETY: the key's words, which nobody else has while it is open.
                    Some(packed) => unsafe { words.write(packed) },
                    None => put(self.handle, state.into(), true),
                }
            }
            Some(Found::Boxed(state)) => state.charge(charge),
            None => put(self.handle, L::fresh(charge).into(), false),
        }
        keep_for(self.handle, reset_after_us);
    }
}

/// The limiter that the key holds, if it exists. Fails if it holds anything else.
#[inline]
pub fn value(handle: &Handle) -> Result<Option<Value>, Failure> {
    match handle.held(data_type::pointer()) {
        Held::Nothing => Ok(None),
        // SAFETY: the type is ours, so `put` or a load made the pointer from a value.
        Held::Ours(pointer) => Ok(Some(unsafe { Value::from_pointer(pointer) })),
        Held::Other(holds) => Err(Failure::NotALimiter(holds)),
    }
}

/// Gives the key this state; `replace` if it holds one.
pub fn put(handle: &Handle, state: State, replace: bool) {
    let new = Value::new(state);
    if !replace {
        handle.set(data_type::pointer(), new.pointer());
    } else if let Some(old) = handle.replace(data_type::pointer(), new.pointer()) {
        // SAFETY: the key held this value, and has given it up.
        unsafe { Value::from_pointer(old).free() };
    }
}

/// Looks at the limiter that the key holds, if it exists. Fails if it holds anything else.
pub fn with_state<R>(
    handle: &Handle,
    look: impl FnOnce(&State) -> R,
) -> Result<Option<R>, Failure> {
    // SAFETY: the value is the key's, and nothing else runs while the handle is open.
    Ok(value(handle)?.map(|value| unsafe { value.look(look) }))
}

/// The same for changing it. What fits into 32 bytes still does when units are given back.
pub fn with_state_mut<R>(
    handle: &Handle,
    change: impl FnOnce(&mut State) -> R,
) -> Result<Option<R>, Failure> {
    // SAFETY: the value is the key's, and nothing else runs while the handle is open.
    let place = value(handle)?.map(|value| unsafe { value.place() });
    Ok(place.map(|place| match place {
        Place::Narrow(algorithm, words) => {
            let mut state = algorithm.unpack(words);
            let result = change(&mut state);
            *words = state.pack().unwrap_or(*words);
            result
        }
        Place::Boxed(state) => change(state),
    }))
}

/// What follows every charge, but for replication. Others may act on it at once, so no key is open
/// any more.
#[inline]
pub fn announce_charge(context: Context, key: Text) {
    context.signal_modified(key);
    context.notify(c"rl.charge", key);
}

/// Lets the key live for `reset_after_us` and the margin. It is touched only where the server's own answer has left the upper half of the margin.
#[inline(always)]
fn keep_for(handle: &Handle, reset_after_us: u64) {
    let margin_ms = config::TTL_MARGIN_MS.load(Ordering::Relaxed);
    let reset_after_ms = i64::try_from(reset_after_us.div_ceil(1000)).unwrap_or(i64::MAX / 2);
    let most_ms = reset_after_ms.saturating_add(margin_ms);
    let least_ms = most_ms.saturating_sub(margin_ms / 2);
    if !(least_ms..=most_ms).contains(&handle.ttl_ms()) {
        handle.set_ttl_ms(most_ms);
    }
}
