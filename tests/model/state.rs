//! What each of the five algorithms keeps, and how it looks at it. Times are µs.

use std::collections::BTreeMap;

use num_rational::BigRational;

use super::{Algorithm, Policy, whole};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The window that was charged last, and what was charged in it.
    Fixed { start: i128, used: i128 },
    /// (time, units), oldest first.
    SlidingLog { entries: Vec<(i128, i128)> },
    /// Units by the start of the window in which they were charged: two windows at most.
    SlidingCounter { counts: BTreeMap<i128, i128> },
    /// Tokens in the bucket at the time of the last charge, below 0 in debt.
    Token { tokens: BigRational },
    /// The theoretical arrival time.
    Gcra { tat: BigRational },
}

/// The start of the aligned window that holds `t`.
fn window_start(t: i128, window: i128) -> i128 {
    t.div_euclid(window) * window
}

/// `x` over `y` (which is above 0), rounded up.
fn div_ceil(x: i128, y: i128) -> i128 {
    -(-x).div_euclid(y)
}

fn mul(x: i128, y: i128) -> i128 {
    x.checked_mul(y).expect("a product that fits")
}

/// How many times `1/parts` goes into `x`, of which it is known that this leaves nothing over.
/// So exact fractions can be compared as whole numbers where speed matters.
fn in_parts(x: &BigRational, parts: i128) -> i128 {
    let numerator = i128::try_from(x.numer()).unwrap();
    let denominator = i128::try_from(x.denom()).unwrap();
    assert_eq!(
        parts % denominator,
        0,
        "{x} is not a whole number of 1/{parts}"
    );
    mul(numerator, parts / denominator)
}

/// What is in this window and in the one before, where the counts are moved to windows of this length.
pub(super) fn current_and_previous(
    counts: &BTreeMap<i128, i128>,
    window: i128,
    t: i128,
) -> (i128, i128) {
    let start = window_start(t, window);
    let in_window = |wanted| {
        counts
            .iter()
            .filter(|(s, _)| window_start(**s, window) == wanted)
            .map(|(_, u)| u)
            .sum()
    };
    (in_window(start), in_window(start - window))
}

/// A bucket's spent units that go on draining at the rate of `old`: `spent` of them, `elapsed` µs ago.
fn drained(spent: &BigRational, old: &Policy, elapsed: i128) -> BigRational {
    let left = spent - whole(mul(elapsed, old.limit)) / whole(old.window);
    left.max(whole(0))
}

impl State {
    pub fn fresh(algorithm: Algorithm, p: &Policy, t: i128) -> State {
        match algorithm {
            Algorithm::Fixed => State::Fixed {
                start: window_start(t, p.window),
                used: 0,
            },
            Algorithm::SlidingLog => State::SlidingLog {
                entries: Vec::new(),
            },
            Algorithm::SlidingCounter => State::SlidingCounter {
                counts: BTreeMap::new(),
            },
            Algorithm::Token => State::Token {
                tokens: whole(p.capacity),
            },
            Algorithm::Gcra => State::Gcra { tat: whole(t) },
        }
    }

    pub fn algorithm(&self) -> Algorithm {
        match self {
            State::Fixed { .. } => Algorithm::Fixed,
            State::SlidingLog { .. } => Algorithm::SlidingLog,
            State::SlidingCounter { .. } => Algorithm::SlidingCounter,
            State::Token { .. } => Algorithm::Token,
            State::Gcra { .. } => Algorithm::Gcra,
        }
    }

    /// How many units of the capacity under policy `p` are taken at `t`, a part of a unit counted as a whole one
    /// (costs and capacities are whole, so no decision differs by that). `old` is the policy last charged, at `updated`.
    pub fn occupied(&self, old: &Policy, updated: i128, p: &Policy, t: i128) -> i128 {
        match self {
            State::Fixed { start, used } => {
                // The count belongs to the window of the new length in which its old window began.
                if window_start(*start, p.window) == window_start(t, p.window) {
                    *used
                } else {
                    0
                }
            }
            State::SlidingLog { entries } => entries
                .iter()
                .rev()
                .take_while(|(made, _)| t - p.window < *made)
                .map(|(_, units)| units)
                .sum(),
            State::SlidingCounter { counts } => {
                let (current, previous) = current_and_previous(counts, p.window, t);
                let into_window = t - window_start(t, p.window);
                mul(previous, p.window - into_window).div_euclid(p.window) + current
            }
            // The buckets drain at the old rate until a charge under the new policy.
            State::Token { tokens } => {
                let full = mul(old.capacity, old.window);
                let refilled = in_parts(tokens, old.window) + mul(t - updated, old.limit);
                div_ceil(full - refilled.min(full), old.window)
            }
            State::Gcra { tat } => {
                let backlog = (in_parts(tat, old.limit) - mul(t, old.limit)).max(0); // in 1/L of a µs
                div_ceil(backlog, old.window)
            }
        }
    }

