//! The names that clients of other limiters speak: `CL.THROTTLE`, its alias `RL.THROTTLE`, and `GCRA`.

mod support;

use std::path::PathBuf;
use std::process::Command;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use support::live::{
    Monitor, all_dumps, aof_calls, assert_told, dump, error, int, ok, rl, run, time_ms,
};
use support::resp::{Protocol, Value, latin1};
use support::{Server, note};

/// redis-cell as its README tells it, in whole seconds: right where every time is one, and the cost fits at all.
#[derive(Default)]
struct Cell {
    /// The theoretical arrival time.
    tat: Option<i64>,
}

impl Cell {
    fn throttle(
        &mut self,
        max_burst: i64,
        seconds_per_unit: i64,
        quantity: i64,
        now: i64,
    ) -> [i64; 5] {
        let tolerance = seconds_per_unit * (max_burst + 1);
        let tat = self.tat.unwrap_or(now).max(now);
        let new_tat = tat + seconds_per_unit * quantity;
        let early = new_tat - tolerance - now;
        let limited = early > 0;
        if !limited && quantity > 0 {
            self.tat = Some(new_tat);
        }
        let reset_after = if limited { tat } else { new_tat } - now;
        [
            i64::from(limited),
            max_burst + 1,
            (tolerance - reset_after) / seconds_per_unit,
            if limited { early } else { -1 },
            reset_after,
        ]
    }
}

#[test]
fn replies_are_redis_cells_where_redis_cell_is_right() {
    let server = Server::builder()
        .module_args("ttl-margin-ms 100000000")
        .start();
    let mut client = server.raw(Protocol::Resp2);
    let (mut limited, mut allowed) = (0, 0);
    for seed in 0..60 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let max_burst = rng.random_range(0..20);
        let count = rng.random_range(1..50);
        let seconds_per_unit = rng.random_range(1..20);
        let period = count * seconds_per_unit;
        let mut now = 1_700_000_000 + rng.random_range(0..1000);
        let mut cell = Cell::default();
        for _ in 0..100 {
            now += match rng.random_range(0..4) {
                0 => 0,
                1 => 1,
                2 => seconds_per_unit,
                _ => rng.random_range(0..seconds_per_unit * 4),
            };
            let quantity = match rng.random_range(0..4) {
                0 => rng.random_range(0..=max_burst + 1),
                1 => 0,
                _ => 1,
            };
            let line =
                format!("RL.THROTTLE cell:{seed} {max_burst} {count} {period} {quantity} {now}000");
            let reply = rl(&mut client, &line);
            let want = cell.throttle(max_burst, seconds_per_unit, quantity, now);
            assert_eq!(reply, want, "{line}");
            if reply[0] == 1 {
                limited += 1;
            } else {
                allowed += 1;
            }
        }
    }
    note(&format!("{allowed} allowed, {limited} limited"));
    assert!(allowed > 1000 && limited > 1000);
}

