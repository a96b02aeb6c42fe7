//! What shows only after many calls: scenarios that users of rate limiters met (B…), leaks, and an hour of mixed load.
//!
//! `RL_LENGTH` is a share of the whole length in ten-thousandths: 100 in `make test`, 10000 in `make hard`.
//! `RL_PATH_CALLS` is the number of calls on each path that might leak: 20,000 and 10,000,000.
//! `RL_SOAK_S` is for how many seconds the mixed load goes on: 3 in `make test`, 3600 in `make soak-hour`.

mod model;
mod support;

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use model::{Call, Mode, Model, ms_text};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use support::live::{COMMANDS, dump, five, info_number, int, ok, rl, time_ms, wait_until};
use support::resp::{Client, Protocol, Value, encode, latin1};
use support::{Server, note, number};

/// So many of `whole`.
fn share(whole: u64) -> usize {
    usize::try_from((whole * number("RL_LENGTH", 100) / 10_000).max(1)).expect("a count")
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(String::from).collect()
}

/// What the server's clock says, in microseconds.
fn time_us(reply: &Value) -> i64 {
    let part = |at: usize| -> i64 {
        let items = reply.items().expect("TIME answers two");
        latin1(items[at].bytes().expect("a text"))
            .parse()
            .expect("a number")
    };
    part(0) * 1_000_000 + part(1)
}

/// What each of many connections does at once.
fn at_once<T: Send>(connections: u64, work: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(usize::try_from(connections).expect("a count"));
    let (barrier, work) = (&barrier, &work);
    thread::scope(|scope| {
        let all: Vec<_> = (0..connections)
            .map(|n| {
                scope.spawn(move || {
                    barrier.wait();
                    work(n)
                })
            })
            .collect();
        all.into_iter()
            .map(|one| one.join().expect("no connection fails"))
            .collect()
    })
}

/// B02: rates far above the clock's milliseconds.
#[test]
fn fast_rates_are_exact_in_real_time() {
    let server = Server::start();
    let calls = share(20_000);
    for (limit, burst) in [(8000, 2), (1_000_000, 2)] {
        let line = format!("RL.GCRA k:{limit} {limit} 1000 * BURST {burst}");
        let begin_us = time_us(&ok(&mut server.raw(Protocol::Resp2), "TIME"));
        let admitted: i64 = at_once(10, |_| {
            let mut client = server.raw(Protocol::Resp2);
            let mut admitted = 0;
            for _ in 0..calls {
                let both = [words(&line), words(&format!("EXISTS k:{limit}"))];
                let replies = client.pipeline(&both).expect("the server answers");
                let allowed = five(&replies[0])[0];
                assert!(
                    allowed == 0 || replies[1] == Value::Int(1),
                    "charged, and gone at once"
                );
                admitted += allowed;
            }
            admitted
        })
        .iter()
        .sum();
        let passed_us = time_us(&ok(&mut server.raw(Protocol::Resp2), "TIME")) - begin_us;
        let most = burst + limit * passed_us / 1_000_000;
        note(&format!(
            "{limit} per s: {admitted} of {} calls admitted, at most {most}",
            calls * 10
        ));
        assert!((1..=most).contains(&admitted));
    }
}

/// B21: many keys come and go.
#[test]
fn keys_that_have_expired_leave_nothing() {
    let server = Server::builder().arg("hz", "100").start();
    let mut client = server.raw(Protocol::Resp2);
    let charge_all = |client: &mut Client, name: &str, count: usize| {
        let calls: Vec<_> = (0..count)
            .map(|i| words(&format!("RL.GCRA {name}:{i} 1 2000 *")))
            .collect();
        for reply in client.pipeline(&calls).expect("the server answers") {
            assert_eq!(reply, Value::ints(&[1, 1, 0, 0, 2000]));
        }
    };
    let count = share(100_000);
    // The client's buffers are as large as they get.
    charge_all(&mut client, "warm", count.min(1000));
    ok(&mut client, "FLUSHALL SYNC");
    let before = info_number(&server, "used_memory");
    charge_all(&mut client, "user", count);
    let full = info_number(&server, "used_memory");
    wait_until("all have expired", || int(&mut client, "DBSIZE") == 0);
    wait_until("the memory is back", || {
        info_number(&server, "used_memory") < before + (full - before) / 10 + (64 << 10)
    });
    note(&format!(
        "{count} keys: {before} bytes before, {full} with them, {} after",
        info_number(&server, "used_memory")
    ));
}

