//! The five algorithms, pure: no Redis, no clock, no floats, no panics.
//!
//! Time comes in as an argument, in whole microseconds; counts are whole units. Every algorithm
//! answers the same few questions about its state at one instant under one policy (a [`View`]),
//! and [`decide`] turns the answers into a [`Decision`]. A decision never touches the state: what
//! is to be charged is handed back, and [`Limiter::charge`] applies it.
//!
//! | file | algorithm | state |
//! |---|---|---|
//! | [`fixed`] | fixed window | units used in the window of the last charge |
//! | [`sliding_log`] | sliding log | every charge with its time, packed |
//! | [`sliding_counter`] | sliding counter | units of this window and of the one before |
//! | [`bucket`] | token bucket and GCRA | spent units with their exact fraction |

use std::num::NonZeroU64;

pub mod bucket;
pub mod fixed;
pub mod narrow;
pub mod sliding_counter;
pub mod sliding_log;
mod state;

pub use bucket::{Gcra, Token};
pub use fixed::Fixed;
pub use sliding_counter::SlidingCounter;
pub use sliding_log::SlidingLog;
pub use state::{Algorithm, ForAlgorithm, Inspection, Named, State};

/// The largest count anywhere: 2⁵³ − 1, which every client language can hold.
pub const MAX_UNITS: u64 = 9_007_199_254_740_991;
/// The latest `now`: 2⁵³ − 1 µs, in the year 2255.
pub const MAX_NOW_US: u64 = 9_007_199_254_740_991;
/// The longest window: 100 years of 365.25 days.
pub const MAX_WINDOW_US: u64 = 3_155_760_000_000_000;
/// The longest time a full bucket, or a debt, may take to drain: 1000 years.
pub const MAX_DRAIN_US: u64 = 31_557_600_000_000_000;

/// `limit` units per window, and the most that can be admitted at once. One that is out of range
/// cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    limit: u64,
    window_us: u64,
    burst: u64,
}

impl Policy {
    /// `None` where a part is out of its range, or a full bucket takes over 1000 years to drain.
    #[inline]
    #[must_use]
    pub const fn new(limit: u64, window_us: u64, burst: u64) -> Option<Self> {
        let ranges = limit >= 1
            && limit <= MAX_UNITS
            && window_us >= 1
            && window_us <= MAX_WINDOW_US
            && burst >= 1
            && burst <= MAX_UNITS;
        // A burst up to the limit drains within one window.
        if ranges
            && (burst <= limit || wide(burst) * wide(window_us) <= wide(MAX_DRAIN_US) * wide(limit))
        {
            Some(Self {
                limit,
                window_us,
                burst,
            })
        } else {
            None
        }
    }

    /// Units per window.
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    #[inline]
    #[must_use]
    pub const fn window_us(&self) -> u64 {
        self.window_us
    }

    /// The most that can be admitted at once: the burst of TOKEN and GCRA, elsewhere the limit.
    #[inline]
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst
    }
}

/// What a call does with its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All of it or nothing.
    Charge,
    /// Looks only.
    Peek,
    /// All of it, whatever fits.
    Force,
    /// As much of it as fits.
    Partial,
}

/// A question to a limiter.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub policy: Policy,
    pub now_us: u64,
    pub cost: u64,
    pub mode: Mode,
}

/// When a denied call would be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It is allowed.
    Now,
    AfterUs(u64),
    /// The cost exceeds what can ever be admitted at once.
    Never,
}

/// The five fields of every reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// 1 or 0; the units granted with [`Mode::Partial`].
    pub allowed: u64,
    pub limit: u64,
    pub remaining: u64,
    pub retry: Retry,
    pub reset_after_us: u64,
}

/// Units to be charged at a time under a policy.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    pub policy: Policy,
    pub now_us: u64,
    pub units: u64,
}

/// A verdict, and the units to be charged to make it true. A refusal has none.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    pub verdict: Verdict,
    pub units: Option<NonZeroU64>,
}

impl Decision {
    /// The change that `call` asks for.
    #[inline]
    #[must_use]
    pub fn charge(&self, call: &Call) -> Option<Charge> {
        let Call { policy, now_us, .. } = *call;
        self.units.map(|units| Charge {
            policy,
            now_us,
            units: units.get(),
        })
    }
}

/// A forced charge whose debt would pass [`MAX_UNITS`] or [`MAX_DRAIN_US`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebtTooLarge;

/// What giving units back did to a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refunded {
    /// Nothing was spent at that time.
    Unchanged,
    Changed,
    /// Nothing is left spent: the limiter is a fresh one.
    Emptied,
}

