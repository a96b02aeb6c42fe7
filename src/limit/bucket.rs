//! Token bucket and GCRA: one limiter, described twice.
//!
//! A bucket of B tokens, refilled at L/W tokens per µs, and a theoretical arrival time that moves
//! on by T = W/L per unit hold the same fact: how much is spent and has not drained yet. (ITU-T
//! I.371 defines the GCRA by both, as continuous-state leaky bucket and as virtual scheduling, and
//! states that they decide alike.) The state here is that fact:
//!
//! ```text
//! spent      in 1/W of a unit; drains by L every µs      tokens = B − spent/W
//!                                                        TAT    = t + spent/L
//! ```
//!
//! Both W and L are whole, so `spent` is, for ever: no rate is ever rounded.

use super::{
    Algorithm, Charge, Limiter, MAX_DRAIN_US, Named, Policy, Refunded, View, div_ceil, div_floor,
    narrow, wide,
};

/// The token bucket.
pub type Token = Bucket<{ Algorithm::Token as u8 }>;
/// The generic cell rate algorithm.
pub type Gcra = Bucket<{ Algorithm::Gcra as u8 }>;

/// The state, for the algorithm numbered `A`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket<const A: u8> {
    pub(crate) policy: Policy,
    pub(crate) updated_us: u64,
    /// In two halves, so that the heap need not align it to 16 bytes: not every server's does.
    spent: [u64; 2],
}

pub struct BucketView {
    policy: Policy,
    /// The policy that the spent units were charged under: they drain at its rate, and are
    /// counted in 1/W of its window.
    charged: Policy,
    spent: u128,
}

impl<const A: u8> Bucket<A> {
    pub(crate) const fn new(policy: Policy, updated_us: u64, spent: u128) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "split in halves")]
        Self {
            policy,
            updated_us,
            spent: [spent as u64, (spent >> 64) as u64],
        }
    }

    /// What was spent right after the last charge, in 1/W of a unit.
    #[inline]
    pub(crate) const fn spent(&self) -> u128 {
        wide(self.spent[0]) | wide(self.spent[1]) << 64
    }

    /// The same as two numbers, the lower first.
    pub(crate) const fn halves(&self) -> [u64; 2] {
        self.spent
    }

    /// What is still spent at `now_us`.
    #[inline]
    fn spent_at(&self, now_us: u64) -> u128 {
        let elapsed_us = now_us.saturating_sub(self.updated_us);
        self.spent()
            .saturating_sub(wide(elapsed_us) * wide(self.policy.limit()))
    }
}

impl<const A: u8> Limiter for Bucket<A>
where
    Self: Named,
{
    type View<'a> = BucketView;

    #[inline]
    fn view(state: Option<&Self>, policy: Policy, now_us: u64) -> BucketView {
        match state {
            Some(state) => BucketView {
                policy,
                charged: state.policy,
                spent: state.spent_at(now_us),
            },
            None => BucketView {
                policy,
                charged: policy,
                spent: 0,
            },
        }
    }

    fn fresh(charge: Charge) -> Self {
        Self::new(
            charge.policy,
            charge.now_us,
            wide(charge.units) * wide(charge.policy.window_us()),
        )
    }

    #[inline]
    fn charge(&mut self, charge: Charge) {
        let spent = Self::view(Some(self), charge.policy, charge.now_us).spent_after(charge.units);
        *self = Self::new(charge.policy, self.updated_us.max(charge.now_us), spent);
    }

    fn refund(&mut self, units: u64, now_us: u64) -> Refunded {
        let spent_now = self.spent_at(now_us);
        if spent_now == 0 {
            return Refunded::Unchanged;
        }
        let given = wide(units) * wide(self.policy.window_us());
        if given >= spent_now {
            return Refunded::Emptied;
        }
        // No time moves: what has drained since the last charge drains again from there.
        *self = Self::new(
            self.policy,
            self.updated_us,
            self.spent().saturating_sub(given),
        );
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
        narrow::pack_bucket(self.policy, self.updated_us, self.spent)
    }

    #[inline]
    fn unpack(words: &narrow::Words) -> Self {
        let (policy, updated_us, spent) = narrow::unpack_bucket(words);
        Self {
            policy,
            updated_us,
            spent,
        }
    }
}

impl BucketView {
    /// What is spent once `units` more are charged under the call's policy, in 1/W of its window.
    #[inline]
    fn spent_after(&self, units: u64) -> u128 {
        let window_us = self.policy.window_us();
        let kept = if window_us == self.charged.window_us() {
            self.spent
        } else {
            // Units stay units: whole ones as they are, the fraction rounded up to the new grain.
            let old_window_us = self.charged.window_us();
            let whole = div_floor(self.spent, old_window_us);
            let fraction = self.spent.saturating_sub(wide(whole) * wide(old_window_us));
            let grains = div_ceil(fraction * wide(window_us), old_window_us);
            wide(whole) * wide(window_us) + wide(grains)
        };
        kept + wide(units) * wide(window_us)
    }
}

impl View for BucketView {
    #[inline]
    fn used(&self) -> u64 {
        div_ceil(self.spent, self.charged.window_us())
    }

    fn wait_us(&self, target: u64) -> u64 {
        let above = self
            .spent
            .saturating_sub(wide(target) * wide(self.charged.window_us()));
        div_ceil(above, self.charged.limit())
    }

    fn reset_us(&self) -> u64 {
        div_ceil(self.spent, self.charged.limit())
    }

    #[inline]
    fn reset_after_charge_us(&self, units: u64) -> u64 {
        div_ceil(self.spent_after(units), self.policy.limit())
    }

    fn drains_in_time(&self, units: u64) -> bool {
        let full = wide(self.policy.burst()) * wide(self.policy.window_us());
        self.spent_after(units).saturating_sub(full)
            <= wide(MAX_DRAIN_US) * wide(self.policy.limit())
    }
}
