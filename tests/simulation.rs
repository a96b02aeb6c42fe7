//! A small world around the pure core: a primary and a replica that follows late, callers with clocks of their own,
//! requests that are lost, late or sent again, expiry, eviction, failover and policies that change while calls are on
//! their way. After every call the laws of the contract are checked, by arithmetic that is not the core's.
//!
//! `RL_CALLS` is the number of calls, `RL_SEED` the first seed; a world is [`CALLS`] of them. A failure names the seed
//! that replays it. `make simulate CALLS=100000000` runs it in a release build.

#[path = "support/core.rs"]
mod support;

use std::collections::VecDeque;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis_rl::codec;
use redis_rl::limit::{Algorithm, Call, MAX_NOW_US, MAX_UNITS, MAX_WINDOW_US, Mode, Policy};
use support::{Key, policy};

/// Calls of one world.
const CALLS: u64 = 2_000;
const MARGIN_MS: i64 = 1000;
const DAY_US: u64 = 86_400_000_000;

fn number(name: &str, or: u64) -> u64 {
    env::var(name).map_or(or, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number"))
    })
}

/// From 1 to `most`, each order of magnitude as likely as another.
fn log_uniform(rng: &mut SmallRng, most: u64) -> u64 {
    let bits = rng.random_range(0..=most.ilog2());
    rng.random_range(1 << bits..=((1 << bits) * 2 - 1).min(most))
}

// Clocks ----------------------------------------------------------------------------------------

/// A clock that is wrong by an offset and runs wrong by some millionths.
#[derive(Clone, Copy)]
struct Clock {
    offset_us: i64,
    drift_ppm: i64,
    since_us: u64,
}

impl Clock {
    fn read_us(&self, true_us: u64) -> u64 {
        let passed = i64::try_from(true_us - self.since_us).expect("years, not ages");
        let drift = i64::try_from(i128::from(passed) * i128::from(self.drift_ppm) / 1_000_000);
        true_us
            .saturating_add_signed(self.offset_us)
            .saturating_add_signed(drift.expect("less than the time itself"))
            .min(MAX_NOW_US)
    }
}

/// How far clocks may be from the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clocks {
    /// Within a quarter of the margin, so that any two agree within half of it.
    Close,
    /// Skewed, drifting, and set forwards and backwards now and then.
    Wild,
}

// Servers ---------------------------------------------------------------------------------------

/// A key on a server: its limiter, the other bucket's beside it, and when it expires on the server's clock.
#[derive(Clone)]
struct Entry {
    key: Key,
    twin: Key,
    expires_ms: i64,
}

type Reply = Result<[i64; 5], ()>;

#[derive(Clone, Copy, Debug)]
enum Deed {
    Call(Algorithm, Call),
    Refund(Algorithm, u64, u64),
    Delete,
}

struct Server {
    entries: Vec<Option<Entry>>,
    clock: Clock,
}

/// One deed on one key, as the primary answered it, on its way to the replica.
struct Logged {
    due_us: u64,
    at: usize,
    deed: Deed,
    reply: Option<Reply>,
    /// Units that the deed charged.
    charged: u64,
    /// The key's bytes after it.
    bytes: Option<Vec<u8>>,
}

/// Faults of the world's own making: each must be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    None,
    /// The replica misses a call.
    ReplicaMisses,
    /// Keys live only half as long as what they hold.
    ExpiresEarly,
    /// A denied call moves the limiter's time.
    DenialCharges,
    /// Charges of several units take one, on all servers alike.
    ForgetsUnits,
    /// What a failover took is not reckoned.
    LosesSilently,
    /// The waiting time is 1 ms too long.
    WaitsLonger,
    /// A restart loses a limiter's time.
    RestartForgets,
}

impl Server {
    fn now_ms(&self, true_us: u64) -> i64 {
        i64::try_from(self.clock.read_us(true_us) / 1000).unwrap()
    }

