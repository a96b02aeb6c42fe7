//! Every way the server has to keep, move, measure or free a key.

mod support;

use support::live::{
    COMMANDS, Kept, Sample, all_dumps, charge_all, charge_in_band, dump, error, expiries,
    has_burst, info_number, int, long_log, ok, populate, rl, save_and_restart, time_ms, wait_until,
};
use support::payload::Payload;
use support::resp::{Client, Protocol, Value, latin1};
use support::{Server, Shutdown, note};

fn client(server: &Server) -> Client {
    server.raw(Protocol::Resp2)
}

/// The same limiter under another name.
fn renamed(sample: &Sample, key: &str) -> Sample {
    let rename = |call: &str| call.replace(&format!(" {} ", sample.key), &format!(" {key} "));
    Sample {
        key: key.to_string(),
        peek: rename(&sample.peek),
        charge: rename(&sample.charge),
    }
}

fn kept(client: &mut Client, sample: &Sample) -> Kept {
    Kept::of(client, &sample.key, &sample.peek)
}

fn restore(client: &mut Client, key: &str, rest: &[&str], bytes: &[u8]) -> Value {
    let mut args: Vec<&[u8]> = vec![b"RESTORE", key.as_bytes(), rest[0].as_bytes(), bytes];
    args.extend(rest[1..].iter().map(|word| word.as_bytes()));
    client.call(&args).expect("the server answers")
}

fn value_digest(client: &mut Client, key: &str) -> String {
    let reply = ok(client, &format!("DEBUG DIGEST-VALUE {key}"));
    latin1(reply.items().unwrap()[0].bytes().unwrap())
}

fn digests(client: &mut Client, samples: &[Sample]) -> Vec<String> {
    let digests = samples.iter();
    digests
        .map(|sample| value_digest(client, &sample.key))
        .collect()
}

fn whole_digest(client: &mut Client) -> Value {
    ok(client, "DEBUG DIGEST")
}

fn saved(server: &Server) {
    assert_eq!(
        server.info_field("rdb_last_bgsave_status").as_deref(),
        Some("ok")
    );
}

