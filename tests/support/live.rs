//! Short ways to drive a live server and to see what a call did to it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::resp::{Client, Protocol, Value, latin1, patience};
use super::{Server, Shutdown};

/// The commands of the five algorithms.
pub const COMMANDS: [&str; 5] = [
    "RL.FIXED",
    "RL.SLIDINGLOG",
    "RL.SLIDINGCOUNTER",
    "RL.TOKEN",
    "RL.GCRA",
];

/// How far above `reset_after` a key's expiry may lie, unless configured.
pub const MARGIN_MS: i64 = 1000;

/// A busy machine stays below this.
const PATIENCE_S: u64 = 60;

pub fn has_burst(command: &str) -> bool {
    ["RL.TOKEN", "RL.GCRA"].contains(&command)
}

/// Waits until `done` says so.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(
            begin.elapsed() < patience(PATIENCE_S),
            "{what}: still not after {:?}",
            patience(PATIENCE_S)
        );
        sleep(Duration::from_millis(5));
    }
}

/// Sends a call given as its words and gives the reply, an error reply too.
pub fn run(client: &mut Client, line: &str) -> Value {
    let words: Vec<&str> = line.split_whitespace().collect();
    client
        .call(&words)
        .unwrap_or_else(|e| panic!("{line}: no reply: {e}"))
}

/// The same for a call that must not fail.
pub fn ok(client: &mut Client, line: &str) -> Value {
    let reply = run(client, line);
    assert!(reply.error().is_none(), "{line}: {reply:?}");
    reply
}

/// The text of the error that a call must answer.
pub fn error(client: &mut Client, line: &str) -> String {
    let reply = run(client, line);
    reply
        .error()
        .unwrap_or_else(|| panic!("{line}: an error was due, got {reply:?}"))
}

/// The five integers of a reply.
pub fn five(reply: &Value) -> [i64; 5] {
    let Value::Array(items) = reply else {
        panic!("five integers were due, got {reply:?}");
    };
    let numbers: Vec<i64> = items.iter().filter_map(Value::int).collect();
    assert_eq!(numbers.len(), items.len(), "not all integers: {reply:?}");
    numbers
        .try_into()
        .unwrap_or_else(|_| panic!("five integers were due, got {reply:?}"))
}

/// The five integers that a call answers.
pub fn rl(client: &mut Client, line: &str) -> [i64; 5] {
    five(&ok(client, line))
}

pub fn int(client: &mut Client, line: &str) -> i64 {
    let reply = ok(client, line);
    reply
        .int()
        .unwrap_or_else(|| panic!("{line}: an integer was due, got {reply:?}"))
}

/// The DUMP of a key; `None` if there is none.
pub fn dump(client: &mut Client, key: &str) -> Option<Vec<u8>> {
    match client.call(&["DUMP", key]).expect("the server answers") {
        Value::Bulk(bytes) => Some(bytes),
        other if other.is_null() => None,
        other => panic!("DUMP {key}: {other:?}"),
    }
}

/// A number out of INFO.
pub fn info_number(server: &Server, name: &str) -> i64 {
    server
        .info_field(name)
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("INFO has no number {name}"))
}

/// The server's clock in milliseconds, rounded down.
pub fn time_ms(client: &mut Client) -> i64 {
    instant_ms(&ok(client, "TIME"))
}

/// What TIME answered, in milliseconds, rounded down.
fn instant_ms(reply: &Value) -> i64 {
    let parts: Vec<i64> = reply
        .items()
        .unwrap_or_default()
        .iter()
        .filter_map(|part| latin1(part.bytes()?).parse().ok())
        .collect();
    let [s, us] = parts[..] else {
        panic!("TIME: {reply:?}");
    };
    s * 1000 + us / 1000
}

