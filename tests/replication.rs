//! What reaches a replica and the append-only file, and that both come to the same states.

mod support;

use support::live::{
    COMMANDS, Kept, MARGIN_MS, Monitor, Sample, aof_calls, aof_file, assert_told, charge_all, dump,
    error, expiries, info_number, int, ok, populate, rewrite_aof, rl, run, time_ms, wait_until,
};
use support::resp::{Client, Protocol, Value};
use support::{Server, Shutdown};

fn client(server: &Server) -> Client {
    server.raw(Protocol::Resp2)
}

/// Calls that charge. The window is of ten years, so that nothing expires however long a test takes.
fn charging_calls(command: &str) -> Vec<String> {
    let burst = if support::live::has_burst(command) {
        " burst 0009"
    } else {
        ""
    };
    let lower = command.to_lowercase();
    vec![
        format!("{command} {command}:a 10 315576000000 5"),
        format!("{lower} {command}:a 010 315576000000.0004 5.50000 cost 02 FoRcE{burst}"),
        format!("{command} {command}:a 10 315576000000 4{burst} PARTIAL COST 3"),
        format!("{command} {command}:a 10 315576000000 8999999999999.125 FORCE COST 100"),
        format!("{command} {command}:b 10 315576000000 *"),
        format!("{lower} {command}:b 10 315576000000 *{burst} PARTIAL COST 3"),
    ]
}

/// Only the calls of this module.
fn ours(calls: Vec<String>) -> Vec<String> {
    calls
        .into_iter()
        .filter(|call| call.to_uppercase().starts_with("RL."))
        .collect()
}

#[test]
fn the_call_itself_is_told_on() {
    let primary = Server::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .start();
    let replica = Server::start();
    replica.replica_of(&primary);
    let mut client = client(&primary);
    let mut monitor = Monitor::start(&replica);
    let before_ms = time_ms(&mut client) - 1;
    let mut sent = Vec::new();
    for command in COMMANDS {
        for line in charging_calls(command) {
            assert!(rl(&mut client, &line)[0] > 0, "{line}");
            sent.push(line);
        }
        // None of these is told on.
        for rest in ["COST 11", "PEEK", "COST 0", "FORCE COST 0", "FOO"] {
            run(
                &mut client,
                &format!("{command} {command}:a 10 315576000000 5 {rest}"),
            );
            run(
                &mut client,
                &format!("{command} {command}:b 10 315576000000 * {rest}"),
            );
        }
        // In a transaction.
        let lines = charging_calls(command);
        ok(&mut client, "MULTI");
        for line in &lines {
            ok(&mut client, &line.replace(":a", ":c").replace(":b", ":d"));
            ok(
                &mut client,
                &format!("{command} {command}:c 10 315576000000 * PEEK"),
            );
        }
        ok(&mut client, "EXEC");
        sent.extend(
            lines
                .iter()
                .map(|line| line.replace(":a", ":c").replace(":b", ":d")),
        );
        // In a script, called and called protected.
        for (call, keys) in [("call", [":e", ":f"]), ("pcall", [":g", ":h"])] {
            let lines: Vec<String> = lines
                .iter()
                .map(|line| line.replace(":a", keys[0]).replace(":b", keys[1]))
                .collect();
            let script: String = lines
                .iter()
                .map(|line| format!("redis.{call}('{}') ", line.replace(' ', "','")))
                .collect();
            let reply = client.call(&["EVAL", &script, "0"]).unwrap();
            assert!(reply.error().is_none(), "{reply:?}");
            sent.extend(lines);
        }
    }
    let after_ms = time_ms(&mut client) + 1;
    ok(&mut client, "SET mark end-of-calls");
    let told = ours(monitor.until("end-of-calls"));
    assert_told(&told, &sent, before_ms, after_ms);
    assert_eq!(ours(aof_calls(&primary)), told);
    primary.wait_in_sync(&replica);
    let mut reader = self::client(&replica);
    let states = support::live::all_dumps(&mut client);
    assert_eq!(states.len(), COMMANDS.len() * 8 + 1);
    assert_eq!(support::live::all_dumps(&mut reader), states);
}