    /// The deed, and what was answered: the same on a replica.
    fn run(&mut self, true_us: u64, at: usize, deed: Deed, sabotage: Sabotage) -> Option<Reply> {
        let now_ms = self.now_ms(true_us);
        let slot = &mut self.entries[at];
        let (algorithm, call) = match deed {
            Deed::Delete => {
                *slot = None;
                return None;
            }
            Deed::Refund(algorithm, units, now_us) => {
                if let Some(entry) = slot {
                    let left = entry.key.refund(units, now_us);
                    if is_bucket(algorithm) {
                        assert_eq!(entry.twin.refund(units, now_us), left, "law 5: {deed:?}");
                    }
                    if entry.key.state.is_none() {
                        *slot = None;
                    }
                }
                return None;
            }
            Deed::Call(algorithm, call) => (algorithm, call),
        };
        let mut entry = slot.take().unwrap_or(Entry {
            key: Key::default(),
            twin: Key::default(),
            expires_ms: i64::MIN,
        });
        // The forms of the state are looked at now and then: they take their time.
        entry.key.unchecked = !true_us.is_multiple_of(16);
        entry.twin.unchecked = true;
        let mut reply = ask(&mut entry.key, algorithm, &call, sabotage);
        if is_bucket(algorithm) {
            let other = match algorithm {
                Algorithm::Token => Algorithm::Gcra,
                _ => Algorithm::Token,
            };
            let twin = ask(&mut entry.twin, other, &call, sabotage);
            assert_eq!(twin, reply, "law 5: {deed:?}");
        }
        let charged = charged(&call, &reply) > 0;
        match sabotage {
            Sabotage::DenialCharges
                if matches!(reply, Ok([0, ..])) && call.mode == Mode::Charge =>
            {
                let later = Call {
                    now_us: call.now_us,
                    cost: 1,
                    mode: Mode::Force,
                    ..call
                };
                // A debt that is too large charges nothing, and the next denial may.
                let _ = entry.key.call(algorithm, &later);
            }
            Sabotage::WaitsLonger => {
                if let Ok(reply) = &mut reply
                    && reply[3] > 0
                {
                    reply[3] += 1;
                }
            }
            _ => {}
        }
        if let (Ok(reply), true) = (&reply, charged) {
            let reset = if sabotage == Sabotage::ExpiresEarly {
                reply[4] / 2 - MARGIN_MS
            } else {
                reply[4]
            };
            let least = now_ms + reset + MARGIN_MS / 2;
            let most = now_ms + reset + MARGIN_MS;
            if !(least..=most).contains(&entry.expires_ms) {
                entry.expires_ms = most;
            }
        }
        if entry.key.state.is_some() {
            *slot = Some(entry);
        }
        Some(reply)
    }

    fn bytes(&self, at: usize) -> Option<Vec<u8>> {
        let state = self.entries[at].as_ref()?.key.state.as_ref()?;
        Some(codec::encode(state))
    }

    /// Writes everything and reads it again.
    fn restart(&mut self, sabotage: Sabotage) {
        for entry in self.entries.iter_mut().flatten() {
            for key in [&mut entry.key, &mut entry.twin] {
                if let Some(state) = &mut key.state {
                    let read = codec::decode(codec::VERSION, &codec::encode(state));
                    assert_eq!(read.as_ref(), Ok(&*state), "law 7, over a restart");
                    *state = read.expect("just compared");
                }
            }
            if sabotage == Sabotage::RestartForgets {
                entry.key.state = None;
            }
        }
    }
}

fn is_bucket(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::Token | Algorithm::Gcra)
}

fn ask(key: &mut Key, algorithm: Algorithm, call: &Call, sabotage: Sabotage) -> Reply {
    let mut before = Key::default();
    if sabotage == Sabotage::ForgetsUnits {
        before.clone_from(key);
    }
    let reply = key.call(algorithm, call).map_err(|_| ());
    if sabotage == Sabotage::ForgetsUnits && call.mode == Mode::Charge && charged(call, &reply) > 1
    {
        let one = Call { cost: 1, ..*call };
        before.call(algorithm, &one).expect("less than what fits");
        *key = before;
    }
    reply
}

/// The units that a call with this reply has charged.
fn charged(call: &Call, reply: &Reply) -> u64 {
    match (call.mode, reply) {
        (Mode::Peek, _) | (_, Err(()) | Ok([0, ..])) => 0,
        (Mode::Partial, Ok([granted, ..])) => u64::try_from(*granted).unwrap(),
        (Mode::Charge | Mode::Force, Ok(_)) => call.cost,
    }
}

// The laws --------------------------------------------------------------------------------------

