//! A history of calls on one key, made of the fuzzer's bytes: edges are as likely as anything else, and the clock goes
//! to the times that replies speak of.

use libfuzzer_sys::arbitrary::{Result, Unstructured};

use crate::model::trace::Step;
use crate::model::{Algorithm, Call, MAX_DRAIN_US, MAX_NOW_US, MAX_UNITS, MAX_WINDOW_US, Mode};

/// More take long, and find nothing that these do not.
const STEPS: usize = 60;

#[derive(Clone, Copy)]
struct Policy {
    limit: u64,
    window_us: u64,
    burst: u64,
}

pub struct History<'a, 'b> {
    bytes: &'a mut Unstructured<'b>,
    pub algorithm: Algorithm,
    policies: Vec<Policy>,
    now_us: u64,
    waits_us: [u64; 2],
    steps: usize,
}

/// From 1 to `most`: an edge, a small one or any.
fn number(bytes: &mut Unstructured, most: u64) -> Result<u64> {
    const EDGES: [u64; 12] = [
        1,
        1000,
        1_000_000,
        (1 << 31) - 1,
        (1 << 32) - 1,
        1 << 32,
        1 << 48,
        MAX_WINDOW_US,
        MAX_DRAIN_US,
        MAX_UNITS / 2,
        MAX_UNITS - 1,
        MAX_UNITS,
    ];
    Ok(match bytes.int_in_range(0..=3)? {
        0 => *bytes.choose(&EDGES)?,
        1 => bytes.int_in_range(1..=12)?,
        2 => bytes.int_in_range(1..=70_000)?,
        _ => bytes.int_in_range(1..=most)?,
    }
    .min(most))
}

impl<'a, 'b> History<'a, 'b> {
    pub fn new(bytes: &'a mut Unstructured<'b>) -> Result<Self> {
        let algorithm = *bytes.choose(&Algorithm::ALL)?;
        let mut policies = Vec::new();
        for _ in 0..bytes.int_in_range(1..=3)? {
            let limit = number(bytes, MAX_UNITS)?;
            let window_us = number(bytes, MAX_WINDOW_US)?;
            let mut burst = limit;
            if algorithm.has_burst() && bytes.ratio(1, 2)? {
                let most = u128::from(MAX_DRAIN_US) * u128::from(limit) / u128::from(window_us);
                let most = u64::try_from(most).unwrap_or(MAX_UNITS).min(MAX_UNITS);
                burst = number(bytes, most)?;
            }
            policies.push(Policy {
                limit,
                window_us,
                burst,
            });
        }
        let now_us = number(bytes, MAX_NOW_US)?;
        Ok(Self {
            bytes,
            algorithm,
            policies,
            now_us,
            waits_us: [0; 2],
            steps: 0,
        })
    }

    /// The next step, if there is one.
    pub fn step(&mut self) -> Result<Option<Step>> {
        self.steps += 1;
        if self.bytes.is_empty() || self.steps > STEPS {
            return Ok(None);
        }
        let p = *self.bytes.choose(&self.policies)?;
        self.pass_time(p)?;
        let now_us = self.now_us;
        if self.bytes.ratio(1, 16)? {
            let units = number(self.bytes, MAX_UNITS)?;
            return Ok(Some(Step::Refund { units, now_us }));
        }
        let mode = match self.bytes.int_in_range(0..=9)? {
            0 => Mode::Peek,
            1 | 2 => Mode::Partial,
            3 => Mode::Force,
            _ => Mode::Charge,
        };
        let cost = match self.bytes.int_in_range(0..=7)? {
            0 => 0,
            1 => p.burst - 1,
            2 => p.burst,
            3 => p.burst.saturating_add(1),
            4 => number(self.bytes, p.burst)?,
            5 => number(self.bytes, MAX_UNITS)?,
            _ => 1,
        };
        Ok(Some(Step::Call(Call {
            algorithm: self.algorithm,
            limit: p.limit,
            window_us: p.window_us,
            burst: p.burst,
            now_us,
            cost: cost.clamp(u64::from(mode == Mode::Partial), MAX_UNITS),
            mode,
        })))
    }

    fn pass_time(&mut self, p: Policy) -> Result<()> {
        let now_us = self.now_us;
        self.now_us = match self.bytes.int_in_range(0..=7)? {
            0 | 1 => now_us,
            2 => now_us.saturating_add(self.bytes.int_in_range(1..=255)?),
            3 => now_us.saturating_sub(number(self.bytes, p.window_us)?),
            4 => now_us.saturating_add(number(self.bytes, p.window_us)?),
            5 => {
                let start = now_us / p.window_us + self.bytes.int_in_range(0..=2)?;
                around(self.bytes, start.saturating_mul(p.window_us))?
            }
            _ => {
                let wait_us = *self.bytes.choose(&self.waits_us)?;
                around(self.bytes, now_us.saturating_add(wait_us))?
            }
        }
        .min(MAX_NOW_US);
        Ok(())
    }

    /// What the step was answered.
    pub fn told(&mut self, reply: &[i64; 5]) {
        self.waits_us =
            [reply[3], reply[4]].map(|ms| u64::try_from(ms).unwrap_or(0).saturating_mul(1000));
    }
}

fn around(bytes: &mut Unstructured, edge_us: u64) -> Result<u64> {
    let by = *bytes.choose(&[0, 1, -1, 1000, -1000, 999, -999])?;
    Ok(edge_us.saturating_add_signed(by))
}
