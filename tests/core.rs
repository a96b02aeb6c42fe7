//! The pure core against the naive model. Every failure names the seed that replays it.
//!
//! `RL_STEPS` is the number of random steps for each algorithm; `RL_SEED` the first seed.

#[path = "support/beside.rs"]
mod beside;
mod model;
#[path = "support/core.rs"]
mod pure;

use std::env;

use beside::{both, to_core};
use model::Model;
use model::trace::{Step, walk};
use pure::{Key, policy};
use redis_rl::limit::sliding_log::MAX_ENTRIES;
use redis_rl::limit::{Algorithm, Call, MAX_UNITS, MAX_WINDOW_US, Mode, Policy};

/// Steps of one walk.
const WALK: usize = 200;

fn number(name: &str, or: u64) -> u64 {
    env::var(name).map_or(or, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number"))
    })
}

fn one_walk(algorithm: model::Algorithm, seed: u64) {
    let (mut core, mut naive, mut n) = (Key::default(), Model::default(), 0);
    walk(seed, algorithm, WALK, |step| {
        n += 1;
        both(&mut core, &mut naive, step, || {
            format!("{algorithm:?}, RL_SEED={seed}, step {n}")
        })
    });
}

fn random_walks(algorithm: model::Algorithm) {
    let first = number("RL_SEED", 0);
    let steps = number("RL_STEPS", 40_000);
    for seed in first..first + steps.div_ceil(WALK as u64) {
        one_walk(algorithm, seed);
    }
}

#[test]
#[cfg_attr(miri, ignore = "the model's exact fractions take minutes")]
fn fixed_equals_the_model() {
    random_walks(model::Algorithm::Fixed);
}

#[test]
#[cfg_attr(miri, ignore = "the model's exact fractions take minutes")]
fn slidinglog_equals_the_model() {
    random_walks(model::Algorithm::SlidingLog);
}

#[test]
#[cfg_attr(miri, ignore = "the model's exact fractions take minutes")]
fn slidingcounter_equals_the_model() {
    random_walks(model::Algorithm::SlidingCounter);
}

#[test]
#[cfg_attr(miri, ignore = "the model's exact fractions take minutes")]
fn token_equals_the_model() {
    random_walks(model::Algorithm::Token);
}

#[test]
#[cfg_attr(miri, ignore = "the model's exact fractions take minutes")]
fn gcra_equals_the_model() {
    random_walks(model::Algorithm::Gcra);
}

/// The same calls, for Miri: what it looks for is in the core.
#[test]
fn walks_of_the_core_alone() {
    for (algorithm, seed) in model::Algorithm::ALL.into_iter().zip(0..) {
        let (mut core, mut allowed) = (Key::default(), 0);
        walk(seed, algorithm, WALK, |step| match step {
            Step::Call(call) => {
                let (algorithm, call) = to_core(call);
                let reply = core.call(algorithm, &call).ok();
                allowed += i32::from(reply.is_some_and(|reply| reply[0] > 0));
                reply
            }
            Step::Refund { units, now_us } => {
                core.refund(*units, *now_us);
                None
            }
        });
        assert!(allowed > 10, "{algorithm:?}: {allowed} calls allowed");
    }
}

/// A walk in which they differed once: counts that join again and again outgrew a bound.
#[test]
#[cfg_attr(miri, ignore = "the model's exact fractions take minutes")]
fn counts_that_join_again_and_again_stay_exact() {
    one_walk(model::Algorithm::SlidingCounter, 1_003_211);
}

/// All histories of four calls over two tiny policies, five time steps (one back) and costs up to 3.
#[test]
#[cfg_attr(miri, ignore = "the model's exact fractions take minutes")]
fn small_histories_equal_the_model() {
    let policies = [(1, 2, 1), (2, 3, 3), (3, 2, 2)];
    for algorithm in model::Algorithm::ALL {
        let mut calls = Vec::new();
        for (limit, window_us, burst) in policies {
            let burst = if algorithm.has_burst() { burst } else { limit };
            for step_us in [0, 1, 2, 5] {
                for (cost, mode) in [
                    (1, model::Mode::Charge),
                    (3, model::Mode::Force),
                    (2, model::Mode::Partial),
                ] {
                    calls.push((
                        step_us,
                        model::Call {
                            algorithm,
                            limit,
                            window_us,
                            burst,
                            now_us: 0,
                            cost,
                            mode,
                        },
                    ));
                }
            }
        }
        let count = calls.len();
        for history in 0..count.pow(3) {
            let (mut core, mut naive, mut now_us) = (Key::default(), Model::default(), 7);
            for place in 0..3 {
                let (step_us, call) = calls[history / count.pow(place) % count];
                now_us += step_us;
                let step = Step::Call(model::Call { now_us, ..call });
                both(&mut core, &mut naive, &step, || {
                    format!("{algorithm:?}, history {history}, call {place}")
                });
            }
        }
    }
}

