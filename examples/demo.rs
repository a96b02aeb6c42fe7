//! How the five algorithms treat the same traffic: `make demo`.
//!
//! Runs against a server of its own, or against the one that $REDIS_URL names (its keys start with
//! `demo:` and the process id, so a second run meets fresh ones). Time is an argument of every call, so ten seconds of traffic take no time and the figures of a
//! run are those of every run.

#[path = "../tests/support/mod.rs"]
mod support;

use std::env;

use redis::{Connection, RedisResult};
use support::Server;

const ALGORITHMS: [&str; 5] = ["FIXED", "SLIDINGLOG", "SLIDINGCOUNTER", "TOKEN", "GCRA"];

/// A multiple of both windows below, so that an aligned window begins here.
const BASE_MS: u64 = 1_791_860_040_000;

/// Calls sent at once: enough to hide the round trip, few enough for small buffers.
const BATCH: usize = 1_000;

/// A call without its algorithm.
#[derive(Clone)]
struct Call {
    key: String,
    limit: u64,
    window_ms: u64,
    now: String,
}

fn main() -> RedisResult<()> {
    // Kept until the end: dropping the guard stops the server.
    let own = if env::var_os("REDIS_URL").is_none() {
        Some(Server::start())
    } else {
        None
    };
    let url = own
        .as_ref()
        .map_or_else(|| env::var("REDIS_URL").unwrap_or_default(), Server::url);
    let mut redis = redis::Client::open(url)?.get_connection()?;

    boundary_burst(&mut redis)?;
    steady_overload(&mut redis)?;
    many_keys(&mut redis)
}

/// 15 calls just before a window ends and 15 just after it began.
fn boundary_burst(redis: &mut Connection) -> RedisResult<()> {
    println!("\nBoundary burst: 15 calls at 0.990 s and 15 at 1.010 s, 10 per second\n");
    println!(
        "  {:<16}{:>10}{:>10}{:>8}",
        "", "at 0.990", "at 1.010", "in all"
    );
    for algorithm in ALGORITHMS {
        let burst =
            |offset_ms: u64| vec![call("burst", 10, 1_000, (BASE_MS + offset_ms) * 1_000); 15];
        let before = count(&send(redis, algorithm, &burst(990))?);
        let after = count(&send(redis, algorithm, &burst(1_010))?);
        println!(
            "  {algorithm:<16}{before:>10}{after:>10}{:>8}",
            before + after
        );
    }
    println!(
        "\n  FIXED lets 20 through within 20 ms. SLIDINGCOUNTER rounds its estimate of 9.9 down: one more."
    );
    Ok(())
}

/// Twice the traffic that is allowed, at random instants.
fn steady_overload(redis: &mut Connection) -> RedisResult<()> {
    println!("\nSteady overload: 200 calls at random in 10 s, 10 per second\n");
    println!(
        "  {:<16}{:>10}{:>24}",
        "", "accepted", "most in any one second"
    );
    let mut random = Xorshift(0x5eed);
    let mut instants_us: Vec<u64> = (0..200).map(|_| random.below(10_000_000)).collect();
    instants_us.sort_unstable();
    let calls: Vec<Call> = instants_us
        .iter()
        .map(|us| call("steady", 10, 1_000, BASE_MS * 1_000 + us))
        .collect();
    for algorithm in ALGORITHMS {
        let allowed = send(redis, algorithm, &calls)?;
        let accepted: Vec<u64> = instants_us
            .iter()
            .zip(allowed)
            .filter(|(_, yes)| *yes)
            .map(|(us, _)| *us)
            .collect();
        println!(
            "  {algorithm:<16}{:>10}{:>24}",
            accepted.len(),
            most_within(&accepted, 1_000_000)
        );
    }
    println!(
        "\n  TOKEN and GCRA are one rule in two notations: a full bucket of 10 on top of 10 per second."
    );
    Ok(())
}

/// Many callers, each a little over its limit.
fn many_keys(redis: &mut Connection) -> RedisResult<()> {
    const CHECKS: usize = 200_000;
    const KEYS: usize = 1_000;
    println!(
        "\nMany keys: {CHECKS} checks over {KEYS} keys, 0.5 ms apart, 100 per minute and key\n"
    );
    println!("  {:<16}{:>10}{:>10}", "", "allowed", "share");
    let calls: Vec<Call> = (0..CHECKS)
        .map(|i| {
            call(
                &format!("many:{}", i % KEYS),
                100,
                60_000,
                BASE_MS * 1_000 + i as u64 * 500,
            )
        })
        .collect();
    for algorithm in ALGORITHMS {
        let allowed = count(&send(redis, algorithm, &calls)?);
        println!(
            "  {algorithm:<16}{allowed:>10}{:>9.1}%",
            100.0 * allowed as f64 / CHECKS as f64
        );
    }
    println!();
    Ok(())
}

fn call(name: &str, limit: u64, window_ms: u64, now_us: u64) -> Call {
    let now = format!("{}.{:03}", now_us / 1_000, now_us % 1_000);
    Call {
        key: format!("demo:{}:{name}", std::process::id()),
        limit,
        window_ms,
        now,
    }
}

/// Sends the calls to one algorithm, whose keys are its own; which of them were allowed.
fn send(redis: &mut Connection, algorithm: &str, calls: &[Call]) -> RedisResult<Vec<bool>> {
    let mut allowed = Vec::with_capacity(calls.len());
    for batch in calls.chunks(BATCH) {
        let mut pipe = redis::pipe();
        for call in batch {
            pipe.cmd(&format!("RL.{algorithm}"))
                .arg(format!("{}:{algorithm}", call.key))
                .arg(call.limit)
                .arg(call.window_ms)
                .arg(&call.now);
        }
        let replies: Vec<[i64; 5]> = pipe.query(redis)?;
        allowed.extend(
            replies
                .iter()
                .map(|[allowed, _limit, _remaining, _retry_after, _reset_after]| *allowed == 1),
        );
    }
    Ok(allowed)
}

fn count(allowed: &[bool]) -> usize {
    allowed.iter().filter(|yes| **yes).count()
}

/// The most of these sorted instants that lie in any half-open span of that length.
fn most_within(instants: &[u64], span: u64) -> usize {
    let until = |start: u64| instants.partition_point(|at| *at < start + span);
    instants
        .iter()
        .enumerate()
        .map(|(i, start)| until(*start) - i)
        .max()
        .unwrap_or(0)
}

/// Marsaglia's xorshift64: the same traffic on every run.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
