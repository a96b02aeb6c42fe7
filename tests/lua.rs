//! The scripts and functions of `lua/` beside the commands, apart from the traces of `parity.rs`: errors, expiry and
//! silence. And by themselves, on a server without the module.

mod support;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use support::lua::{self, ALGORITHMS, Lua, Way};
use support::resp::{Client, Protocol, Value};
use support::{Server, note, vectors};

/// A server with the module and the scripts.
struct Both {
    server: Server,
    client: Client,
    lua: Lua,
}

impl Both {
    fn start() -> Both {
        let server = Server::start();
        let mut client = server.raw(Protocol::Resp2);
        let lua = Lua::load(&mut client);
        Both {
            server,
            client,
            lua,
        }
    }

    fn call<A: AsRef<[u8]>>(&mut self, way: Way, algorithm: &str, key: &str, args: &[A]) -> Value {
        let call = self.lua.call(way, algorithm, key, args);
        self.client.call(&call).expect("the server answers")
    }

    /// The reply of each way, on a key of its own.
    fn all<A: AsRef<[u8]>>(&mut self, algorithm: &str, key: &str, args: &[A]) -> [Value; 3] {
        Way::ALL.map(|way| self.call(way, algorithm, &own_key(way, key), args))
    }

    fn plain(&mut self, command: &str) -> Value {
        let words: Vec<&str> = command.split(' ').collect();
        self.client.call(&words).expect("the server answers")
    }

    fn changes(&self) -> String {
        self.server
            .info_field("rdb_changes_since_last_save")
            .expect("INFO tells it")
    }
}

fn own_key(way: Way, key: &str) -> String {
    format!("{way:?}:{key}")
}

fn has_burst(algorithm: &str) -> bool {
    matches!(algorithm, "token" | "gcra")
}

fn split(text: &str) -> Vec<Vec<u8>> {
    text.split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect()
}

// Errors ----------------------------------------------------------------------------------------

