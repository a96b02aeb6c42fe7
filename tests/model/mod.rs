//! A deliberately naive model of the five limiters, the judge of the real ones.
//!
//! Nothing here is clever. Each algorithm answers two questions about a moment `t` ([`State::occupied`]: how many
//! units of the capacity are taken, and [`State::blank`]: does nothing charged count any more), and knows how a
//! charge and a refund change what it keeps. Every field of every reply follows from those two questions; the
//! waiting times are found by trying milliseconds, not by a formula.

// Shared test support: every test file that includes it uses another part of it.
#![allow(dead_code)]

mod state;
pub mod trace;

use num_rational::BigRational;
use state::State;

/// The largest whole number an argument may be, and the largest debt.
pub const MAX_UNITS: u64 = 9_007_199_254_740_991;
/// The latest `now`, 9007199254740.991 ms.
pub const MAX_NOW_US: u64 = 9_007_199_254_740_991;
/// The longest window: 100 years of 365.25 days.
pub const MAX_WINDOW_US: u64 = 3_155_760_000_000_000;
/// 1000 years: the longest a bucket may take to fill, and the longest a debt may take to drain.
pub const MAX_DRAIN_US: u64 = 31_557_600_000_000_000;
/// How many entries a sliding log holds.
pub const LOG_ENTRIES: usize = 1_048_576;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    Fixed,
    SlidingLog,
    SlidingCounter,
    Token,
    Gcra,
}

impl Algorithm {
    pub const ALL: [Algorithm; 5] = [
        Algorithm::Fixed,
        Algorithm::SlidingLog,
        Algorithm::SlidingCounter,
        Algorithm::Token,
        Algorithm::Gcra,
    ];

    /// The last word of the command, `FIXED` for `RL.FIXED`.
    pub fn word(self) -> &'static str {
        match self {
            Algorithm::Fixed => "FIXED",
            Algorithm::SlidingLog => "SLIDINGLOG",
            Algorithm::SlidingCounter => "SLIDINGCOUNTER",
            Algorithm::Token => "TOKEN",
            Algorithm::Gcra => "GCRA",
        }
    }

    pub fn has_burst(self) -> bool {
        matches!(self, Algorithm::Token | Algorithm::Gcra)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Charge,
    Peek,
    Force,
    Partial,
}

/// One call of the five commands, its arguments already judged to be in range.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub algorithm: Algorithm,
    pub limit: u64,
    pub window_us: u64,
    /// Equal to `limit` unless the algorithm is TOKEN or GCRA.
    pub burst: u64,
    pub now_us: u64,
    pub cost: u64,
    pub mode: Mode,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// FORCE would leave a debt that is too large, or takes too long to drain.
    Debt,
    /// The key holds a limiter of another algorithm.
    WrongType,
}

/// What RL.INSPECT tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspect {
    pub algorithm: Algorithm,
    pub limit: u64,
    pub window_us: u64,
    pub burst: u64,
    pub remaining: i64,
    pub retry_after: i64,
    pub reset_after: i64,
    pub next_after: i64,
    pub updated_us: u64,
}

impl Inspect {
    /// The name in the `algorithm` field.
    pub fn algorithm_name(&self) -> String {
        self.algorithm.word().to_lowercase()
    }

    pub fn window(&self) -> String {
        ms_text(self.window_us)
    }

    pub fn updated(&self) -> String {
        ms_text(self.updated_us)
    }
}

/// Microseconds as an argument in milliseconds would be written: `60000`, `0.5`.
pub fn ms_text(us: u64) -> String {
    let fraction = format!("{:03}", us % 1000);
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        (us / 1000).to_string()
    } else {
        format!("{}.{fraction}", us / 1000)
    }
}

/// A policy, in numbers that can be multiplied without a thought.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    limit: i128,
    window: i128,
    /// The most that can be admitted at once.
    capacity: i128,
}

