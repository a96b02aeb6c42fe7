//! What changes nothing leaves no trace: denied calls, `PEEK`, `COST 0` and errors. Every test ends with a charge,
//! to show that it would have seen one.

mod support;

use std::time::Duration;

use support::Server;
use support::live::{COMMANDS, Events, aof_file, dump, error, info_number, int, ok, rl, run};
use support::resp::{Client, Protocol, Value};

/// What follows a key in [`full`]'s policy and changes nothing there.
const SILENT: &[&str] = &[
    "5 100000 5",
    "5 100000 5 COST 5",
    "5 100000 5 COST 6",
    "5 100000 5 PARTIAL",
    "5 100000 5 COST 9 PARTIAL",
    "5 100000 5 PEEK",
    "5 100000 5 COST 2 PEEK",
    "5 100000 5 COST 6 PEEK",
    "5 100000 5 COST 0",
    "5 100000 5 COST 0 FORCE",
    "5 100000 5 COST 0 PEEK",
    // An earlier time counts as the newest one.
    "5 100000 0",
    // Another policy is judged, not taken over.
    "4 200000 6",
    "400 200000 6 PEEK",
    "400 200000 6 COST 0",
    // Later, while nothing new fits; and much later, when all has lapsed.
    "5 100000 6.001 COST 5",
    "5 100000 900000 COST 6",
    "5 100000 900000 PEEK",
    "5 100000 900000 COST 0",
];

/// Charges all of a limiter.
fn full(client: &mut Client, command: &str, key: &str) {
    let reply = rl(client, &format!("{command} {key} 5 100000 5 COST 5"));
    assert_eq!(reply[..3], [1, 5, 0], "{command}");
}

/// Every call that changes nothing, plain, wrong, in a transaction and in a script, on a full limiter and on none.
fn silent_calls(client: &mut Client, command: &str, key: &str) {
    for rest in SILENT {
        let line = format!("{command} {key} {rest}");
        rl(client, &line);
        error(client, &format!("{line} FOO"));
        ok(client, "MULTI");
        ok(client, &line);
        ok(client, "EXEC");
        let script = "return redis.call(unpack(ARGV))";
        let mut args = vec!["EVAL", script, "0"];
        args.extend(line.split(' '));
        assert!(client.call(&args).unwrap().error().is_none(), "{line}");
    }
    let other = if command == "RL.GCRA" {
        "RL.TOKEN"
    } else {
        "RL.GCRA"
    };
    for mode in ["", "FORCE", "PEEK"] {
        error(client, &format!("{other} {key} 5 100000 5 {mode}"));
    }
    for rest in [
        "PEEK",
        "COST 6",
        "COST 0",
        "COST 0 FORCE",
        "COST 6 PEEK",
        "FOO",
    ] {
        run(client, &format!("{command} none 5 100000 5 {rest}"));
    }
    assert_eq!(int(client, "EXISTS none"), 0);
}

fn charge(command: &str, key: &str) -> String {
    format!("{command} {key} 5 100000 5 FORCE")
}

#[test]
fn nothing_is_changed_counted_or_replicated() {
    let primary = Server::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .arg("repl-ping-replica-period", "3600")
        .start();
    let replica = Server::start();
    replica.replica_of(&primary);
    let mut client = primary.raw(Protocol::Resp2);
    for command in COMMANDS {
        full(&mut client, command, "k");
        primary.wait_in_sync(&replica);
        let seen = |client: &mut Client| {
            (
                dump(client, "k"),
                int(client, "PEXPIRETIME k"),
                info_number(&primary, "rdb_changes_since_last_save"),
                info_number(&primary, "master_repl_offset"),
                aof_file(&primary, ".aof").concat().len(),
            )
        };
        let before = seen(&mut client);
        silent_calls(&mut client, command, "k");
        assert_eq!(seen(&mut client), before, "{command}");

        ok(&mut client, &charge(command, "k"));
        let after = seen(&mut client);
        assert_ne!(after.0, before.0, "{command}");
        assert_eq!(after.2, before.2 + 1, "{command}");
        assert!(after.3 > before.3 && after.4 > before.4, "{command}");
        ok(&mut client, "DEL k");
    }
}