#[test]
fn a_file_keeps_everything() {
    type Way = (&'static str, fn(&mut Server));
    let ways: [Way; 5] = [
        ("SAVE and restart", save_and_restart),
        ("BGSAVE and kill", |server| {
            ok(&mut client(server), "BGSAVE");
            wait_until("BGSAVE", || {
                info_number(server, "rdb_bgsave_in_progress") == 0
            });
            saved(server);
            server.kill9();
            server.start_again();
        }),
        ("DEBUG RELOAD", |server| {
            ok(&mut client(server), "DEBUG RELOAD");
        }),
        ("SAVE, FLUSHALL, DEBUG RELOAD NOSAVE", |server| {
            let mut client = client(server);
            ok(&mut client, "SAVE");
            ok(&mut client, "FLUSHALL");
            ok(&mut client, "DEBUG RELOAD NOSAVE");
        }),
        ("SAVE uncompressed and restart", |server| {
            ok(&mut client(server), "CONFIG SET rdbcompression no");
            ok(&mut client(server), "SAVE");
            server.stop(Shutdown::NoSave);
            server.start_again();
        }),
    ];
    let mut server = Server::start();
    let twin = Server::start();
    let samples = populate(&mut client(&server));
    populate(&mut client(&twin));
    for (way, go) in ways {
        let mut client = client(&server);
        let before = (
            Kept::all(&mut client, &samples),
            expiries(&mut client, &samples),
            digests(&mut client, &samples),
            whole_digest(&mut client),
        );
        go(&mut server);
        let mut client = self::client(&server);
        let after = (
            Kept::all(&mut client, &samples),
            expiries(&mut client, &samples),
            digests(&mut client, &samples),
            whole_digest(&mut client),
        );
        assert_eq!(after, before, "{way}");
        // And goes on as one that never moved.
        let mut other = self::client(&twin);
        assert_eq!(
            charge_all(&mut client, &samples),
            charge_all(&mut other, &samples),
            "{way}"
        );
        assert_eq!(all_dumps(&mut client), all_dumps(&mut other), "{way}");
    }
}

#[test]
fn dump_and_restore_carry_the_state_and_not_the_expiry() {
    let server = Server::start();
    let mut client = client(&server);
    for sample in populate(&mut client) {
        let key = sample.key.as_str();
        let before = kept(&mut client, &sample);
        let bytes = before.dump.clone();
        let text = restore(&mut client, key, &["0"], &bytes).error().unwrap();
        assert!(text.starts_with("BUSYKEY"), "{text}");
        let at_ms = (time_ms(&mut client) + 7_000_000).to_string();
        for (rest, expires) in [
            (vec!["0"], None),
            (vec!["0", "REPLACE"], None),
            (vec!["5000000"], Some("5000000")),
            (vec!["5000000", "REPLACE"], Some("5000000")),
            (vec![&at_ms, "ABSTTL"], Some(&*at_ms)),
            (vec![&at_ms, "ABSTTL", "REPLACE"], Some(&*at_ms)),
            (vec!["5000000", "REPLACE", "IDLETIME", "7"], Some("5000000")),
        ] {
            if !rest.contains(&"REPLACE") {
                ok(&mut client, &format!("DEL {key}"));
            }
            let reply = restore(&mut client, key, &rest, &bytes);
            assert_eq!(reply, Value::simple("OK"), "{key} {rest:?}");
            let ttl_ms = int(&mut client, &format!("PTTL {key}"));
            match expires {
                None => assert_eq!(ttl_ms, -1),
                Some(text) if rest.contains(&"ABSTTL") => {
                    let expires_ms = int(&mut client, &format!("PEXPIRETIME {key}"));
                    assert_eq!(expires_ms.to_string(), text);
                }
                Some(text) => assert!(ttl_ms > 0 && ttl_ms <= text.parse().unwrap()),
            }
            assert_eq!(kept(&mut client, &sample), before, "{key} {rest:?}");
        }
        // The bytes fit any key, and are those of a value: another key of the same state has the same.
        let other = renamed(&sample, "other");
        restore(&mut client, "other", &["0"], &bytes);
        assert_eq!(kept(&mut client, &other), before, "{key}");
        charge_in_band(&mut client, "other", &other.charge);
        ok(&mut client, "DEL other");
    }
}

#[test]
fn a_key_moves_whole() {
    let server = Server::start();
    let mut client = client(&server);
    for sample in populate(&mut client) {
        let key = &sample.key;
        let state = kept(&mut client, &sample);
        let expires_ms = int(&mut client, &format!("PEXPIRETIME {key}"));
        let same = |client: &mut Client, at: &str| {
            let moved = renamed(&sample, at);
            assert_eq!(kept(client, &moved), state, "{key} at {at}");
            assert_eq!(
                int(client, &format!("PEXPIRETIME {at}")),
                expires_ms,
                "{key} at {at}"
            );
        };
        for (line, at) in [
            (format!("COPY {key} copy"), "copy"),
            ("RENAME copy name".into(), "name"),
            ("RENAMENX name fresh".into(), "fresh"),
            ("COPY fresh copy".into(), "copy"),
            (format!("COPY {key} fresh REPLACE"), "fresh"),
            ("RENAME fresh copy".into(), "copy"),
        ] {
            ok(&mut client, &line);
            same(&mut client, at);
            same(&mut client, key);
        }
        // A copy has a state of its own.
        let copy = renamed(&sample, "copy");
        rl(&mut client, &copy.charge);
        assert_ne!(dump(&mut client, "copy").unwrap(), state.dump);
        same(&mut client, key);
        ok(&mut client, "DEL copy");
        same(&mut client, key);

        assert_eq!(int(&mut client, &format!("COPY {key} copy DB 3")), 1);
        assert_eq!(int(&mut client, &format!("MOVE {key} 3")), 1);
        assert_eq!(int(&mut client, &format!("EXISTS {key}")), 0);
        ok(&mut client, "SWAPDB 3 4");
        ok(&mut client, "SELECT 4");
        same(&mut client, "copy");
        same(&mut client, key);
        // Where it is now, and not where it was.
        let reply = rl(&mut client, &renamed(&sample, "copy").charge);
        ok(&mut client, "SWAPDB 0 4");
        ok(&mut client, "SELECT 0");
        assert_eq!(rl(&mut client, &sample.charge), reply, "{key}");
        ok(&mut client, "FLUSHDB");
        ok(&mut client, "SELECT 4");
        let rest = all_dumps(&mut client);
        assert!(!rest.contains_key(key));
        // What else was populated is there, for the next round.
        ok(&mut client, "SWAPDB 0 4");
        ok(&mut client, "SELECT 0");
    }
}

#[test]
fn a_key_migrates_to_another_server() {
    let (server, target) = (Server::start(), Server::start());
    let [mut client, mut other] = [client(&server), client(&target)];
    let samples = populate(&mut client);
    let kept = Kept::all(&mut client, &samples);
    let expired = expiries(&mut client, &samples);
    for (i, Sample { key, .. }) in samples.iter().enumerate() {
        let rest = ["", "COPY", "REPLACE"][i % 3];
        let line = format!("MIGRATE 127.0.0.1 {} {key} 0 30000 {rest}", target.port());
        assert_eq!(ok(&mut client, &line), Value::simple("OK"));
        let left = int(&mut client, &format!("EXISTS {key}"));
        assert_eq!(left, i64::from(rest == "COPY"), "{line}");
    }
    assert_eq!(Kept::all(&mut other, &samples), kept);
    // The time to live travels, and is counted from the arrival.
    for (after, before) in expiries(&mut other, &samples).iter().zip(expired) {
        assert!(*after >= before - 1, "{after} {before}");
    }
}

/// A refund can leave a block without entries, which a copy gives no memory.
#[test]
fn a_refunded_log_can_be_copied_and_measured() {
    let server = Server::start();
    let mut client = client(&server);
    for now in 0..5 {
        rl(&mut client, &format!("RL.SLIDINGLOG log 10 60000 {now}"));
    }
    for left in (1..=4).rev() {
        ok(&mut client, "RL.REFUND log 1 5");
        assert_eq!(int(&mut client, "COPY log copy REPLACE"), 1, "{left} left");
        for key in ["log", "copy"] {
            let bytes = int(&mut client, &format!("MEMORY USAGE {key}"));
            assert!((32..1000).contains(&bytes), "{key}, {left} left: {bytes}");
        }
    }
}

#[test]
fn memory_is_told_and_given_back() {
    let server = Server::start();
    let mut client = client(&server);
    let usage = |client: &mut Client, key: &str| int(client, &format!("MEMORY USAGE {key}"));
    let mut last = 0;
    for entries in [1, 100, 1000, 10_000] {
        let sample = long_log(&mut client, "log", entries);
        let bytes = usage(&mut client, "log");
        assert!(bytes > last, "{entries} entries: {bytes} after {last}");
        let limit = 200 + 24 * i64::try_from(entries).unwrap();
        assert!(bytes < limit, "{entries} entries: {bytes}");
        last = bytes;
        for rest in ["", "PEEK", "COST 0", "PARTIAL", "COST 5"] {
            rl(
                &mut client,
                &format!("RL.SLIDINGLOG log 1 2592000000 1700000000000 {rest}"),
            );
        }
        rl(&mut client, &sample.peek);
        assert_eq!(usage(&mut client, "log"), bytes);
        ok(&mut client, "DEL log");
    }
    // Units take no memory, entries do.
    rl(&mut client, "RL.SLIDINGLOG a 70000 86400000 5");
    rl(&mut client, "RL.SLIDINGLOG b 70000 86400000 5 COST 70000");
    assert!(usage(&mut client, "b") - usage(&mut client, "a") < 64);

    // The lazy road is taken for a long log, and all comes back.
    let before = info_number(&server, "used_memory");
    for road in [
        "UNLINK log",
        "DEL log",
        "FLUSHALL ASYNC",
        "FLUSHALL SYNC",
        "FLUSHDB ASYNC",
    ] {
        long_log(&mut client, "log", 50_000);
        assert!(info_number(&server, "used_memory") > before + 50_000);
        ok(&mut client, "CONFIG RESETSTAT");
        ok(&mut client, road);
        wait_until("all freed", || {
            info_number(&server, "lazyfree_pending_objects") == 0
        });
        if road.starts_with("UNLINK") {
            assert_eq!(info_number(&server, "lazyfreed_objects"), 1, "{road}");
        }
        wait_until("the memory given back", || {
            info_number(&server, "used_memory") < before + 50_000
        });
        assert_eq!(int(&mut client, "EXISTS log"), 0);
        // The reverse of it: what is taken by another writer is not the old one.
        assert_eq!(rl(&mut client, "RL.GCRA log 2 1000 5")[2], 1);
        ok(&mut client, "DEL log");
    }
}

#[test]
fn keys_can_be_looked_at() {
    let server = Server::builder()
        .arg("maxmemory-policy", "allkeys-lfu")
        .arg("maxmemory", "1gb")
        .start();
    let mut client = client(&server);
    let samples = populate(&mut client);
    ok(&mut client, "SET text x");
    let before = all_dumps(&mut client);
    for Sample { key, .. } in &samples {
        assert_eq!(
            ok(&mut client, &format!("TYPE {key}")),
            Value::simple("ratelimit")
        );
        ok(&mut client, &format!("OBJECT ENCODING {key}"));
        assert!(int(&mut client, &format!("OBJECT FREQ {key}")) > 0);
        assert_eq!(int(&mut client, &format!("OBJECT REFCOUNT {key}")), 1);
        ok(&mut client, &format!("DEBUG OBJECT {key}"));
        ok(&mut client, &format!("MEMORY USAGE {key} SAMPLES 0"));
    }
    ok(&mut client, "CONFIG SET maxmemory-policy allkeys-lru");
    for Sample { key, .. } in &samples {
        assert!(int(&mut client, &format!("OBJECT IDLETIME {key}")) >= 0);
        ok(&mut client, &format!("TOUCH {key}"));
    }
    let mut found = Vec::new();
    let mut cursor = "0".to_string();
    loop {
        let reply = ok(
            &mut client,
            &format!("SCAN {cursor} TYPE ratelimit COUNT 7"),
        );
        let items = reply.items().unwrap();
        cursor = latin1(items[0].bytes().unwrap());
        let keys = items[1].items().unwrap().iter();
        found.extend(keys.map(|key| latin1(key.bytes().unwrap())));
        if cursor == "0" {
            break;
        }
    }
    found.sort();
    found.dedup();
    let mut want: Vec<_> = samples.iter().map(|sample| sample.key.clone()).collect();
    want.sort();
    assert_eq!(found, want);
    for line in [
        "SORT gcra:one",
        "GET gcra:one",
        "APPEND gcra:one x",
        "LPUSH gcra:one x",
    ] {
        assert!(error(&mut client, line).starts_with("WRONGTYPE"), "{line}");
    }
    assert_eq!(all_dumps(&mut client), before);
}

#[test]
fn a_digest_tells_states_apart() {
    let server = Server::start();
    let mut client = client(&server);
    let samples = populate(&mut client);
    let mut before = digests(&mut client, &samples);
    for (sample, digest) in samples.iter().zip(&before) {
        rl(&mut client, &sample.peek);
        assert_eq!(value_digest(&mut client, &sample.key), *digest);
        rl(&mut client, &sample.charge);
        assert_ne!(value_digest(&mut client, &sample.key), *digest);
    }
    before.sort();
    before.dedup();
    assert_eq!(before.len(), samples.len(), "no two of them are alike");
}

/// Memory is moved under the limiters while they live. `RL_CHURN` is how many of them come, of which a tenth stays.
#[test]
fn defragmentation_moves_and_changes_nothing() {
    let server = Server::start();
    let mut client = client(&server);
    let refused = client
        .call(&["CONFIG", "SET", "activedefrag", "yes"])
        .unwrap()
        .error();
    if refused.is_some() {
        note(&format!(
            "NOT RUN: active defragmentation: {} was built without it",
            server.version_text()
        ));
        return;
    }
    ok(&mut client, "CONFIG SET activedefrag no");
    let churn = std::env::var("RL_CHURN").map_or(50_000, |text| text.parse().expect("a number"));
    let mut samples = populate(&mut client);
    for i in 0..300 {
        samples.push(long_log(&mut client, &format!("log:many:{i}"), 500));
    }
    let small = |range: std::ops::Range<usize>, client: &mut Client, call: &str, rest: &str| {
        let calls: Vec<Vec<String>> = range
            .map(|i| {
                let command = COMMANDS[i % COMMANDS.len()];
                let call = call.replace("{command}", command);
                let line = format!("{call} small:{i} {rest}");
                line.split_whitespace().map(str::to_string).collect()
            })
            .collect();
        for reply in client.pipeline(&calls).unwrap() {
            assert!(reply.error().is_none(), "{reply:?}");
        }
    };
    for from in (0..churn).step_by(10_000) {
        let to = churn.min(from + 10_000);
        small(from..to, &mut client, "{command}", "5 1000000000 5 COST 2");
    }
    // Holes all over: a few of the small ones stay, and every third of the logs.
    for from in (0..churn).step_by(10) {
        small(from..from + 9, &mut client, "DEL", "");
    }
    for i in (0..300).filter(|i| i % 3 != 0) {
        ok(&mut client, &format!("DEL log:many:{i}"));
    }
    samples.retain(|sample| {
        let number = sample.key.strip_prefix("log:many:");
        number.is_none_or(|text| text.parse::<u32>().unwrap() % 3 == 0)
    });
    let before = (all_dumps(&mut client), whole_digest(&mut client));
    for line in [
        "CONFIG SET active-defrag-ignore-bytes 1",
        "CONFIG SET active-defrag-threshold-lower 0",
        "CONFIG SET active-defrag-cycle-min 60",
        "CONFIG SET active-defrag-cycle-max 90",
        "CONFIG SET activedefrag yes",
    ] {
        ok(&mut client, line);
    }
    // Most of the keys that are left had something of theirs moved.
    wait_until("most keys moved", || {
        info_number(&server, "active_defrag_key_hits") as usize > churn / 10 * 4 / 5
    });
    ok(&mut client, "CONFIG SET activedefrag no");
    note(&format!(
        "defragmentation: {churn} limiters came, {} values moved",
        info_number(&server, "active_defrag_hits")
    ));
    assert_eq!((all_dumps(&mut client), whole_digest(&mut client)), before);
    charge_all(&mut client, &samples);
    ok(&mut client, "DEBUG RELOAD");
    ok(&mut client, "FLUSHALL");
    assert_eq!(ok(&mut client, "PING"), Value::simple("PONG"));
}

/// Uncompressed, so that what stands in a DUMP is what the module wrote.
fn uncompressed() -> Server {
    Server::builder().arg("rdbcompression", "no").start()
}

fn rl_restore(client: &mut Client, key: &str, version: &str, bytes: &[u8]) -> Value {
    client
        .call(&[b"RL.RESTORE", key.as_bytes(), version.as_bytes(), bytes])
        .expect("the server answers")
}

/// The samples whose encoding is short.
fn short_samples(client: &mut Client) -> Vec<Sample> {
    let samples = populate(client);
    let short = |sample: &Sample| !sample.key.starts_with("log:") || sample.key == "log:3";
    samples.into_iter().filter(short).collect()
}

#[test]
fn rl_restore_takes_an_encoding_and_nothing_else() {
    let server = uncompressed();
    let mut client = client(&server);
    let replica = Server::start();
    replica.replica_of(&server);
    for sample in short_samples(&mut client) {
        let key = sample.key.as_str();
        let state = kept(&mut client, &sample);
        let content = Payload::of(&state.dump).content().to_vec();
        // A key that is there, of whatever type.
        ok(&mut client, "SET text x");
        for busy in ["text", key] {
            let text = rl_restore(&mut client, busy, "1", &content)
                .error()
                .unwrap();
            assert!(text.starts_with("BUSYKEY"), "{text}");
        }
        for (version, words) in [
            ("2", ["version 2", "up to 1"]),
            ("1023", ["version 1023", "up to 1"]),
            ("0", ["version", "from 1 to 1023"]),
            ("1024", ["version", "from 1 to 1023"]),
            ("-1", ["version", "from 1 to 1023"]),
            ("x", ["version", "from 1 to 1023"]),
        ] {
            for name in ["new", key] {
                let text = rl_restore(&mut client, name, version, &content)
                    .error()
                    .unwrap();
                let right =
                    text.starts_with("ERR ") && words.iter().all(|word| text.contains(word));
                assert!(right, "{version}: {text}");
            }
        }
        let damaged = (0..content.len())
            .map(|length| content[..length].to_vec())
            .chain([b"\0", b"\x80", b"x"].map(|more| [content.as_slice(), more].concat()));
        for bytes in damaged {
            let text = rl_restore(&mut client, "new", "1", &bytes).error().unwrap();
            assert!(
                text.starts_with("ERR ") && text.contains("damaged"),
                "{text}"
            );
        }
        assert_eq!(int(&mut client, "EXISTS new"), 0);
        assert_eq!(kept(&mut client, &sample), state);

        let reply = rl_restore(&mut client, "new", "1", &content);
        assert_eq!(reply, Value::simple("OK"));
        let new = renamed(&sample, "new");
        assert_eq!(kept(&mut client, &new), state, "{key}");
        // Its expiry is a command of its own; a charge sets it.
        assert_eq!(int(&mut client, "PTTL new"), -1);
        server.wait_in_sync(&replica);
        assert_eq!(dump(&mut self::client(&replica), "new"), Some(state.dump));
        charge_in_band(&mut client, "new", &new.charge);
        ok(&mut client, "DEL new");
    }
}

/// There is no version 0, whatever brings it.
#[test]
fn an_encoding_that_never_was_is_refused() {
    let server = uncompressed();
    let mut client = client(&server);
    for sample in short_samples(&mut client) {
        let payload = Payload::of(&dump(&mut client, &sample.key).unwrap());
        let content = payload.content();
        let reply = rl_restore(&mut client, "new", "0", content);
        assert!(reply.error().is_some(), "{reply:?}");
        let mut value = payload.value.clone();
        value[9] = 0;
        let reply = restore(&mut client, "new", &["0"], &payload.with(&value));
        assert!(reply.error().is_some(), "{}: {reply:?}", sample.key);
    }
}

/// A version newer than this module's is told in the server's log, where RESTORE has no words for it.
#[test]
fn a_newer_encoding_is_refused() {
    let server = uncompressed();
    let mut client = client(&server);
    for sample in populate(&mut client) {
        let payload = Payload::of(&dump(&mut client, &sample.key).unwrap());
        for (low, high, version) in [(2, 0, 2), (255, 0, 255), (1, 1, 257), (255, 3, 1023)] {
            // The version is the lowest ten bits of the id, whose last byte is the ninth.
            let mut value = payload.value.clone();
            value[8] = value[8] & !3 | high;
            value[9] = low;
            let reply = restore(&mut client, "new", &["0"], &payload.with(&value));
            assert!(reply.error().is_some(), "{reply:?}");
            let said = format!("encoding version {version}");
            wait_until("the log line", || server.log().contains(&said));
        }
        assert_eq!(int(&mut client, "EXISTS new"), 0);
    }
}

/// Calls on a key that holds who knows what, at all edges.
fn all_calls(key: &str) -> Vec<Vec<String>> {
    let mut calls = Vec::new();
    for command in COMMANDS {
        for rest in [
            "5 1000 5 PEEK",
            "1 0.001 0",
            "5 1000 1700000000000.5 COST 0",
            "9007199254740991 3155760000000 9007199254740.991 COST 9007199254740991 PEEK",
            "1 3155760000000 9007199254740.991 COST 100 PARTIAL",
            "3 0.001 9007199254740.991 PARTIAL COST 100",
            "7 77.007 9007199254740.991 FORCE COST 9007199254740991",
            "9007199254740991 0.001 9007199254740.991 FORCE COST 9007199254740991",
        ] {
            calls.push(format!("{command} {key} {rest}"));
            if has_burst(command) {
                calls.push(format!("{command} {key} {rest} BURST 9"));
            }
        }
    }
    calls.push(format!("MEMORY USAGE {key}"));
    calls.push(format!("DEBUG DIGEST-VALUE {key}"));
    calls
        .iter()
        .map(|call| call.split(' ').map(str::to_string).collect())
        .collect()
}

/// A state that was accepted encodes again, to bytes that are accepted, and answers every call.
fn assert_sound(client: &mut Client, key: &str, origin: &[u8], with_calls: bool) {
    let origin = || origin.escape_ascii().to_string();
    let check = |client: &mut Client| {
        let bytes = dump(client, key).unwrap_or_else(|| panic!("{} is gone", origin()));
        let reply = restore(client, "again", &["0", "REPLACE"], &bytes);
        assert_eq!(reply, Value::simple("OK"), "{}", origin());
        assert_eq!(dump(client, "again"), Some(bytes), "{}", origin());
    };
    check(client);
    if !with_calls {
        return;
    }
    let mut integers = 0;
    for reply in client.pipeline(&all_calls("again")).unwrap() {
        match &reply {
            Value::Array(items) if items.len() == 5 => {
                integers += 1;
                let fields: Vec<i64> = items.iter().map(|item| item.int().unwrap()).collect();
                assert!(
                    fields[0] >= 0 && fields[2] >= 0 && fields[3] >= -1 && fields[4] >= 0,
                    "{fields:?} from {}",
                    origin()
                );
            }
            Value::Error(_) | Value::Array(_) | Value::Int(_) => {}
            other => panic!("{other:?} from {}", origin()),
        }
    }
    assert!(integers > 0, "no command takes {}", origin());
    check(client);
}

/// Sends hostile values; gives how many were accepted.
fn attack(server: &Server, payloads: &[Vec<u8>]) -> usize {
    let mut client = client(server);
    ok(&mut client, "FLUSHALL");
    let calls: Vec<Vec<Vec<u8>>> = payloads
        .iter()
        .enumerate()
        .map(|(i, bytes)| {
            let key = format!("h:{i}").into_bytes();
            vec![b"RESTORE".to_vec(), key, b"0".to_vec(), bytes.clone()]
        })
        .collect();
    let replies = client.pipeline(&calls).expect("the server lives");
    let mut accepted = 0;
    // The calls take their time: of many values alike, some are called.
    let stride = 1 + payloads.len() / 1000;
    for (i, (reply, bytes)) in replies.iter().zip(payloads).enumerate() {
        if reply.error().is_none() {
            let with_calls = accepted % stride == 0;
            assert_sound(&mut client, &format!("h:{i}"), bytes, with_calls);
            accepted += 1;
        }
    }
    assert_eq!(ok(&mut client, "PING"), Value::simple("PONG"));
    ok(&mut client, "DEL again");
    assert_eq!(int(&mut client, "DBSIZE"), i64::try_from(accepted).unwrap());
    // They can be saved and loaded like any other.
    let before = all_dumps(&mut client);
    ok(&mut client, "DEBUG RELOAD");
    assert_eq!(all_dumps(&mut client), before);
    accepted
}

/// Each byte from `first` on with each bit turned, and as 0, 0x7f, 0x80 and 0xff.
fn mutations(bytes: &[u8], first: usize) -> impl Iterator<Item = Vec<u8>> {
    (first..bytes.len()).flat_map(move |at| {
        let old = bytes[at];
        let values = (0..8)
            .map(move |bit| old ^ 1 << bit)
            .chain([0, 0x7f, 0x80, 0xff]);
        values.filter(move |new| *new != old).map(move |new| {
            let mut damaged = bytes.to_vec();
            damaged[at] = new;
            damaged
        })
    })
}

#[test]
fn a_damaged_value_is_refused_or_sound() {
    for compression in ["no", "yes"] {
        let server = Server::builder().arg("rdbcompression", compression).start();
        let mut client = client(&server);
        let samples = populate(&mut client);
        let payloads: Vec<(String, Payload)> = samples
            .iter()
            .filter(|sample| !sample.key.ends_with(":5000"))
            .map(|sample| {
                let bytes = dump(&mut client, &sample.key).unwrap();
                (sample.key.clone(), Payload::of(&bytes))
            })
            .collect();
        for (key, payload) in payloads {
            let value = &payload.value;
            // The first byte is the server's own: the type of value.
            let mut hostile: Vec<Vec<u8>> = mutations(value, 1).collect();
            hostile.extend((1..value.len()).map(|length| value[..length].to_vec()));
            // A long value is much alike along its way.
            for at in (1..=value.len()).step_by(1 + value.len() / 200) {
                for byte in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut longer = value.clone();
                    longer.insert(at, byte);
                    hostile.push(longer);
                }
                if at < value.len() {
                    let mut shorter = value.clone();
                    shorter.remove(at);
                    hostile.push(shorter);
                }
            }
            let hostile: Vec<Vec<u8>> = hostile.iter().map(|value| payload.with(value)).collect();
            let accepted = attack(&server, &hostile);
            // Some numbers are as good as others: a cost, a time.
            assert!(accepted > 0 && accepted < hostile.len(), "{key}");
        }
    }
}