/// And where it is not: rates above 1000/s, seconds rounded down, costs above the capacity.
#[test]
fn replies_are_right_where_redis_cells_are_not() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    for (line, reply) in [
        // 100,000 per second: a unit takes 10 µs.
        ("RL.THROTTLE fast 9 100000 1 10 0", [0, 10, 0, -1, 1]),
        ("RL.THROTTLE fast 9 100000 1 1 0.009", [1, 10, 0, 1, 1]),
        ("RL.THROTTLE fast 9 100000 1 1 0.010", [0, 10, 0, -1, 1]),
        ("RL.THROTTLE fast 9 100000 1 1 0.010", [1, 10, 0, 1, 1]),
        ("RL.THROTTLE fast 9 100000 1 0 0.11", [0, 10, 10, -1, 0]),
        // More than one per microsecond.
        (
            "RL.THROTTLE faster 9999999 10000000 1 10000000 0",
            [0, 10_000_000, 0, -1, 1],
        ),
        (
            "RL.THROTTLE faster 9999999 10000000 1 10 0.001",
            [0, 10_000_000, 0, -1, 1],
        ),
        (
            "RL.THROTTLE faster 9999999 10000000 1 1 0.001",
            [1, 10_000_000, 0, 1, 1],
        ),
        // 3 per second: times of a third of a second are told as 1, never as 0.
        ("RL.THROTTLE third 0 3 1 1 0", [0, 1, 0, -1, 1]),
        ("RL.THROTTLE third 0 3 1 1 333", [1, 1, 0, 1, 1]),
        ("RL.THROTTLE third 0 3 1 1 334", [0, 1, 0, -1, 1]),
        // 1.5 s, and just above 1 s.
        ("RL.THROTTLE round 1 2 3 1 0", [0, 2, 1, -1, 2]),
        ("RL.THROTTLE round 1 2 3 2 0", [1, 2, 1, 2, 2]),
        ("RL.THROTTLE round 1 2 3 2 499", [1, 2, 1, 2, 2]),
        ("RL.THROTTLE round 1 2 3 2 500", [1, 2, 1, 1, 1]),
        ("RL.THROTTLE round 1 2 3 2 1499.999", [1, 2, 1, 1, 1]),
        // Never: more than fits at once, on a fresh limiter and on one in use; nothing is charged.
        ("RL.THROTTLE never 9 10 10 11 0", [1, 10, 10, -1, 0]),
        ("RL.THROTTLE never 9 10 10 4 0", [0, 10, 6, -1, 4]),
        ("RL.THROTTLE never 9 10 10 11 0", [1, 10, 6, -1, 4]),
        (
            "RL.THROTTLE never 9 10 10 9007199254740991 0",
            [1, 10, 6, -1, 4],
        ),
        // A look charges nothing.
        ("RL.THROTTLE never 9 10 10 0 0", [0, 10, 6, -1, 4]),
        ("RL.THROTTLE never 9 10 10 6 0", [0, 10, 0, -1, 10]),
        ("RL.THROTTLE never 9 10 10 0 0", [0, 10, 0, -1, 10]),
        // The smallest and the largest.
        ("RL.THROTTLE one 0 1 1 1 0", [0, 1, 0, -1, 1]),
        (
            "RL.THROTTLE big 9007199254740990 9007199254740991 3155760000 9007199254740991 0",
            [0, 9_007_199_254_740_991, 0, -1, 3_155_760_000],
        ),
    ] {
        assert_eq!(rl(&mut client, line), reply, "{line}");
    }
    // In debt, a look is limited.
    rl(&mut client, "RL.GCRA debt 10 10000 0 COST 15 FORCE");
    assert_eq!(
        rl(&mut client, "RL.THROTTLE debt 9 10 10 0 0"),
        [1, 10, 0, 5, 15]
    );
}

#[test]
fn all_three_take_the_servers_clock() {
    let server = Server::start();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut client = server.raw(protocol);
        ok(&mut client, "FLUSHALL");
        // A unit takes 1,000,000 s, so that the time of a test does not show but in rounding up.
        for (name, once, many) in [
            ("CL.THROTTLE cl 4 1 1000000", "", "4"),
            ("RL.THROTTLE rl 4 1 1000000", "", "4"),
            ("RL.THROTTLE star 4 1 1000000", "1 *", "4 *"),
            ("GCRA gcra 4 1 1000000", "", "TOKENS 4"),
            ("gcra point 4 1 1000000.0", "tokens 1", "tokens 4"),
        ] {
            let mut call = |rest: &str| rl(&mut client, &format!("{name} {rest}"));
            assert_eq!(call(once), [0, 5, 4, -1, 1_000_000], "{name}");
            assert_eq!(call(once), [0, 5, 3, -1, 2_000_000], "{name}");
            assert_eq!(call(many), [1, 5, 3, 1_000_000, 2_000_000], "{name}");
        }
        assert_eq!(
            rl(&mut client, "CL.THROTTLE cl 4 1 1000000 0"),
            [0, 5, 3, -1, 2_000_000]
        );
        assert_eq!(
            rl(&mut client, "GCRA gcra 4 1 1000000 TOKENS 0"),
            [0, 5, 3, -1, 2_000_000]
        );
        assert_eq!(
            rl(&mut client, "GCRA gcra 4 1 1000000 TOKENS 6"),
            [1, 5, 3, -1, 2_000_000]
        );
        // Half a second, and a microsecond, are told as one.
        assert_eq!(rl(&mut client, "GCRA half 0 1 0.5"), [0, 1, 0, -1, 1]);
        assert_eq!(rl(&mut client, "GCRA us 0 1 0.000001"), [0, 1, 0, -1, 1]);
    }
}

