//! The procedures of docs/OPERATIONS.md, as far as they take more than a transcript, and no other test runs them.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use support::live::{
    COMMANDS, Kept, all_dumps, charge_all, dump, error, expiries, info_number, int, ok, populate,
    rewrite_aof, rl, wait_until,
};
use support::resp::{Client, Protocol};
use support::{Server, note, signal};

fn client(server: &Server) -> Client {
    server.raw(Protocol::Resp2)
}

#[test]
fn a_backup_is_restored() {
    let server = Server::start();
    let mut client = client(&server);
    let samples = populate(&mut client);
    let kept = Kept::all(&mut client, &samples);
    let expired = expiries(&mut client, &samples);
    let replica = Server::start();
    replica.replica_of(&server);
    // From the server itself, and from its replica.
    for source in [&server, &replica] {
        let mut restored = Server::builder().arg("appendonly", "no").start();
        restored.kill9();
        let file = restored.dir().join("dump.rdb");
        source.cli(&["--rdb", &file.display().to_string()]);
        restored.start_again();
        let mut other = self::client(&restored);
        assert_eq!(Kept::all(&mut other, &samples), kept);
        assert_eq!(expiries(&mut other, &samples), expired);
        // The AOF that is turned on then holds them, too.
        ok(&mut other, "CONFIG SET appendonly yes");
        wait_until("the first AOF", || {
            info_number(&restored, "aof_rewrite_in_progress") == 0
                && info_number(&restored, "aof_rewrite_scheduled") == 0
        });
        ok(&mut other, "CONFIG REWRITE");
        charge_all(&mut other, &samples);
        let states = all_dumps(&mut other);
        restored.restart();
        assert_eq!(all_dumps(&mut self::client(&restored)), states);
    }
}

#[test]
fn wait_tells_what_a_replica_has() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut client = client(&primary);
    for command in COMMANDS {
        rl(&mut client, &format!("{command} {command} 5 1000000 5"));
        assert_eq!(int(&mut client, "WAIT 1 60000"), 1);
        assert_eq!(
            dump(&mut self::client(&replica), command),
            dump(&mut client, command)
        );
    }
    signal("-STOP", &replica);
    rl(&mut client, "RL.GCRA RL.GCRA 5 1000000 5");
    assert_eq!(int(&mut client, "WAIT 1 50"), 0);
    signal("-CONT", &replica);
    assert_eq!(int(&mut client, "WAIT 1 60000"), 1);
}

#[test]
fn a_primary_without_its_replica_stops_charging() {
    let primary = Server::builder().arg("min-replicas-to-write", "1").start();
    let mut replica = Server::start();
    let mut client = client(&primary);
    let refused = |client: &mut Client, line: &str| {
        let text = error(client, line);
        assert!(text.starts_with("NOREPLICAS "), "{line}: {text}");
    };
    refused(&mut client, "RL.GCRA k 5 1000000 5");
    replica.replica_of(&primary);
    for round in 0..2 {
        // How many are good is counted once a second.
        wait_until("the replica counts", || {
            info_number(&primary, "min_slaves_good_slaves") == 1
        });
        for command in COMMANDS {
            let reply = rl(&mut client, &format!("{command} {command} 5 1000000 5"));
            assert_eq!(reply[..3], [1, 5, 4 - round], "{command}");
        }
        replica.kill9();
        wait_until("the primary misses its replica", || {
            info_number(&primary, "min_slaves_good_slaves") == 0
        });
        let before = all_dumps(&mut client);
        for command in COMMANDS {
            for rest in ["", "FORCE", "PEEK", "COST 6"] {
                refused(
                    &mut client,
                    &format!("{command} {command} 5 1000000 5 {rest}"),
                );
            }
            refused(&mut client, &format!("RL.REFUND {command} 1 5"));
            let name = &command[3..];
            refused(
                &mut client,
                &format!("RL.MULTI 1 {command} 5 {name} 5 1000000"),
            );
            ok(&mut client, &format!("RL.INSPECT {command} 5"));
        }
        assert_eq!(all_dumps(&mut client), before);
        replica.start_again();
        replica.replica_of(&primary);
    }
}

