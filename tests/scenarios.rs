//! Faults that users of rate limiters met elsewhere, as far as they take more than calls on one connection and no
//! other test tells them.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use support::live::{
    COMMANDS, Events, Kept, Monitor, all_dumps, charge_all, charge_in_band, dump, error, expiries,
    five, info_number, int, long_log, ok, populate, rewrite_aof, rl, run, save_and_restart,
    wait_until,
};
use support::resp::{Protocol, Value};
use support::{Server, note};

/// Every call that there is on a key, wrong and right ones.
fn every_call(key: &str) -> Vec<String> {
    let mut calls = Vec::new();
    for command in COMMANDS {
        for rest in [
            "",
            "COST 3",
            "PEEK",
            "COST 0",
            "COST 99",
            "FORCE",
            "PARTIAL COST 99",
            "FOO",
        ] {
            calls.push(
                format!("{command} {key} 5 100000 5 {rest}")
                    .trim()
                    .to_string(),
            );
        }
        calls.push(format!("RL.INSPECT {key} 5"));
        calls.push(format!("RL.REFUND {key} 1 5"));
        calls.push(format!("RL.MULTI 1 {key} 5 {} 5 100000", &command[3..]));
        calls.push(format!(
            "RL.MULTI 1 {key} 5 {} 5 100000 FORCE",
            &command[3..]
        ));
        calls.push(format!(
            "RL.MULTI 1 {key} 5 {} 5 100000 PEEK",
            &command[3..]
        ));
        // The next algorithm begins anew.
        calls.push(format!("DEL {key}"));
    }
    for call in ["RL.THROTTLE", "CL.THROTTLE", "GCRA"] {
        calls.push(format!("{call} {key} 5 5 100"));
        calls.push(format!("{call} {key} 5 5 100"));
    }
    calls
}

/// B42: a call is one command, on the key it was given.
#[test]
fn a_call_touches_its_key_and_no_other() {
    let server = Server::start();
    note(&format!("server: {}", server.version_text()));
    let mut client = server.raw(Protocol::Resp2);
    let samples = populate(&mut client);
    ok(&mut client, "SET text x");
    let others = all_dumps(&mut client);
    let expired = expiries(&mut client, &samples);
    let mut events = Events::of(&server);
    let mut monitor = Monitor::start(&server);
    // Names that a key of some other make might be derived from.
    for key in ["k", "gcra:onex", "{k}:1", "text:"] {
        for call in every_call(key) {
            ok(&mut client, "ECHO begin");
            monitor.until("begin");
            run(&mut client, &call);
            ok(&mut client, "ECHO end");
            assert_eq!(monitor.until("end"), [call.as_str()]);
            for event in events.sent(&mut client) {
                let (_, name) = event.split_once(' ').expect("an event and a key");
                assert_eq!(name, key, "{call}: {event}");
            }
            let known = int(&mut client, "DBSIZE");
            let there = int(&mut client, &format!("EXISTS {key}"));
            let left = i64::try_from(others.len()).expect("few");
            assert_eq!(known - there, left, "{call}");
        }
        ok(&mut client, &format!("DEL {key}"));
        events.sent(&mut client);
    }
    assert_eq!(all_dumps(&mut client), others);
    assert_eq!(expiries(&mut client, &samples), expired);
    // All the keys of several, and no other.
    let line = "RL.MULTI 3 a b c 5 FIXED 5 100000 GCRA 5 100000 SLIDINGLOG 5 100000";
    ok(&mut client, "ECHO begin");
    monitor.until("begin");
    ok(&mut client, line);
    ok(&mut client, "ECHO end");
    assert_eq!(monitor.until("end"), [line]);
    let mut sent = events.sent(&mut client);
    sent.retain(|event| !event.starts_with("new ") && !event.starts_with("expire "));
    assert_eq!(sent, ["rl.charge a", "rl.charge b", "rl.charge c"]);
}