/// B50: a long log that is asked often.
#[test]
fn a_long_log_neither_grows_nor_stalls() {
    let server = Server::builder()
        .module_args("ttl-margin-ms 3600000")
        .start();
    let mut client = server.raw(Protocol::Resp2);
    let entries = share(70_000) as i64;
    let day = 86_400_000;
    let line =
        |now_ms: i64, rest: &str| format!("RL.SLIDINGLOG log {entries} {day} {now_ms} {rest}");
    let call = |now_ms: i64, rest: &str| words(line(now_ms, rest).trim());
    let fill = |client: &mut Client| {
        let calls: Vec<_> = (0..entries).map(|i| call(i, "")).collect();
        for reply in client.pipeline(&calls).expect("the server answers") {
            assert_eq!(five(&reply)[0], 1);
        }
    };
    // The slowest call of all, by the server's own clock.
    let slowest_us = |client: &mut Client| {
        let entries = ok(client, "SLOWLOG GET -1");
        let entries = entries.items().expect("a list").to_vec();
        ok(client, "SLOWLOG RESET");
        let times = entries.iter().filter_map(|entry| {
            let entry = entry.items()?;
            let name = entry[3].items()?[0].bytes()?;
            // What the slow log itself takes to be emptied.
            (name != b"SLOWLOG").then(|| entry[2].int())?
        });
        times.max().unwrap_or(0)
    };
    fill(&mut client);
    let before = int(&mut client, "MEMORY USAGE log SAMPLES 0");
    ok(&mut client, "CONFIG SET slowlog-max-len 100000");
    ok(&mut client, "CONFIG SET slowlog-log-slower-than 0");
    ok(&mut client, "SLOWLOG RESET");
    let mut told = Vec::new();
    for rest in ["", "COST 0"] {
        let mut times = Vec::new();
        let mut left = share(1_000_000);
        while left > 0 {
            let batch = left.min(10_000);
            left -= batch;
            let calls = vec![call(entries, rest); batch];
            for reply in client.pipeline(&calls).expect("the server answers") {
                assert_eq!(five(&reply)[0], i64::from(rest == "COST 0"));
            }
            let entries = ok(&mut client, "SLOWLOG GET -1");
            times.extend(
                entries
                    .items()
                    .expect("a list")
                    .iter()
                    .filter_map(|entry| entry.items()?[2].int()),
            );
            ok(&mut client, "SLOWLOG RESET");
        }
        times.sort_unstable();
        told.push(format!(
            "{} {rest}: p99.9 {} us",
            times.len(),
            times[times.len() * 999 / 1000]
        ));
    }
    assert_eq!(int(&mut client, "MEMORY USAGE log SAMPLES 0"), before);
    // The one call that ages all of them.
    slowest_us(&mut client);
    assert_eq!(rl(&mut client, &line(10 * day, "COST 1"))[2], entries - 1);
    told.push(format!("all aged: {} us", slowest_us(&mut client)));
    for end in ["UNLINK log", "FLUSHALL ASYNC", "BGSAVE"] {
        ok(&mut client, "DEL log");
        fill(&mut client);
        slowest_us(&mut client);
        ok(&mut client, end);
        told.push(format!("{end}: {} us", slowest_us(&mut client)));
    }
    note(&format!("a log of {entries}: {}", told.join(", ")));
    wait_until("BGSAVE", || {
        info_number(&server, "rdb_bgsave_in_progress") == 0
    });
    // What is charged at once is one entry, however many units it is of.
    ok(&mut client, "FLUSHALL");
    let sizes = ["COST 1", &format!("COST {entries}")].map(|cost| {
        ok(&mut client, "DEL log");
        rl(&mut client, &line(0, cost));
        int(&mut client, "MEMORY USAGE log")
    });
    assert!(sizes[1] - sizes[0] <= 16, "{sizes:?}");
}