#[test]
fn no_watch_is_broken() {
    let server = Server::start();
    let [mut watcher, mut client] = [Protocol::Resp2, Protocol::Resp3].map(|p| server.raw(p));
    for command in COMMANDS {
        full(&mut client, command, "k");
        ok(&mut watcher, "WATCH k none");
        silent_calls(&mut client, command, "k");
        ok(&mut watcher, "MULTI");
        ok(&mut watcher, "PING");
        let reply = ok(&mut watcher, "EXEC");
        assert_eq!(reply.items().map(<[Value]>::len), Some(1), "{command}");

        for (key, line) in [
            ("k", charge(command, "k")),
            ("none", format!("{command} none 5 100000 5 PARTIAL")),
        ] {
            ok(&mut watcher, &format!("WATCH {key}"));
            ok(&mut client, &line);
            ok(&mut watcher, "MULTI");
            ok(&mut watcher, "PING");
            assert!(ok(&mut watcher, "EXEC").is_null(), "{line}");
        }
        ok(&mut client, "DEL k none");
    }
}

#[test]
fn no_client_side_cache_is_invalidated() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    for tracking in ["CLIENT TRACKING ON", "CLIENT TRACKING ON BCAST"] {
        for command in COMMANDS {
            full(&mut client, command, "k");
            let mut reader = server.raw(Protocol::Resp3);
            ok(&mut reader, tracking);
            let read = |reader: &mut Client| {
                dump(reader, "k");
                dump(reader, "none");
            };
            read(&mut reader);
            silent_calls(&mut client, command, "k");
            // An invalidation would have come before the answer.
            ok(&mut reader, "PING");
            assert_eq!(
                reader.next_push(Duration::ZERO).unwrap(),
                None,
                "{command} {tracking}"
            );

            ok(&mut client, &charge(command, "k"));
            assert_eq!(
                reader.next_push(Duration::from_secs(30)).unwrap(),
                Some(Value::Push(vec![
                    Value::bulk("invalidate"),
                    Value::Array(vec![Value::bulk("k")]),
                ])),
                "{command} {tracking}"
            );
            ok(&mut client, "DEL k");
        }
    }
}

#[test]
fn a_charge_is_announced_and_the_first_denial_after_it() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    let mut events = Events::of(&server);
    for command in COMMANDS {
        let call = |rest: &str| format!("{command} k 5 100000 5 {rest}");
        for (line, want) in [
            (call("PEEK"), vec![]),
            (call("COST 0"), vec![]),
            (call("FOO"), vec![]),
            (call("COST 6 PEEK"), vec![]),
            // Even where there is no key.
            (call("COST 6"), vec!["rl.denied k"]),
            (call("COST 6"), vec![]),
            (call("COST 3"), vec!["rl.charge k"]),
            (call(""), vec!["rl.charge k"]),
            (call("COST 6"), vec!["rl.denied k"]),
            (call("COST 6"), vec![]),
            (call("COST 2"), vec![]),
            (call("PEEK"), vec![]),
            (call("COST 2 PARTIAL"), vec!["rl.charge k"]),
            (call("PEEK"), vec![]),
            (call("COST 0"), vec![]),
            (call("COST 0 FORCE"), vec![]),
            (call("PARTIAL"), vec!["rl.denied k"]),
            (call(""), vec![]),
            (call("FORCE"), vec!["rl.charge k"]),
            (call(""), vec!["rl.denied k"]),
            (call("FOO"), vec![]),
            (call("FORCE"), vec!["rl.charge k"]),
            // PERSIST is told by the server; that the expiry is set again is not told.
            ("PERSIST k".to_string(), vec!["persist k"]),
            (call("FORCE"), vec!["rl.charge k"]),
        ] {
            run(&mut client, &line);
            assert_eq!(events.sent(&mut client), want, "{line}");
        }
        // In a script and in a transaction.
        let script = "for i = 1, 3 do redis.call(ARGV[1], KEYS[1], 1, 100000, 5) end";
        let args = ["EVAL", script, "1", "script", command];
        assert!(client.call(&args).unwrap().error().is_none());
        assert_eq!(
            events.sent(&mut client),
            ["rl.charge script", "rl.denied script"]
        );
        ok(&mut client, "MULTI");
        for _ in 0..3 {
            ok(&mut client, &format!("{command} transaction 1 100000 5"));
        }
        ok(&mut client, "EXEC");
        assert_eq!(
            events.sent(&mut client),
            ["rl.charge transaction", "rl.denied transaction"]
        );
        // A key of the same name in another database is another key.
        ok(&mut client, "SELECT 1");
        ok(&mut client, &call("COST 6"));
        assert_eq!(events.sent(&mut client), ["rl.denied k"], "{command}");
        ok(&mut client, &call(""));
        ok(&mut client, "FLUSHALL");
        ok(&mut client, "SELECT 0");
        // And so that the next algorithm begins as this one did: an allowed call, and no key.
        ok(&mut client, "DEL k script transaction");
        for key in ["k", "script", "transaction"] {
            ok(&mut client, &format!("{command} {key} 1 1 5"));
            ok(&mut client, &format!("DEL {key}"));
        }
        events.sent(&mut client);
    }
}