/// What the checkers know of a key: what was admitted under one policy, while the limiter remembers it.
struct Era {
    policy: Policy,
    /// Of a window: what was admitted in it, and the sum.
    admitted: VecDeque<(u64, u64)>,
    sum: u64,
    /// Of a bucket: all that was admitted since the era began, and the least it had in hand.
    total: u128,
    least: Option<i128>,
    newest_us: u64,
}

impl Era {
    fn new(policy: Policy) -> Era {
        Era {
            policy,
            admitted: VecDeque::new(),
            sum: 0,
            total: 0,
            least: None,
            newest_us: 0,
        }
    }

    /// Laws 4 and 6, when `units` were admitted (not forced) at `t_us`.
    fn admit(&mut self, algorithm: Algorithm, t_us: u64, units: u64) {
        assert!(t_us >= self.newest_us, "time went back: {t_us}");
        self.newest_us = t_us;
        let (limit, window_us) = (self.policy.limit(), self.policy.window_us());
        if is_bucket(algorithm) {
            // For every earlier admission: units since then ≤ burst + limit × time / window, times window.
            let [limit, window, burst] = [limit, window_us, self.policy.burst()].map(i128::from);
            let drained = limit * i128::from(t_us);
            let start = i128::try_from(self.total).unwrap() * window - drained;
            let least = *self
                .least
                .insert(self.least.map_or(start, |least| least.min(start)));
            self.total += u128::from(units);
            let end = i128::try_from(self.total).unwrap() * window - drained;
            assert!(
                end - least <= burst * window,
                "law 6: more than burst and rate at {t_us} under {:?}",
                self.policy
            );
            return;
        }
        self.admitted.push_back((t_us, units));
        self.sum += units;
        let counts = |e_us: u64| match algorithm {
            Algorithm::SlidingLog => e_us + window_us > t_us,
            // Of the counter: what it admits in an aligned window alone is at most the limit, too.
            _ => e_us / window_us == t_us / window_us,
        };
        while let Some((e_us, units)) = self.admitted.front().copied()
            && !counts(e_us)
        {
            self.admitted.pop_front();
            self.sum -= units;
        }
        assert!(
            self.sum <= limit,
            "law 4: {} units in a window at {t_us} under {:?}",
            self.sum,
            self.policy
        );
    }
}

/// The time that a `now` counts as.
fn counted_us(key: &Key, now_us: u64) -> u64 {
    let updated = key
        .state
        .as_ref()
        .map(|state| state.inspect(now_us).updated_us);
    updated.map_or(now_us, |updated_us| updated_us.max(now_us))
}

fn peek(key: &mut Key, algorithm: Algorithm, call: &Call, now_us: u64, cost: u64) -> [i64; 5] {
    let call = Call {
        now_us,
        cost,
        mode: Mode::Peek,
        ..*call
    };
    key.call(algorithm, &call).expect("a look makes no debt")
}

fn us(ms: i64) -> u64 {
    u64::try_from(ms).unwrap() * 1000
}

/// Law 1: after `retry_after` the same call fits, and 1 ms before it does not.
fn retry_is_tight(key: &mut Key, algorithm: Algorithm, call: &Call, reply: &[i64; 5]) {
    let [allowed, limit, _, retry, _] = *reply;
    let cost = if call.mode == Mode::Partial {
        1
    } else {
        call.cost
    };
    if allowed > 0 {
        assert_eq!(retry, 0, "law 1: {call:?} {reply:?}");
        return;
    }
    if retry == -1 {
        assert!(
            cost > u64::try_from(limit).unwrap(),
            "law 1: {call:?} {reply:?}"
        );
        return;
    }
    assert!(retry > 0, "law 1: {call:?} {reply:?}");
    let t_us = counted_us(key, call.now_us);
    let then = peek(key, algorithm, call, t_us + us(retry), cost);
    assert_eq!(
        then[0], 1,
        "law 1, after the wait: {call:?} {reply:?} {then:?}"
    );
    let before = peek(key, algorithm, call, t_us + us(retry - 1), cost);
    assert_eq!(
        before[0], 0,
        "law 1, 1 ms early: {call:?} {reply:?} {before:?}"
    );
}

