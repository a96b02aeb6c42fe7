//! The laws every limiter obeys, held against the model itself on short random histories, and what the contract
//! says of debt, of a full log and of a policy that changes.

mod model;

use model::trace::{Step, walk};
use model::{Algorithm, Call, MAX_DRAIN_US, MAX_UNITS, MAX_WINDOW_US, Mode, Model, Refused, multi};

/// More where it costs nothing; an unoptimized build is ten times slower and more.
const SEEDS: u64 = if cfg!(debug_assertions) { 10 } else { 100 };
const STEPS: usize = 120;

/// Random histories of each algorithm; `judge` sees the model before a step, the step, and what was answered.
fn histories(mut judge: impl FnMut(&Model, &Step, Option<[i64; 5]>, &Model)) {
    for algorithm in Algorithm::ALL {
        for seed in 0..SEEDS {
            let mut m = Model::default();
            walk(seed, algorithm, STEPS, |step| {
                let before = m.clone();
                let reply = answer(&mut m, step);
                judge(&before, step, reply, &m);
                reply
            });
        }
    }
}

fn answer(m: &mut Model, step: &Step) -> Option<[i64; 5]> {
    match step {
        Step::Call(c) => m.call(c).ok(),
        Step::Refund { units, now_us } => {
            m.refund(*units, *now_us);
            None
        }
    }
}

/// The time that a `now` counts as.
fn time(m: &Model, now_us: u64) -> u64 {
    m.inspect(now_us)
        .map_or(now_us, |i| i.updated_us.max(now_us))
}

fn after(t: u64, ms: i64) -> u64 {
    t + u64::try_from(ms).unwrap() * 1000
}

#[test]
fn retry_after_is_tight() {
    let mut seen = 0;
    histories(|_, step, reply, m| {
        let (Step::Call(c), Some(reply)) = (step, reply) else {
            return;
        };
        let t = time(m, c.now_us);
        let at = |ms| {
            m.clone()
                .call(&Call {
                    now_us: after(t, ms),
                    ..*c
                })
                .unwrap()[0]
        };
        match reply {
            [0, cap, _, -1, _] => assert!(i128::from(c.cost) > i128::from(cap)),
            [0, _, _, wait, _] => {
                assert!(
                    wait > 0 && at(wait) > 0 && at(wait - 1) == 0,
                    "{c:?} {reply:?}"
                );
                // Nor does it come and go: what the search for the wait rests on.
                for part in 0..8 {
                    assert_eq!(at(wait * part / 8), 0);
                    assert!(at(wait + wait * part / 8 + part) > 0);
                }
                seen += 1;
            }
            [.., wait, _] => assert_eq!(wait, 0),
        }
    });
    assert!(seen as u64 > 50 * SEEDS, "{seen}");
}

#[test]
fn reset_is_as_a_missing_key() {
    histories(|_, step, reply, m| {
        let (Step::Call(c), Some([.., reset])) = (step, reply) else {
            return;
        };
        let end = after(time(m, c.now_us), reset);
        for (cost, mode, later) in [
            (1, Mode::Charge, 0),
            (c.burst, Mode::Charge, 0),
            (c.burst, Mode::Peek, 1),
            (c.burst / 2 + 1, Mode::Partial, c.window_us / 3),
            (0, Mode::Charge, 0),
            (c.burst + 1, Mode::Charge, 1000),
        ] {
            let call = Call {
                now_us: end + later,
                cost,
                mode,
                ..*c
            };
            assert_eq!(
                m.clone().call(&call),
                Model::default().call(&call),
                "{call:?}"
            );
        }
        if reset > 0 {
            let early = Call {
                now_us: end - 1000,
                cost: 0,
                mode: Mode::Peek,
                ..*c
            };
            assert!(m.clone().call(&early).unwrap()[4] == 1, "{c:?}");
        }
    });
}