/// B83: there is nothing to load, so nothing that is flushed or started anew can be missing.
#[test]
fn no_call_ever_fails_for_want_of_loading() {
    let mut server = Server::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .start();
    let addr = server.addr();
    let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (over, calls) = (&over, &calls);
        let callers: Vec<_> = (0..2)
            .map(|caller| {
                scope.spawn(move || {
                    let mut admitted = 0;
                    while !over.load(Ordering::Relaxed) {
                        // A server that starts anew refuses connections for a while, or drops them.
                        let Ok(mut client) = support::resp::Client::connect(addr, Protocol::Resp2)
                        else {
                            thread::sleep(std::time::Duration::from_millis(1));
                            continue;
                        };
                        for i in 0.. {
                            if over.load(Ordering::Relaxed) {
                                break;
                            }
                            let command = COMMANDS[i % 5];
                            let line =
                                format!("{command} {command}:{caller} 1000000000 86400000 *");
                            let words: Vec<&str> = line.split(' ').collect();
                            let Ok(reply) = client.call(&words) else {
                                break;
                            };
                            match reply.error() {
                                None => assert_eq!(five(&reply)[0], 1, "{line}"),
                                Some(text) => {
                                    assert!(text.starts_with("LOADING"), "{line}: {text}");
                                    continue;
                                }
                            }
                            admitted += 1;
                            calls.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    admitted
                })
            })
            .collect();
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..3 {
                for line in [
                    "SCRIPT FLUSH SYNC",
                    "SCRIPT FLUSH ASYNC",
                    "FUNCTION FLUSH",
                    "MEMORY PURGE",
                ] {
                    ok(&mut server.raw(Protocol::Resp2), line);
                    let before = calls.load(Ordering::Relaxed);
                    wait_until("calls go on", || {
                        calls.load(Ordering::Relaxed) > before + 50
                    });
                }
                server.kill9();
                server.start_again();
                let before = calls.load(Ordering::Relaxed);
                wait_until(&format!("calls go on after restart {round}"), || {
                    calls.load(Ordering::Relaxed) > before + 50
                });
            }
        }));
        over.store(true, Ordering::Relaxed);
        let admitted: i64 = callers
            .into_iter()
            .map(|caller| caller.join().expect("no call fails"))
            .sum();
        if let Err(why) = worked {
            std::panic::resume_unwind(why);
        }
        // What was answered is kept: with `appendfsync always` a kill loses no unit, and at most the calls that
        // were on their way then, one of each caller, are there without an answer.
        let mut client = server.raw(Protocol::Resp2);
        let mut spent = 0;
        for caller in 0..2 {
            for command in COMMANDS {
                let line = format!("{command} {command}:{caller} 1000000000 86400000 * PEEK");
                // A bucket of a thousand million a day gives one back in less than a millisecond.
                if !support::live::has_burst(command) {
                    spent += 1_000_000_000 - rl(&mut client, &line)[2];
                }
            }
        }
        note(&format!("restarts: {admitted} calls, no error but LOADING"));
        assert!(
            spent * 5 >= admitted * 3 - 30 && spent * 5 <= admitted * 3 + 60,
            "{spent} of {admitted}"
        );
    });
}

/// B83: a replica without the module stops at the first limiter, and neither hides it nor harms its primary.
#[test]
fn a_replica_without_the_module_says_so() {
    let primary = Server::start();
    let bare = Server::builder().module(false).start();
    let mut client = primary.raw(Protocol::Resp2);
    let mut other = bare.raw(Protocol::Resp2);
    assert!(error(&mut other, "RL.GCRA k 5 1000 *").starts_with("ERR unknown command"));
    bare.replica_of(&primary);
    rl(&mut client, "RL.GCRA k 5 100000 5");
    ok(&mut client, "SET text x");
    // An unknown command from the primary is logged; the replica goes on without it.
    wait_until("the replica goes on", || {
        int(&mut other, "EXISTS text") == 1
    });
    assert_eq!(int(&mut other, "EXISTS k"), 0);
    let log = bare.log();
    assert!(
        log.contains("RL.GCRA") && log.to_lowercase().contains("unknown command"),
        "{log}"
    );
    assert_eq!(rl(&mut client, "RL.GCRA k 5 100000 5")[2], 3);
    // One that is sent everything anew cannot read a limiter: it ends, or is never in sync.
    let late = Server::builder().module(false).start();
    let line = format!("REPLICAOF 127.0.0.1 {}", primary.port());
    ok(&mut late.raw(Protocol::Resp2), &line);
    wait_until("the log says why", || late.log().contains("ratelimit"));
    assert_eq!(rl(&mut client, "RL.GCRA k 5 100000 5")[2], 2);
    note(&format!(
        "without the module: {}",
        late.log()
            .lines()
            .find(|line| line.contains("ratelimit"))
            .unwrap_or_default()
    ));
}