#[test]
fn a_function_is_told_on_as_its_calls() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut client = client(&primary);
    let library = "#!lua name=limits\n\
        redis.register_function('twice', function(keys, args)\n\
          redis.call(args[1], keys[1], 5, 315576000000, '*')\n\
          return redis.call(args[1], keys[1], 5, 315576000000, '*', 'COST', 2) end)";
    client.call(&["FUNCTION", "LOAD", library]).unwrap();
    let mut monitor = Monitor::start(&replica);
    for command in COMMANDS {
        let before_ms = time_ms(&mut client) - 1;
        let reply = client
            .call(&["FCALL", "twice", "1", command, command])
            .unwrap();
        assert_eq!(support::live::five(&reply)[2], 2);
        let after_ms = time_ms(&mut client) + 1;
        ok(&mut client, &format!("SET mark end-of-{command}"));
        let sent =
            ["", " COST 2"].map(|rest| format!("{command} {command} 5 315576000000 *{rest}"));
        let told = ours(monitor.until(&format!("end-of-{command}")));
        assert_told(&told, &sent, before_ms, after_ms);
    }
}

/// Asserts that expiries were set by the server that ran the call, in the band above `reset_after`.
fn in_band(expires_ms: i64, reset_after: i64, before_ms: i64, after_ms: i64, key: &str) {
    let band = before_ms + reset_after + MARGIN_MS / 2..=after_ms + reset_after + MARGIN_MS;
    assert!(
        band.contains(&expires_ms),
        "{key}: {expires_ms} is not in {band:?}"
    );
}

#[test]
fn a_replica_is_ready_to_take_over() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut client = client(&primary);
    let before_ms = time_ms(&mut client) - 1;
    let samples = populate(&mut client);
    let stars: Vec<[i64; 5]> = COMMANDS
        .iter()
        .map(|command| {
            rl(
                &mut client,
                &format!("{command} star:{command} 5 315576000000 *"),
            )
        })
        .collect();
    primary.wait_in_sync(&replica);
    let after_ms = time_ms(&mut client) + 1;
    let kept = Kept::all(&mut client, &samples);

    let mut other = self::client(&replica);
    ok(&mut other, "REPLICAOF NO ONE");
    assert_eq!(Kept::all(&mut other, &samples), kept);
    for (command, reply) in COMMANDS.iter().zip(stars) {
        let key = format!("star:{command}");
        assert_eq!(dump(&mut other, &key), dump(&mut client, &key));
        let expires_ms = int(&mut other, &format!("PEXPIRETIME {key}"));
        in_band(expires_ms, reply[4], before_ms, after_ms, &key);
    }
    let before_ms = time_ms(&mut other) - 1;
    let replies = charge_all(&mut other, &samples);
    let after_ms = time_ms(&mut other) + 1;
    assert_eq!(replies, charge_all(&mut client, &samples));
    let expired = expiries(&mut other, &samples);
    for ((sample, reply), expires_ms) in samples.iter().zip(replies).zip(expired) {
        in_band(expires_ms, reply[4], before_ms, after_ms, &sample.key);
    }
    assert_eq!(
        Kept::all(&mut other, &samples),
        Kept::all(&mut client, &samples)
    );
}

#[test]
fn a_full_sync_carries_everything() {
    for (diskless, load) in [
        ("no", "disabled"),
        ("yes", "disabled"),
        ("yes", "swapdb"),
        ("yes", "on-empty-db"),
        ("no", "swapdb"),
    ] {
        let primary = Server::builder()
            .arg("repl-diskless-sync", diskless)
            .start();
        let replica = Server::builder().arg("repl-diskless-load", load).start();
        let mut client = client(&primary);
        let samples = populate(&mut client);
        let kept = Kept::all(&mut client, &samples);
        let expired = expiries(&mut client, &samples);
        let mut other = self::client(&replica);
        // Something of its own, to be replaced.
        if load != "on-empty-db" {
            ok(&mut other, "RL.GCRA gcra:one 3 1000000 5");
            ok(&mut other, "RL.FIXED own 3 1000000 5");
        }
        replica.replica_of(&primary);
        assert_eq!(expiries(&mut other, &samples), expired, "{diskless} {load}");
        ok(&mut other, "REPLICAOF NO ONE");
        assert_eq!(Kept::all(&mut other, &samples), kept, "{diskless} {load}");
        assert_eq!(int(&mut other, "EXISTS own"), 0);
        assert_eq!(
            charge_all(&mut other, &samples),
            charge_all(&mut client, &samples)
        );
    }
}