/// What was answered is kept, however the log is rewritten meanwhile and whenever the server is killed.
#[test]
fn a_log_rewritten_under_load_loses_nothing() {
    const LIMIT: u64 = 1_000_000_000;
    for preamble in ["yes", "no"] {
        let mut server = Server::builder()
            .arg("appendonly", "yes")
            .arg("appendfsync", "always")
            .arg("aof-use-rdb-preamble", preamble)
            .module_args("ttl-margin-ms 3600000")
            .start();
        let samples = populate(&mut client(&server));
        let kept = Kept::all(&mut client(&server), &samples);
        let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        let answered: Vec<[u64; 5]> = thread::scope(|scope| {
            let (over, calls) = (&over, &calls);
            let callers: Vec<_> = (0..2)
                .map(|caller| {
                    let mut client = client(&server);
                    scope.spawn(move || {
                        let mut answered = [0; 5];
                        // To the end of the connection.
                        while !over.load(Ordering::Relaxed) {
                            for (at, command) in COMMANDS.iter().enumerate() {
                                let key = format!("load:{caller}:{command}");
                                let (limit, window) = (LIMIT.to_string(), "864000000");
                                match client.call(&[*command, &key, &limit, window, "0"]) {
                                    Ok(reply) => {
                                        assert_eq!(support::live::five(&reply)[0], 1);
                                        answered[at] += 1;
                                    }
                                    Err(_) => return answered,
                                }
                                calls.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        answered
                    })
                })
                .collect();
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..3 {
                    let before = calls.load(Ordering::Relaxed);
                    rewrite_aof(&server);
                    wait_until("calls go on", || {
                        calls.load(Ordering::Relaxed) > before + 100
                    });
                }
                ok(&mut client(&server), "BGREWRITEAOF");
                server.kill9();
            }));
            over.store(true, Ordering::Relaxed);
            let answered = callers
                .into_iter()
                .map(|caller| caller.join().expect("every call is allowed"))
                .collect();
            if let Err(why) = worked {
                std::panic::resume_unwind(why);
            }
            answered
        });
        server.start_again();
        let mut client = client(&server);
        assert_eq!(
            Kept::all(&mut client, &samples),
            kept,
            "preamble {preamble}"
        );
        for (caller, answered) in answered.iter().enumerate() {
            let mut unanswered = 0;
            for (command, answered) in COMMANDS.iter().zip(answered) {
                let line = format!("{command} load:{caller}:{command} {LIMIT} 864000000 0 PEEK");
                let remaining = u64::try_from(rl(&mut client, &line)[2]).expect("not negative");
                let spent = LIMIT - remaining;
                assert!(spent >= *answered, "{line}: {spent} of {answered}");
                unanswered += spent - answered;
            }
            assert!(unanswered <= 1, "a caller has one call on its way");
        }
        note(&format!(
            "AOF rewritten under load, preamble {preamble}: {} calls, none lost",
            calls.load(Ordering::Relaxed)
        ));
    }
}

#[test]
fn the_cli_finds_the_biggest_limiter() {
    let server = Server::start();
    let mut client = client(&server);
    let samples = populate(&mut client);
    ok(&mut client, "SET text x");
    let before = all_dumps(&mut client);
    let told = server.cli(&["--bigkeys"]);
    let sampled = format!("Sampled {} keys", samples.len() + 1);
    assert!(told.contains(&sampled), "{told}");
    assert!(told.contains("ratelimit"), "{told}");
    // By memory, the longest log.
    let told = server.cli(&["--memkeys"]);
    let biggest = told.lines().find(|line| {
        line.starts_with("Biggest") && line.contains("ratelimit") && line.contains("log:5000")
    });
    assert!(biggest.is_some(), "{told}");
    assert_eq!(all_dumps(&mut client), before);
}