#[test]
fn denials_are_free() {
    for algorithm in Algorithm::ALL {
        for seed in 0..SEEDS {
            let (mut all, mut charged) = (Model::default(), Model::default());
            walk(seed, algorithm, STEPS, |step| {
                let before = all.clone();
                let reply = answer(&mut all, step);
                let free = match (step, reply) {
                    (Step::Call(c), Some(r)) => r[0] == 0 || c.mode == Mode::Peek || c.cost == 0,
                    (Step::Call(_), None) => true,
                    (Step::Refund { .. }, _) => false,
                };
                if free {
                    assert_eq!(all, before);
                } else {
                    assert_eq!(answer(&mut charged, step), reply);
                }
                reply
            });
        }
    }
}

/// The calls under one policy, its clock never back, that were allowed: (time, units).
fn admitted(seed: u64, algorithm: Algorithm, each: impl Fn(&Call, &[(u64, u64)])) {
    let (mut m, mut log, mut first) = (Model::default(), Vec::<(u64, u64)>::new(), None::<Call>);
    walk(seed, algorithm, STEPS, |step| {
        let Step::Call(c) = step else { return None };
        let p = *first.get_or_insert(*c);
        let mode = if c.mode == Mode::Force {
            Mode::Charge
        } else {
            c.mode
        };
        let c = Call {
            limit: p.limit,
            window_us: p.window_us,
            burst: p.burst,
            mode,
            ..*c
        };
        let t = time(&m, c.now_us);
        let reply = m.call(&c).unwrap();
        if reply[0] > 0 && mode != Mode::Peek && c.cost > 0 {
            log.push((
                t,
                if mode == Mode::Partial {
                    reply[0] as u64
                } else {
                    c.cost
                },
            ));
            each(&p, &log);
        }
        Some(reply)
    });
}

#[test]
fn no_window_admits_more_than_its_limit() {
    for seed in 0..SEEDS {
        // A window that is too full ends with an admission; each is looked at as the last.
        admitted(seed, Algorithm::SlidingLog, |p, log| {
            let end = log.last().unwrap().0;
            let sum: u64 = log
                .iter()
                .filter(|e| e.0 + p.window_us > end)
                .map(|e| e.1)
                .sum();
            assert!(sum <= p.limit);
        });
        admitted(seed, Algorithm::Fixed, |p, log| {
            let window = |t| t / p.window_us;
            let end = log.last().unwrap().0;
            let sum: u64 = log
                .iter()
                .filter(|e| window(e.0) == window(end))
                .map(|e| e.1)
                .sum();
            assert!(sum <= p.limit);
        });
    }
}

#[test]
fn buckets_admit_the_burst_and_the_rate() {
    for algorithm in [Algorithm::Token, Algorithm::Gcra] {
        for seed in 0..SEEDS {
            admitted(seed, algorithm, |p, log| {
                let end = log.last().unwrap().0;
                let mut sum = 0;
                for (t, units) in log.iter().rev() {
                    sum += u128::from(*units);
                    let rate = u128::from(p.limit) * u128::from(end - t) / u128::from(p.window_us);
                    assert!(sum <= u128::from(p.burst) + rate);
                }
            });
        }
        // Who always asks gets exactly that, for ever.
        for (limit, window_us, burst, pause) in [
            (3, 7, 2, 1),
            (3, 7, 5, 2),
            (7, 3, 9, 1),
            (3, 1_000_000, 4, 333_331),
        ] {
            let (mut m, mut sum) = (Model::default(), 0);
            for i in 0..if cfg!(debug_assertions) {
                2_000
            } else {
                50_000
            } {
                let now_us = i * pause;
                let c = Call {
                    algorithm,
                    limit,
                    window_us,
                    burst,
                    now_us,
                    cost: MAX_UNITS,
                    mode: Mode::Partial,
                };
                sum += m.call(&c).unwrap()[0] as u64;
                assert_eq!(sum, burst + limit * now_us / window_us);
            }
        }
    }
}

