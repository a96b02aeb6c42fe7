//! Fixed window: at most `limit` units in each window `[k·W, (k+1)·W)` of the caller's clock.

use super::{Charge, Limiter, Policy, Refunded, View, narrow, window_start_us};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    pub(crate) policy: Policy,
    pub(crate) updated_us: u64,
    /// Units charged in the window of `updated_us`.
    pub(crate) used: u64,
}

pub struct FixedView {
    used: u64,
    until_end_us: u64,
}

impl Fixed {
    /// Units that count in the window of length `window_us` starting at `start_us`. Under a new
    /// window length the count belongs to the window in which its own began.
    #[inline]
    fn used_in(&self, start_us: u64, window_us: u64) -> u64 {
        let own_start_us = window_start_us(self.updated_us, self.policy.window_us());
        let moved_us = if window_us == self.policy.window_us() {
            own_start_us
        } else {
            window_start_us(own_start_us, window_us)
        };
        if moved_us == start_us { self.used } else { 0 }
    }
}

impl Limiter for Fixed {
    type View<'a> = FixedView;

    #[inline]
    fn view(state: Option<&Self>, policy: Policy, now_us: u64) -> FixedView {
        let window_us = policy.window_us();
        let at_us = state.map_or(now_us, |s| s.updated_us.max(now_us));
        let start_us = window_start_us(at_us, window_us);
        FixedView {
            used: state.map_or(0, |s| s.used_in(start_us, window_us)),
            until_end_us: window_us.saturating_sub(at_us.saturating_sub(start_us)),
        }
    }

    fn fresh(charge: Charge) -> Self {
        Self {
            policy: charge.policy,
            updated_us: charge.now_us,
            used: charge.units,
        }
    }

    #[inline]
    fn charge(&mut self, charge: Charge) {
        let at_us = self.updated_us.max(charge.now_us);
        let window_us = charge.policy.window_us();
        let used = self.used_in(window_start_us(at_us, window_us), window_us);
        *self = Self {
            policy: charge.policy,
            updated_us: at_us,
            used: used.saturating_add(charge.units),
        };
    }

    fn refund(&mut self, units: u64, now_us: u64) -> Refunded {
        if Self::view(Some(self), self.policy, now_us).used() == 0 {
            return Refunded::Unchanged;
        }
        self.used = self.used.saturating_sub(units);
        if self.used == 0 {
            Refunded::Emptied
        } else {
            Refunded::Changed
        }
    }

    fn policy(&self) -> Policy {
        self.policy
    }

    fn updated_us(&self) -> u64 {
        self.updated_us
    }

    #[inline]
    fn pack(&self) -> Option<narrow::Words> {
        narrow::pack(self.policy, self.updated_us, self.used, 0)
    }

    #[inline]
    fn unpack(words: &narrow::Words) -> Self {
        let (policy, updated_us, used, _) = narrow::unpack(words);
        Self {
            policy,
            updated_us,
            used,
        }
    }
}

impl View for FixedView {
    fn used(&self) -> u64 {
        self.used
    }

    fn wait_us(&self, _target: u64) -> u64 {
        self.until_end_us
    }

    fn reset_us(&self) -> u64 {
        if self.used > 0 { self.until_end_us } else { 0 }
    }

    fn reset_after_charge_us(&self, _units: u64) -> u64 {
        self.until_end_us
    }
}