    /// Nothing charged counts at `t`.
    pub fn blank(&self, old: &Policy, updated: i128, p: &Policy, t: i128) -> bool {
        match self {
            State::Fixed { .. } => self.occupied(old, updated, p, t) == 0,
            State::SlidingLog { entries } => entries.iter().all(|(made, _)| *made <= t - p.window),
            State::SlidingCounter { counts } => current_and_previous(counts, p.window, t) == (0, 0),
            State::Token { tokens } => {
                in_parts(tokens, old.window) + mul(t - updated, old.limit)
                    >= mul(old.capacity, old.window)
            }
            State::Gcra { tat } => in_parts(tat, old.limit) <= mul(t, old.limit),
        }
    }

    /// The units spent, with their fraction, at the time of the last charge and under its policy.
    pub fn spent(&self, p: &Policy, updated: i128) -> BigRational {
        match self {
            State::Token { tokens } => whole(p.capacity) - tokens,
            State::Gcra { tat } => (tat - whole(updated)) * whole(p.limit) / whole(p.window),
            _ => whole(self.occupied(p, updated, p, updated)),
        }
    }

    /// `cost` units more, charged at `t` under policy `p`.
    pub fn charge(
        self,
        old: &Policy,
        updated: i128,
        p: &Policy,
        t: i128,
        cost: i128,
        log_entries: usize,
    ) -> State {
        match self {
            State::Fixed { .. } => State::Fixed {
                used: self.occupied(old, updated, p, t) + cost,
                start: window_start(t, p.window),
            },
            State::SlidingLog { mut entries } => {
                entries.retain(|(made, _)| t - p.window < *made);
                match entries.last_mut() {
                    Some((made, units)) if *made == t => *units += cost,
                    _ => entries.push((t, cost)),
                }
                while entries.len() > log_entries {
                    let (_, units) = entries.remove(0);
                    entries[0].1 += units;
                }
                State::SlidingLog { entries }
            }
            State::SlidingCounter { counts } => {
                let (current, previous) = current_and_previous(&counts, p.window, t);
                let start = window_start(t, p.window);
                let mut counts = BTreeMap::from([(start, current + cost)]);
                if previous > 0 {
                    counts.insert(start - p.window, previous);
                }
                State::SlidingCounter { counts }
            }
            State::Token { .. } | State::Gcra { .. } => {
                let spent = drained(&self.spent(old, updated), old, t - updated);
                // Taken over in units, a fraction rounded up to a whole 1/W' of a unit. (Under the
                // same policy there is nothing to round: the fraction is a whole 1/W already.)
                let spent = (spent * whole(p.window)).ceil() / whole(p.window) + whole(cost);
                match self {
                    State::Token { .. } => State::Token {
                        tokens: whole(p.capacity) - spent,
                    },
                    _ => State::Gcra {
                        tat: whole(t) + spent * whole(p.window) / whole(p.limit),
                    },
                }
            }
        }
    }

    /// Gives back `units` as seen at `t`, the newest first, but no more than are spent then. `p` is the policy last
    /// charged, at `updated`. What does not count at `t` stays as it is: a refund moves no time.
    pub fn refund(&mut self, p: &Policy, updated: i128, t: i128, units: i128) {
        let mut left = units;
        let mut take = |from: &mut i128| {
            let taken = left.min(*from);
            *from -= taken;
            left -= taken;
        };
        match self {
            State::Fixed { start, used } => {
                if *start == window_start(t, p.window) {
                    take(used);
                }
            }
            State::SlidingLog { entries } => {
                entries
                    .iter_mut()
                    .rev()
                    .filter(|(made, _)| t - p.window < *made)
                    .for_each(|(_, u)| take(u));
                entries.retain(|(_, u)| *u > 0);
            }
            State::SlidingCounter { counts } => {
                let start = window_start(t, p.window);
                for start in [start, start - p.window] {
                    counts.entry(start).and_modify(&mut take);
                }
                counts.retain(|_, u| *u > 0);
            }
            State::Token { tokens } => *tokens = (&*tokens + whole(units)).min(whole(p.capacity)),
            State::Gcra { tat } => {
                *tat = (&*tat - whole(mul(units, p.window)) / whole(p.limit)).max(whole(updated));
            }
        }
    }
}