/// B54: a sliding log beside the model, through restarts and reloads.
#[test]
fn a_log_stays_exact_through_restarts() {
    let calls = share(1_000_000);
    let seed = number("RL_SEED", 0);
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut server = Server::builder()
        .arg("appendonly", "yes")
        .arg("auto-aof-rewrite-min-size", "256kb")
        // The calls' clock is not the server's.
        .module_args("ttl-margin-ms 3155760000000")
        .start();
    let mut client = server.raw(Protocol::Resp2);
    let (mut limit, mut window_us) = (10, 1_000_000);
    let mut model = Model::default();
    let mut now_us: u64 = 1_700_000_000_000_000;
    let mut admitted: Vec<(u64, u64)> = Vec::new();
    let batch = 100;
    for round in 0..calls.div_ceil(batch) {
        if round % 200 == 0 {
            ok(&mut client, "DEL log");
            model.delete();
            admitted.clear();
            limit = rng.random_range(1..=40);
            window_us = [1, 7, 1000, 999_983, 60_000_000, 86_400_000_000][rng.random_range(0..6)];
        }
        match rng.random_range(0..40) {
            0 => ok(&mut client, "DEBUG RELOAD"),
            1 => ok(&mut client, "DEBUG LOADAOF"),
            _ => Value::Null,
        };
        if rng.random_ratio(1, 100) {
            server.restart();
            client = server.raw(Protocol::Resp2);
        }
        let mut sent = Vec::new();
        let mut want = Vec::new();
        for _ in 0..batch {
            now_us += match rng.random_range(0..4) {
                0 => 0,
                1 => window_us,
                2 => rng.random_range(0..=window_us / limit + 1),
                _ => rng.random_range(0..=2 * window_us),
            };
            let cost = rng.random_range(0..=limit + 1);
            let reply = model.call(&Call {
                algorithm: model::Algorithm::SlidingLog,
                limit,
                window_us,
                burst: limit,
                now_us,
                cost,
                mode: Mode::Charge,
            });
            let reply = reply.expect("no debt");
            if reply[0] == 1 && cost > 0 {
                admitted.retain(|(at_us, _)| at_us + window_us > now_us);
                admitted.push((now_us, cost));
                let sum: u64 = admitted.iter().map(|(_, units)| units).sum();
                assert!(
                    sum <= limit,
                    "RL_SEED={seed}, round {round}: {sum} of {limit}"
                );
            }
            want.push(reply);
            let [window, now] = [window_us, now_us].map(ms_text);
            sent.push(words(&format!(
                "RL.SLIDINGLOG log {limit} {window} {now} COST {cost}"
            )));
        }
        let replies = client.pipeline(&sent).expect("the server answers");
        for ((reply, want), sent) in replies.iter().zip(&want).zip(&sent) {
            assert_eq!(
                five(reply),
                *want,
                "RL_SEED={seed}, round {round}: {}",
                sent.join(" ")
            );
        }
    }
    note(&format!(
        "{calls} calls on a log beside the model, seed {seed}"
    ));
}