#[test]
fn token_and_gcra_are_one() {
    let mut refused = 0;
    for seed in 0..4 * SEEDS {
        let (mut token, mut gcra) = (Model::default(), Model::default());
        walk(seed, Algorithm::Token, STEPS, |step| {
            let reply = match (*step, step.with(Algorithm::Gcra)) {
                (Step::Call(t), Step::Call(g)) => {
                    let reply = token.call(&t);
                    assert_eq!(reply, gcra.call(&g), "seed {seed}: {t:?}");
                    refused += u32::from(reply.is_err());
                    reply.ok()
                }
                (Step::Refund { units, now_us }, _) => {
                    assert_eq!(token.refund(units, now_us), gcra.refund(units, now_us));
                    None
                }
                _ => unreachable!(),
            };
            let inspect = |m: &Model, at| {
                m.inspect(at).map(|i| model::Inspect {
                    algorithm: Algorithm::Token,
                    ..i
                })
            };
            for at in [step.now_us(), step.now_us() + 1234] {
                assert_eq!(inspect(&token, at), inspect(&gcra, at));
            }
            reply
        });
    }
    assert!(refused > 0, "some debts are refused");
}

#[test]
fn inspect_agrees_with_peek() {
    histories(|_, step, _, m| {
        let Some(i) = m.inspect(step.now_us()) else {
            return;
        };
        let mut c = Call {
            algorithm: i.algorithm,
            limit: i.limit,
            window_us: i.window_us,
            burst: i.burst,
            now_us: step.now_us(),
            cost: 1,
            mode: Mode::Peek,
        };
        let peek = |c: &Call| m.clone().call(c).unwrap();
        assert_eq!(
            peek(&c)[1..],
            [i.burst as i64, i.remaining, i.retry_after, i.reset_after]
        );
        if i.next_after == 0 {
            assert_eq!(i.remaining, i.burst as i64);
        } else {
            c.now_us = after(time(m, c.now_us), i.next_after);
            assert!(peek(&c)[2] > i.remaining);
            c.now_us -= 1000;
            assert_eq!(peek(&c)[2], i.remaining);
        }
    });
}

#[test]
fn a_refund_gives_back_what_it_says() {
    histories(|before, step, _, m| {
        let Step::Refund { units, now_us } = *step else {
            return;
        };
        let (Some(was), is) = (before.inspect(now_us), m.inspect(now_us)) else {
            return;
        };
        let now = is.as_ref().map_or(was.burst as i64, |i| i.remaining);
        assert!(now >= was.remaining && now - was.remaining <= units as i64);
        assert!(
            is.is_none_or(|i| i.updated_us == was.updated_us && i.reset_after <= was.reset_after)
        );
        if was.reset_after == 0 {
            assert_eq!(before, m);
        }
    });
}

fn call(
    algorithm: Algorithm,
    limit: u64,
    window_ms: u64,
    now_ms: u64,
    cost: u64,
    mode: Mode,
) -> Call {
    Call {
        algorithm,
        limit,
        window_us: window_ms * 1000,
        burst: limit,
        now_us: now_ms * 1000,
        cost,
        mode,
    }
}