/// Runs a charging call and asserts that the key's expiry lies in the band above its `reset_after`. Gives the reply.
pub fn charge_in_band(client: &mut Client, key: &str, line: &str) -> [i64; 5] {
    // Sent at once: else a busy machine could take longer over them than the key lives.
    let calls = ["TIME", line, "TIME", &format!("PEXPIRETIME {key}")].map(|call| {
        call.split_whitespace()
            .map(str::to_string)
            .collect::<Vec<_>>()
    });
    let replies = client.pipeline(&calls).expect("the server answers");
    let [before, reply, after, expires] = &replies[..] else {
        panic!("four replies were due, got {replies:?}");
    };
    let reply = five(reply);
    let expires_ms = expires.int().expect("PEXPIRETIME answers an integer");
    let least_ms = instant_ms(before) + reply[4] + MARGIN_MS / 2;
    let most_ms = instant_ms(after) + 1 + reply[4] + MARGIN_MS;
    assert!(
        (least_ms..=most_ms).contains(&expires_ms),
        "{line}: {reply:?}: expires at {expires_ms}, not from {least_ms} to {most_ms}"
    );
    reply
}

/// Everything a key must keep: its bytes and what it answers.
#[derive(Debug, PartialEq)]
pub struct Kept {
    pub dump: Vec<u8>,
    pub reply: [i64; 5],
}

impl Kept {
    pub fn of(client: &mut Client, key: &str, peek: &str) -> Kept {
        Kept {
            dump: dump(client, key).unwrap_or_else(|| panic!("{key} is gone")),
            reply: rl(client, peek),
        }
    }
}

/// Every key's bytes.
pub fn all_dumps(client: &mut Client) -> BTreeMap<String, Vec<u8>> {
    let keys = ok(client, "KEYS *");
    let keys = keys.items().expect("KEYS answers a list");
    keys.iter()
        .map(|key| {
            let key = latin1(key.bytes().expect("a key is a text"));
            let bytes = dump(client, &key).expect("nothing expires during this");
            (key, bytes)
        })
        .collect()
}

/// The commands a server runs, as MONITOR shows them.
pub struct Monitor(Client);

impl Monitor {
    pub fn start(server: &Server) -> Monitor {
        let mut client = server.raw(Protocol::Resp2);
        assert_eq!(ok(&mut client, "MONITOR"), Value::simple("OK"));
        Monitor(client)
    }

    /// What was run until `ECHO mark` or another call that ends in the text `mark`, without INFO, REPLCONF and PING.
    pub fn until(&mut self, mark: &str) -> Vec<String> {
        let end = format!("\"{mark}\"");
        let mut lines = Vec::new();
        loop {
            let line = self.0.read().expect("MONITOR goes on");
            let line = latin1(line.bytes().expect("MONITOR sends simple texts"));
            // time [db address] "command" …
            let call = line.split_once("] ").map_or("", |(_, call)| call);
            if call.ends_with(&end) {
                return lines;
            }
            let silent = ["\"INFO\"", "\"REPLCONF\"", "\"PING\"", "\"ping\""];
            if !silent.iter().any(|name| call.starts_with(name)) {
                lines.push(call.replace('"', ""));
            }
        }
    }
}

/// A subscriber to all keyspace events.
pub struct Events {
    client: Client,
}

impl Events {
    pub fn of(server: &Server) -> Events {
        let mut client = server.raw(Protocol::Resp2);
        ok(&mut client, "CONFIG SET notify-keyspace-events KEA");
        ok(&mut client, "PSUBSCRIBE __keyevent@*__:*");
        Events { client }
    }

    /// What was sent up to now, as `event key`.
    pub fn sent(&mut self, writer: &mut Client) -> Vec<String> {
        ok(writer, "PUBLISH __keyevent@0__:mark mark");
        let mut events = Vec::new();
        loop {
            let message = self.client.read().expect("messages go on");
            let items = message.items().expect("a message is a list");
            let text = |at: usize| latin1(items[at].bytes().expect("a text"));
            let event = text(2).split_once(':').unwrap().1.to_string();
            if event == "mark" {
                return events;
            }
            events.push(format!("{event} {}", text(3)));
        }
    }
}

