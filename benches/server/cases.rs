//! What is measured: each case is a call, told by its name.

use crate::host::words;
use crate::resp::{Client, Value, latin1};

pub const ALGORITHMS: [&str; 5] = ["FIXED", "SLIDINGLOG", "SLIDINGCOUNTER", "TOKEN", "GCRA"];
/// 2027; a minute began 123 ms before.
pub const NOW_MS: u64 = 1_800_000_000_123;
pub const MANY: &str = "1000000";
pub const FEW: &str = "1";
pub const WINDOW: &str = "60000";

/// As many as are sent at once.
const KEYS: u64 = 100;

pub type Call = Vec<String>;
/// The call that makes a key.
pub type Setup = Box<dyn Fn(&str) -> Call>;
/// The `i`th call on a key.
pub type Make = Box<dyn Fn(&str, u64) -> Call>;

/// Whose work a case shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The server's own commands.
    Server,
    /// The empty module command.
    Floor,
    Ours,
    UsualLua,
    ExactLua,
    Peer,
}

impl Group {
    pub const fn name(self) -> &'static str {
        match self {
            Group::Server => "server",
            Group::Floor => "floor",
            Group::Ours => "redis-rl",
            Group::UsualLua => "usual Lua",
            Group::ExactLua => "exact Lua",
            Group::Peer => "redis-cell",
        }
    }
}

pub struct Case {
    pub name: String,
    pub group: Group,
    /// Done once with each key before anything else.
    pub setup: Option<Setup>,
    pub call: Make,
    /// The first integer of the reply, where it is one.
    pub first: Option<i64>,
    /// Measured by the clock, too.
    pub timed: bool,
    /// How many keys the calls go round where instructions are counted. How many others share a key's
    /// place in the server's tables is a matter of luck, which so many even out.
    pub keys: u64,
}

/// 16 bytes.
pub fn key(number: u64) -> String {
    format!("key:{number:012}")
}

pub fn call(line: &str) -> Call {
    line.split_whitespace().map(str::to_owned).collect()
}

fn case(name: &str, group: Group, call: impl Fn(&str, u64) -> Call + 'static) -> Case {
    Case {
        name: name.to_owned(),
        group,
        setup: None,
        call: Box::new(call),
        first: None,
        timed: false,
        keys: KEYS,
    }
}

impl Case {
    fn timed(self) -> Case {
        Case {
            timed: true,
            ..self
        }
    }

    fn first(self, first: i64) -> Case {
        Case {
            first: Some(first),
            ..self
        }
    }

    fn setup(self, setup: impl Fn(&str) -> Call + 'static) -> Case {
        Case {
            setup: Some(Box::new(setup)),
            ..self
        }
    }
}

/// Scripts that the server has loaded, by their digests.
pub struct Scripts {
    usual: Vec<String>,
    exact: Vec<String>,
}

impl Scripts {
    pub fn load(client: &mut Client) -> Scripts {
        let mut load = |folder: &str| -> Vec<String> {
            let digest = |algorithm: &&str| {
                let home = env!("CARGO_MANIFEST_DIR");
                let path = format!("{home}/{folder}/{}.lua", algorithm.to_lowercase());
                let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
                let reply = words(client, &[b"SCRIPT", &b"LOAD"[..], &text]);
                latin1(reply.bytes().expect("a digest"))
            };
            ALGORITHMS.iter().map(digest).collect()
        };
        Scripts {
            usual: load("benches/lua"),
            exact: load("lua"),
        }
    }
}