#[test]
fn the_largest_debt() {
    for algorithm in Algorithm::ALL {
        let mut m = Model::default();
        let force = |cost| call(algorithm, 1000, 1000, 0, cost, Mode::Force);
        assert_eq!(m.call(&force(1000)).unwrap()[..3], [1, 1000, 0]);
        let unchanged = m.clone();
        if algorithm.has_burst() {
            // A unit drains in a millisecond, so time is what bounds the debt.
            let most = MAX_DRAIN_US / 1000;
            assert!(most < MAX_UNITS);
            assert_eq!(m.call(&force(most + 1)), Err(Refused::Debt));
            assert_eq!(m, unchanged);
            assert_eq!(m.call(&force(most)).unwrap()[4] as u64, most + 1000);
        } else {
            assert_eq!(m.call(&force(MAX_UNITS)).unwrap()[..3], [1, 1000, 0]);
        }
        assert_eq!(m.call(&force(1)), Err(Refused::Debt));
        assert_eq!(m.call(&force(0)).unwrap()[..3], [1, 1000, 0]);
        assert_eq!(
            m.call(&call(algorithm, 1000, 1000, 0, 0, Mode::Charge))
                .unwrap()[0],
            0
        );
    }
    for algorithm in [Algorithm::Token, Algorithm::Gcra] {
        // So fast a rate that units are the bound.
        let mut m = Model::default();
        let force = |cost| call(algorithm, MAX_UNITS, 1000, 0, cost, Mode::Force);
        assert!(m.call(&force(MAX_UNITS)).is_ok());
        assert!(m.call(&force(MAX_UNITS)).is_ok());
        assert_eq!(m.call(&force(1)), Err(Refused::Debt));
    }
}

#[test]
fn a_debt_is_paid_before_anything_is_admitted() {
    for algorithm in [Algorithm::Token, Algorithm::Gcra] {
        let mut m = Model::default();
        let at = |now, cost, mode| call(algorithm, 10, 1000, now, cost, mode);
        assert_eq!(m.call(&at(0, 25, Mode::Force)), Ok([1, 10, 0, 0, 2500]));
        assert_eq!(m.call(&at(0, 0, Mode::Charge)), Ok([0, 10, 0, 1500, 2500]));
        assert_eq!(m.call(&at(0, 1, Mode::Charge)), Ok([0, 10, 0, 1600, 2500]));
        assert_eq!(m.call(&at(1500, 0, Mode::Charge)), Ok([1, 10, 0, 0, 1000]));
    }
}

#[test]
fn what_was_spent_stays_spent() {
    let minute = 60_000;
    for algorithm in [Algorithm::Token, Algorithm::Gcra] {
        let mut m = Model::default();
        m.call(&call(algorithm, 10, minute, 0, 10, Mode::Charge))
            .unwrap();
        assert_eq!(
            m.call(&call(algorithm, 100, minute, 0, 1, Mode::Peek))
                .unwrap()[2],
            90
        );
        let mut m = Model::default();
        m.call(&call(algorithm, 100, minute, 0, 30, Mode::Charge))
            .unwrap();
        // 21 units drain at 100 a minute.
        assert_eq!(
            m.call(&call(algorithm, 10, minute, 0, 1, Mode::Charge)),
            Ok([0, 10, 0, 12_600, 18_000])
        );
        assert_eq!(
            m.call(&call(algorithm, 10, minute, 12_600, 1, Mode::Charge)),
            Ok([1, 10, 0, 0, minute as i64])
        );
    }
}

#[test]
fn a_fraction_taken_over_is_rounded_up() {
    for algorithm in [Algorithm::Token, Algorithm::Gcra] {
        let mut m = Model::default();
        let old = Call {
            window_us: 7000,
            ..call(algorithm, 3, 7, 0, 2, Mode::Charge)
        };
        m.call(&old).unwrap();
        // 2 - 3/7000 units are spent after 1 µs; in thousandths, rounded up, that is 2.
        let new = Call {
            now_us: 1,
            ..call(algorithm, 5, 5, 0, 1, Mode::Charge)
        };
        let new = Call {
            limit: 1,
            window_us: 1000,
            ..new
        };
        assert_eq!(m.call(&new), Ok([1, 5, 2, 0, 3]));
        let remaining_at = |now_us| {
            m.clone()
                .call(&Call {
                    now_us,
                    cost: 0,
                    ..new
                })
                .unwrap()[2]
        };
        assert_eq!([2000, 2001, 3000, 3001].map(remaining_at), [3, 4, 4, 5]);
    }
}