/// A server after one of the ways that its keys can take, and whether they are at the other server then.
type Way = (&'static str, fn(&mut Server, &Server) -> bool);

const WAYS: [Way; 10] = [
    ("SAVE and restart", |server, _| {
        ok(&mut server.raw(Protocol::Resp2), "CONFIG SET appendonly no");
        ok(&mut server.raw(Protocol::Resp2), "CONFIG REWRITE");
        save_and_restart(server);
        false
    }),
    ("AOF, everysec", |server, _| {
        server.restart();
        false
    }),
    ("AOF, always, killed", |server, _| {
        server.kill9();
        server.start_again();
        false
    }),
    ("AOF rewritten", |server, _| {
        rewrite_aof(server);
        server.restart();
        false
    }),
    ("AOF rewritten, no preamble", |server, _| {
        let line = "CONFIG SET aof-use-rdb-preamble no";
        ok(&mut server.raw(Protocol::Resp2), line);
        rewrite_aof(server);
        server.restart();
        false
    }),
    ("promotion", |server, other| {
        other.replica_of(server);
        server.kill9();
        ok(&mut other.raw(Protocol::Resp2), "REPLICAOF NO ONE");
        true
    }),
    ("DEBUG RELOAD", |server, _| {
        ok(&mut server.raw(Protocol::Resp2), "DEBUG RELOAD");
        false
    }),
    ("DUMP, DEL, RESTORE", |server, _| {
        let mut client = server.raw(Protocol::Resp2);
        for command in COMMANDS {
            let bytes = dump(&mut client, command).expect("the key is there");
            let expires = int(&mut client, &format!("PEXPIRETIME {command}"));
            let expires = expires.to_string();
            ok(&mut client, &format!("DEL {command}"));
            for (ttl, rest) in [("0", "REPLACE"), (expires.as_str(), "ABSTTL")] {
                let mut args = [b"RESTORE", command.as_bytes(), ttl.as_bytes(), &bytes].to_vec();
                args.extend([b"REPLACE".as_slice(), rest.as_bytes()]);
                let reply = client.call(&args).expect("an answer");
                assert_eq!(reply, Value::simple("OK"));
            }
        }
        false
    }),
    ("MIGRATE", |server, other| {
        for command in COMMANDS {
            let line = format!("MIGRATE 127.0.0.1 {} {command} 0 30000", other.port());
            ok(&mut server.raw(Protocol::Resp2), &line);
        }
        true
    }),
    ("SWAPDB there and back", |server, _| {
        let mut client = server.raw(Protocol::Resp2);
        ok(&mut client, "SWAPDB 0 5");
        assert_eq!(int(&mut client, "DBSIZE"), 0);
        ok(&mut client, "SWAPDB 5 0");
        false
    }),
];

/// B07 and B18: what was spent stays spent, what is left is left.
#[test]
fn a_limiter_survives_every_way() {
    const NOW_MS: u64 = 1_699_920_000_000;
    for (way, go) in WAYS {
        let fsync = if way.contains("everysec") {
            "everysec"
        } else {
            "always"
        };
        let mut server = Server::builder()
            .arg("appendonly", "yes")
            .arg("appendfsync", fsync)
            .start();
        let other = Server::start();
        let mut client = server.raw(Protocol::Resp2);
        let mut kept = Vec::new();
        for command in COMMANDS {
            let line = format!("{command} {command} 10 600000 {NOW_MS} COST 8");
            assert_eq!(charge_in_band(&mut client, command, &line)[..3], [1, 10, 2]);
            let expires_ms = int(&mut client, &format!("PEXPIRETIME {command}"));
            kept.push((dump(&mut client, command), expires_ms));
        }
        let moved = go(&mut server, &other);
        let mut client = if moved { &other } else { &server }.raw(Protocol::Resp2);
        for (command, (bytes, expired_ms)) in COMMANDS.iter().zip(kept) {
            assert_eq!(dump(&mut client, command), bytes, "{way}, {command}");
            let expires_ms = int(&mut client, &format!("PEXPIRETIME {command}"));
            // A replica and a replay run the call, and count the time to live from then; MIGRATE carries what is left.
            let later = way.starts_with("AOF") || ["promotion", "MIGRATE"].contains(&way);
            assert!(
                expires_ms == expired_ms || later && expires_ms >= expired_ms - 1,
                "{way}, {command}: {expires_ms} was {expired_ms}"
            );
            let later = format!("{command} {command} 10 600000 {}", NOW_MS + 1000);
            let denied = rl(&mut client, &format!("{later} COST 3"));
            assert_eq!(denied[..3], [0, 10, 2], "{way}, {command}");
            assert_eq!(dump(&mut client, command), bytes, "{way}, {command}");
            let allowed = charge_in_band(&mut client, command, &format!("{later} COST 2"));
            assert_eq!(allowed[..3], [1, 10, 0], "{way}, {command}");
        }
    }
}

/// B77: each way of writing and reading, on one limiter of each kind.
#[test]
fn every_way_of_saving_succeeds() {
    let mut server = Server::builder().arg("appendonly", "yes").start();
    let mut client = server.raw(Protocol::Resp2);
    let samples = populate(&mut client);
    let kept = Kept::all(&mut client, &samples);
    let expired = expiries(&mut client, &samples);
    let digest = ok(&mut client, "DEBUG DIGEST");
    let mut values = vec!["DEBUG", "DIGEST-VALUE"];
    values.extend(samples.iter().map(|sample| sample.key.as_str()));
    let value_digests = client.call(&values).unwrap();
    let sound = |server: &Server, what: &str| {
        for name in [
            "rdb_last_bgsave_status",
            "aof_last_bgrewrite_status",
            "aof_last_write_status",
        ] {
            assert_eq!(
                server.info_field(name).as_deref(),
                Some("ok"),
                "{what}: {name}"
            );
        }
        let mut client = server.raw(Protocol::Resp2);
        assert_eq!(ok(&mut client, "DEBUG DIGEST"), digest, "{what}");
        assert_eq!(client.call(&values).unwrap(), value_digests, "{what}");
        assert_eq!(Kept::all(&mut client, &samples), kept, "{what}");
        assert_eq!(expiries(&mut client, &samples), expired, "{what}");
    };
    ok(&mut client, "SAVE");
    sound(&server, "SAVE");
    ok(&mut client, "BGSAVE");
    wait_until("BGSAVE", || {
        info_number(&server, "rdb_bgsave_in_progress") == 0
    });
    sound(&server, "BGSAVE");
    ok(&mut client, "DEBUG RELOAD");
    sound(&server, "DEBUG RELOAD");
    for preamble in ["yes", "no"] {
        ok(
            &mut client,
            &format!("CONFIG SET aof-use-rdb-preamble {preamble}"),
        );
        rewrite_aof(&server);
        sound(&server, "BGREWRITEAOF");
        ok(&mut client, "DEBUG LOADAOF");
        sound(&server, "DEBUG LOADAOF");
        save_and_restart(&mut server);
        client = server.raw(Protocol::Resp2);
        sound(&server, "a restart");
    }
    // And each of them still charges.
    for (reply, sample) in charge_all(&mut client, &samples).iter().zip(&samples) {
        assert_eq!(reply[0], 1, "{}", sample.key);
    }
    ok(&mut client, "FLUSHALL");
    assert_eq!(int(&mut client, "DBSIZE"), 0);
}

/// B85: what a full memory leaves to do: no charge, but units can be given back and limiters looked at and removed.
#[test]
fn a_full_memory_refuses_charges_and_takes_refunds() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    for command in COMMANDS {
        rl(&mut client, &format!("{command} k 5 1000000 5 COST 3"));
        rl(&mut client, &format!("{command} one 5 1000000 5"));
        ok(&mut client, "CONFIG SET maxmemory 1");
        let before = dump(&mut client, "k");
        let name = &command[3..];
        for keys in ["2 k new", "2 new k", "1 k", "1 new"] {
            let clauses = format!("{name} 5 1000000 ").repeat(keys.split(' ').count() - 1);
            for mode in ["", "PEEK", "FORCE"] {
                let text = error(&mut client, &format!("RL.MULTI {keys} 5 {clauses}{mode}"));
                assert!(text.starts_with("OOM "), "{text}");
            }
        }
        assert_eq!(dump(&mut client, "k"), before);
        let shown = ok(&mut client, "RL.INSPECT k 5");
        assert_eq!(shown.items().map(<[Value]>::len), Some(18));
        assert_eq!(int(&mut client, "RL.REFUND k 1 5"), 3);
        assert_eq!(int(&mut client, "RL.REFUND one 1 5"), 5);
        assert_eq!(int(&mut client, "EXISTS one"), 0);
        assert!(ok(&mut client, "RL.REFUND new 1 5").is_null());
        ok(&mut client, "CONFIG SET maxmemory 0");
        assert_eq!(
            rl(&mut client, &format!("{command} k 5 1000000 5"))[..3],
            [1, 5, 2]
        );
        ok(&mut client, "DEL k");
    }
}