/// Which keys were denied is remembered in bounded memory, and in no key.
#[test]
fn many_denied_keys_take_no_memory() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    let mut deny = |from: usize, to: usize| {
        let calls: Vec<Vec<String>> = (from..to)
            .map(|i| {
                format!("RL.GCRA user:{i} 1 1000 5 COST 2")
                    .split(' ')
                    .map(str::to_string)
                    .collect()
            })
            .collect();
        for reply in client.pipeline(&calls).unwrap() {
            assert_eq!(reply, Value::ints(&[0, 1, 1, -1, 0]));
        }
    };
    deny(0, 20_000);
    let before = info_number(&server, "used_memory");
    deny(20_000, 120_000);
    let grown = info_number(&server, "used_memory") - before;
    // A byte a key would be more; the connection's buffers come and go.
    assert!(grown < 80_000, "{grown} bytes for 100,000 keys");
    assert_eq!(int(&mut client, "DBSIZE"), 0);
}

#[test]
fn loading_announces_nothing() {
    let server = Server::builder()
        .arg("appendonly", "yes")
        .arg("aof-use-rdb-preamble", "no")
        .start();
    let mut client = server.raw(Protocol::Resp2);
    for command in COMMANDS {
        full(&mut client, command, command);
    }
    support::live::rewrite_aof(&server);
    let mut events = Events::of(&server);
    for load in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        ok(&mut client, load);
        let sent = events.sent(&mut client);
        let ours: Vec<_> = sent.iter().filter(|event| event.contains("rl.")).collect();
        assert!(ours.is_empty(), "{load}: {sent:?}");
        assert_eq!(int(&mut client, "DBSIZE"), 5);
    }
    ok(&mut client, "RL.FIXED k 5 1000 5");
    assert_eq!(events.sent(&mut client), ["rl.charge k"]);
}

/// A log of calls is run again, and announced as the server announces its own commands then.
#[test]
fn replaying_calls_announces_them_as_the_server_does_its_own() {
    let server = Server::builder().arg("appendonly", "yes").start();
    let mut client = server.raw(Protocol::Resp2);
    let mut events = Events::of(&server);
    ok(&mut client, "SET text x");
    for command in COMMANDS {
        full(&mut client, command, command);
        rl(&mut client, &format!("{command} {command} 5 100000 5 PEEK"));
    }
    let sent = events.sent(&mut client);
    assert_eq!(sent.len(), 6, "{sent:?}");
    ok(&mut client, "DEBUG LOADAOF");
    assert_eq!(events.sent(&mut client), sent);
}