/// A `*` resolved: between two instants of the server's clock, written as an argument.
pub fn is_resolved(text: &str, before_ms: i64, after_ms: i64) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let Ok(whole_ms) = whole.parse::<i64>() else {
        return false;
    };
    digits(whole)
        && digits(fraction)
        && fraction.len() <= 3
        && (before_ms..=after_ms).contains(&whole_ms)
}

/// Asserts that `told` is `sent`, with each `*` resolved to a time between the two.
pub fn assert_told(told: &[String], sent: &[String], before_ms: i64, after_ms: i64) {
    assert_eq!(told.len(), sent.len(), "{told:?}\n{sent:?}");
    for (told, sent) in told.iter().zip(sent) {
        let words: Vec<&str> = told.split(' ').collect();
        let want: Vec<&str> = sent.split(' ').collect();
        assert_eq!(words.len(), want.len(), "{told} for {sent}");
        for (word, want) in words.iter().zip(want) {
            if want == "*" {
                assert!(is_resolved(word, before_ms, after_ms), "{told} for {sent}");
            } else {
                assert_eq!(*word, want, "{told} for {sent}");
            }
        }
    }
}

/// The calls in the incremental part of a server's AOF, words joined by blanks.
pub fn aof_calls(server: &Server) -> Vec<String> {
    aof_file(server, ".incr.aof")
        .iter()
        .flat_map(|bytes| resp_calls(bytes))
        .collect()
}

/// The files of the AOF whose names end so, in order.
pub fn aof_file(server: &Server, end: &str) -> Vec<Vec<u8>> {
    let dir = server.dir().join("appendonlydir");
    let mut names: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.expect("a folder can be read").path())
        .filter(|path| path.to_string_lossy().ends_with(end))
        .collect();
    names.sort();
    names
        .iter()
        .map(|path| fs::read(path).expect("the AOF can be read"))
        .collect()
}

pub fn size(dir: &Path) -> u64 {
    fs::read_dir(dir)
        .expect("a folder can be read")
        .map(|entry| {
            let entry = entry.expect("a folder can be read");
            entry.metadata().expect("a file has a size").len()
        })
        .sum()
}

/// Calls as they stand in an AOF; annotations are left out.
pub fn resp_calls(mut bytes: &[u8]) -> Vec<String> {
    fn line<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let (line, rest) = bytes.split_at(end + 1);
        *bytes = rest;
        Some(line.trim_ascii_end())
    }
    let number = |text: &[u8]| -> usize { latin1(&text[1..]).parse().expect("RESP") };
    let mut calls = Vec::new();
    while let Some(head) = line(&mut bytes) {
        if head.starts_with(b"#") {
            continue;
        }
        let words: Vec<String> = (0..number(head))
            .map(|_| {
                let length = number(line(&mut bytes).expect("the AOF is whole"));
                let (word, rest) = bytes.split_at(length);
                bytes = &rest[2..];
                latin1(word)
            })
            .collect();
        calls.push(words.join(" "));
    }
    calls
}

/// Saves and starts again.
pub fn save_and_restart(server: &mut Server) {
    server.stop(Shutdown::Save);
    server.start_again();
}

/// BGREWRITEAOF, until it is done and went well.
pub fn rewrite_aof(server: &Server) {
    let mut client = server.raw(Protocol::Resp2);
    ok(&mut client, "BGREWRITEAOF");
    wait_until("the AOF rewrite", || {
        let info = server.info();
        info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
    });
    assert_eq!(
        server.info_field("aof_last_bgrewrite_status").as_deref(),
        Some("ok")
    );
}

/// True where the server offers a clock that stands still within a script or transaction.
pub fn clock_stands_still(server: &Server) -> bool {
    let (name, version) = server.version();
    name == "valkey" || version >= (7, 2, 0)
}

/// A limiter of a test: its key, a call on it that changes nothing, and one that charges whatever fits.
#[derive(Clone, Debug)]
pub struct Sample {
    pub key: String,
    pub peek: String,
    pub charge: String,
}

impl Sample {
    fn new(key: &str, call: &str) -> Sample {
        Sample {
            key: key.to_string(),
            peek: format!("{call} PEEK"),
            charge: format!("{call} FORCE"),
        }
    }
}