#[test]
fn they_are_limiters_like_any() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    rl(&mut client, "RL.THROTTLE k 9 60 60 4 5000");
    assert_eq!(
        rl(&mut client, "RL.GCRA k 60 60000 5000 BURST 10 PEEK"),
        [1, 10, 6, 0, 4000]
    );
    rl(&mut client, "RL.GCRA other 60 60000 5000 BURST 10 COST 4");
    assert_eq!(dump(&mut client, "k"), dump(&mut client, "other"));
    assert_eq!(int(&mut client, "RL.REFUND k 1 5000"), 7);
    ok(&mut client, "SET text x");
    rl(&mut client, "RL.TOKEN token 5 1000000 5");
    let before = all_dumps(&mut client);
    for call in [
        "CL.THROTTLE @ 1 2 3",
        "RL.THROTTLE @ 1 2 3 4 5",
        "GCRA @ 1 2 3",
    ] {
        let text = error(&mut client, &call.replace('@', "text"));
        assert_eq!(text, "WRONGTYPE the key holds a string, not a rate limiter");
        let text = error(&mut client, &call.replace('@', "token"));
        assert_eq!(
            text,
            "WRONGTYPE the key holds a TOKEN limiter, not a GCRA one"
        );
    }
    // What denies, looks or errs leaves no trace.
    for line in [
        "RL.THROTTLE k 9 60 60 8 5000",
        "RL.THROTTLE k 9 60 60 0 5000",
        "RL.THROTTLE k 9 60 60 11 5000",
        "CL.THROTTLE none 9 60 60 11",
        "GCRA none 9 60 60 TOKENS 0",
    ] {
        rl(&mut client, line);
        assert_eq!(all_dumps(&mut client), before, "{line}");
    }
}

#[test]
fn errors_tell_what_is_right() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    const BURST: &str = "ERR max_burst must be a whole number from 0 to 9007199254740990, got ";
    const PERIOD: &str = "ERR period must be whole seconds from 1 to 3155760000, got ";
    const SECONDS: &str = "ERR period must be seconds from 0.000001 to 3155760000, got ";
    const ARITY: &str = "ERR wrong number of arguments";
    let mut table = vec![
        ("GCRA k -1 2 3", BURST),
        (
            "GCRA k 1 0 3",
            "ERR tokens_per_period must be a whole number from 1 to 9007199254740991, got '0'",
        ),
        ("GCRA k 1 2 0", SECONDS),
        ("GCRA k 1 2 0.0000009", SECONDS),
        ("GCRA k 1 2 -1", SECONDS),
        ("GCRA k 1 2 1e1", SECONDS),
        ("GCRA k 1 2 .5", SECONDS),
        ("GCRA k 1 2 3155760000.000001", SECONDS),
        ("GCRA k 1 2 3 4", "ERR unknown option '4'"),
        ("GCRA k 1 2 3 COST 4", "ERR unknown option 'COST'"),
        ("GCRA k 1 2 3 TOKENS", "ERR option TOKENS needs a value"),
        (
            "GCRA k 1 2 3 TOKENS -1",
            "ERR tokens must be a whole number from 0 to 9007199254740991, got '-1'",
        ),
        (
            "GCRA k 1 2 3 TOKENS 1 TOKENS 1",
            "ERR option TOKENS is given twice",
        ),
        (
            "GCRA k 10 1 3155760000",
            "ERR burst x window / limit must be at most 1000 years",
        ),
        ("GCRA k 1 2", ARITY),
        ("CL.THROTTLE k 1 2 3 4 5", ARITY),
        ("RL.THROTTLE k 1 2 3 4 5 6", ARITY),
        (
            "RL.THROTTLE k 1 2 3 4 x",
            "ERR now must be milliseconds from 0 to 9007199254740.991, or *, got 'x'",
        ),
    ]
    .into_iter()
    .map(|(line, starts)| (line.to_string(), starts))
    .collect::<Vec<_>>();
    for name in ["CL.THROTTLE", "RL.THROTTLE"] {
        for (rest, starts) in [
            ("-1 2 3", BURST),
            ("9007199254740991 2 3", BURST),
            ("x 2 3", BURST),
            (
                "1 0 3",
                "ERR count must be a whole number from 1 to 9007199254740991, got '0'",
            ),
            ("1 1.5 3", "ERR count must"),
            ("1 2 0", PERIOD),
            ("1 2 0.5", PERIOD),
            ("1 2 3155760001", PERIOD),
            ("1 2 99999999999999999999", PERIOD),
            (
                "1 2 3 -1",
                "ERR quantity must be a whole number from 0 to 9007199254740991, got '-1'",
            ),
            ("1 2 3 9007199254740992", "ERR quantity must"),
            (
                "10 1 3155760000",
                "ERR burst x window / limit must be at most 1000 years",
            ),
            ("1 2", ARITY),
            ("", ARITY),
        ] {
            table.push((format!("{name} k {rest}"), starts));
        }
    }
    for (line, starts) in table {
        let text = error(&mut client, &line);
        assert!(text.starts_with(starts), "{line}: {text}");
    }
    assert_eq!(int(&mut client, "DBSIZE"), 0);
}