#[test]
fn a_new_window_takes_what_was_stored() {
    // 1 in the window from 10 ms, 2 in the one from 20 ms: a window of 100 ms holds both, even at a time by
    // which a window of 10 ms had forgotten them.
    let mut m = Model::default();
    let at = |window, now, cost, mode| call(Algorithm::SlidingCounter, 10, window, now, cost, mode);
    m.call(&at(10, 15, 1, Mode::Charge)).unwrap();
    m.call(&at(10, 25, 2, Mode::Charge)).unwrap();
    assert_eq!(m.call(&at(10, 60, 1, Mode::Peek)), Ok([1, 10, 10, 0, 0]));
    assert_eq!(m.call(&at(100, 60, 1, Mode::Peek)), Ok([1, 10, 7, 0, 140]));
    assert_eq!(m.call(&at(20, 39, 1, Mode::Peek)), Ok([1, 10, 8, 0, 21]));
    assert_eq!(
        m.call(&at(100, 60, 1, Mode::Charge)),
        Ok([1, 10, 6, 0, 140])
    );
}

#[test]
fn a_refund_moves_no_time() {
    // At 105 ms the unit of 0 ms counts no more; a refund then takes from that of 10 ms, and the one of 0 ms is
    // still there for whoever's clock is behind, and for a longer window.
    let mut m = Model::default();
    let at = |window, now, cost, mode| call(Algorithm::SlidingLog, 10, window, now, cost, mode);
    m.call(&at(100, 0, 1, Mode::Charge)).unwrap();
    m.call(&at(100, 10, 4, Mode::Charge)).unwrap();
    assert_eq!(m.refund(3, 105_000), Some(9));
    assert_eq!(m.call(&at(100, 99, 1, Mode::Peek)), Ok([1, 10, 8, 0, 11]));
    assert_eq!(m.call(&at(200, 105, 1, Mode::Peek)), Ok([1, 10, 8, 0, 105]));
    // Where nothing is spent it changes nothing, and where nothing is left the key is gone.
    let before = m.clone();
    assert_eq!(m.refund(3, 110_000), Some(10));
    assert_eq!(m, before);
    assert_eq!(m.refund(3, 105_000), Some(10));
    assert!(!m.exists());
    assert_eq!(m.refund(1, 0), None);
}

#[test]
fn a_full_log_only_forgets_later() {
    for seed in 0..SEEDS {
        let (mut full, mut roomy) = (Model::with_log_entries(4), Model::default());
        let mut merged = false;
        walk(seed, Algorithm::SlidingLog, STEPS, |step| {
            let Step::Call(c) = step else { return None };
            // Both are charged the same, whatever fits, and never so much that one of them refuses the debt.
            let c = Call {
                mode: Mode::Force,
                cost: c.cost.min(1000),
                ..*c
            };
            let (f, r) = (full.call(&c).unwrap(), roomy.call(&c).unwrap());
            assert!(full.log_len() <= 4);
            merged |= full.log_len() < roomy.log_len();
            assert!(f[2] <= r[2] && f[4] == r[4] && (merged || f == r));
            Some(f)
        });
    }
    // The oldest two become one at the later time.
    let mut m = Model::with_log_entries(2);
    let at = |now, cost, mode| call(Algorithm::SlidingLog, 10, 100, now, cost, mode);
    for (now, cost) in [(0, 1), (10, 2), (20, 3)] {
        m.call(&at(now, cost, Mode::Charge)).unwrap();
    }
    assert_eq!(m.call(&at(20, 5, Mode::Peek)), Ok([0, 10, 4, 90, 100]));
    assert_eq!(m.call(&at(109, 5, Mode::Peek)), Ok([0, 10, 4, 1, 11]));
    assert_eq!(m.call(&at(110, 5, Mode::Peek)), Ok([1, 10, 7, 0, 10]));
}