#[test]
fn a_damaged_content_is_refused_or_sound() {
    let server = uncompressed();
    let samples = short_samples(&mut client(&server));
    let contents: Vec<(Payload, Vec<u8>)> = samples
        .iter()
        .map(|sample| {
            let payload = Payload::of(&dump(&mut client(&server), &sample.key).unwrap());
            let content = payload.content().to_vec();
            (payload, content)
        })
        .collect();
    for (payload, content) in &contents {
        let mut hostile: Vec<Vec<u8>> = mutations(content, 0).collect();
        hostile.extend((0..content.len()).map(|length| content[..length].to_vec()));
        hostile.extend([0, 1, 0x80, 0xff].map(|byte| [content.as_slice(), &[byte]].concat()));
        // The same number written longer than it need be is refused, so that a state has one form.
        for at in 1..content.len() {
            let mut longer = content.clone();
            longer[at] |= 0x80;
            longer.insert(at + 1, 0);
            hostile.push(longer);
        }
        let framed: Vec<Vec<u8>> = hostile
            .iter()
            .map(|bytes| payload.with_content(bytes))
            .collect();
        attack(&server, &framed);
        // RL.RESTORE takes what RESTORE takes, and makes the same of it.
        let mut client = client(&server);
        for (i, bytes) in hostile.iter().enumerate() {
            let taken = rl_restore(&mut client, "r", "1", bytes).error().is_none();
            let state = dump(&mut client, &format!("h:{i}"));
            assert_eq!(taken, state.is_some(), "{}", bytes.escape_ascii());
            if taken {
                assert_eq!(dump(&mut client, "r"), state, "{}", bytes.escape_ascii());
                assert_eq!(
                    state,
                    Some(payload.with_content(bytes)),
                    "{}",
                    bytes.escape_ascii()
                );
                ok(&mut client, "DEL r");
            }
        }
    }
}