impl Policy {
    fn of(c: &Call) -> Policy {
        Policy {
            limit: c.limit.into(),
            window: c.window_us.into(),
            capacity: c.burst.into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Limiter {
    /// The policy last charged.
    policy: Policy,
    /// The newest `now` it was charged at, in µs.
    updated: i128,
    state: State,
}

/// One key: a limiter, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    limiter: Option<Limiter>,
    log_entries: usize,
}

impl Default for Model {
    fn default() -> Model {
        Model::with_log_entries(LOG_ENTRIES)
    }
}

impl Model {
    /// A missing key whose sliding log would hold at most this many entries.
    pub fn with_log_entries(log_entries: usize) -> Model {
        assert!(log_entries >= 1);
        Model {
            limiter: None,
            log_entries,
        }
    }

    pub fn exists(&self) -> bool {
        self.limiter.is_some()
    }

    /// As `DEL` does.
    pub fn delete(&mut self) {
        self.limiter = None;
    }

    /// How many entries the log of a SLIDINGLOG key holds.
    pub fn log_len(&self) -> usize {
        match self.limiter.as_ref().map(|l| &l.state) {
            Some(State::SlidingLog { entries }) => entries.len(),
            _ => 0,
        }
    }

    /// The time that `now` counts as: time never runs backwards within a key.
    fn time(&self, now_us: u64) -> i128 {
        let now = i128::from(now_us);
        self.limiter.as_ref().map_or(now, |l| now.max(l.updated))
    }

    /// The most units that one of the windows counts which a SLIDINGCOUNTER call looks at.
    pub fn largest_count(&self, c: &Call) -> i128 {
        match self.limiter.as_ref().map(|l| &l.state) {
            Some(State::SlidingCounter { counts }) => {
                let (current, previous) =
                    state::current_and_previous(counts, c.window_us.into(), self.time(c.now_us));
                current.max(previous)
            }
            _ => 0,
        }
    }

    fn occupied(&self, p: &Policy, t: i128) -> i128 {
        self.limiter
            .as_ref()
            .map_or(0, |l| l.state.occupied(&l.policy, l.updated, p, t))
    }

    fn blank(&self, p: &Policy, t: i128) -> bool {
        self.limiter
            .as_ref()
            .is_none_or(|l| l.state.blank(&l.policy, l.updated, p, t))
    }

    fn fits(&self, p: &Policy, t: i128, cost: i128) -> bool {
        self.occupied(p, t) + cost <= p.capacity
    }

    fn remaining(&self, p: &Policy, t: i128) -> i128 {
        (p.capacity - self.occupied(p, t)).max(0)
    }

    fn retry_after(&self, p: &Policy, t: i128, cost: i128) -> i128 {
        if cost > p.capacity {
            return -1;
        }
        first_ms(|ms| self.fits(p, t + ms * 1000, cost))
    }

    fn reset_after(&self, p: &Policy, t: i128) -> i128 {
        first_ms(|ms| self.blank(p, t + ms * 1000))
    }

    /// The reply to a call that was answered `allowed`, with the state as it now is.
    fn reply(&self, p: &Policy, t: i128, allowed: i128, retry_after: i128) -> [i64; 5] {
        [
            allowed,
            p.capacity,
            self.remaining(p, t),
            retry_after,
            self.reset_after(p, t),
        ]
        .map(|x| i64::try_from(x).unwrap())
    }

    /// One call of RL.FIXED and its four sisters: [allowed, limit, remaining, retry_after, reset_after].
    /// A refusal, a denial, a peek and a cost of 0 leave the model as it is.
    pub fn call(&mut self, c: &Call) -> Result<[i64; 5], Refused> {
        assert!(c.algorithm.has_burst() || c.burst == c.limit);
        assert!(
            c.mode != Mode::Partial || c.cost > 0,
            "PARTIAL takes 1 or more"
        );
        if let Some(l) = &self.limiter
            && l.state.algorithm() != c.algorithm
        {
            return Err(Refused::WrongType);
        }
        let p = Policy::of(c);
        let t = self.time(c.now_us);
        // What is asked for, and what of it is granted.
        let (asked, granted) = match c.mode {
            Mode::Force => (i128::from(c.cost), Some(i128::from(c.cost))),
            Mode::Partial => match self.remaining(&p, t).min(c.cost.into()) {
                0 => (1, None),
                some => (some, Some(some)),
            },
            Mode::Charge | Mode::Peek => {
                let cost = i128::from(c.cost);
                (cost, self.fits(&p, t, cost).then_some(cost))
            }
        };
        let Some(granted) = granted else {
            let retry_after = self.retry_after(&p, t, asked);
            return Ok(self.reply(&p, t, 0, retry_after));
        };
        if granted > 0 && c.mode != Mode::Peek {
            let charged = self.charged(c.algorithm, &p, t, granted);
            if charged.debt_is_too_large() {
                return Err(Refused::Debt);
            }
            self.limiter = Some(charged);
        }
        Ok(self.reply(&p, t, if c.mode == Mode::Partial { granted } else { 1 }, 0))
    }

    /// The limiter after a charge of `cost` at `t`.
    fn charged(&self, algorithm: Algorithm, p: &Policy, t: i128, cost: i128) -> Limiter {
        let state = match &self.limiter {
            Some(l) => l
                .state
                .clone()
                .charge(&l.policy, l.updated, p, t, cost, self.log_entries),
            None => State::fresh(algorithm, p, t).charge(p, t, p, t, cost, self.log_entries),
        };
        Limiter {
            policy: p.clone(),
            updated: t,
            state,
        }
    }

    /// RL.REFUND: gives units back and tells what remains after it, or None if there is no key.
    pub fn refund(&mut self, units: u64, now_us: u64) -> Option<u64> {
        let t = self.time(now_us);
        let l = self.limiter.as_mut()?;
        let p = l.policy.clone();
        if !l.state.blank(&p, l.updated, &p, t) {
            l.state.refund(&p, l.updated, t, units.into());
            if l.state.blank(&p, l.updated, &p, t) {
                self.limiter = None;
            }
        }
        Some(u64::try_from(self.remaining(&p, t)).unwrap())
    }

    /// RL.INSPECT, under the policy last charged.
    pub fn inspect(&self, now_us: u64) -> Option<Inspect> {
        let l = self.limiter.as_ref()?;
        let (p, t) = (&l.policy, self.time(now_us));
        let remaining = self.remaining(p, t);
        let next_after = if remaining == p.capacity {
            0
        } else {
            first_ms(|ms| self.remaining(p, t + ms * 1000) > remaining)
        };
        let retry_after = if self.fits(p, t, 1) {
            0
        } else {
            self.retry_after(p, t, 1)
        };
        let ms = |x: i128| i64::try_from(x).unwrap();
        let arg = |x: i128| u64::try_from(x).unwrap();
        Some(Inspect {
            algorithm: l.state.algorithm(),
            limit: arg(p.limit),
            window_us: arg(p.window),
            burst: arg(p.capacity),
            remaining: ms(remaining),
            retry_after: ms(retry_after),
            reset_after: ms(self.reset_after(p, t)),
            next_after: ms(next_after),
            updated_us: arg(l.updated),
        })
    }
}

impl Limiter {
    /// Right after a charge: more debt than a limiter may be in.
    fn debt_is_too_large(&self) -> bool {
        let p = &self.policy;
        let debt = self.state.spent(p, self.updated) - whole(p.capacity);
        if debt <= whole(0) {
            return false;
        }
        let to_drain = || &debt * whole(p.window) / whole(p.limit);
        debt > whole(MAX_UNITS.into())
            || self.state.algorithm().has_burst() && to_drain() > whole(MAX_DRAIN_US.into())
    }
}

/// RL.MULTI: (allowed, retry_after, one reply per key). All are charged, or none. The calls' own modes say nothing.
pub fn multi(
    models: &mut [Model],
    calls: &[Call],
    force: bool,
    peek: bool,
) -> Result<(bool, i64, Vec<[i64; 5]>), Refused> {
    assert!(models.len() == calls.len() && !(force && peek));
    let each = |models: &mut [Model], mode| -> Result<Vec<[i64; 5]>, Refused> {
        models
            .iter_mut()
            .zip(calls)
            .map(|(m, c)| m.call(&Call { mode, ..*c }))
            .collect()
    };
    let peeked = each(models, Mode::Peek)?;
    if force {
        let mut charged = models.to_vec();
        let replies = each(&mut charged, Mode::Force)?;
        models.clone_from_slice(&charged);
        return Ok((true, 0, replies));
    }
    if peeked.iter().any(|r| r[0] == 0) {
        let waits = peeked.iter().map(|r| r[3]);
        let retry_after = if waits.clone().any(|w| w == -1) {
            -1
        } else {
            waits.max().unwrap()
        };
        return Ok((false, retry_after, peeked));
    }
    Ok((
        true,
        0,
        if peek {
            peeked
        } else {
            each(models, Mode::Charge)?
        },
    ))
}

/// The smallest whole number of milliseconds, 0 or more, at which `yes`: at an ever later time it must stay true.
fn first_ms(yes: impl Fn(i128) -> bool) -> i128 {
    if yes(0) {
        return 0;
    }
    let mut high = 1;
    while !yes(high) {
        high *= 2;
        assert!(high < 1 << 50, "no wait takes ten thousand years");
    }
    let mut low = high / 2; // 0 or a power of two at which the answer was no
    while high - low > 1 {
        let middle = (low + high) / 2;
        if yes(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

fn whole(x: i128) -> BigRational {
    BigRational::from_integer(x.into())
}