/// Limiters of every algorithm and of every kind of state: small, wide, in debt, in their second window, under a
/// changed policy; and logs from one entry to thousands. None expires within hours.
pub fn populate(client: &mut Client) -> Vec<Sample> {
    let mut samples = Vec::new();
    for command in COMMANDS {
        let name = command[3..].to_lowercase();
        let burst = if has_burst(command) { "BURST 9" } else { "" };
        let mut add = |client: &mut Client, kind: &str, calls: &[&str], peek: &str| {
            let key = format!("{name}:{kind}");
            for call in calls {
                let line = format!("{command} {key} {call} {burst}");
                let allowed = rl(client, &line)[0];
                assert!(allowed > 0 || call.contains("COST 0"), "{line}");
            }
            samples.push(Sample::new(
                &key,
                &format!("{command} {key} {peek} {burst}"),
            ));
        };
        add(client, "one", &["10 86400000 5"], "10 86400000 6 COST 9");
        add(
            client,
            "two-windows",
            &[
                "10 60000000.007 61000000.5 COST 3",
                "10 60000000.007 99000000.25 COST 2",
                "10 60000000.007 121000000.125",
            ],
            "10 60000000.007 121000001.5 COST 5",
        );
        add(
            client,
            "debt",
            &["7 86400000 1700000000000.001 COST 70001 FORCE"],
            "7 86400000 1700000000000.002",
        );
        add(
            client,
            "changed",
            &[
                "7 86400013.001 1700000000000.001 COST 3",
                "11 86400017.007 1700000000001.003 COST 2",
                "13 90000000 1700000000001.01",
            ],
            "17 90000001 1700000000002.004 COST 3",
        );
        add(
            client,
            "wide",
            &[
                "9007199254740991 31557600000 1700000000000.123 COST 8007199254740991 FORCE",
                "9007199254740991 31557600000 1700000000000.124 COST 9007199254740 FORCE",
            ],
            "9007199254740991 31557600000 1700000000000.125",
        );
    }
    for entries in [3, 100, 5000] {
        samples.push(long_log(client, &format!("log:{entries}"), entries));
    }
    samples
}

/// A log of so many entries, at microseconds and with costs of all sizes.
pub fn long_log(client: &mut Client, key: &str, entries: u64) -> Sample {
    let policy = format!("RL.SLIDINGLOG {key} 9007199254740991 2592000000");
    let mut now_us: u64 = 1_700_000_000_000_000;
    let calls: Vec<Vec<String>> = (0..entries)
        .map(|i| {
            now_us += 1 + i % 3 + if i % 97 == 0 { 3_600_000_017 } else { i % 1013 };
            let cost = (i % 61 + 1) << (i % 35);
            let line = format!(
                "{policy} {}.{:03} COST {cost}",
                now_us / 1000,
                now_us % 1000
            );
            line.split(' ').map(str::to_string).collect()
        })
        .collect();
    for reply in client.pipeline(&calls).expect("the server answers") {
        assert_eq!(five(&reply)[0], 1);
    }
    let late_ms = now_us / 1000 + 2_591_000_000;
    Sample::new(key, &format!("{policy} {late_ms} COST 900719925474099"))
}

impl Kept {
    /// What all of them keep, by key.
    pub fn all(client: &mut Client, samples: &[Sample]) -> Vec<(String, Kept)> {
        samples
            .iter()
            .map(|sample| {
                (
                    sample.key.clone(),
                    Kept::of(client, &sample.key, &sample.peek),
                )
            })
            .collect()
    }
}

/// When each of them expires.
pub fn expiries(client: &mut Client, samples: &[Sample]) -> Vec<i64> {
    samples
        .iter()
        .map(|sample| int(client, &format!("PEXPIRETIME {}", sample.key)))
        .collect()
}

/// What all of them answer to one more unit, charged whatever fits.
pub fn charge_all(client: &mut Client, samples: &[Sample]) -> Vec<[i64; 5]> {
    samples
        .iter()
        .map(|sample| rl(client, &sample.charge))
        .collect()
}