/// All cases. Nothing is denied before the last allowed case is through, since a denial leaves
/// something to do for the allowed calls that follow; one case shows how much.
pub fn all(scripts: &Scripts, peer: bool) -> Vec<Case> {
    let mut cases = server();
    for (first, limit) in [(1, MANY), (0, FEW)] {
        cases.extend(side(scripts, peer, first, limit));
        if first == 1 {
            cases.extend(more());
        }
    }
    let now = NOW_MS;
    cases.push(
        case(
            "GCRA, allowed, others denied",
            Group::Ours,
            move |key, _| call(&format!("RL.GCRA {key} {MANY} {WINDOW} {now}")),
        )
        .setup(|key| half_full("GCRA", key))
        .first(1),
    );
    let denied = |key: &str| call(&format!("RL.GCRA {key} {FEW} {WINDOW} {NOW_MS}"));
    for keys in [1, 1000] {
        let name = format!("GCRA, denied, {keys} keys");
        cases.push(Case {
            keys,
            ..case(&name, Group::Ours, move |key, _| denied(key))
                .setup(denied)
                .first(0)
        });
    }
    cases
}

fn server() -> Vec<Case> {
    vec![
        case("PING", Group::Server, |_, _| call("PING")).timed(),
        case("GET", Group::Server, |key, _| call(&format!("GET {key}")))
            .setup(|key| call(&format!("SET {key} {NOW_MS}")))
            .timed(),
        case("INCR", Group::Server, |key, _| call(&format!("INCR {key}"))).timed(),
        case("SET PX", Group::Server, |key, _| {
            call(&format!("SET {key} {NOW_MS} PX 100000"))
        })
        .timed(),
    ]
}

/// The allowed calls, or the denied ones.
fn side(scripts: &Scripts, peer: bool, first: i64, limit: &'static str) -> Vec<Case> {
    let verdict = if first == 1 { "allowed" } else { "denied" };
    let mut cases = Vec::new();
    for algorithm in ALGORITHMS {
        let floor = case(
            &format!("{algorithm}, {verdict}, floor"),
            Group::Floor,
            move |key, _| call(&format!("FL.{algorithm} {key} {limit} {WINDOW} {NOW_MS}")),
        );
        cases.push(Case {
            timed: algorithm == "GCRA" && first == 1,
            // Full, so that it stays for a minute.
            ..floor.setup(move |key| call(&format!("RL.{algorithm} {key} {FEW} {WINDOW} {NOW_MS}")))
        });
        let ours = case(
            &format!("{algorithm}, {verdict}"),
            Group::Ours,
            move |key, _| call(&format!("RL.{algorithm} {key} {limit} {WINDOW} {NOW_MS}")),
        );
        let ours = ours.first(first).timed();
        cases.push(if first == 1 {
            ours.setup(move |key| half_full(algorithm, key))
        } else {
            ours
        });
    }
    cases.push(multi(2, verdict, limit, first));
    for (algorithm, digest) in ALGORITHMS.iter().zip(&scripts.usual) {
        let name = format!("{algorithm}, {verdict}, usual Lua");
        let (digest, log) = (digest.clone(), *algorithm == "SLIDINGLOG");
        let counter = *algorithm == "SLIDINGCOUNTER";
        let usual = case(&name, Group::UsualLua, move |key, i| {
            let keys = if counter {
                format!("2 {key} k1y:{}", &key[4..])
            } else {
                format!("1 {key}")
            };
            let member = if log { key_of_member(i) } else { String::new() };
            call(&format!(
                "EVALSHA {digest} {keys} {limit} {WINDOW} {NOW_MS} {member}"
            ))
        });
        cases.push(Case {
            timed: first == 1 || *algorithm == "GCRA",
            ..usual.first(first)
        });
    }
    for (algorithm, digest) in ALGORITHMS.iter().zip(&scripts.exact) {
        let name = format!("{algorithm}, {verdict}, exact Lua");
        let digest = digest.clone();
        let exact = case(&name, Group::ExactLua, move |key, _| {
            call(&format!(
                "EVALSHA {digest} 1 {key} {limit} {WINDOW} {NOW_MS}"
            ))
        });
        cases.push(Case {
            timed: *algorithm == "GCRA",
            ..exact.first(first)
        });
    }
    if peer {
        let (burst, count) = if first == 1 {
            (999_999, MANY)
        } else {
            (0, FEW)
        };
        let peer = case(
            &format!("CL.THROTTLE, {verdict}"),
            Group::Peer,
            move |key, _| call(&format!("CL.THROTTLE {key} {burst} {count} 60")),
        );
        // It says 0 for allowed.
        cases.push(peer.first(1 - first).timed());
    }
    cases
}

