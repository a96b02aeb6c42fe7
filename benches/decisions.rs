//! What a decision costs without a server: `cargo bench --bench decisions`.
//!
//! - `allow` decides and charges, `deny` decides only; the limiter is there already.
//! - The four of fixed size are unpacked from their 32 bytes and packed again, as in the server.
//! - A log has 1, 1,000 or 1,000,000 entries. `allow` is the steady state, in which one entry joins
//!   and one ages out; `half aged` looks at a time when half of them no longer count; `retry` asks
//!   how long until half of them have aged out.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use redis_rl::limit::{
    Call, Charge, Decision, Fixed, Gcra, Limiter, Mode, Policy, SlidingCounter, SlidingLog, Token,
    decide,
};

const NOW_US: u64 = 1_800_000_000_123_000;
const MS: u64 = 1000;
const LOG_ENTRIES: [u64; 3] = [1, 1_000, 1_000_000];

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1200))
        .sample_size(20)
        .configure_from_args();
    fixed_size::<Fixed>(&mut criterion);
    fixed_size::<SlidingCounter>(&mut criterion);
    fixed_size::<Token>(&mut criterion);
    fixed_size::<Gcra>(&mut criterion);
    for entries in LOG_ENTRIES {
        log(&mut criterion, entries);
    }
    criterion.final_summary();
}

fn policy(limit: u64, window_ms: u64) -> Policy {
    Policy::new(limit, window_ms * MS, limit).expect("a policy in range")
}

fn call(policy: Policy, now_us: u64, cost: u64) -> Call {
    Call {
        policy,
        now_us,
        cost,
        mode: Mode::Charge,
    }
}

fn charge(call: &Call) -> Charge {
    Charge {
        policy: call.policy,
        now_us: call.now_us,
        units: call.cost,
    }
}

#[inline]
fn decision<L: Limiter>(state: &L, call: &Call) -> Decision {
    decide(&L::view(Some(state), call.policy, call.now_us), call).expect("no debt")
}

fn fixed_size<L: Limiter>(criterion: &mut Criterion) {
    let name = L::ALGORITHM.name();
    let mut group = criterion.benchmark_group(name);
    let mut allowed = call(policy(1_000_000_000, 60_000), NOW_US, 1);
    let mut words = L::fresh(charge(&allowed)).pack().expect("32 bytes");
    group.bench_function("allow", |bencher| {
        bencher.iter(|| {
            // A call each 100 µs, so that the limit is never reached.
            allowed.now_us += 100;
            let mut state = L::unpack(black_box(&words));
            let decision = decision(&state, black_box(&allowed));
            if let Some(charge) = decision.charge(&allowed) {
                state.charge(charge);
                words = state.pack().expect("32 bytes");
            }
            assert_eq!(decision.verdict.allowed, 1);
            decision.verdict
        });
    });
    let denied = call(policy(1, 60_000), NOW_US, 1);
    let words = L::fresh(charge(&denied)).pack().expect("32 bytes");
    group.bench_function("deny", |bencher| {
        bencher.iter(|| {
            let decision = decision(&L::unpack(black_box(&words)), black_box(&denied));
            assert_eq!(decision.verdict.allowed, 0);
            decision.verdict
        });
    });
    group.finish();
}

fn log(criterion: &mut Criterion, entries: u64) {
    let mut group = criterion.benchmark_group("slidinglog");
    let id = |what| BenchmarkId::new(what, entries);
    // One entry each millisecond, as many as fit: the oldest ages out when the next one comes.
    let full = policy(entries, entries);
    let mut log = SlidingLog::fresh(charge(&call(full, NOW_US, 1)));
    for i in 1..entries {
        log.charge(charge(&call(full, NOW_US + i * MS, 1)));
    }
    let newest_us = NOW_US + (entries - 1) * MS;

    let denied = call(full, newest_us, 1);
    group.bench_function(id("deny"), |bencher| {
        bencher.iter(|| {
            let decision = decision(&log, black_box(&denied));
            assert_eq!(decision.verdict.allowed, 0);
            decision.verdict
        });
    });
    let late = call(full, newest_us + entries / 2 * MS, 0);
    group.bench_function(id("half aged"), |bencher| {
        bencher.iter(|| decision(&log, black_box(&late)).verdict);
    });
    let half = call(full, newest_us, entries.div_ceil(2));
    group.bench_function(id("retry"), |bencher| {
        bencher.iter(|| {
            let decision = decision(&log, black_box(&half));
            assert_eq!(decision.verdict.allowed, 0);
            decision.verdict
        });
    });
    let mut steady = call(full, newest_us, 1);
    group.bench_function(id("allow"), |bencher| {
        bencher.iter(|| {
            steady.now_us += MS;
            let decision = decision(&log, black_box(&steady));
            if let Some(charge) = decision.charge(&steady) {
                log.charge(charge);
            }
            assert_eq!(decision.verdict.allowed, 1);
            decision.verdict
        });
    });
    group.finish();
}