/// Law 2: after `reset_after` the limiter answers as a missing key, and 1 ms before something still counts.
fn reset_is_whole(key: &mut Key, algorithm: Algorithm, call: &Call, reply: &[i64; 5]) {
    let t_us = counted_us(key, call.now_us);
    let end_us = t_us + us(reply[4]);
    let burst = call.policy.burst();
    for (cost, later_us) in [(1, 0), (burst, 0), (0, 1), (burst / 2 + 1, 1000)] {
        let now_us = end_us + later_us;
        assert_eq!(
            peek(key, algorithm, call, now_us, cost),
            peek(&mut Key::default(), algorithm, call, now_us, cost),
            "law 2: {call:?} {reply:?} asked for {cost} at {now_us}"
        );
    }
    if reply[4] > 0 {
        let early = peek(key, algorithm, call, end_us - 1000, 1);
        assert_eq!(
            early[4], 1,
            "law 2, 1 ms early: {call:?} {reply:?} {early:?}"
        );
    }
}

// The world -------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    calls: u64,
    charged: u64,
    denied: u64,
    refused: u64,
    forced: u64,
    refunds: u64,
    lost: u64,
    late: u64,
    repeated: u64,
    clock_steps: u64,
    expired: u64,
    evicted: u64,
    policies: u64,
    failovers: u64,
    deeds_lost: u64,
    restarts: u64,
    replicated: u64,
    shadowed: u64,
    years: u64,
}

struct Caller {
    clock: Clock,
    /// Which policy of a key it knows of.
    knows: usize,
}

/// A key's name is its place; what the world knows of it.
struct Named {
    algorithm: Algorithm,
    /// Which callers learn of one after the other.
    policies: Vec<Policy>,
    era: Option<Era>,
    /// The same calls on a limiter that never expires, in a world of close clocks.
    shadow: Key,
    /// All that was admitted, what failovers took from that, and the first and last times counted: a failover may
    /// take them back a little.
    admitted: u128,
    lost: u64,
    first_us: u64,
    last_us: u64,
}

struct World {
    rng: SmallRng,
    sabotage: Sabotage,
    clocks: Clocks,
    /// One policy for each key, no FORCE, refund or eviction: what is admitted in all can be told.
    calm: bool,
    true_us: u64,
    /// The longest step of the true time.
    pace_us: u64,
    lag_us: u64,
    primary: Server,
    replica: Server,
    /// What the replica has not got yet.
    stream: VecDeque<Logged>,
    callers: Vec<Caller>,
    keys: Vec<Named>,
    late: Vec<(usize, Call)>,
    /// True times at which something should happen: the waits that were told.
    landmarks: Vec<u64>,
    tally: Tally,
}

const POLICIES: [(u64, u64); 14] = [
    (1, 1),
    (3, 7),
    (7, 3),
    (5, 11),
    (10, 1_000),
    (3, 1_000_000),
    (10, 1_000_000),
    (1_000, 999_999),
    (60, 60_000_000),
    (100, DAY_US),
    (20, 31_557_600_000_000),
    (100_000_000, 1_000_000),
    (MAX_UNITS, 1_000_003),
    (12, MAX_WINDOW_US),
];

fn any_policy(rng: &mut SmallRng, algorithm: Algorithm) -> Policy {
    let (limit, window_us) = if rng.random_ratio(1, 4) {
        (rng.random_range(1..=30), log_uniform(rng, MAX_WINDOW_US))
    } else {
        POLICIES[rng.random_range(0..POLICIES.len())]
    };
    let burst = match rng.random_range(0..6) {
        0 if is_bucket(algorithm) => 1,
        1 if is_bucket(algorithm) => (limit / 2).max(1),
        2 if is_bucket(algorithm) => limit.saturating_mul(3).min(MAX_UNITS),
        _ => limit,
    };
    policy(limit, window_us, burst)
}