/// So a replica, and a server that replays an AOF, need not know the names.
#[test]
fn a_charge_is_told_as_the_rl_gcra_it_amounts_to() {
    let mut primary = Server::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .module_args("ttl-margin-ms 100000000")
        .start();
    let replica = Server::builder()
        .module_args("compat-names no ttl-margin-ms 100000000")
        .start();
    replica.replica_of(&primary);
    let mut client = primary.raw(Protocol::Resp2);
    let mut monitor = Monitor::start(&replica);
    let calls = [
        (
            "CL.THROTTLE a 4 10 60",
            "RL.GCRA a 10 60000 * BURST 5 COST 1",
        ),
        (
            "cl.throttle a 04 010 060 02",
            "RL.GCRA a 10 60000 * BURST 5 COST 2",
        ),
        (
            "RL.THROTTLE b 0 1 1000 1",
            "RL.GCRA b 1 1000000 * BURST 1 COST 1",
        ),
        (
            "RL.THROTTLE c 0 1 1000 1 0007.50",
            "RL.GCRA c 1 1000000 7.5 BURST 1 COST 1",
        ),
        (
            "RL.THROTTLE d 0 1 1000 1 *",
            "RL.GCRA d 1 1000000 * BURST 1 COST 1",
        ),
        (
            "GCRA e 9 100 1000.5",
            "RL.GCRA e 100 1000500 * BURST 10 COST 1",
        ),
        (
            "GCRA f 9 100 1000.0000019 TOKENS 3",
            "RL.GCRA f 100 1000000.001 * BURST 10 COST 3",
        ),
    ];
    let before_ms = time_ms(&mut client) - 1;
    for (line, _) in calls {
        assert_eq!(rl(&mut client, line)[0], 0, "{line}");
    }
    for silent in [
        "CL.THROTTLE b 0 1 1000",
        "GCRA b 0 1 1000 TOKENS 0",
        "CL.THROTTLE none 1 1 1 3",
        "RL.THROTTLE none 1 1 1 0 5",
        "GCRA a 1 2 x",
    ] {
        run(&mut client, silent);
    }
    let after_ms = time_ms(&mut client) + 1;
    ok(&mut client, "SET end mark");
    let relevant = |lines: Vec<String>| -> Vec<String> {
        lines
            .into_iter()
            .filter(|line| line.starts_with("RL."))
            .collect()
    };
    let sent: Vec<String> = calls.iter().map(|(_, told)| (*told).to_string()).collect();
    assert_told(&relevant(monitor.until("mark")), &sent, before_ms, after_ms);
    assert_told(&relevant(aof_calls(&primary)), &sent, before_ms, after_ms);
    primary.wait_in_sync(&replica);
    let dumps = all_dumps(&mut client);
    assert_eq!(dumps.len(), 7, "{:?}", dumps.keys());
    assert_eq!(all_dumps(&mut replica.raw(Protocol::Resp2)), dumps);
    primary.restart();
    assert_eq!(all_dumps(&mut primary.raw(Protocol::Resp2)), dumps);
}