fn charge(policy: Policy, now_us: u64, cost: u64) -> Call {
    Call {
        policy,
        now_us,
        cost,
        mode: Mode::Charge,
    }
}

/// Law 6: a caller who always asks gets exactly the rate, without drift.
#[test]
fn a_bucket_admits_exactly_its_rate() {
    let calls = number("RL_STEPS", 200_000);
    for (limit, window_us) in [
        (3, 1_000_000),
        (7, 1_000_003),
        (999_999_937, 1_000_000_007),
        (1, 7),
    ] {
        for algorithm in [Algorithm::Token, Algorithm::Gcra] {
            let policy = policy(limit, window_us, 5);
            let (mut key, mut admitted, start_us) =
                (Key::default(), 0_u64, 1_700_000_000_000_000_u64);
            let step_us = (window_us / limit / 3).max(1);
            let mut now_us = start_us;
            for _ in 0..calls {
                let call = Call {
                    mode: Mode::Partial,
                    ..charge(policy, now_us, 1_000_000)
                };
                admitted += u64::try_from(key.call(algorithm, &call).unwrap()[0]).unwrap();
                now_us += step_us;
            }
            let elapsed_us = now_us - step_us - start_us;
            let drained = u128::from(limit) * u128::from(elapsed_us) / u128::from(window_us);
            assert_eq!(
                u128::from(admitted),
                u128::from(policy.burst()) + drained,
                "{algorithm:?} {policy:?}"
            );
        }
    }
}

/// Law 5, on the same calls, changed policies and all.
#[test]
fn token_and_gcra_reply_alike() {
    for seed in 0..number("RL_STEPS", 40_000).div_ceil(2 * WALK as u64) {
        let (mut token, mut gcra) = (Key::default(), Key::default());
        walk(seed, model::Algorithm::Token, WALK, |step| match step {
            Step::Call(call) => {
                let (_, call) = to_core(call);
                let reply = token.call(Algorithm::Token, &call);
                assert_eq!(
                    reply,
                    gcra.call(Algorithm::Gcra, &call),
                    "seed {seed}: {step:?}"
                );
                reply.ok()
            }
            Step::Refund { units, now_us } => {
                assert_eq!(
                    token.refund(*units, *now_us),
                    gcra.refund(*units, *now_us),
                    "seed {seed}: {step:?}"
                );
                None
            }
        });
    }
}

/// A million entries: the oldest two become one at the later time, and nothing is forgotten early.
#[test]
#[cfg_attr(miri, ignore = "a million entries")]
fn a_full_log_merges_its_oldest() {
    let policy = policy(MAX_UNITS, MAX_WINDOW_US, MAX_UNITS);
    let mut key = Key {
        unchecked: true,
        ..Key::default()
    };
    let start_us = MAX_WINDOW_US;
    for i in 0..=MAX_ENTRIES + 1 {
        key.call(Algorithm::SlidingLog, &charge(policy, start_us + i, 1))
            .unwrap();
    }
    // The entries of the first three µs are one now, and count until the third is too old.
    let used_at = |key: &mut Key, now_us| {
        let peek = Call {
            mode: Mode::Peek,
            ..charge(policy, now_us, 1)
        };
        MAX_UNITS - u64::try_from(key.call(Algorithm::SlidingLog, &peek).unwrap()[2]).unwrap()
    };
    let end_us = start_us + MAX_WINDOW_US;
    assert_eq!(used_at(&mut key, end_us + 1), MAX_ENTRIES + 2);
    assert_eq!(used_at(&mut key, end_us + 2), MAX_ENTRIES - 1);
    assert_eq!(used_at(&mut key, end_us + 3), MAX_ENTRIES - 2);
    // Most of it ages out at once; the rest is exact.
    let late_us = end_us + MAX_ENTRIES - 10;
    assert_eq!(used_at(&mut key, late_us), 11);
    key.call(Algorithm::SlidingLog, &charge(policy, late_us, 5))
        .unwrap();
    assert_eq!(used_at(&mut key, late_us), 16);
    assert_eq!(key.refund(6, late_us), Some(MAX_UNITS - 10));
    assert_eq!(used_at(&mut key, late_us + 4), 6);
}