impl World {
    fn new(seed: u64, sabotage: Sabotage) -> World {
        let mut rng = SmallRng::seed_from_u64(seed);
        let clocks = if rng.random() {
            Clocks::Close
        } else {
            Clocks::Wild
        };
        let calm = clocks == Clocks::Close || rng.random_ratio(1, 3);
        let start_us = match rng.random_range(0..4) {
            0 => log_uniform(&mut rng, DAY_US),
            _ => 1_700_000_000_000_000 + rng.random_range(0..DAY_US),
        };
        let clock = |rng: &mut SmallRng, server: bool| {
            let quarter_us = MARGIN_MS * 1000 / 4;
            let (offset_us, drift_ppm) = match clocks {
                Clocks::Close if server => (0, 0),
                // A millisecond less, for what rounding takes.
                Clocks::Close => (rng.random_range(1000 - quarter_us..quarter_us - 1000), 0),
                Clocks::Wild => {
                    let size = i64::try_from(log_uniform(rng, 400 * DAY_US)).unwrap();
                    let sign = [-1, 0, 1][rng.random_range(0..3)];
                    (size * sign, rng.random_range(-500..=500))
                }
            };
            Clock {
                offset_us,
                drift_ppm,
                since_us: start_us,
            }
        };
        let algorithms = Algorithm::ALL;
        let keys: Vec<Named> = (0..rng.random_range(1..=6))
            .map(|_| {
                let algorithm = algorithms[rng.random_range(0..algorithms.len())];
                let count = if calm { 1 } else { rng.random_range(1..=4) };
                Named {
                    algorithm,
                    policies: (0..count)
                        .map(|_| any_policy(&mut rng, algorithm))
                        .collect(),
                    era: None,
                    shadow: Key {
                        unchecked: true,
                        ..Key::default()
                    },
                    admitted: 0,
                    lost: 0,
                    first_us: u64::MAX,
                    last_us: 0,
                }
            })
            .collect();
        let server = |clock| Server {
            entries: vec![None; keys.len()],
            clock,
        };
        let (primary, replica) = (clock(&mut rng, true), clock(&mut rng, true));
        let callers = (0..rng.random_range(1..=8))
            .map(|_| Caller {
                clock: clock(&mut rng, false),
                knows: 0,
            })
            .collect();
        // From a world of microseconds to one of years.
        let pace_us = log_uniform(&mut rng, 30 * DAY_US);
        World {
            primary: server(primary),
            replica: server(replica),
            callers,
            sabotage,
            clocks,
            calm,
            true_us: start_us,
            pace_us,
            lag_us: if rng.random() {
                0
            } else {
                log_uniform(&mut rng, 4 * pace_us)
            },
            stream: VecDeque::new(),
            keys,
            late: Vec::new(),
            landmarks: Vec::new(),
            tally: Tally::default(),
            rng,
        }
    }

    fn run(mut self) -> Tally {
        let start_us = self.true_us;
        while self.tally.calls < CALLS && self.true_us < MAX_NOW_US / 2 {
            self.pass_time();
            self.happen();
            self.replicate(self.true_us);
            self.send();
        }
        self.replicate(u64::MAX);
        self.tally.years = (self.true_us - start_us) / (365 * DAY_US);
        self.tally
    }

    fn odds(&mut self, of: u32, in_all: u32) -> bool {
        self.rng.random_ratio(of, in_all)
    }

    fn pass_time(&mut self) {
        let landmark = self
            .landmarks
            .pop()
            .filter(|landmark| *landmark > self.true_us);
        self.true_us = match landmark {
            Some(landmark_us) => landmark_us,
            None if self.odds(1, 4) => self.true_us,
            None => self.true_us + self.rng.random_range(0..=self.pace_us),
        };
    }

    /// What happens to servers and clocks between two calls.
    fn happen(&mut self) {
        let many = self.keys.len();
        // A server looks for expired keys by itself, too.
        if self.odds(1, 8) {
            let at = self.rng.random_range(0..many);
            self.expire(at);
        }
        if self.odds(1, 200) {
            self.primary.restart(self.sabotage);
            self.tally.restarts += 1;
        }
        if self.odds(1, 500) {
            self.fail_over();
        }
        if self.clocks == Clocks::Wild && self.odds(1, 50) {
            let step_us = i64::try_from(log_uniform(&mut self.rng, DAY_US)).unwrap();
            let step_us = if self.rng.random() { step_us } else { -step_us };
            let clock = match self.rng.random_range(0..self.callers.len() + 2) {
                0 => &mut self.primary.clock,
                1 => &mut self.replica.clock,
                n => &mut self.callers[n - 2].clock,
            };
            clock.offset_us += step_us;
            self.tally.clock_steps += 1;
        }
        if self.calm {
            return;
        }
        if self.odds(1, 200) {
            let at = self.rng.random_range(0..many);
            self.forget(at);
            self.tally.evicted += 1;
        }
        if self.odds(1, 100) {
            // One caller after the other learns of a new policy; some go back to the old one.
            let place = self.rng.random_range(0..self.callers.len());
            self.callers[place].knows = self.rng.random_range(0..4);
            self.tally.policies += 1;
        }
        if self.odds(1, 50) {
            let at = self.rng.random_range(0..many);
            let units = log_uniform(&mut self.rng, 100);
            let place = self.rng.random_range(0..self.callers.len());
            let now_us = self.callers[place].clock.read_us(self.true_us);
            self.expire(at);
            let deed = Deed::Refund(self.keys[at].algorithm, units, now_us);
            self.primary.run(self.true_us, at, deed, self.sabotage);
            self.log(at, deed, None, 0);
            self.keys[at].era = None;
            self.tally.refunds += 1;
        }
    }