/// A state at one instant under one policy. `used` never grows while nothing is charged.
pub trait View {
    /// Units in use, rounded up.
    fn used(&self) -> u64;
    /// Time until at most `target` units are in use. Asked only for a `target` below [`View::used`].
    fn wait_us(&self, target: u64) -> u64;
    /// Time until nothing charged so far counts.
    fn reset_us(&self) -> u64;
    /// The same, after `units` (at least 1) are charged now.
    fn reset_after_charge_us(&self, units: u64) -> u64;
    /// True if the debt left by charging `units` now drains within [`MAX_DRAIN_US`]. A window is
    /// shorter than that; only a bucket can fail.
    fn drains_in_time(&self, _units: u64) -> bool {
        true
    }
}

/// One algorithm's state.
pub trait Limiter: Named {
    type View<'a>: View
    where
        Self: 'a;

    /// The state, or a missing key's, as it is at `now_us` under `policy`. A `now_us` before the
    /// last charge counts as that charge's.
    fn view(state: Option<&Self>, policy: Policy, now_us: u64) -> Self::View<'_>;
    /// The state that the first charge makes.
    fn fresh(charge: Charge) -> Self;
    fn charge(&mut self, charge: Charge);
    /// Gives back up to `units`, the newest first, under the policy last charged.
    fn refund(&mut self, units: u64, now_us: u64) -> Refunded;
    /// The policy last charged.
    fn policy(&self) -> Policy;
    /// The newest time it was charged at.
    fn updated_us(&self) -> u64;
    /// The state in 32 bytes, if it fits.
    fn pack(&self) -> Option<narrow::Words>;
    fn unpack(words: &narrow::Words) -> Self;
}

/// What the call answers, and what it would charge.
///
/// # Errors
/// [`DebtTooLarge`] for a forced charge over the bounds of a debt.
#[inline(always)]
pub fn decide(view: &impl View, call: &Call) -> Result<Decision, DebtTooLarge> {
    let capacity = call.policy.burst;
    let used = view.used();
    let room = capacity.saturating_sub(used);
    // A free call fits while the limiter is not in debt.
    let fits = call.cost <= room && used <= capacity;
    let (allowed, units, asked) = match call.mode {
        Mode::Peek => (u64::from(fits), 0, call.cost),
        Mode::Charge => (u64::from(fits), if fits { call.cost } else { 0 }, call.cost),
        Mode::Force => (1, call.cost, call.cost),
        Mode::Partial => {
            let granted = room.min(call.cost);
            (granted, granted, 1)
        }
    };
    let used_after = used.saturating_add(units);
    let debt = used_after.saturating_sub(capacity);
    if debt > 0 && units > 0 && (debt > MAX_UNITS || !view.drains_in_time(units)) {
        return Err(DebtTooLarge);
    }
    let retry = if allowed > 0 {
        Retry::Now
    } else {
        match capacity.checked_sub(asked) {
            Some(target) => Retry::AfterUs(view.wait_us(target)),
            None => Retry::Never,
        }
    };
    Ok(Decision {
        verdict: Verdict {
            allowed,
            limit: capacity,
            remaining: capacity.saturating_sub(used_after),
            retry,
            reset_after_us: if units > 0 {
                view.reset_after_charge_us(units)
            } else {
                view.reset_us()
            },
        },
        units: NonZeroU64::new(units),
    })
}

/// Time until `remaining` grows, 0 if nothing is in use: the `t` of the IETF `RateLimit` header.
pub fn next_after_us(view: &impl View, policy: Policy) -> u64 {
    match view.used().min(policy.burst) {
        0 => 0,
        shown => view.wait_us(shown.saturating_sub(1)),
    }
}

/// The start of the window of length `window_us` that holds `at_us`. Windows are aligned to time 0.
#[inline]
pub(crate) const fn window_start_us(at_us: u64, window_us: u64) -> u64 {
    match at_us.checked_rem(window_us) {
        Some(into) => at_us.saturating_sub(into),
        None => at_us,
    }
}

#[inline]
pub(crate) const fn wide(x: u64) -> u128 {
    x as u128 // widening; `From` is not const
}

/// ⌊a / b⌋ for a quotient that fits; `b` is never 0.
#[inline]
pub(crate) fn div_floor(a: u128, b: u64) -> u64 {
    match u64::try_from(a) {
        Ok(a) => a.checked_div(b).unwrap_or(u64::MAX),
        Err(_) => a
            .checked_div(wide(b))
            .and_then(|q| u64::try_from(q).ok())
            .unwrap_or(u64::MAX),
    }
}

/// ⌈a / b⌉ for a quotient that fits; `b` is never 0.
#[inline]
pub(crate) fn div_ceil(a: u128, b: u64) -> u64 {
    match a.checked_sub(1) {
        Some(less) => div_floor(less, b).saturating_add(1),
        None => 0,
    }
}