/// B63: a short window in real time.
#[test]
fn no_short_window_admits_too_much_and_no_key_stays() {
    const LIMIT: i64 = 7;
    const WINDOW_MS: i64 = 100;
    let server = Server::start();
    let most = Duration::from_secs(600 * number("RL_LENGTH", 100) / 10_000);
    let begin = Instant::now();
    let calls = [
        words("MULTI"),
        words(&format!("RL.FIXED k {LIMIT} {WINDOW_MS} *")),
        words("RL.INSPECT k *"),
        words("PTTL k"),
        words("EXEC"),
    ];
    let each = at_once(12, |_| {
        let mut client = server.raw(Protocol::Resp2);
        let (mut windows, mut count) = (HashMap::<i64, i64>::new(), 0);
        while begin.elapsed() < most || count < 100 {
            let replies = client.pipeline(&calls).expect("the server answers");
            let [reply, seen, pttl] = replies[4].items().expect("three answers") else {
                panic!("{replies:?}");
            };
            count += 1;
            if five(reply)[0] == 1 {
                assert!(
                    pttl.int().is_some_and(|pttl| pttl > 0),
                    "PTTL {pttl:?} after a charge"
                );
                // The time that it was charged at is the last thing told.
                let updated = seen.items().and_then(|items| items.last()?.bytes());
                let updated = latin1(updated.expect("a limiter that was just charged"));
                let whole_ms = updated.split('.').next().expect("at least one part");
                let at_ms: i64 = whole_ms.parse().expect("milliseconds");
                *windows.entry(at_ms / WINDOW_MS).or_default() += 1;
            }
        }
        (windows, count)
    });
    let (mut windows, mut count) = (HashMap::<i64, i64>::new(), 0);
    for (more, calls) in each {
        count += calls;
        for (window, units) in more {
            *windows.entry(window).or_default() += units;
        }
    }
    let fullest = windows.values().max().expect("some were admitted");
    note(&format!(
        "{count} calls, {} windows, at most {fullest} of {LIMIT} in one",
        windows.len()
    ));
    assert!(*fullest <= LIMIT, "{fullest} in one window");
    let mut client = server.raw(Protocol::Resp2);
    let idle_from = time_ms(&mut client);
    wait_until("a second has passed", || {
        time_ms(&mut client) > idle_from + 1000
    });
    assert_eq!(
        rl(&mut client, &format!("RL.FIXED k {LIMIT} {WINDOW_MS} *"))[0],
        1
    );
}