    fn forget(&mut self, at: usize) {
        self.primary.entries[at] = None;
        self.keys[at].era = None;
        self.log(at, Deed::Delete, None, 0);
    }

    fn expire(&mut self, at: usize) {
        let now_ms = self.primary.now_ms(self.true_us);
        let over = |entry: &Entry| now_ms > entry.expires_ms;
        if self.primary.entries[at].as_ref().is_some_and(over) {
            self.forget(at);
            self.tally.expired += 1;
        }
    }

    fn log(&mut self, at: usize, deed: Deed, reply: Option<Reply>, charged: u64) {
        let lag_us = if self.lag_us == 0 {
            0
        } else {
            self.rng.random_range(0..=self.lag_us)
        };
        // A stream keeps its order.
        let due_us = self
            .stream
            .back()
            .map_or(0, |last| last.due_us)
            .max(self.true_us + lag_us);
        self.stream.push_back(Logged {
            due_us,
            at,
            deed,
            reply,
            charged,
            bytes: self.primary.bytes(at),
        });
    }

    /// Laws 3 and 7: who runs only what was charged has the same replies and the same states.
    fn replicate(&mut self, until_us: u64) {
        let on_all = match self.sabotage {
            Sabotage::ForgetsUnits => self.sabotage,
            _ => Sabotage::None,
        };
        while self
            .stream
            .front()
            .is_some_and(|logged| logged.due_us <= until_us)
        {
            let logged = self.stream.pop_front().expect("just seen");
            self.tally.replicated += 1;
            if self.sabotage == Sabotage::ReplicaMisses && self.tally.replicated.is_multiple_of(100)
            {
                continue;
            }
            let reply = self
                .replica
                .run(self.true_us, logged.at, logged.deed, on_all);
            assert_eq!(
                reply, logged.reply,
                "laws 3 and 7, on the replica: {:?}",
                logged.deed
            );
            assert_eq!(
                self.replica.bytes(logged.at),
                logged.bytes,
                "law 7, the state on the replica: {:?}",
                logged.deed
            );
        }
    }

    /// The primary is gone, with all that the replica has not got; a new replica copies the new primary.
    fn fail_over(&mut self) {
        self.tally.failovers += 1;
        for logged in self.stream.drain(..) {
            self.tally.deeds_lost += 1;
            let key = &mut self.keys[logged.at];
            if self.sabotage != Sabotage::LosesSilently {
                key.lost += logged.charged;
            }
            key.era = None;
        }
        std::mem::swap(&mut self.primary, &mut self.replica);
        self.replica.entries.clone_from(&self.primary.entries);
        for (key, entry) in self.keys.iter_mut().zip(&self.primary.entries) {
            key.shadow.state = entry.as_ref().and_then(|entry| entry.key.state.clone());
        }
    }

    /// A call is made, and what the network does to it.
    fn send(&mut self) {
        let at = self.rng.random_range(0..self.keys.len());
        let call = self.make(at);
        if let Some(place) = (!self.late.is_empty() && self.odds(1, 4))
            .then(|| self.rng.random_range(0..self.late.len()))
        {
            let (at, call) = self.late.swap_remove(place);
            self.arrive(at, &call);
        }
        match self.rng.random_range(0..40) {
            0 => self.tally.lost += 1,
            // In a world of close clocks nothing is later than a clock may be wrong.
            1 if self.clocks == Clocks::Wild => {
                self.late.push((at, call));
                self.tally.late += 1;
            }
            // The answer got lost, or the request was sent twice.
            2 => {
                self.arrive(at, &call);
                self.arrive(at, &call);
                self.tally.repeated += 1;
            }
            _ => self.arrive(at, &call),
        }
    }