/// B86: what MEMORY USAGE says of limiters is what the allocator gave for them, within 20%.
#[test]
fn memory_usage_is_what_the_allocator_gave() {
    let server = Server::builder().arg("hz", "500").start();
    let mut client = server.raw(Protocol::Resp2);
    // Connections are as large as they get, and are counted before.
    long_log(&mut client, "warm", 2000);
    ok(&mut client, "DEL warm");
    // The server's own tables grow and shrink in the background: until nothing has moved for a while.
    let used = || {
        let (mut last, mut steady) = (0, 0);
        wait_until("the memory is steady", || {
            let now = info_number(&server, "used_memory");
            steady = if now == last { steady + 1 } else { 0 };
            last = now;
            steady >= 10
        });
        last
    };
    for entries in [1000, 10_000, 60_000] {
        let before = used();
        long_log(&mut client, "log", entries);
        let given = used() - before;
        let told = int(&mut client, "MEMORY USAGE log");
        note(&format!(
            "log of {entries}: {told} bytes told, {given} given"
        ));
        assert!(
            (told - given).abs() * 5 <= given,
            "{entries} entries: {told} told, {given} given"
        );
        ok(&mut client, "DEL log");
    }
    // Small ones, whose keys and expiries are the server's: nothing that the module takes beside is untold.
    for command in COMMANDS {
        let count = 4000;
        let fill = |client: &mut support::resp::Client, of: &dyn Fn(u32) -> String| {
            let calls: Vec<Vec<String>> = (0..count)
                .map(|i| of(i).split(' ').map(str::to_string).collect())
                .collect();
            for reply in client.pipeline(&calls).unwrap() {
                assert!(reply.error().is_none(), "{reply:?}");
            }
        };
        ok(&mut client, "FLUSHALL SYNC");
        let empty = used();
        fill(&mut client, &|i| {
            format!("SET limiter:{i:06} {} EX 86400", "x".repeat(20))
        });
        let strings = used() - empty;
        let string = int(&mut client, "MEMORY USAGE limiter:000007");
        ok(&mut client, "FLUSHALL SYNC");
        let empty = used();
        fill(&mut client, &|i| {
            format!("{command} limiter:{i:06} 10 86400000 86399999")
        });
        let limiters = used() - empty;
        let limiter = int(&mut client, "MEMORY USAGE limiter:000007");
        // Beside strings of the same keys, so that what the server needs for a key is in both.
        let (told, given) = (limiter - string, (limiters - strings) / i64::from(count));
        note(&format!(
            "{command}: a limiter takes {given} bytes more than a string of 20, and {told} are told"
        ));
        // The server counts neither the 16 bytes that say where a module's value is and of which type, nor, if it
        // is a Redis, the 16 of the object before that; the allocator rounds.
        assert!(
            (0..=48).contains(&(given - told)),
            "{command}: {told} told, {given} given"
        );
    }
}