/// B80: whatever is called how often, no memory goes. Each path in batches on the same few keys.
#[test]
fn no_path_leaks() {
    let server = Server::builder()
        .arg("maxmemory-policy", "allkeys-random")
        .start();
    let mut client = server.raw(Protocol::Resp2);
    let calls = usize::try_from(number("RL_PATH_CALLS", 20_000)).expect("a count");
    ok(&mut client, "SET text x");
    for command in COMMANDS {
        rl(
            &mut client,
            &format!("{command} full:{command} 1 86400000 5"),
        );
        rl(
            &mut client,
            &format!("{command} kept:{command} 5 86400000 5"),
        );
        let kept = dump(&mut client, &format!("kept:{command}")).expect("there");
        assert!(!kept.is_empty());
    }
    let payload = dump(&mut client, "kept:RL.SLIDINGLOG").expect("there");
    let paths: Vec<(&str, Vec<Vec<Vec<u8>>>)> = {
        let text = |line: String| {
            line.split(' ')
                .map(|word| word.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        let each = |of: &dyn Fn(&str) -> String| {
            COMMANDS
                .iter()
                .map(|command| text(of(command)))
                .collect::<Vec<_>>()
        };
        let mut paths = vec![
            ("allowed", each(&|c| format!("{c} big:{c} 9007199254740991 86400000 5"))),
            ("allowed, the clock going on", each(&|c| format!("{c} live:{c} 1000000000 1 *"))),
            ("denied", each(&|c| format!("{c} full:{c} 1 86400000 5"))),
            ("PEEK", each(&|c| format!("{c} full:{c} 1 86400000 5 PEEK"))),
            ("WRONGTYPE", each(&|c| format!("{c} text 1 86400000 5"))),
            ("a bad argument", each(&|c| format!("{c} k 1 -5 5"))),
            ("a bad option", each(&|c| format!("{c} k 1 5 5 COST 3 NONSENSE"))),
            ("RL.MULTI", vec![text("RL.MULTI 2 m:1 m:2 5 GCRA 9007199254740991 86400000 SLIDINGLOG 9007199254740991 86400000".into())]),
            ("RL.MULTI, denied", vec![text("RL.MULTI 2 m:1 full:RL.FIXED 5 GCRA 9007199254740991 86400000 FIXED 1 86400000".into())]),
            ("RL.INSPECT", each(&|c| format!("RL.INSPECT full:{c} 5"))),
            ("RL.TOP", vec![text("RL.TOP COUNT 100".into())]),
            ("a name of others", vec![text("CL.THROTTLE throttle 15 30 60 1".into())]),
        ];
        let mut refund = Vec::new();
        let (mut made, mut replaced, mut expired) = (Vec::new(), Vec::new(), Vec::new());
        let mut transaction = Vec::new();
        for c in COMMANDS {
            refund.extend(
                [
                    format!("{c} back:{c} 5 86400000 5 COST 2"),
                    format!("RL.REFUND back:{c} 1 5"),
                    format!("RL.REFUND back:{c} 1 5"),
                ]
                .map(text),
            );
            made.extend(
                [
                    format!("{c} made:{c} 5 86400000 5"),
                    format!("DEL made:{c}"),
                ]
                .map(text),
            );
            replaced.extend(
                [
                    format!("{c} old:{c} 5 86400000 5"),
                    format!("SET old:{c} x"),
                    format!("DEL old:{c}"),
                    format!("{c} old:{c} 9007199254740991 31557600000 5 COST 9007199254740"),
                    format!("COPY kept:{c} old:{c} REPLACE"),
                    format!("UNLINK old:{c}"),
                ]
                .map(text),
            );
            expired.extend(
                [
                    format!("{c} brief:{c} 5 86400000 5"),
                    format!("PEXPIRE brief:{c} 0"),
                ]
                .map(text),
            );
            transaction.extend(
                [
                    "MULTI".into(),
                    format!("{c} big:{c} 9007199254740991 86400000 5"),
                    format!("{c} full:{c} 1 86400000 5"),
                    "EXEC".into(),
                ]
                .map(text),
            );
        }
        let script = b"for i = 1, 10 do redis.call(ARGV[1], 'big:' .. ARGV[1], '9007199254740991', 86400000, 5) redis.pcall(ARGV[1], 'text', 1, 1, 5) end";
        let scripts = COMMANDS.iter().map(|c| {
            vec![
                b"EVAL".to_vec(),
                script.to_vec(),
                b"0".to_vec(),
                c.as_bytes().to_vec(),
            ]
        });
        let mut restored = vec![
            b"RESTORE".to_vec(),
            b"old".to_vec(),
            b"0".to_vec(),
            payload,
            b"REPLACE".to_vec(),
        ];
        let mut damaged = restored.clone();
        damaged[3].truncate(20);
        paths.extend([
            ("RL.REFUND", refund),
            ("made and deleted", made),
            ("made and replaced", replaced),
            ("made and expired", expired),
            ("in MULTI", transaction),
            ("in Lua", scripts.collect()),
            ("RESTORE", vec![std::mem::take(&mut restored), damaged]),
        ]);
        paths
    };
    let settled = |client: &mut Client| {
        ok(client, "MEMORY PURGE");
        let read = |name: &str| info_number(&server, name);
        let (mut last, mut steady) = (0, 0);
        wait_until("the memory is steady", || {
            let now = read("used_memory");
            steady = if (now - last).abs() < 1024 {
                steady + 1
            } else {
                0
            };
            last = now;
            steady >= 3
        });
        (last, read("used_memory_rss"))
    };
    let repeat = |client: &mut Client, path: &[Vec<Vec<u8>>], count: usize| {
        let rounds = 100_usize.div_ceil(path.len());
        let bytes: Vec<u8> = path
            .iter()
            .flat_map(|call| encode(call))
            .collect::<Vec<u8>>()
            .repeat(rounds);
        let mut sent = 0;
        while sent < count {
            client.write_raw(&bytes).expect("the server reads");
            for _ in 0..rounds * path.len() {
                client.reply().expect("the server answers");
            }
            sent += rounds * path.len();
        }
        sent
    };
    // Once all that is made once is made.
    for (_, path) in &paths {
        repeat(&mut client, path, 2000);
    }
    let mut all = 0;
    for (name, path) in &paths {
        let before = settled(&mut client);
        all += repeat(&mut client, path, calls);
        let after = settled(&mut client);
        let grown = (after.0 - before.0, after.1 - before.1);
        assert!(
            grown.0 < 256 << 10 && grown.1 < 1 << 20,
            "{name}: {grown:?} bytes (used, resident) after {calls} calls"
        );
    }
    // Evicted: a memory that is always full.
    let before = settled(&mut client);
    ok(
        &mut client,
        &format!("CONFIG SET maxmemory {}", before.0 + (1 << 20)),
    );
    for from in (0..calls).step_by(1000) {
        let many: Vec<_> = (from..from + 1000)
            .map(|i| {
                words(&format!(
                    "{} evicted:{i} 5 86400000 5 COST 2",
                    COMMANDS[i % 5]
                ))
            })
            .collect();
        for reply in client.pipeline(&many).expect("the server answers") {
            assert_eq!(five(&reply)[0], 1);
        }
        all += 1000;
    }
    let evicted = info_number(&server, "evicted_keys");
    ok(&mut client, "CONFIG SET maxmemory 0");
    ok(&mut client, "FLUSHALL SYNC");
    drop(client);
    wait_until("the memory is back", || {
        info_number(&server, "used_memory") < before.0 + (256 << 10)
    });
    note(&format!(
        "{all} calls on {} paths, {evicted} keys evicted: no memory gone",
        paths.len() + 1
    ));
    assert!(evicted > 0 || calls < 20_000);
}

/// B87: many at once on one key at one time.
#[test]
fn many_at_once_are_admitted_one_by_one() {
    const LIMIT: i64 = 1000;
    let server = Server::builder()
        .module_args("ttl-margin-ms 3600000")
        .start();
    let calls = share(100_000).max(5000) / 50;
    for command in COMMANDS {
        let line = format!("{command} one:{command} {LIMIT} 86400000 1700000000000");
        let replies = at_once(50, |_| {
            let mut client = server.raw(Protocol::Resp2);
            let calls = vec![words(&line); calls];
            client.pipeline(&calls).expect("the server answers")
        });
        let replies: Vec<_> = replies.iter().flatten().map(five).collect();
        let mut left: Vec<i64> = replies
            .iter()
            .filter(|reply| reply[0] == 1)
            .map(|reply| reply[2])
            .collect();
        left.sort_unstable();
        assert_eq!(left, (0..LIMIT).collect::<Vec<_>>(), "{command}");
        assert!(
            replies.iter().all(|reply| reply[0] == 1 || reply[2] == 0),
            "{command}"
        );

        let costs = at_once(50, |seed| {
            let mut client = server.raw(Protocol::Resp2);
            let mut rng = SmallRng::seed_from_u64(seed);
            let costs: Vec<i64> = (0..calls).map(|_| rng.random_range(1..=7)).collect();
            let sent: Vec<_> = costs
                .iter()
                .map(|cost| {
                    words(&format!(
                        "{command} any:{command} {LIMIT} 86400000 1700000000000 COST {cost}"
                    ))
                })
                .collect();
            let replies = client.pipeline(&sent).expect("the server answers");
            costs
                .into_iter()
                .zip(replies.iter().map(|reply| five(reply)[0]))
                .collect::<Vec<_>>()
        });
        let costs: Vec<_> = costs.into_iter().flatten().collect();
        let sum: i64 = costs
            .iter()
            .filter(|(_, allowed)| *allowed == 1)
            .map(|(cost, _)| cost)
            .sum();
        let denied = costs
            .iter()
            .filter(|(_, allowed)| *allowed == 0)
            .map(|(cost, _)| *cost)
            .min();
        assert!(sum <= LIMIT, "{command}: {sum}");
        assert!(
            denied.is_some_and(|cost| cost > LIMIT - sum),
            "{command}: {denied:?} was denied, {sum} admitted"
        );
    }
}

/// Mixed load with persistence and a replica, in real time: what is admitted, what is used, what is waited for.
#[test]
fn a_mixed_load_goes_on_and_on() {
    let seconds = number("RL_SOAK_S", 3);
    let primary = Server::builder()
        .arg("appendonly", "yes")
        .arg("save", "60 1000")
        .arg("auto-aof-rewrite-min-size", "8mb")
        .start();
    let replica = Server::builder().arg("appendonly", "yes").start();
    replica.replica_of(&primary);
    let over = AtomicBool::new(false);
    let begin = Instant::now();
    let (callers, samples) = thread::scope(|scope| {
        let (primary, over) = (&primary, &over);
        let callers: Vec<_> = (0..4)
            .map(|seed| scope.spawn(move || soak_caller(primary, over, seed)))
            .collect();
        let mut samples = Vec::new();
        while begin.elapsed() < Duration::from_secs(seconds)
            && !callers.iter().any(thread::ScopedJoinHandle::is_finished)
        {
            let next = begin
                + Duration::from_secs(60.min(seconds.div_ceil(3)) * (samples.len() as u64 + 1));
            thread::sleep(next.saturating_duration_since(Instant::now()));
            let sample = [primary, &replica].map(|server| {
                (
                    info_number(server, "used_memory"),
                    info_number(server, "used_memory_rss"),
                )
            });
            note(&format!(
                "after {:>5} s: used {} and {} bytes, resident {} and {}; {} keys, AOF {} bytes",
                begin.elapsed().as_secs(),
                sample[0].0,
                sample[1].0,
                sample[0].1,
                sample[1].1,
                int(&mut primary.raw(Protocol::Resp2), "DBSIZE"),
                info_number(primary, "aof_current_size")
            ));
            samples.push(sample);
        }
        over.store(true, Ordering::Relaxed);
        let callers: Vec<_> = callers
            .into_iter()
            .map(|caller| caller.join().expect("no caller fails"))
            .collect();
        (callers, samples)
    });
    // What was admitted is what the policies admit in that time.
    let mut client = primary.raw(Protocol::Resp2);
    let calls: u64 = callers.iter().map(|caller| caller.calls).sum();
    let mut sums = Vec::new();
    for (at, command) in COMMANDS.iter().enumerate() {
        let first_us = callers
            .iter()
            .map(|caller| caller.first_us)
            .min()
            .expect("some");
        let last_us = callers
            .iter()
            .map(|caller| caller.last_us)
            .max()
            .expect("some");
        let admitted: i64 = callers.iter().map(|caller| caller.admitted[at]).sum();
        let passed_us = last_us - first_us;
        let rate = SOAK_LIMIT * passed_us / (SOAK_WINDOW_MS * 1000);
        // A window at either end is cut by aligned ones; an estimate lets a window's worth more through.
        let most = rate
            + 2 * SOAK_LIMIT
            + if *command == "RL.SLIDINGCOUNTER" {
                rate
            } else {
                0
            };
        assert!(
            (1..=most).contains(&admitted),
            "{command}: {admitted} admitted, at most {most}"
        );
        sums.push(format!("{command} {admitted} of {most}"));
    }
    let mut times: Vec<u32> = callers
        .iter()
        .flat_map(|caller| caller.times_us.iter().copied())
        .collect();
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 1000];
    note(&format!(
        "{calls} calls in {} s; admitted: {}; a call of ten took p50 {} us, p99 {} us, p99.9 {} us, at most {} us",
        begin.elapsed().as_secs(),
        sums.join(", "),
        at(500),
        at(990),
        at(999),
        at(1000)
    ));
    // The replica has the same. No key goes while they are compared.
    ok(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
    primary.wait_in_sync(&replica);
    let mut other = replica.raw(Protocol::Resp2);
    wait_until("the same on both", || {
        ok(&mut other, "DEBUG DIGEST") == ok(&mut client, "DEBUG DIGEST")
    });
    // Keys come and go; after the first tenth nothing grows.
    if samples.len() >= 20 {
        let (early, late) = (samples[samples.len() / 10], samples[samples.len() - 1]);
        for (early, late) in early.iter().zip(late) {
            assert!(
                late.0 < early.0 * 11 / 10 + (4 << 20),
                "used: {} to {}",
                early.0,
                late.0
            );
            assert!(
                late.1 < early.1 * 12 / 10 + (16 << 20),
                "resident: {} to {}",
                early.1,
                late.1
            );
        }
    }
    let status = [
        "rdb_last_bgsave_status",
        "aof_last_bgrewrite_status",
        "aof_last_write_status",
    ];
    for name in status {
        assert_eq!(primary.info_field(name).as_deref(), Some("ok"), "{name}");
    }
}

const SOAK_LIMIT: i64 = 50;
const SOAK_WINDOW_MS: i64 = 1000;

struct Soaked {
    calls: u64,
    admitted: [i64; 5],
    first_us: i64,
    last_us: i64,
    times_us: Vec<u32>,
}

/// One caller of four: batches on limiters that all share, on many users' keys, and by every other command.
fn soak_caller(primary: &Server, over: &AtomicBool, seed: u64) -> Soaked {
    let mut client = primary.raw(if seed.is_multiple_of(2) {
        Protocol::Resp2
    } else {
        Protocol::Resp3
    });
    let mut rng = SmallRng::seed_from_u64(seed);
    let first_us = time_us(&ok(&mut client, "TIME"));
    let mut soaked = Soaked {
        calls: 0,
        admitted: [0; 5],
        first_us,
        last_us: first_us,
        times_us: Vec::new(),
    };
    // About two thousand batches of ten in a second leave a core to others.
    let pause = Duration::from_micros(number("RL_SOAK_PAUSE_US", 2000));
    while !over.load(Ordering::Relaxed) {
        let at = rng.random_range(0..5);
        let (command, user) = (COMMANDS[at], rng.random_range(0..20_000));
        let name = &command[3..];
        let shared = format!("{command} shared:{command} {SOAK_LIMIT} {SOAK_WINDOW_MS} *");
        let many = format!(
            "{command} {command}:{user} 10 {} *",
            [100, 1000, 30_000][rng.random_range(0..3)]
        );
        let lines = [
            shared.clone(),
            many.clone(),
            format!("{many} PEEK"),
            format!("{many} COST 3"),
            format!("{many} COST 2 FORCE"),
            format!("RL.REFUND {command}:{user} 1 *"),
            format!("RL.INSPECT {command}:{user} *"),
            format!("RL.MULTI 2 {name}:{user} b:{user} * {name} 10 1000 GCRA 100 60000"),
            format!("{many} COST 5 PARTIAL"),
            "RL.TOP".into(),
        ];
        let begin = Instant::now();
        let replies = client
            .pipeline(&lines.iter().map(|line| words(line)).collect::<Vec<_>>())
            .expect("the server answers");
        let took_us = u32::try_from(begin.elapsed().as_micros()).unwrap_or(u32::MAX);
        // One in some: an hour has millions.
        if soaked.calls.is_multiple_of(80) {
            soaked.times_us.push(took_us);
        }
        for (reply, line) in replies.iter().zip(&lines) {
            assert!(reply.error().is_none(), "{line}: {reply:?}");
        }
        soaked.admitted[at] += five(&replies[0])[0];
        soaked.calls += lines.len() as u64;
        thread::sleep(pause);
    }
    soaked.last_us = time_us(&ok(&mut client, "TIME"));
    soaked
}