    fn make(&mut self, at: usize) -> Call {
        let key = &self.keys[at];
        let place = self.rng.random_range(0..self.callers.len());
        let caller = &self.callers[place];
        let policy = key.policies[caller.knows % key.policies.len()];
        let now_us = caller.clock.read_us(self.true_us);
        let mode = match self.rng.random_range(0..20) {
            0 | 1 => Mode::Peek,
            2 | 3 => Mode::Partial,
            4 if !self.calm => Mode::Force,
            _ => Mode::Charge,
        };
        let cost = match self.rng.random_range(0..12) {
            0 if mode != Mode::Partial => 0,
            1 => policy.burst(),
            2 => (policy.burst() + 1).min(MAX_UNITS),
            3 => policy.burst() / 3 + 1,
            4 => self.rng.random_range(1..=policy.burst()),
            _ => 1,
        };
        Call {
            policy,
            now_us,
            cost,
            mode,
        }
    }

    /// A call on the primary, and all that must hold of its answer.
    fn arrive(&mut self, at: usize, call: &Call) {
        self.tally.calls += 1;
        self.expire(at);
        let algorithm = self.keys[at].algorithm;
        let existed = self.primary.entries[at].is_some();
        let before = self.primary.entries[at]
            .as_ref()
            .map(|entry| entry.key.state.clone());
        let t_us = match &self.primary.entries[at] {
            Some(entry) => counted_us(&entry.key, call.now_us),
            None => call.now_us,
        };
        let deed = Deed::Call(algorithm, *call);
        let reply = self.primary.run(self.true_us, at, deed, self.sabotage);
        let reply = reply.expect("a call has an answer");
        let units = charged(call, &reply);
        if self.clocks == Clocks::Close {
            // Clocks that agree within half the margin never see that a key has expired.
            let shadow = ask(&mut self.keys[at].shadow, algorithm, call, self.sabotage);
            assert_eq!(shadow, reply, "expiry was seen: {call:?}");
            self.tally.shadowed += 1;
        }
        if units > 0 {
            self.log(at, deed, Some(reply), units);
        } else {
            let after = self.primary.entries[at]
                .as_ref()
                .map(|entry| entry.key.state.clone());
            assert_eq!(after, before, "law 3: {call:?} changed the key");
        }
        let Ok(five) = reply else {
            assert_eq!(call.mode, Mode::Force, "only a debt is refused: {call:?}");
            self.tally.refused += 1;
            return;
        };
        let mut fresh = Key::default();
        let look = self.rng.random_ratio(1, 4);
        let key = self.primary.entries[at]
            .as_mut()
            .map_or(&mut fresh, |entry| &mut entry.key);
        retry_is_tight(key, algorithm, call, &five);
        if look {
            reset_is_whole(key, algorithm, call, &five);
        }
        self.account(at, call, t_us, units, existed);
        self.tally.denied += u64::from(five[0] == 0);
        self.tally.charged += u64::from(units > 0);
        self.tally.forced += u64::from(call.mode == Mode::Force);
        self.landmark(call, t_us, &five);
    }

    /// Callers come back when they were told to, and a little before.
    fn landmark(&mut self, call: &Call, t_us: u64, reply: &[i64; 5]) {
        let wait_ms = reply[if self.rng.random() { 3 } else { 4 }];
        if wait_ms <= 0 || self.odds(3, 4) {
            return;
        }
        // By the clock of the one who called.
        let ahead = (t_us - call.now_us).saturating_add(us(wait_ms));
        let around = [0, 0, -1, -1000, 1, 1000][self.rng.random_range(0..6)];
        // Centuries would use up all the time there is.
        if ahead < 1000 * self.pace_us {
            self.landmarks.push(
                self.true_us
                    .saturating_add(ahead)
                    .saturating_add_signed(around),
            );
        }
    }

