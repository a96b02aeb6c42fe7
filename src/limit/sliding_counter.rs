//! Sliding counter: two aligned windows approximate a sliding one.
//!
//! At `e` µs into the current window, ⌊prev·(W − e)/W⌋ + cur units are taken to be in use: the
//! window before is assumed to have been spent evenly.

use super::{Charge, Limiter, Policy, Refunded, View, div_floor, narrow, wide, window_start_us};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingCounter {
    pub(crate) policy: Policy,
    pub(crate) updated_us: u64,
    pub(crate) counts: Counts,
}

/// Units charged in a window and in the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub(crate) cur: u64,
    pub(crate) prev: u64,
}

/// No count goes beyond this, so that two fit into 64 bits together. Only windows made longer again
/// and again, each taking in the forced debts of the shorter ones before it, grow a count beyond
/// twice the largest limit; it takes hundreds of the largest debts to come here.
pub(crate) const MAX_COUNT: u64 = 1 << 62;

pub struct SlidingCounterView {
    window_us: u64,
    /// Time since the current window began.
    into_us: u64,
    counts: Counts,
}

impl SlidingCounter {
    /// The counts as they stand in the window of length `window_us` starting at `start_us`.
    #[inline]
    fn counts_in(&self, start_us: u64, window_us: u64) -> Counts {
        let own_window_us = self.policy.window_us();
        let own_start_us = window_start_us(self.updated_us, own_window_us);
        let (moved_us, Counts { cur, prev }) = if window_us == own_window_us {
            (own_start_us, self.counts)
        } else {
            self.moved(own_start_us, window_us)
        };
        match start_us.saturating_sub(moved_us) {
            0 => Counts { cur, prev },
            behind if behind == window_us => Counts { cur: 0, prev: cur },
            _ => Counts { cur: 0, prev: 0 },
        }
    }

    /// Under a new window length each count belongs to the window in which its own began. The
    /// newer one decides which window that is; the older joins it, precedes it, or goes.
    fn moved(&self, own_start_us: u64, window_us: u64) -> (u64, Counts) {
        let Counts { cur, prev } = self.counts;
        let moved_us = window_start_us(own_start_us, window_us);
        let prev_us = own_start_us
            .checked_sub(self.policy.window_us())
            .map(|at| window_start_us(at, window_us));
        let counts = match prev_us.map(|at| moved_us.saturating_sub(at)) {
            Some(0) => Counts {
                cur: cur.saturating_add(prev).min(MAX_COUNT),
                prev: 0,
            },
            Some(behind) if behind == window_us => Counts { cur, prev },
            _ => Counts { cur, prev: 0 },
        };
        (moved_us, counts)
    }
}

impl Limiter for SlidingCounter {
    type View<'a> = SlidingCounterView;

    #[inline]
    fn view(state: Option<&Self>, policy: Policy, now_us: u64) -> SlidingCounterView {
        let window_us = policy.window_us();
        let at_us = state.map_or(now_us, |s| s.updated_us.max(now_us));
        let start_us = window_start_us(at_us, window_us);
        SlidingCounterView {
            window_us,
            into_us: at_us.saturating_sub(start_us),
            counts: state.map_or(Counts { cur: 0, prev: 0 }, |s| {
                s.counts_in(start_us, window_us)
            }),
        }
    }

    fn fresh(charge: Charge) -> Self {
        Self {
            policy: charge.policy,
            updated_us: charge.now_us,
            counts: Counts {
                cur: charge.units,
                prev: 0,
            },
        }
    }

    #[inline]
    fn charge(&mut self, charge: Charge) {
        let at_us = self.updated_us.max(charge.now_us);
        let window_us = charge.policy.window_us();
        let Counts { cur, prev } = self.counts_in(window_start_us(at_us, window_us), window_us);
        let cur = cur.saturating_add(charge.units).min(MAX_COUNT);
        *self = Self {
            policy: charge.policy,
            updated_us: at_us,
            counts: Counts { cur, prev },
        };
    }

    /// From the current window first. Where the time of the refund lies in a later window than
    /// the last charge, the stored `cur` is that time's `prev`, and the stored `prev` is over.
    fn refund(&mut self, units: u64, now_us: u64) -> Refunded {
        let window_us = self.policy.window_us();
        let at_us = self.updated_us.max(now_us);
        let seen = self.counts_in(window_start_us(at_us, window_us), window_us);
        if seen.cur == 0 && seen.prev == 0 {
            return Refunded::Unchanged;
        }
        let cur = seen.cur.saturating_sub(units);
        let prev = seen.prev.saturating_sub(units.saturating_sub(seen.cur));
        if cur == 0 && prev == 0 {
            return Refunded::Emptied;
        }
        self.counts = if seen == self.counts {
            Counts { cur, prev }
        } else {
            Counts {
                cur: prev,
                ..self.counts
            }
        };
        Refunded::Changed
    }

    fn policy(&self) -> Policy {
        self.policy
    }

    fn updated_us(&self) -> u64 {
        self.updated_us
    }

    #[inline]
    fn pack(&self) -> Option<narrow::Words> {
        narrow::pack(
            self.policy,
            self.updated_us,
            self.counts.cur,
            self.counts.prev,
        )
    }

    #[inline]
    fn unpack(words: &narrow::Words) -> Self {
        let (policy, updated_us, cur, prev) = narrow::unpack(words);
        Self {
            policy,
            updated_us,
            counts: Counts { cur, prev },
        }
    }
}

impl SlidingCounterView {
    fn until_end_us(&self) -> u64 {
        self.window_us.saturating_sub(self.into_us)
    }

    /// How far into a window ⌊prev·(W − e)/W⌋ first comes down to `spare`; W if only at its end.
    fn fits_at_us(&self, prev: u64, spare: u64) -> u64 {
        if prev <= spare {
            return 0;
        }
        // ⌊prev·left/W⌋ ≤ spare  ⇔  prev·left ≤ (spare + 1)·W − 1
        let most = (wide(spare) + 1) * wide(self.window_us) - 1;
        self.window_us.saturating_sub(div_floor(most, prev))
    }
}

impl View for SlidingCounterView {
    #[inline]
    fn used(&self) -> u64 {
        let Counts { cur, prev } = self.counts;
        if prev == 0 {
            return cur;
        }
        div_floor(wide(prev) * wide(self.until_end_us()), self.window_us).saturating_add(cur)
    }

    fn wait_us(&self, target: u64) -> u64 {
        let Counts { cur, prev } = self.counts;
        match target.checked_sub(cur) {
            Some(spare) => self.fits_at_us(prev, spare).saturating_sub(self.into_us),
            // This window alone is over the target; in the next one it fades.
            None => self
                .until_end_us()
                .saturating_add(self.fits_at_us(cur, target)),
        }
    }

    fn reset_us(&self) -> u64 {
        match self.counts {
            Counts { cur: 0, prev: 0 } => 0,
            Counts { cur: 0, .. } => self.until_end_us(),
            _ => self.reset_after_charge_us(0),
        }
    }

    fn reset_after_charge_us(&self, _units: u64) -> u64 {
        self.until_end_us().saturating_add(self.window_us)
    }
}