#[test]
fn another_algorithm_is_the_wrong_type() {
    for algorithm in Algorithm::ALL {
        let mut m = Model::default();
        m.call(&call(algorithm, 5, 1000, 0, 1, Mode::Charge))
            .unwrap();
        for other in Algorithm::ALL.into_iter().filter(|a| *a != algorithm) {
            let c = call(other, 5, 1000, 0, 1, Mode::Force);
            assert_eq!(m.call(&c), Err(Refused::WrongType));
            let mut two = [Model::default(), m.clone()];
            assert_eq!(
                multi(&mut two, &[c, c], true, false),
                Err(Refused::WrongType)
            );
            assert!(!two[0].exists());
        }
    }
}

#[test]
fn windows_of_a_hundred_years() {
    for algorithm in Algorithm::ALL {
        let mut m = Model::default();
        let years = MAX_WINDOW_US / 1000;
        let at = |now, mode| call(algorithm, MAX_UNITS, years, now, MAX_UNITS, mode);
        m.call(&at(0, Mode::Charge)).unwrap();
        let [allowed, .., retry, _] = m.call(&at(0, Mode::Charge)).unwrap();
        assert_eq!(allowed, 0);
        let twice = if algorithm == Algorithm::SlidingCounter {
            2
        } else {
            1
        };
        assert!((years..=twice * years).contains(&(retry as u64)));
    }
}

#[test]
fn traces_are_repeatable_and_go_everywhere() {
    for algorithm in Algorithm::ALL {
        let (mut steps, mut denied, mut refused, mut refunds, mut stuck, mut changes) =
            (0, 0, 0, 0, 0, 0);
        for seed in 0..20 {
            let tell = || {
                let (mut m, mut told) = (Model::default(), String::new());
                walk(seed, algorithm, STEPS, |step| {
                    told += &format!("{step:?}");
                    answer(&mut m, step)
                });
                told
            };
            assert_eq!(tell(), tell());
            let mut m = Model::default();
            walk(seed, algorithm, STEPS, |step| {
                steps += 1;
                stuck += u32::from(step.now_us() == model::MAX_NOW_US);
                let stored = m.inspect(step.now_us()).filter(|i| i.reset_after > 0);
                let reply = answer(&mut m, step);
                match (step, reply) {
                    (Step::Refund { .. }, _) => refunds += 1,
                    (_, None) => refused += 1,
                    (Step::Call(c), Some(r)) => {
                        denied += u32::from(r[0] == 0);
                        changes += u32::from(
                            stored
                                .is_some_and(|i| (i.limit, i.window_us) != (c.limit, c.window_us)),
                        );
                    }
                }
                reply
            });
        }
        println!(
            "{algorithm:?}: of {steps} steps {denied} denied, {refused} debts refused, {refunds} refunds, {changes} changes of a live policy, {stuck} at the end of time"
        );
        assert!(
            denied > steps / 5 && refunds > steps / 50 && changes > steps / 50 && stuck < steps / 4
        );
    }
}

/// How fast the model is: `cargo test --release --test model_laws -- --ignored --nocapture speed`.
#[test]
#[ignore = "measures, does not judge"]
fn speed() {
    for algorithm in Algorithm::ALL {
        let (steps, seeds) = (300, 300);
        let start = std::time::Instant::now();
        let (mut allowed, mut denied) = (0, 0);
        for seed in 0..seeds {
            let mut m = Model::default();
            walk(seed, algorithm, steps, |step| {
                let reply = answer(&mut m, step);
                *(if reply.is_some_and(|r| r[0] == 0) {
                    &mut denied
                } else {
                    &mut allowed
                }) += 1;
                reply
            });
        }
        let rate = (steps as u64 * seeds) as f64 / start.elapsed().as_secs_f64();
        println!(
            "{algorithm:?}: {rate:.0} steps per second, {allowed} not denied, {denied} denied"
        );
    }
}