#[test]
fn a_partial_resync_misses_nothing() {
    let primary = Server::start();
    let replica = Server::start();
    let mut client = client(&primary);
    let samples = populate(&mut client);
    replica.replica_of(&primary);
    for round in 1..4 {
        let partial = info_number(&primary, "sync_partial_ok");
        ok(&mut client, "MULTI");
        ok(&mut client, "CLIENT KILL TYPE replica");
        for sample in &samples {
            ok(&mut client, &sample.charge);
        }
        ok(&mut client, "EXEC");
        charge_all(&mut client, &samples);
        wait_until("the partial resync", || {
            info_number(&primary, "sync_partial_ok") > partial
        });
        primary.wait_in_sync(&replica);
        assert_eq!(info_number(&primary, "sync_full"), 1, "round {round}");
        for Sample { key, .. } in &samples {
            assert_eq!(
                dump(&mut self::client(&replica), key),
                dump(&mut client, key),
                "round {round}, {key}"
            );
        }
    }
}

#[test]
fn a_replica_refuses_calls() {
    let (primary, replica) = (Server::start(), Server::start());
    let mut client = client(&primary);
    for command in COMMANDS {
        rl(&mut client, &format!("{command} {command} 5 1000000 5"));
    }
    replica.replica_of(&primary);
    let mut reader = self::client(&replica);
    let before = support::live::all_dumps(&mut reader);
    for command in COMMANDS {
        for rest in ["", "PEEK", "COST 0", "COST 9", "FORCE", "PARTIAL"] {
            for key in [command, "none"] {
                let line = format!("{command} {key} 5 1000000 5 {rest}");
                let text = error(&mut reader, &line);
                assert!(text.starts_with("READONLY"), "{line}: {text}");
                let script = format!("return redis.call('{}')", line.trim().replace(' ', "','"));
                let reply = reader.call(&["EVAL", &script, "0"]).unwrap();
                let text = reply.error().expect("an error");
                assert!(
                    text.contains("read only") || text.contains("READONLY"),
                    "{text}"
                );
            }
        }
    }
    assert!(error(&mut reader, "RL.RESTORE k 1 x").starts_with("READONLY"));
    assert_eq!(support::live::all_dumps(&mut reader), before);
}

/// A key that expired is deleted by the primary before it is charged anew, and on the replica too: whether the charge
/// is what finds it expired, or the server by itself.
#[test]
fn an_expired_key_starts_anew_on_both() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut client = client(&primary);
    let mut monitor = Monitor::start(&replica);
    for active in [0, 1] {
        ok(&mut client, &format!("DEBUG SET-ACTIVE-EXPIRE {active}"));
        for command in COMMANDS {
            let key = format!("{command}:{active}");
            rl(&mut client, &format!("{command} {key} 5 1000000 5 COST 5"));
            ok(&mut client, &format!("PEXPIRE {key} 5"));
            // No call looks at the key meanwhile.
            let begin_ms = time_ms(&mut client);
            let known = int(&mut client, "DBSIZE");
            wait_until("the expiry", || match active {
                0 => time_ms(&mut client) > begin_ms + 5,
                _ => info_number(&primary, "expired_keys") > 0,
            });
            assert_eq!(known - int(&mut client, "DBSIZE"), active, "{key}");
            let reply = rl(&mut client, &format!("{command} {key} 5 1000000 6 COST 2"));
            assert_eq!(reply[..3], [1, 5, 3]);
            ok(&mut client, "CONFIG RESETSTAT");
        }
    }
    ok(&mut client, "SET mark end");
    let told = monitor.until("end");
    for command in COMMANDS {
        for active in [0, 1] {
            let key = format!("{command}:{active}");
            let of_key = told.iter().filter_map(|call| {
                let mut words = call.split(' ');
                let name = words.next()?;
                (words.next()? == key).then_some(name)
            });
            let of_key: Vec<&str> = of_key.collect();
            // Valkey frees what expired in the background.
            let del = if of_key.contains(&"UNLINK") {
                "UNLINK"
            } else {
                "DEL"
            };
            assert_eq!(of_key, [command, "PEXPIREAT", del, command], "{key}");
        }
    }
    primary.wait_in_sync(&replica);
    let states = support::live::all_dumps(&mut client);
    assert_eq!(
        support::live::all_dumps(&mut self::client(&replica)),
        states
    );
}

fn with_aof(preamble: &str) -> Server {
    Server::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .arg("aof-use-rdb-preamble", preamble)
        .start()
}