/// Numbers of seven bits a byte, the lowest first.
fn leb128(mut n: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (n & 0x7f) as u8;
        n >>= 7;
        if n == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// Made up from numbers at all edges, in every combination that a seeded generator comes to.
#[test]
fn an_invented_content_is_refused_or_sound() {
    const EDGES: [u64; 22] = [
        0,
        1,
        2,
        3,
        7,
        127,
        128,
        1000,
        (1 << 32) - 1,
        1 << 32,
        1 << 48,
        3_155_760_000_000_000,
        3_155_760_000_000_001,
        31_557_600_000_000_000,
        (1 << 53) - 2,
        (1 << 53) - 1,
        1 << 53,
        (1 << 54) - 2,
        (1 << 54) - 1,
        1 << 63,
        u64::MAX - 1,
        u64::MAX,
    ];
    let server = uncompressed();
    rl(&mut client(&server), "RL.FIXED k 1 1000 5");
    let payload = Payload::of(&dump(&mut client(&server), "k").unwrap());
    for seed in 0..5_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).unwrap() % below
        };
        let hostile: Vec<Vec<u8>> = (0..6000)
            .map(|_| {
                let mut content = vec![u8::try_from(next(6)).unwrap()];
                // Mostly possible policies, or hardly any would be taken.
                for field in 0..4 + next(4) {
                    let below = if field < 3 { 16 } else { EDGES.len() };
                    content.extend(leb128(EDGES[next(below)]));
                }
                content.truncate(63);
                payload.with_content(&content)
            })
            .collect();
        let accepted = attack(&server, &hostile);
        assert!(accepted > 50, "seed {seed}: only {accepted} were taken");
    }
}
