//! Seeded random histories that look for trouble: policies that do not divide evenly, policies that change on a live
//! key, clocks that stand, creep, jump and go back, and times right at and around every edge.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Algorithm, Call, MAX_DRAIN_US, MAX_NOW_US, MAX_UNITS, MAX_WINDOW_US, Mode};

#[derive(Clone, Copy, Debug)]
pub enum Step {
    Call(Call),
    Refund { units: u64, now_us: u64 },
}

impl Step {
    pub fn now_us(&self) -> u64 {
        match self {
            Step::Call(c) => c.now_us,
            Step::Refund { now_us, .. } => *now_us,
        }
    }

    /// The same step for a limiter of another algorithm.
    pub fn with(self, algorithm: Algorithm) -> Step {
        match self {
            Step::Call(c) => Step::Call(Call { algorithm, ..c }),
            refund => refund,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Policy {
    limit: u64,
    window_us: u64,
    burst: u64,
}

/// How often, out of the sum, the clock moves in each way.
#[derive(Clone, Copy)]
struct Shape {
    stand: u32,
    creep: u32,
    step: u32,
    back: u32,
    jump: u32,
    edge: u32,
}

const SHAPES: [Shape; 6] = [
    Shape {
        stand: 20,
        creep: 30,
        step: 10,
        back: 10,
        jump: 5,
        edge: 25,
    },
    Shape {
        stand: 0,
        creep: 95,
        step: 0,
        back: 0,
        jump: 1,
        edge: 4,
    },
    Shape {
        stand: 70,
        creep: 5,
        step: 5,
        back: 5,
        jump: 5,
        edge: 10,
    },
    Shape {
        stand: 5,
        creep: 45,
        step: 5,
        back: 40,
        jump: 0,
        edge: 5,
    },
    Shape {
        stand: 10,
        creep: 5,
        step: 10,
        back: 0,
        jump: 25,
        edge: 50,
    },
    Shape {
        stand: 10,
        creep: 10,
        step: 70,
        back: 5,
        jump: 0,
        edge: 5,
    },
];

const POLICIES: [(u64, u64); 18] = [
    (1, 1),
    (3, 7),
    (7, 3),
    (2, 3),
    (5, 11),
    (10, 1_000),
    (60, 1_000),
    (3, 1_000_000),
    (10, 1_000_000),
    (1_000, 999_999),
    (100, 86_400_000_000),
    (70_000, 86_400_000_000),
    (100_000_000, 1_000_000),
    (MAX_UNITS, 1),
    (MAX_UNITS, 1_000_003),
    (MAX_UNITS - 1, MAX_WINDOW_US),
    (1, MAX_WINDOW_US),
    (12_345, MAX_WINDOW_US - 1),
];

/// An endless history for one key; tell it the replies ([`Trace::told`]) and it goes to the times they speak of.
pub struct Trace {
    rng: SmallRng,
    algorithm: Algorithm,
    policies: Vec<Policy>,
    current: usize,
    shape: Shape,
    /// Out of 1000 steps: changes of policy, refunds, FORCE, and costs far beyond the limit.
    change: u32,
    refund: u32,
    force: u32,
    huge: u32,
    now: u64,
    landmarks: Vec<u64>,
}

impl Trace {
    pub fn new(seed: u64, algorithm: Algorithm) -> Trace {
        let mut rng = SmallRng::seed_from_u64(seed ^ (algorithm as u64) << 56);
        let first = any_policy(&mut rng, algorithm);
        let mut policies = vec![first];
        for _ in 0..rng.random_range(0..4) {
            let next = if rng.random_ratio(1, 4) {
                any_policy(&mut rng, algorithm)
            } else {
                cousin(&mut rng, algorithm, first)
            };
            policies.push(next);
        }
        let now = match rng.random_range(0..5) {
            0 => 0,
            1 => rng.random_range(0..=first.window_us),
            2 => log_uniform(&mut rng, MAX_NOW_US),
            3 => first.window_us.min(MAX_NOW_US),
            _ => 1_700_000_000_000_000 + rng.random_range(0..1_000_000_000),
        };
        let one_of = |rng: &mut SmallRng, choices: [u32; 3]| choices[rng.random_range(0..3)];
        Trace {
            algorithm,
            policies,
            current: 0,
            shape: SHAPES[rng.random_range(0..SHAPES.len())],
            change: one_of(&mut rng, [0, 50, 300]),
            refund: one_of(&mut rng, [0, 50, 200]),
            force: one_of(&mut rng, [0, 50, 300]),
            huge: one_of(&mut rng, [0, 5, 50]),
            now,
            landmarks: Vec::new(),
            rng,
        }
    }

    /// The next step: mostly a call.
    pub fn step(&mut self) -> Step {
        self.move_clock();
        if self.rng.random_ratio(self.refund, 1000) {
            let units = match self.rng.random_range(0..4) {
                0 => 1,
                1 => MAX_UNITS,
                _ => self.cost().max(1),
            };
            return Step::Refund {
                units,
                now_us: self.now,
            };
        }
        Step::Call(self.call(self.now))
    }

    /// A call at a time that is given.
    pub fn call(&mut self, now_us: u64) -> Call {
        if self.rng.random_ratio(self.change, 1000) {
            self.current = self.rng.random_range(0..self.policies.len());
        }
        let p = self.policies[self.current];
        let mode = if self.rng.random_ratio(self.force, 1000) {
            Mode::Force
        } else {
            match self.rng.random_range(0..10) {
                0 => Mode::Peek,
                1 => Mode::Partial,
                _ => Mode::Charge,
            }
        };
        let cost = self.cost().max(u64::from(mode == Mode::Partial));
        Call {
            algorithm: self.algorithm,
            limit: p.limit,
            window_us: p.window_us,
            burst: p.burst,
            now_us,
            cost,
            mode,
        }
    }

    /// What the last step was answered: its waits are places to go to.
    pub fn told(&mut self, step: &Step, reply: &[i64; 5]) {
        for wait in [reply[3], reply[4]] {
            if let Some(wait) = u64::try_from(wait).ok().filter(|w| *w > 0) {
                self.landmarks
                    .push(step.now_us().saturating_add(wait.saturating_mul(1000)));
            }
        }
        let excess = self.landmarks.len().saturating_sub(4);
        self.landmarks.drain(..excess);
    }

    fn cost(&mut self) -> u64 {
        let p = self.policies[self.current];
        let rng = &mut self.rng;
        if rng.random_ratio(self.huge, 1000) {
            return if rng.random() {
                MAX_UNITS
            } else {
                log_uniform(rng, MAX_UNITS)
            };
        }
        let capacity = if rng.random_ratio(1, 4) {
            p.limit
        } else {
            p.burst
        };
        let cost = match rng.random_range(0..16) {
            0 => 0,
            1 => 2,
            2 => capacity - 1,
            3 => capacity,
            4 => capacity + 1,
            5 | 6 => capacity / 3,
            7 | 8 => rng.random_range(0..=capacity),
            _ => 1,
        };
        cost.min(MAX_UNITS)
    }

    fn move_clock(&mut self) {
        let p = self.policies[self.current];
        let s = self.shape;
        let rng = &mut self.rng;
        let mut pick = rng.random_range(0..s.stand + s.creep + s.step + s.back + s.jump + s.edge);
        let mut is = |share: u32| {
            let it_is = pick < share;
            pick = if it_is { u32::MAX } else { pick - share };
            it_is
        };
        if is(s.stand) {
            return;
        }
        // So that windows of 100 years do not use up all the time there is.
        let room = (MAX_NOW_US - self.now) / 4;
        let window = p.window_us.min(room.max(1));
        self.now = if is(s.creep) {
            let emission = (p.window_us / p.limit).min(window);
            self.now
                .saturating_add(rng.random_range(0..=emission.saturating_mul(2).max(2)))
        } else if is(s.step) {
            self.now.saturating_add(rng.random_range(0..=window))
        } else if is(s.back) {
            let most = if rng.random() { window } else { window.min(10) };
            self.now.saturating_sub(rng.random_range(0..=most))
        } else if is(s.jump) {
            self.now
                .saturating_add(rng.random_range(0..=window.saturating_mul(3)))
        } else {
            let edge = match self.landmarks.len() {
                n if n > 0 && rng.random() => self.landmarks[rng.random_range(0..n)],
                _ => (self.now / p.window_us + rng.random_range(0..=2)).saturating_mul(p.window_us),
            };
            let edge = if edge > MAX_NOW_US { self.now } else { edge };
            let around = [0, 0, 0, 1, -1, 1000, -1000, 999, -999][rng.random_range(0..9)];
            edge.saturating_add_signed(around)
        }
        .min(MAX_NOW_US);
    }
}

/// A walk of `steps` along a trace; `answer` gives the reply to a call, or None (after a refund, or an error).
pub fn walk(
    seed: u64,
    algorithm: Algorithm,
    steps: usize,
    mut answer: impl FnMut(&Step) -> Option<[i64; 5]>,
) {
    let mut trace = Trace::new(seed, algorithm);
    for _ in 0..steps {
        let step = trace.step();
        if let Some(reply) = answer(&step) {
            trace.told(&step, &reply);
        }
    }
}

/// From 1 to `most`, each order of magnitude as likely as another.
fn log_uniform(rng: &mut SmallRng, most: u64) -> u64 {
    let bits = rng.random_range(0..=most.ilog2());
    rng.random_range(1 << bits..=((1 << bits) * 2 - 1).min(most))
}

fn any_policy(rng: &mut SmallRng, algorithm: Algorithm) -> Policy {
    let (limit, window_us) = match rng.random_range(0..4) {
        0 => (log_uniform(rng, MAX_UNITS), log_uniform(rng, MAX_WINDOW_US)),
        1 => (rng.random_range(1..=10), rng.random_range(1..=30)),
        _ => POLICIES[rng.random_range(0..POLICIES.len())],
    };
    with_burst(rng, algorithm, limit, window_us)
}

/// A policy near another, as an operator would change it.
fn cousin(rng: &mut SmallRng, algorithm: Algorithm, p: Policy) -> Policy {
    let near = |rng: &mut SmallRng, x: u64, most: u64| {
        let times = rng.random_range(2..=10);
        let x = match rng.random_range(0..4) {
            0 => x.saturating_mul(times),
            1 => x / times,
            2 => x + 1,
            _ => x - 1,
        };
        x.clamp(1, most)
    };
    let (mut limit, mut window_us) = (p.limit, p.window_us);
    let what = rng.random_range(0..4);
    if what != 0 {
        limit = near(rng, limit, MAX_UNITS);
    }
    if what >= 2 {
        window_us = near(rng, window_us, MAX_WINDOW_US);
    }
    with_burst(rng, algorithm, limit, window_us)
}

fn with_burst(rng: &mut SmallRng, algorithm: Algorithm, limit: u64, window_us: u64) -> Policy {
    let burst = match rng.random_range(0..8) {
        _ if !algorithm.has_burst() => limit,
        0 => 1,
        1 => limit / 2,
        2 => limit.saturating_mul(2),
        3 => log_uniform(rng, MAX_UNITS),
        4 => MAX_UNITS,
        _ => limit,
    };
    let most = u128::from(MAX_DRAIN_US) * u128::from(limit) / u128::from(window_us);
    let most = u64::try_from(most).unwrap_or(MAX_UNITS).min(MAX_UNITS);
    Policy {
        limit,
        window_us,
        burst: burst.clamp(1, most),
    }
}