/// Charges by every road: plain, in a transaction, in a script, on the server's clock.
fn charge_by_every_road(client: &mut Client) {
    for command in COMMANDS {
        for (key, now) in [("given", "5"), ("star", "*")] {
            let line = format!("{command} {key}:{command} 50 315576000000 {now}");
            rl(client, &line);
            ok(client, "MULTI");
            rl_queued(client, &line);
            rl_queued(client, &format!("{line} COST 51"));
            rl_queued(client, &format!("{line} COST 7 PARTIAL"));
            ok(client, "EXEC");
            let script = format!(
                "for i = 1, 3 do redis.call('{}', 'COST', i) end",
                line.replace(' ', "','")
            );
            let reply = client.call(&["EVAL", &script, "0"]).unwrap();
            assert!(reply.error().is_none(), "{reply:?}");
        }
    }
}

fn rl_queued(client: &mut Client, line: &str) {
    assert_eq!(ok(client, line), Value::simple("QUEUED"));
}

#[test]
fn replaying_the_log_after_a_kill_gives_the_same_states() {
    let mut server = with_aof("yes");
    let mut client = client(&server);
    let samples = populate(&mut client);
    charge_by_every_road(&mut client);
    for _ in 0..2 {
        let kept = Kept::all(&mut client, &samples);
        let states = support::live::all_dumps(&mut client);
        let before_ms = time_ms(&mut client) - 1;
        server.kill9();
        server.start_again();
        client = self::client(&server);
        let after_ms = time_ms(&mut client) + 1;
        assert_eq!(support::live::all_dumps(&mut client), states);
        assert_eq!(Kept::all(&mut client, &samples), kept);
        // Replayed calls set the expiry as they did at first, counted from now.
        for command in COMMANDS {
            let line = format!("{command} given:{command} 50 315576000000 5 PEEK");
            let reset_after = rl(&mut client, &line)[4];
            let key = format!("given:{command}");
            let expires_ms = int(&mut client, &format!("PEXPIRETIME {key}"));
            in_band(expires_ms, reset_after, before_ms, after_ms, &key);
        }
        charge_all(&mut client, &samples);
    }
}

#[test]
fn a_rewritten_log_gives_the_same_states() {
    for preamble in ["yes", "no"] {
        let mut server = with_aof(preamble);
        let mut client = client(&server);
        let samples = populate(&mut client);
        charge_by_every_road(&mut client);
        rewrite_aof(&server);
        let base = aof_file(&server, ".aof").concat();
        assert_eq!(
            base.windows(10).any(|text| text == b"RL.RESTORE"),
            preamble == "no"
        );
        let kept = Kept::all(&mut client, &samples);
        let expired = expiries(&mut client, &samples);
        server.restart();
        client = self::client(&server);
        assert_eq!(
            Kept::all(&mut client, &samples),
            kept,
            "preamble {preamble}"
        );
        assert_eq!(
            expiries(&mut client, &samples),
            expired,
            "preamble {preamble}"
        );
        // Calls after the rewrite are replayed on top of it.
        charge_all(&mut client, &samples);
        charge_by_every_road(&mut client);
        let kept = Kept::all(&mut client, &samples);
        let states = support::live::all_dumps(&mut client);
        server.kill9();
        server.start_again();
        client = self::client(&server);
        assert_eq!(
            Kept::all(&mut client, &samples),
            kept,
            "preamble {preamble}"
        );
        assert_eq!(support::live::all_dumps(&mut client), states);
        // A rewrite of what was rewritten.
        rewrite_aof(&server);
        server.stop(Shutdown::NoSave);
        server.start_again();
        client = self::client(&server);
        assert_eq!(
            Kept::all(&mut client, &samples),
            kept,
            "preamble {preamble}"
        );
    }
}

#[test]
fn a_replica_of_a_replica_gets_the_same() {
    let servers = [Server::start(), Server::start(), Server::start()];
    servers[1].replica_of(&servers[0]);
    servers[2].replica_of(&servers[1]);
    let mut client = client(&servers[0]);
    let samples = populate(&mut client);
    charge_by_every_road(&mut client);
    charge_all(&mut client, &samples);
    servers[0].wait_in_sync(&servers[1]);
    servers[1].wait_in_sync(&servers[2]);
    let states = support::live::all_dumps(&mut client);
    for server in &servers[1..] {
        assert_eq!(support::live::all_dumps(&mut self::client(server)), states);
    }
}