    fn account(&mut self, at: usize, call: &Call, t_us: u64, units: u64, existed: bool) {
        let key = &mut self.keys[at];
        if units == 0 {
            return;
        }
        let same = key
            .era
            .as_ref()
            .is_some_and(|era| existed && era.policy == call.policy);
        if !same {
            key.era = Some(Era::new(call.policy));
        }
        if call.mode == Mode::Force {
            return;
        }
        let era = key.era.as_mut().expect("just made");
        era.admit(key.algorithm, t_us, units);
        key.admitted += u128::from(units);
        key.first_us = key.first_us.min(t_us);
        key.last_us = key.last_us.max(t_us);
        // What a whole world's window admits, failovers and all: never more than its policy and what they took.
        let span_us = key.last_us - key.first_us;
        let (limit, window_us) = (call.policy.limit(), call.policy.window_us());
        if self.calm && self.clocks == Clocks::Close {
            let drained = u128::from(limit) * u128::from(span_us) / u128::from(window_us);
            let most = match key.algorithm {
                Algorithm::Token | Algorithm::Gcra => {
                    Some(u128::from(call.policy.burst()) + drained)
                }
                Algorithm::SlidingLog => (span_us < window_us).then_some(limit.into()),
                _ => (key.first_us / window_us == key.last_us / window_us).then_some(limit.into()),
            };
            if let Some(most) = most {
                assert!(
                    key.admitted <= most + u128::from(key.lost),
                    "{} admitted, {most} by the policy, {} lost by failovers: {call:?}",
                    key.admitted,
                    key.lost
                );
            }
        }
    }
}

/// Says which world it was when a law is broken in it.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "replay: RL_SEED={} RL_CALLS=1 cargo test --test simulation",
                self.0
            );
        }
    }
}

fn one_world(seed: u64, sabotage: Sabotage) -> Tally {
    let _told = Told(seed);
    World::new(seed, sabotage).run()
}

impl Tally {
    fn add(&mut self, other: Tally) {
        macro_rules! sum {
            ($($field:ident)*) => { $(self.$field += other.$field;)* };
        }
        sum!(calls charged denied refused forced refunds lost late repeated clock_steps expired evicted policies
             failovers deeds_lost restarts replicated shadowed years);
    }
}

#[test]
fn the_laws_hold_whatever_happens() {
    let (first, calls) = (number("RL_SEED", 0), number("RL_CALLS", 1_000_000));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let next = std::sync::atomic::AtomicU64::new(first);
    let all = std::sync::Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while all.lock().unwrap().calls < calls {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let tally = one_world(seed, Sabotage::None);
                    all.lock().unwrap().add(tally);
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    println!(
        "{} worlds from seed {first}: {all:#?}",
        next.into_inner() - first
    );
    if calls >= 100_000 {
        // Otherwise it would have become a simulation of something else.
        let some = calls / 10_000;
        for (name, count, least) in [
            ("charged", all.charged, calls / 5),
            ("denied", all.denied, calls / 10),
            ("refused", all.refused, 1),
            ("forced", all.forced, some),
            ("refunds", all.refunds, some),
            ("lost", all.lost, some),
            ("late", all.late, some),
            ("repeated", all.repeated, some),
            ("clock_steps", all.clock_steps, some),
            ("expired", all.expired, some),
            ("evicted", all.evicted, some),
            ("policies", all.policies, some),
            ("failovers", all.failovers, some),
            ("deeds_lost", all.deeds_lost, some),
            ("restarts", all.restarts, some),
            ("replicated", all.replicated, calls / 5),
            ("shadowed", all.shadowed, calls / 4),
            ("years", all.years, some),
        ] {
            assert!(count >= least, "{name}: only {count}");
        }
    }
}

/// The checkers see what they are there for: a world with a fault in it does not pass.
#[test]
fn a_fault_in_the_world_is_noticed() {
    for (sabotage, law) in [
        (Sabotage::ReplicaMisses, "on the replica"),
        (Sabotage::ExpiresEarly, "expiry was seen"),
        (Sabotage::DenialCharges, "law 3"),
        (Sabotage::ForgetsUnits, "law 4"),
        (Sabotage::ForgetsUnits, "law 6"),
        (Sabotage::LosesSilently, "lost by failovers"),
        (Sabotage::WaitsLonger, "law 1"),
        (Sabotage::RestartForgets, "on the replica"),
    ] {
        let noticed = (0..50).any(|seed| {
            let world = AssertUnwindSafe(|| World::new(seed, sabotage).run());
            let why = catch_unwind(world).err();
            why.is_some_and(|why| {
                why.downcast_ref::<String>()
                    .expect("asserted")
                    .contains(law)
            })
        });
        assert!(noticed, "{sabotage:?} went unnoticed by: {law}");
    }
}
