//! Two servers of different versions with one module: an upgrade loses no state.
//!
//! `REDIS_SERVER` names the older one and `REDIS_SERVER_2` the newer; `make test-matrix` runs all pairs it has.

mod support;

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

use support::live::{
    MARGIN_MS, all_dumps, charge_all, expiries, int, ok, populate, rl, run, time_ms, wait_until,
};
use support::payload::Payload;
use support::resp::{Client, Protocol};
use support::{Builder, Server, Shutdown, note};

fn client(server: &Server) -> Client {
    server.raw(Protocol::Resp2)
}

/// The newer server, if one is named.
fn newer() -> Option<PathBuf> {
    let path = env::var_os("REDIS_SERVER_2").filter(|path| !path.is_empty());
    if path.is_none() {
        note(
            "Not run here: two servers of different versions. Name a newer one in REDIS_SERVER_2, or `make test-matrix`.",
        );
    }
    path.map(PathBuf::from)
}

/// Compression and the file's version belong to the server: without them, equal states have equal bytes.
fn builder() -> Builder {
    Server::builder().arg("rdbcompression", "no")
}

/// Each key's bytes as the module wrote them.
fn states(client: &mut Client) -> BTreeMap<String, Vec<u8>> {
    let dumps = all_dumps(client).into_iter();
    dumps
        .map(|(key, dump)| (key, Payload::of(&dump).value))
        .collect()
}

#[test]
fn a_newer_replica_holds_the_same_state_and_takes_over() {
    let Some(newer) = newer() else { return };
    for diskless in ["yes", "no"] {
        let mut primary = builder().arg("repl-diskless-sync", diskless).start();
        let replica = builder()
            .binary(&newer)
            .arg("repl-diskless-load", "swapdb")
            .start();
        note(&format!(
            "{} -> {}",
            primary.version_text(),
            replica.version_text()
        ));
        let mut old = client(&primary);
        let mut new = client(&replica);
        let samples = populate(&mut old);

        replica.replica_of(&primary);
        assert_eq!(states(&mut new), states(&mut old), "after the sync");
        assert_eq!(expiries(&mut new, &samples), expiries(&mut old, &samples));

        // By the stream: charges with a time given and with the server's, a refund, several at once, a script.
        charge_all(&mut old, &samples);
        for call in 0..50 {
            rl(&mut old, &format!("RL.GCRA s:{} 5 86400000 *", call % 7));
            rl(
                &mut old,
                &format!("RL.SLIDINGLOG l:{} 40 86400000 *", call % 3),
            );
        }
        ok(
            &mut old,
            "RL.MULTI 2 {m}:1 {m}:2 * FIXED 9 315576000000 TOKEN 9 86400000 COST 2",
        );
        ok(&mut old, "RL.REFUND {m}:2 1 *");
        ok(&mut old, "CL.THROTTLE other 15 30 86400 1");
        let now = time_ms(&mut old);
        let script = "return redis.call('RL.TOKEN', KEYS[1], 5, 86400000, ARGV[1])";
        old.call(&["EVAL", script, "1", "script", &now.to_string()])
            .expect("the server answers");
        primary.wait_in_sync(&replica);
        let before = states(&mut old);
        assert_eq!(states(&mut new), before, "after the stream");

        primary.kill9();
        ok(&mut new, "REPLICAOF NO ONE");
        assert_eq!(states(&mut new), before, "after the takeover");
        for sample in &samples {
            assert!(
                run(&mut new, &sample.charge).error().is_none(),
                "{}",
                sample.charge
            );
        }
    }
}

#[test]
fn a_newer_server_reads_the_files_of_an_older_one() {
    let Some(newer) = newer() else { return };
    for (appendonly, preamble) in [("no", "yes"), ("yes", "yes"), ("yes", "no")] {
        let settings = |builder: Builder| {
            builder
                .arg("appendonly", appendonly)
                .arg("aof-use-rdb-preamble", preamble)
        };
        let mut older = settings(builder()).start();
        let mut old = client(&older);
        let begin_ms = time_ms(&mut old);
        let samples = populate(&mut old);
        if appendonly == "yes" {
            support::live::rewrite_aof(&older);
        }
        charge_all(&mut old, &samples);
        let before = states(&mut old);
        let expired = expiries(&mut old, &samples);
        older.stop(Shutdown::Save);

        let dir = older.dir().display().to_string();
        let upgraded = settings(builder()).binary(&newer).arg("dir", &dir).start();
        let mut new = client(&upgraded);
        assert_eq!(
            states(&mut new),
            before,
            "appendonly {appendonly} {preamble}"
        );
        // A replay runs the calls anew, and each sets the expiry within its band, counted from then.
        let most = match appendonly {
            "yes" => MARGIN_MS + time_ms(&mut new) - begin_ms,
            _ => 0,
        };
        for (now, before) in expiries(&mut new, &samples).iter().zip(&expired) {
            assert!((now - before).abs() <= most, "{now} was {before}");
        }
    }
}

/// The other way round has no promise: a server refuses files newer than itself. It must say so and stay as it is.
#[test]
fn an_older_replica_is_the_same_or_stays_as_it_was() {
    let Some(newer) = newer() else { return };
    let primary = builder().binary(&newer).start();
    let replica = builder().start();
    let mut new = client(&primary);
    let mut old = client(&replica);
    let samples = populate(&mut new);
    let states_before = states(&mut new);
    let port = primary.port().to_string();
    ok(&mut old, &format!("REPLICAOF 127.0.0.1 {port}"));
    let mut outcome = "";
    wait_until("an older replica's verdict", || {
        let log = replica.log();
        if log.contains("Can't handle RDB format version") {
            outcome = "refused by the older server";
        } else if replica.info_field("master_link_status").as_deref() == Some("up") {
            outcome = "taken";
        }
        !outcome.is_empty()
    });
    note(&format!(
        "{} <- {}: {outcome}",
        replica.version_text(),
        primary.version_text()
    ));
    if outcome == "taken" {
        primary.wait_in_sync(&replica);
        assert_eq!(states(&mut old), states_before);
        assert_eq!(int(&mut old, "DBSIZE"), samples.len() as i64);
    }
}