#[test]
fn names_are_left_where_they_are_not_wanted() {
    let server = Server::builder().module_args("compat-names no").start();
    let mut client = server.raw(Protocol::Resp2);
    for line in ["CL.THROTTLE k 1 2 3", "GCRA k 1 2 3"] {
        assert!(
            error(&mut client, line).starts_with("ERR unknown command"),
            "{line}"
        );
    }
    assert_eq!(rl(&mut client, "RL.THROTTLE k 1 2 3 1 5")[0], 0);
}

/// Compiles `tests/support/taken.c`: a C compiler is there wherever Rust links.
fn other_module() -> PathBuf {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/support/taken.c");
    let module = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("taken.so");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&module)
        .arg(source)
        .status()
        .expect("there is a C compiler, cc");
    assert!(status.success());
    module
}

#[test]
fn a_name_that_is_taken_is_left_alone() {
    let module = other_module();
    let server = Server::builder()
        .arg("loadmodule", &module.display().to_string())
        .start();
    let mut client = server.raw(Protocol::Resp2);
    assert_eq!(
        ok(&mut client, "CL.THROTTLE k 1 2 3"),
        Value::simple("MINE")
    );
    // All else is there.
    assert_eq!(
        rl(&mut client, "GCRA k 4 1 1000000"),
        [0, 5, 4, -1, 1_000_000]
    );
    assert_eq!(rl(&mut client, "RL.THROTTLE k 4 1 1000000")[2], 3);
    let log = server.log();
    assert!(
        log.contains("CL.THROTTLE is taken already, and left as it is"),
        "{log}"
    );
    assert!(!log.contains("GCRA is taken"), "{log}");
    // And the other module still has it after ours is gone.
    ok(&mut client, "FLUSHALL");
    let reply = ok(&mut client, "CL.THROTTLE k 1 2 3");
    assert_eq!(latin1(reply.bytes().unwrap()), "MINE");
}

/// As clients' libraries ask: the reply read into a tuple.
#[test]
fn a_typed_client_reads_the_reply() {
    let server = Server::start();
    let mut client = server.connect();
    for name in ["CL.THROTTLE", "RL.THROTTLE", "GCRA"] {
        let reply: (bool, u64, u64, i64, u64) = redis::cmd(name)
            .arg(name)
            .arg(15)
            .arg(30)
            .arg(60)
            .query(&mut client)
            .unwrap();
        assert_eq!(reply, (false, 16, 15, -1, 2), "{name}");
    }
}

/// The published client of redis-cell for Rust, unchanged.
#[test]
fn redis_cell_rs_works() {
    use redis_cell_rs::{Cmd, Key, Policy, Verdict};
    use std::time::Duration;
    let server = Server::start();
    let mut client = server.connect();
    let period = Duration::from_secs(1_000_000);
    let policy = Policy::from_tokens_per_period(1, period).max_burst(4);
    let mut ask = |policy: &Policy| -> Verdict {
        redis::Cmd::from(Cmd::new(&Key::from("user123"), policy))
            .query(&mut client)
            .unwrap()
    };
    for (left, reset_after) in [(4, 1_000_000), (3, 2_000_000)] {
        let Verdict::Allowed(allowed) = ask(&policy) else {
            panic!("blocked")
        };
        assert_eq!((allowed.total, allowed.remaining), (5, left));
        assert_eq!(allowed.reset_after, reset_after);
    }
    let Verdict::Blocked(blocked) = ask(&policy.apply_tokens(4)) else {
        panic!("allowed")
    };
    assert_eq!((blocked.total, blocked.remaining), (5, 3));
    assert_eq!(
        (blocked.retry_after, blocked.reset_after),
        (1_000_000, 2_000_000)
    );
}