/// A bucket with little in it is gone after a second; this one stays for half a minute.
fn half_full(algorithm: &str, key: &str) -> Call {
    call(&format!(
        "RL.{algorithm} {key} {MANY} {WINDOW} {NOW_MS} COST 500000"
    ))
}

/// Other ways to ask; all allowed.
fn more() -> Vec<Case> {
    let gcra = |name: &str, options: &'static str| {
        let name = format!("GCRA, allowed, {name}");
        case(&name, Group::Ours, move |key, _| {
            call(&format!("RL.GCRA {key} {MANY} {WINDOW} {options}"))
        })
        .first(1)
        .setup(|key| half_full("GCRA", key))
    };
    let spaced = |name: &str, window_ms: u64| {
        let name = format!("SLIDINGLOG, allowed, {name}");
        case(&name, Group::Ours, move |key, i| {
            let now = NOW_MS + i;
            call(&format!("RL.SLIDINGLOG {key} {MANY} {window_ms} {now}"))
        })
        .first(1)
    };
    let plain = |name: &str, line: &'static str| {
        case(name, Group::Ours, move |key, _| {
            call(&line.replace("KEY", key))
        })
    };
    vec![
        multi(1, "allowed", MANY, 1),
        multi(4, "allowed", MANY, 1),
        Case {
            keys: u64::MAX,
            setup: None,
            ..gcra("new key", "1800000000123")
        },
        Case {
            keys: u64::MAX,
            name: "SET PX, new key".to_owned(),
            ..case("", Group::Server, |key, _| {
                call(&format!("SET {key} {NOW_MS} PX 100000"))
            })
        },
        gcra("PEEK", "1800000000123 PEEK"),
        gcra("COST 5", "1800000000123 COST 5"),
        // 600 ms more each time, which is more than half of the margin.
        gcra("expiry set anew", "1800000000123 COST 10000"),
        gcra("now *", "*"),
        spaced("1 ms apart", 60_000),
        spaced("10 count, 1 ages out", 1_000),
        plain("RL.INSPECT", "RL.INSPECT KEY 1800000000123")
            .setup(|key| call(&format!("RL.GCRA {key} {FEW} {WINDOW} {NOW_MS}"))),
        plain(
            "RL.THROTTLE, allowed",
            "RL.THROTTLE KEY 999999 1000000 60 1 1800000000123",
        )
        .first(0),
    ]
}

/// Members of a sorted set, of 16 bytes.
fn key_of_member(i: u64) -> String {
    format!("id::{i:012}")
}

/// GCRA and FIXED by turns.
pub fn multi(limiters: usize, verdict: &str, limit: &'static str, first: i64) -> Case {
    let name = format!("RL.MULTI of {limiters}, {verdict}");
    let make = move |key: &str, options: &str| {
        let mut words = call(&format!("RL.MULTI {limiters}"));
        // Sixteen bytes each; the first is the key given.
        words.push(key.to_owned());
        words.extend((1..limiters).map(|i| format!("k{i}y:{}", &key[4..])));
        words.push(NOW_MS.to_string());
        for i in 0..limiters {
            let algorithm = ["GCRA", "FIXED"][i % 2];
            words.extend(call(&format!("{algorithm} {limit} {WINDOW} {options}")));
        }
        words
    };
    let setup = if first == 1 { "COST 500000" } else { "" };
    Case {
        timed: limiters == 2,
        ..case(&name, Group::Ours, move |key, _| make(key, ""))
            .setup(move |key| make(key, setup))
            .first(first)
    }
}

impl Case {
    /// Sends one call and sees that it answers what it should: a measurement of errors is none.
    pub fn check(&self, client: &mut Client, key: &str, i: u64) {
        let reply = words(client, &(self.call)(key, i));
        let got = match &reply {
            Value::Array(items) => items.first().and_then(Value::int),
            _ => None,
        };
        if self.first.is_some() {
            assert_eq!(got, self.first, "{}: {reply:?}", self.name);
        }
    }
}