/// What is no whole number, in bytes.
fn no_counts() -> Vec<Vec<u8>> {
    let long = |n: usize| "9".repeat(n).into_bytes();
    let mut texts: Vec<Vec<u8>> = [
        "",
        "-1",
        "+1",
        "1.0",
        "1.",
        ".1",
        "1e3",
        " 1",
        "1 ",
        "0x10",
        "1_000",
        "1,000",
        "abc",
        "*",
        "nan",
        "inf",
        "9007199254740992",
        "9007199254740993",
        "10000000000000000",
        "18446744073709551616",
        "18446744073709551617",
        "\u{661}",
        "a'b\"c\\d\te\nf\rg\u{7f}~}|{`_^]\\[Z",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    texts.push(b"1\0".to_vec());
    texts.push(b"\0".to_vec());
    texts.push(b"1\n".to_vec());
    texts.push((0_u8..=40).collect());
    texts.push((41_u8..=80).collect());
    texts.push((81_u8..=120).collect());
    texts.push((121_u8..=161).collect());
    texts.push((220_u8..=255).collect());
    texts.extend([39, 40, 41, 63, 64, 65, 1000].map(long));
    texts
}

/// What is no time for a window.
fn no_windows() -> Vec<Vec<u8>> {
    let mut texts: Vec<Vec<u8>> = [
        "0",
        "00",
        "0.0",
        "0.0009",
        "0.000999999",
        "3155760000000.001",
        "3155760000001",
        "9007199254740993",
        ".5",
        "5.",
        ".",
        "1.2.3",
        "1.x",
        "x.1",
        "1.-1",
        "-0.5",
        "1. 5",
        "1 .5",
        "1e3",
        "1.5e3",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    texts.push(b"1.5\0".to_vec());
    texts.push(b"1.\x005".to_vec());
    let whole_is_right = |text: &Vec<u8>| text == b"1.0";
    texts.extend(no_counts().into_iter().filter(|text| !whole_is_right(text)));
    texts
}

fn no_times() -> Vec<Vec<u8>> {
    let mut texts: Vec<Vec<u8>> = [
        "9007199254740.992",
        "9007199254741",
        "**",
        "* ",
        " *",
        "-0",
        "18446744073709552",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    let right = |text: &Vec<u8>| text == b"*" || text.starts_with(b"0");
    texts.extend(no_windows().into_iter().filter(|text| !right(text)));
    // In range for a time, if not for a window.
    texts.retain(|text| !text.starts_with(b"31557600000"));
    texts
}

#[test]
fn argument_errors_are_worded_alike() {
    let mut both = Both::start();
    let mut bad: Vec<(Vec<Vec<u8>>, &str)> = Vec::new();
    let bytes = |text: &str| text.as_bytes().to_vec();
    let zero = || vec![bytes("0")];
    for text in no_counts().into_iter().chain(zero()) {
        bad.push((
            vec![text, bytes("1000"), bytes("5")],
            "ERR limit must be a whole number from 1 to 9007199254740991, got '",
        ));
    }
    for text in no_windows() {
        bad.push((
            vec![bytes("10"), text, bytes("5")],
            "ERR window must be milliseconds from 0.001 to 3155760000000, got '",
        ));
    }
    for text in no_times() {
        bad.push((
            vec![bytes("10"), bytes("1000"), text],
            "ERR now must be milliseconds from 0 to 9007199254740.991, or *, got '",
        ));
    }
    let with =
        |option: &str, value: Vec<u8>| [split("10 1000 5"), vec![bytes(option), value]].concat();
    for text in no_counts() {
        bad.push((
            with("COST", text),
            "ERR cost must be a whole number from 0 to 9007199254740991, got '",
        ));
    }
    for (args, error) in [
        ("10 1000 5 NOPE", "ERR unknown option 'NOPE'"),
        ("10 1000 5 COST 1 x", "ERR unknown option 'x'"),
        ("10 1000 5 cost", "ERR option COST needs a value"),
        ("10 1000 5 PEEK Cost", "ERR option COST needs a value"),
        ("10 1000 5 COST 1 COST", "ERR option COST is given twice"),
        ("10 1000 5 COST 1 cost 2", "ERR option COST is given twice"),
        ("10 1000 5 COST COST", "ERR cost must be"),
        ("10 1000 5 COST PEEK", "ERR cost must be"),
        ("10 1000 5 COST -1 NOPE", "ERR cost must be"),
        ("10 1000 5 NOPE COST -1", "ERR unknown option 'NOPE'"),
        ("10 1000 5 PEEK peek", "ERR option PEEK is given twice"),
        ("10 1000 5 FORCE FORCE", "ERR option FORCE is given twice"),
        (
            "10 1000 5 PARTIAL COST 3 PARTIAL",
            "ERR option PARTIAL is given twice",
        ),
        (
            "10 1000 5 peek force",
            "ERR options PEEK and FORCE exclude each other",
        ),
        (
            "10 1000 5 FORCE COST 2 PARTIAL",
            "ERR options FORCE and PARTIAL exclude each other",
        ),
        (
            "10 1000 5 PARTIAL PEEK",
            "ERR options PARTIAL and PEEK exclude each other",
        ),
        (
            "10 1000 5 COST 0 PARTIAL",
            "ERR cost must be a whole number from 1 to 9007199254740991 with PARTIAL, got '0'",
        ),
        (
            "10 1000 5 PARTIAL COST 000",
            "ERR cost must be a whole number from 1 to 9007199254740991 with PARTIAL, got '0'",
        ),
        ("0 0 x NOPE", "ERR limit must"),
        ("10 0 x NOPE", "ERR window must"),
        ("10 1 x NOPE", "ERR now must"),
        ("10 1000 5 COST 0 PARTIAL NOPE", "ERR unknown option 'NOPE'"),
    ] {
        bad.push((split(args), error));
    }
    // Cut after 40 bytes, and what an unknown option may be made of.
    for text in no_counts() {
        bad.push((
            [split("10 1000 5"), vec![text]].concat(),
            "ERR unknown option '",
        ));
    }
    let mut count = 0;
    for algorithm in ALGORITHMS {
        let mut bad = bad.clone();
        if has_burst(algorithm) {
            for text in no_counts().into_iter().chain(zero()) {
                bad.push((
                    with("BURST", text),
                    "ERR burst must be a whole number from 1 to 9007199254740991, got '",
                ));
            }
            for (args, error) in [
                ("10 1000 5 BURST", "ERR option BURST needs a value"),
                (
                    "10 1000 5 BURST 1 burst 2",
                    "ERR option BURST is given twice",
                ),
                (
                    "1 3155760000000 5 BURST 11 NOPE",
                    "ERR unknown option 'NOPE'",
                ),
                ("1 3155760000000 5 BURST 11 COST 0 PARTIAL", "ERR cost must"),
            ] {
                bad.push((split(args), error));
            }
            for (limit, window_us, burst) in burst_bounds() {
                let args = format!("{limit} {} 5 BURST {}", ms(window_us), burst + 1);
                bad.push((
                    split(&args),
                    "ERR burst x window / limit must be at most 1000 years (31557600000000 ms)",
                ));
            }
        } else {
            for text in [
                "10 1000 5 BURST 5",
                "10 1000 5 COST 1 burst",
                "10 1000 5 BURST x",
            ] {
                bad.push((split(text), "ERR unknown option '"));
            }
        }
        let changes = both.changes();
        for (args, error) in bad {
            count += 1;
            let [command, script, function] = both.all(algorithm, "bad", &args);
            let shown = || {
                args.iter()
                    .map(|arg| arg.escape_ascii().to_string())
                    .collect::<Vec<_>>()
            };
            assert!(
                command.error().is_some_and(|text| text.starts_with(error)),
                "{algorithm} {:?}: {command:?}, not {error}",
                shown()
            );
            assert_eq!(command, script, "{algorithm} script {:?}", shown());
            assert_eq!(command, function, "{algorithm} function {:?}", shown());
        }
        assert_eq!(both.changes(), changes);
        // Too few arguments, too few keys and too many.
        for n in 0..3 {
            for reply in both.all(algorithm, "bad", &split("10 1000 5")[..n]) {
                assert!(
                    wrong_number(&reply),
                    "{algorithm}: {reply:?} to {n} arguments"
                );
            }
        }
        let sha = String::from_utf8_lossy(both.lua.sha(algorithm)).into_owned();
        for call in [format!("EVALSHA {sha}"), format!("FCALL rl_{algorithm}")] {
            for keys in ["0", "2 a b"] {
                let reply = both.plain(&format!("{call} {keys} 10 1000 5"));
                assert!(wrong_number(&reply), "{call} {keys}: {reply:?}");
            }
        }
    }
    note(&format!(
        "{count} bad argument lists, {}",
        both.server.version_text()
    ));
}

fn wrong_number(reply: &Value) -> bool {
    reply
        .error()
        .is_some_and(|text| text.contains("wrong number of arguments"))
}

/// Limits, windows in µs, and the largest burst under them, where that is not the largest of all.
fn burst_bounds() -> Vec<(u64, u64, u64)> {
    let mut bounds = Vec::new();
    let years_us: u128 = 31_557_600_000_000_000;
    for limit in [
        1,
        2,
        3,
        7,
        125,
        999,
        1_000_003,
        1 << 40,
        9_007_199_254_740_991_u64,
    ] {
        for window_us in [
            1,
            2,
            3,
            4,
            5,
            6,
            7,
            9,
            11,
            13,
            14,
            17,
            499_999,
            1_000_000,
            1_000_003,
            60_000_000,
            86_400_000_007,
            3_155_759_999_999_999,
            3_155_760_000_000_000_u64,
        ] {
            let most = years_us * u128::from(limit) / u128::from(window_us);
            if let Some(most) = u64::try_from(most)
                .ok()
                .filter(|most| *most < 9_007_199_254_740_991)
            {
                bounds.push((limit, window_us, most));
            }
        }
    }
    bounds
}

fn ms(us: u64) -> String {
    format!("{}.{:03}", us / 1000, us % 1000)
}

#[test]
fn numbers_at_the_edge_are_taken_alike() {
    let mut both = Both::start();
    let mut good: Vec<String> = [
        "1 1000 5 PEEK",
        "007 1000 5 PEEK",
        "9007199254740991 1000 5 PEEK",
        "10 0.001 5 PEEK",
        "10 0.0019 5 PEEK",
        "10 3155760000000 0 PEEK",
        "10 3155760000000.0009 0 PEEK",
        "10 3155760000000.000 0 PEEK",
        "10 0001000.5000 0005.5000 PEEK",
        "10 1000 0 PEEK",
        "10 1000 0.0009 PEEK",
        "10 1000 9007199254740.991 PEEK",
        "10 1000 9007199254740.991999 PEEK",
        "10 1000 5 COST 0 PEEK",
        "10 1000 5 COST 000 PEEK",
        "10 1000 5 COST 9007199254740991 PEEK",
        "10 1000 5 COST 9007199254740991",
        "10 1000 5 COST 11",
        "10 1000 5 COST 0",
        "10 1000 5 COST 0 FORCE",
        "10 1000 5 pEEk coST 3",
    ]
    .map(String::from)
    .to_vec();
    good.push(format!("10 1000 5 PEEK COST {}5", "0".repeat(1000)));
    good.push(format!("10 1000 5.{} PEEK", "9".repeat(1000)));
    for algorithm in ALGORITHMS {
        let mut good = good.clone();
        if has_burst(algorithm) {
            for (limit, window_us, burst) in burst_bounds() {
                good.push(format!("{limit} {} 5 BURST {burst} PEEK", ms(window_us)));
                good.push(format!(
                    "{limit} {} 5 PEEK BURST {}",
                    ms(window_us),
                    burst.max(2) - 1
                ));
            }
        }
        for args in &good {
            let [command, script, function] = both.all(algorithm, "good", &split(args));
            assert!(
                command.items().is_some_and(|items| items.len() == 5),
                "{algorithm} {args}: {command:?}"
            );
            assert_eq!(command, script, "{algorithm} script {args}");
            assert_eq!(command, function, "{algorithm} function {args}");
        }
    }
    for way in Way::ALL {
        assert_eq!(
            both.plain(&format!("EXISTS {}", own_key(way, "good"))),
            Value::Int(0)
        );
    }
}

#[test]
fn keys_of_another_type_are_refused_alike() {
    let mut both = Both::start();
    for (key, make) in [
        ("string", "SET string 1"),
        ("empty", "APPEND empty "),
        ("list", "RPUSH list a b"),
        ("hash", "HSET hash a 1"),
        ("set", "SADD set a"),
        ("sorted", "ZADD sorted 1 a"),
        ("stream", "XADD stream * a 1"),
    ] {
        assert_eq!(both.plain(make).error(), None);
        let kind = match key {
            "empty" => "string",
            "sorted" => "sorted set",
            other => other,
        };
        for algorithm in ALGORITHMS {
            let changes = both.changes();
            for way in Way::ALL {
                let reply = both.call(way, algorithm, key, &split("10 1000 5"));
                let text = format!("WRONGTYPE the key holds a {kind}, not a rate limiter");
                assert_eq!(reply.error(), Some(text), "{way:?} {algorithm}");
                // Arguments are judged first.
                let reply = both.call(way, algorithm, key, &split("10 0 5"));
                assert!(
                    reply
                        .error()
                        .is_some_and(|text| text.starts_with("ERR window")),
                    "{reply:?}"
                );
            }
            assert_eq!(both.changes(), changes);
        }
    }
    for held in ALGORITHMS {
        for reply in both.all(held, held, &split("10 60000 5")) {
            assert_eq!(reply.error(), None);
        }
        for asked in ALGORITHMS.into_iter().filter(|asked| *asked != held) {
            let text = format!(
                "WRONGTYPE the key holds a {} limiter, not a {} one",
                held.to_uppercase(),
                asked.to_uppercase()
            );
            for reply in both.all(asked, held, &split("10 60000 5")) {
                assert_eq!(reply.error().as_ref(), Some(&text));
            }
        }
        // The module and the scripts do not read each other's keys.
        for way in Way::SCRIPTED {
            let reply = both.call(
                way,
                held,
                &own_key(Way::Command, held),
                &split("10 60000 5"),
            );
            let text = "WRONGTYPE the key holds a limiter of the module, which scripts cannot read";
            assert_eq!(reply.error().as_deref(), Some(text));
            let reply = both.call(
                Way::Command,
                held,
                &own_key(way, held),
                &split("10 60000 5"),
            );
            assert!(
                reply
                    .error()
                    .is_some_and(|text| text.starts_with("WRONGTYPE")),
                "{reply:?}"
            );
            // But scripts and functions do.
            let other = if way == Way::Script {
                Way::Function
            } else {
                Way::Script
            };
            let reply = both.call(
                other,
                held,
                &own_key(way, held),
                &split("10 60000 5 COST 9"),
            );
            let allowed = reply.items().and_then(|items| items[0].int());
            assert_eq!(allowed, Some(1), "{reply:?}");
            let reply = both.call(way, held, &own_key(way, held), &split("10 60000 5"));
            let allowed = reply.items().and_then(|items| items[0].int());
            assert_eq!(allowed, Some(0), "{reply:?}");
        }
    }
}

/// FORCE up to the largest debt there may be, and one unit beyond it.
#[test]
fn debts_at_the_edge_are_judged_alike() {
    let mut both = Both::start();
    let allowed = |reply: &Value| reply.items().and_then(|items| items[0].int());
    let debt = "ERR debt must be at most 9007199254740991 units and drain within 1000 years";
    for algorithm in ["fixed", "slidinglog"] {
        for (cost, right) in [
            ("9007199254740991", true),
            ("6", false),
            ("5", true),
            ("1", false),
        ] {
            let args = split(&format!("5 3155760000000 1000 FORCE COST {cost}"));
            let [command, script, function] = both.all(algorithm, algorithm, &args);
            if right {
                assert_eq!(
                    allowed(&command),
                    Some(1),
                    "{algorithm} {cost}: {command:?}"
                );
            } else {
                assert_eq!(command.error().as_deref(), Some(debt), "{algorithm} {cost}");
            }
            assert_eq!(command, script, "{algorithm} script {cost}");
            assert_eq!(command, function, "{algorithm} function {cost}");
        }
    }
    // A debt that takes 1000 years to drain is right, but beyond a script; one that takes longer is wrong for all.
    for algorithm in ["token", "gcra"] {
        for (n, (limit, window_us, most)) in (1..).zip(burst_bounds()) {
            if most + 2 > 9_007_199_254_740_991 {
                continue;
            }
            let args = |cost: u64| {
                split(&format!(
                    "{limit} {} 1000 BURST 1 FORCE COST {cost}",
                    ms(window_us)
                ))
            };
            let key = format!("{algorithm}:{n}");
            for reply in both.all(algorithm, &key, &args(most + 2)) {
                assert_eq!(reply.error().as_deref(), Some(debt), "{limit} {window_us}");
            }
            let [command, script, function] = both.all(algorithm, &key, &args(most + 1));
            assert_eq!(allowed(&command), Some(1), "{command:?}");
            for reply in [script, function] {
                let text = reply.error().unwrap_or_default();
                let beyond = text.starts_with("ERR beyond the range of this script");
                assert!(beyond, "{limit} {window_us} {most}: {reply:?}");
            }
        }
    }
}

// Expiry and silence ----------------------------------------------------------------------------

#[test]
fn a_charge_sets_the_expiry_alike() {
    let mut both = Both::start();
    for algorithm in ALGORITHMS {
        for way in Way::ALL {
            let key = own_key(way, algorithm);
            let charge = both
                .lua
                .call(way, algorithm, &key, &split("100 600000 1000"));
            // What another client did to the key before, as an offset to the `reset_after` to come.
            let before: [Option<i64>; 8] = [
                None,
                Some(750),
                None,
                Some(100_000),
                Some(499),
                Some(-100),
                Some(1001),
                Some(990),
            ];
            for (n, offset) in (1..).zip(before) {
                let reset = if has_burst(algorithm) {
                    n * 6000
                } else {
                    match algorithm {
                        "fixed" => 599_000,
                        "slidinglog" => 600_000,
                        _ => 1_199_000,
                    }
                };
                let meddle = match offset {
                    None => format!("PERSIST {key}"),
                    Some(offset) => format!("PEXPIRE {key} {}", reset + offset),
                };
                let text = |text: String| split(&text);
                let commands = [
                    text(meddle),
                    text(format!("PEXPIRETIME {key}")),
                    charge.clone(),
                    text(format!("PEXPIRETIME {key}")),
                    text(format!("PTTL {key}")),
                ];
                let replies = both.client.pipeline(&commands).expect("the server answers");
                let [_, before, reply, after, pttl] = &replies[..] else {
                    panic!("{replies:?}")
                };
                let told = format!("{way:?} {algorithm}, charge {n} after {offset:?}: {replies:?}");
                assert_eq!(
                    reply.items().and_then(|items| items[4].int()),
                    Some(reset),
                    "{told}"
                );
                let pttl = pttl.int().expect("PTTL answers a number");
                assert!((reset + 500..=reset + 1000).contains(&pttl), "{told}");
                // A script that writes a string writes its expiry with it, so only these two can leave one.
                if offset == Some(750) && (way == Way::Command || algorithm == "slidinglog") {
                    assert_eq!(before, after, "{told}");
                }
            }
        }
    }
}

#[test]
fn what_charges_nothing_writes_nothing_alike() {
    let mut both = Both::start();
    // Of 5 units, 5 are spent at 10000, where not said otherwise.
    let silent = [
        ("5 600000 10000", "denied"),
        ("5 600000 9000", "denied, by an earlier clock"),
        ("5 600000 10001 COST 2", "denied"),
        ("5 600000 10000 COST 6", "never allowed"),
        ("5 600000 10000 COST 9007199254740991", "never allowed"),
        ("5 600000 10000 PARTIAL COST 3", "nothing granted"),
        ("5 600000 10000 PEEK", "peek, denied"),
        (
            "500 600000 10000 PEEK COST 7",
            "peek under another policy, allowed",
        ),
        ("5 600000 1600000 PEEK", "peek long after"),
        ("5 600000 1600000 COST 0", "free, long after"),
        ("5 600000 10000 COST 0", "free"),
        ("3 600000 10000 COST 0", "free, in debt under a lower limit"),
        ("5 600000 10000 COST 0 FORCE", "free and forced"),
        ("5 600000 10000 COST 0 PEEK", "free peek"),
        ("5 600000 10000 COST 0 PARTIAL", "an error"),
        ("5 0 10000", "an error"),
    ];
    for algorithm in ALGORITHMS {
        for (args, what) in silent {
            let told = |way: Way| format!("{way:?} {algorithm} {args} ({what})");
            let mut replies = Vec::new();
            for way in Way::ALL {
                let key = own_key(way, algorithm);
                both.plain(&format!("DEL {key}"));
                let reply = both.call(way, algorithm, &key, &split("5 600000 10000 COST 5"));
                assert_eq!(
                    reply.items().and_then(|items| items[0].int()),
                    Some(1),
                    "{reply:?}"
                );
                both.plain(&format!("PERSIST {key}"));
                let changes = both.changes();
                let dump = both.plain(&format!("DUMP {key}"));
                assert!(dump.bytes().is_some());
                replies.push(both.call(way, algorithm, &key, &split(args)));
                assert_eq!(both.plain(&format!("DUMP {key}")), dump, "{}", told(way));
                assert_eq!(
                    both.plain(&format!("PTTL {key}")),
                    Value::Int(-1),
                    "{}",
                    told(way)
                );
                assert_eq!(both.changes(), changes, "{}", told(way));
                // Nor does it make a key, where it would not charge a fresh limiter.
                if !what.starts_with("denied") && !what.starts_with("nothing") {
                    let fresh = own_key(way, "fresh");
                    both.call(way, algorithm, &fresh, &split(args));
                    assert_eq!(
                        both.plain(&format!("EXISTS {fresh}")),
                        Value::Int(0),
                        "{}",
                        told(way)
                    );
                    assert_eq!(both.changes(), changes, "{}", told(way));
                }
            }
            assert!(
                replies.iter().all(|reply| *reply == replies[0]),
                "{algorithm} {args}: {replies:?}"
            );
        }
    }
}

// Alone -----------------------------------------------------------------------------------------

/// A step of a vector file as the script or the function is asked.
fn reworded(lua: &Lua, way: Way, step: &Json) -> Json {
    let mut step = step.clone();
    let Some(args) = step.get("args").and_then(Json::as_array).cloned() else {
        return step;
    };
    let word = args[0].as_str().expect("a text").to_lowercase();
    let Some(algorithm) = word
        .strip_prefix("rl.")
        .filter(|name| ALGORITHMS.contains(name))
    else {
        return step;
    };
    let mut call = match way {
        Way::Command => return step,
        Way::Script => vec![
            json!("EVALSHA"),
            json!(String::from_utf8_lossy(lua.sha(algorithm))),
        ],
        Way::Function => vec![json!("FCALL"), json!(format!("rl_{algorithm}"))],
    };
    match args.get(1) {
        None => call.push(json!("0")),
        Some(key) => {
            call.push(json!("1"));
            if step.get("key").is_none() {
                step["key"] = key.clone();
            }
        }
    }
    call.extend(args[1..].iter().cloned());
    step["args"] = json!(call);
    step
}

/// How many steps of a case call a command of the module.
fn calls(case: &Json) -> usize {
    let steps = case["steps"].as_array().expect("a case has steps").iter();
    steps
        .filter(|step| {
            step["args"][0]
                .as_str()
                .is_some_and(|word| word.starts_with("RL."))
        })
        .count()
}

/// The vector files, answered by the scripts alone.
fn vectors_alone(name: &str, left_out: usize) {
    let server = Server::builder().module(false).start();
    let lua = Lua::load(&mut server.raw(Protocol::Resp2));
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/vectors")
        .join(name);
    let text = fs::read_to_string(&path).expect("the file can be read");
    let cases: Vec<Json> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a case is JSON"))
        .collect();
    // A case that calls the commands from a script of its own has no counterpart here.
    let nested = |case: &Json| case["steps"].to_string().matches(r#""RL."#).count() > calls(case);
    let (without, cases): (Vec<Json>, Vec<Json>) = cases.into_iter().partition(nested);
    for way in Way::SCRIPTED {
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let (mut steps, mut beyond, mut failures) = (0, 0, Vec::new());
            for case in &cases {
                let mut case = case.clone();
                let reworded: Vec<Json> = case["steps"]
                    .as_array()
                    .expect("a case has steps")
                    .iter()
                    .map(|step| reworded(&lua, way, step))
                    .collect();
                case["steps"] = json!(reworded);
                let report = vectors::run(&[case], server.addr(), protocol);
                steps += report.steps;
                // After a call that was refused, the rest of the case is another history.
                match report.failures.first() {
                    Some(first)
                        if first.contains("got error ERR beyond the range of this script") =>
                    {
                        beyond += 1
                    }
                    _ => failures.extend(report.failures),
                }
            }
            note(&format!(
                "{name} by {way:?} alone: {} cases, {beyond} of them beyond the range, {steps} steps, \
                 {} cases left out, {protocol:?}, {}",
                cases.len(),
                without.len(),
                server.version_text()
            ));
            assert!(
                failures.is_empty(),
                "{way:?}, {protocol:?}\n{}",
                failures.join("\n")
            );
            assert_eq!((beyond, without.len()), (0, left_out), "{name}");
            assert!(!cases.is_empty());
        }
    }
}

#[test]
fn published_vectors() {
    vectors_alone("published.jsonl", 0);
}

#[test]
fn random_vectors() {
    vectors_alone("random.jsonl", 0);
}

#[test]
fn report_vectors() {
    vectors_alone("reports.jsonl", 1);
}

#[test]
fn generated_files_are_up_to_date() {
    let output = Command::new(lua::folder().join("build.sh"))
        .arg("--check")
        .output()
        .expect("build.sh runs");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// After NOSCRIPT nothing is charged, and one EVAL with the text answers and loads it.
#[test]
fn a_script_that_is_not_there_is_sent_once() {
    let server = Server::builder().module(false).start();
    let mut client = server.raw(Protocol::Resp2);
    let lua = Lua::load(&mut client);
    let flushed = client
        .call(&["SCRIPT", "FLUSH"])
        .expect("the server answers");
    assert_eq!(flushed, Value::simple("OK"));
    for algorithm in ALGORITHMS {
        let by_sha = lua.call(Way::Script, algorithm, algorithm, &split("10 60000 5"));
        let mut by_text = by_sha.clone();
        by_text[0] = b"EVAL".to_vec();
        by_text[1] = lua::text(algorithm).into_bytes();
        let mut remaining = Vec::new();
        for call in [&by_sha, &by_text, &by_sha] {
            let reply = client.call(call).expect("the server answers");
            match reply.items() {
                Some(items) => remaining.push(items[2].int()),
                None => {
                    assert!(
                        reply
                            .error()
                            .is_some_and(|text| text.starts_with("NOSCRIPT")),
                        "{reply:?}"
                    );
                    let exists = client
                        .call(&["EXISTS", algorithm])
                        .expect("the server answers");
                    assert_eq!(exists, Value::Int(0));
                }
            }
        }
        assert_eq!(remaining, [Some(9), Some(8)], "{algorithm}");
    }
}

/// Functions are saved with the data: no retry after a restart.
#[test]
fn functions_survive_a_restart() {
    let mut server = Server::builder()
        .module(false)
        .arg("appendonly", "yes")
        .start();
    let lua = Lua::load(&mut server.raw(Protocol::Resp2));
    for remaining in [9, 8] {
        for algorithm in ALGORITHMS {
            let call = lua.call(Way::Function, algorithm, algorithm, &split("10 60000 5"));
            let reply = server
                .raw(Protocol::Resp2)
                .call(&call)
                .expect("the server answers");
            assert_eq!(
                reply.items().and_then(|items| items[2].int()),
                Some(remaining),
                "{reply:?}"
            );
        }
        server.restart();
    }
}

/// In a cluster the scripts run, and all that they touch is their key.
#[test]
fn in_a_cluster_a_script_touches_its_key_alone() {
    let bus = TcpListener::bind(("127.0.0.1", 0))
        .and_then(|bound| bound.local_addr())
        .expect("a free port")
        .port();
    let server = Server::builder()
        .module(false)
        .arg("cluster-enabled", "yes")
        .arg("cluster-port", &bus.to_string())
        .start();
    let mut client = server.raw(Protocol::Resp2);
    let added = client
        .call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .expect("the server answers");
    assert_eq!(added, Value::simple("OK"));
    let begin = Instant::now();
    loop {
        let info = client
            .call(&["CLUSTER", "INFO"])
            .expect("the server answers");
        if info
            .bytes()
            .is_some_and(|text| text.starts_with(b"cluster_state:ok"))
        {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{info:?}");
        sleep(Duration::from_millis(20));
    }
    let lua = Lua::load(&mut client);
    let mut monitor = server.raw(Protocol::Resp2);
    assert_eq!(
        monitor.call(&["MONITOR"]).expect("the server answers"),
        Value::simple("OK")
    );
    for algorithm in ALGORITHMS {
        for way in Way::SCRIPTED {
            // Keys of other slots than one another's.
            for n in 0..5 {
                let key = format!("{algorithm}:{way:?}:{n}");
                // Allowed, then with another policy, denied, a peek, a part, a debt, much later, by the server's clock.
                for (args, allowed) in [
                    ("5 60000 1000 COST 3", 1),
                    ("5 50000 2000 COST 2", 1),
                    ("5 50000 2000", 0),
                    ("5 50000 2000 PEEK", 0),
                    ("9 50000 2000 PARTIAL COST 9", 4),
                    ("9 50000 3000 FORCE COST 9", 1),
                    ("9 50000 900000 COST 2", 1),
                    ("9 50000 * COST 2", 1),
                ] {
                    let reply = client
                        .call(&lua.call(way, algorithm, &key, &split(args)))
                        .expect("the server answers");
                    let got = reply.items().and_then(|items| items[0].int());
                    assert_eq!(got, Some(allowed), "{way:?} {algorithm} {args}: {reply:?}");
                }
                // All that the script called, as MONITOR tells it.
                client.call(&["ECHO", &key]).expect("the server answers");
                let mut called = 0;
                loop {
                    let line = monitor.reply().expect("MONITOR tells all");
                    let line = String::from_utf8_lossy(line.bytes().expect("a text")).into_owned();
                    let words: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
                    if words.first() == Some(&"ECHO") {
                        assert_eq!(words[1], key);
                        break;
                    }
                    if line.contains(" lua] ") {
                        called += 1;
                        assert!(words == ["TIME"] || words[1] == key, "{line}");
                    }
                }
                assert!(called >= 8, "MONITOR told of {called} calls");
            }
        }
    }
    let keys = client.call(&["DBSIZE"]).expect("the server answers");
    assert_eq!(keys, Value::Int(50));
}
