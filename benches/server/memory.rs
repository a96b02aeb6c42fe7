//! Bytes per key, by the server's own `used_memory`, and what a log of a million entries takes of
//! the server's time, by its own `SLOWLOG`.

use std::path::{Path, PathBuf};

use crate::cases::{ALGORITHMS, Call, NOW_MS, call, key};
use crate::host::{Host, Plan, line, words};
use crate::resp::Client;
use crate::throughput::{Rounds, Xorshift};

pub const KEYS: u64 = 1_000_000;
/// Long enough that nothing expires while it is measured.
const WINDOW_MS: u64 = 86_400_000;
const COUNTER: &str = "INCR + PEXPIRE";

/// Bytes per key of each kind on one server.
pub struct KeyBytes {
    pub server: String,
    pub rows: Vec<(String, f64)>,
}

impl KeyBytes {
    pub fn of(&self, name: &str) -> f64 {
        let row = self.rows.iter().find(|(row, _)| row == name);
        row.map_or(f64::NAN, |(_, bytes)| *bytes)
    }

    pub fn counter(&self) -> f64 {
        self.of(COUNTER)
    }
}

pub fn keys(binary: &Path, modules: &[PathBuf], peer: bool) -> KeyBytes {
    // Counters below 10,000 share one object per value on some servers; the larger have their own.
    let mut rows: Vec<(String, f64)> = [(COUNTER, 1), ("INCRBY 10000 + PEXPIRE", 10_000)]
        .map(|(name, count)| {
            let bytes = bytes_per_key(binary, modules, |key| {
                vec![
                    call(&format!("INCRBY {key} {count}")),
                    call(&format!("PEXPIRE {key} {WINDOW_MS}")),
                ]
            });
            (name.to_owned(), bytes)
        })
        .into();
    for algorithm in ALGORITHMS {
        let bytes = bytes_per_key(binary, modules, |key| {
            // A bucket with little in it would be gone after a second.
            vec![call(&format!(
                "RL.{algorithm} {key} 1000000 {WINDOW_MS} {NOW_MS} COST 500000"
            ))]
        });
        rows.push((algorithm.to_owned(), bytes));
    }
    // Beyond 32 bytes: a limit over 2^32.
    let wide = bytes_per_key(binary, modules, |key| {
        vec![call(&format!(
            "RL.GCRA {key} 9000000000000000 {WINDOW_MS} {NOW_MS} COST 4500000000000000"
        ))]
    });
    rows.push(("GCRA, wide".to_owned(), wide));
    if peer {
        let bytes = bytes_per_key(binary, modules, |key| {
            vec![call(&format!("CL.THROTTLE {key} 0 1 86400"))]
        });
        rows.push(("CL.THROTTLE".to_owned(), bytes));
    }
    let server = plain(binary, modules).version();
    KeyBytes { server, rows }
}

fn plain(binary: &Path, modules: &[PathBuf]) -> Host {
    Host::start(&Plan {
        binary,
        modules,
        under: &[],
        options: &[],
    })
}

fn bytes_per_key(binary: &Path, modules: &[PathBuf], calls: impl Fn(&str) -> Vec<Call>) -> f64 {
    let host = plain(binary, modules);
    let mut client = host.client();
    let before = host.info("used_memory");
    fill(&mut client, KEYS, |i| calls(&key(i)));
    assert_eq!(line(&mut client, "DBSIZE").int(), Some(KEYS as i64));
    (host.info("used_memory") - before) / KEYS as f64
}

/// Sends the calls of each number and sees that none fails.
pub fn fill(client: &mut Client, count: u64, calls: impl Fn(u64) -> Vec<Call>) {
    const CHUNK: u64 = 10_000;
    for start in (0..count).step_by(CHUNK as usize) {
        let part: Vec<Call> = (start..count.min(start + CHUNK)).flat_map(&calls).collect();
        for reply in client.pipeline(&part).expect("the server answers") {
            assert!(reply.error().is_none(), "{reply:?}");
        }
    }
}

/// Bytes per entry of logs.
pub struct LogBytes {
    /// How far entries lie apart, and what they cost.
    pub kind: &'static str,
    /// For each number of entries, bytes per entry above a key with one.
    pub rows: Vec<(u64, f64)>,
}

pub const LOG_ENTRIES: [u64; 4] = [2, 100, 1_000, 100_000];

/// Entries at random distances, on the average half of `most_us`.
struct LogKind {
    name: &'static str,
    most_us: u64,
    grain_us: u64,
    most_cost: u64,
}

const LOG_KINDS: [LogKind; 4] = [
    LogKind {
        name: "ms times, 5 ms apart, cost 1",
        most_us: 10_000,
        grain_us: 1000,
        most_cost: 1,
    },
    LogKind {
        name: "ms times, 0.5 s apart, cost 1",
        most_us: 1_000_000,
        grain_us: 1000,
        most_cost: 1,
    },
    LogKind {
        name: "ms times, 5 min apart, cost 1",
        most_us: 600_000_000,
        grain_us: 1000,
        most_cost: 1,
    },
    LogKind {
        name: "µs times, 5 h apart, cost to 10^9",
        most_us: 36_000_000_000,
        grain_us: 1,
        most_cost: 1_000_000_000,
    },
];

pub fn logs(binary: &Path, modules: &[PathBuf]) -> Vec<LogBytes> {
    let host = plain(binary, modules);
    let mut client = host.client();
    let mut bytes_of_logs = |kind: &LogKind, entries: u64| -> f64 {
        words(&mut client, &["FLUSHALL"]);
        let logs = (100_000 / entries).clamp(1, 1000);
        // The table of keys is the same for all.
        fill(&mut client, 1000 - logs, |i| {
            vec![call(&format!("SET {} 1 PX 999999999", key(1_000_000 + i)))]
        });
        let before = host.info("used_memory");
        for log in 0..logs {
            let mut random = Xorshift(log + 1);
            let mut now_us = NOW_MS * 1000;
            let calls: Vec<Call> = (0..entries)
                .map(|_| {
                    now_us += (random.next() % kind.most_us).max(1).next_multiple_of(kind.grain_us);
                    let cost = 1 + random.next() % kind.most_cost;
                    let (ms, us) = (now_us / 1000, now_us % 1000);
                    call(&format!(
                        "RL.SLIDINGLOG {} 9007199254740991 3155760000000 {ms}.{us:03} COST {cost} FORCE",
                        key(log)
                    ))
                })
                .collect();
            for reply in client.pipeline(&calls).expect("the server answers") {
                assert!(reply.error().is_none(), "{reply:?}");
            }
        }
        (host.info("used_memory") - before) / logs as f64
    };
    LOG_KINDS
        .iter()
        .map(|kind| {
            // The key, its place in the tables, and a state of one entry.
            let one = bytes_of_logs(kind, 1);
            let rows = LOG_ENTRIES.map(|entries| {
                let bytes = bytes_of_logs(kind, entries) - one;
                (entries, bytes / (entries - 1) as f64)
            });
            LogBytes {
                kind: kind.name,
                rows: rows.to_vec(),
            }
        })
        .collect()
}

/// A log of a million entries: what one call takes in the server.
pub struct LongLog {
    pub entries: u64,
    pub bytes: f64,
    pub copy_us: f64,
    pub rows: Vec<(String, Rounds)>,
    /// `MEMORY USAGE` after all entries but the newest have aged out and so many calls have come.
    pub after_burst: Vec<(u64, f64)>,
}

pub const LONG_LOG: u64 = 1_000_000;

pub fn long_log(binary: &Path, modules: &[PathBuf], copies: usize) -> LongLog {
    let host = plain(binary, modules);
    let mut client = host.client();
    let (entries, window_ms) = (LONG_LOG, LONG_LOG);
    fill(&mut client, entries, |i| {
        vec![call(&format!(
            "RL.SLIDINGLOG full {entries} {window_ms} {}",
            NOW_MS + i
        ))]
    });
    line(&mut client, "PERSIST full");
    line(&mut client, "CONFIG SET slowlog-log-slower-than 0");
    let newest = NOW_MS + entries - 1;
    let bytes = line(&mut client, "MEMORY USAGE full SAMPLES 0");
    let mut rows: Vec<(String, Rounds)> = Vec::new();
    let mut copy = Rounds::default();
    let log =
        |rest: &str, now: u64| format!("RL.SLIDINGLOG log {entries} {window_ms} {now} {rest}");
    // What is called on a copy, in this order; the log is as the calls before have left it.
    let calls = [
        ("denied", log("", newest)),
        ("PEEK", log("PEEK", newest)),
        ("COST 0", log("COST 0", newest)),
        ("denied, COST 500000", log("COST 500000", newest)),
        ("RL.INSPECT", format!("RL.INSPECT log {newest}")),
        ("allowed, 1 ages out", log("", newest + 1)),
        ("PEEK, half aged", log("PEEK", newest + window_ms / 2)),
        (
            "RL.REFUND 1000",
            format!("RL.REFUND log 1000 {}", newest + 1),
        ),
        ("allowed, half ages out", log("", newest + window_ms / 2)),
        ("allowed right after", log("", newest + window_ms / 2 + 1)),
        ("allowed, all age out", log("", newest + 2 * window_ms)),
        (
            "allowed right after that",
            log("", newest + 2 * window_ms + 1),
        ),
    ];
    for _ in 0..copies {
        line(&mut client, "DEL log");
        copy.add(timed(&mut client, "COPY full log"));
        for (name, line) in &calls {
            add(&mut rows, name, timed(&mut client, line));
        }
        for delete in ["DEL", "UNLINK"] {
            line(&mut client, "COPY full log REPLACE");
            let us = timed(&mut client, &format!("{delete} log"));
            add(&mut rows, delete, us);
        }
    }
    let after_burst = after_burst(&mut client, newest);
    LongLog {
        entries,
        bytes: bytes.int().unwrap_or(0) as f64,
        copy_us: copy.middle(),
        rows,
        after_burst,
    }
}

fn add(rows: &mut Vec<(String, Rounds)>, name: &str, us: f64) {
    if let Some((_, rounds)) = rows.iter_mut().find(|(row, _)| row == name) {
        rounds.add(us);
    } else {
        let mut rounds = Rounds::default();
        rounds.add(us);
        rows.push((name.to_owned(), rounds));
    }
}

/// What the server says the call took it, in µs.
fn timed(client: &mut Client, text: &str) -> f64 {
    line(client, "SLOWLOG RESET");
    line(client, text);
    let log = line(client, "SLOWLOG GET 1");
    // The newest entry: id, time, µs, arguments.
    let entry = log.items().and_then(|entries| entries.first());
    let us = entry.and_then(|entry| entry.items()?.get(2)?.int());
    us.unwrap_or_else(|| panic!("{text}: {log:?}")) as f64
}

fn after_burst(client: &mut Client, newest: u64) -> Vec<(u64, f64)> {
    line(client, "COPY full log REPLACE");
    let mut rows = Vec::new();
    let mut done = 0;
    for calls in [0, 1, 10, 100, 500, 1000] {
        while done < calls {
            let now = newest + 3 * LONG_LOG + done;
            line(
                client,
                &format!("RL.SLIDINGLOG log {LONG_LOG} {LONG_LOG} {now}"),
            );
            done += 1;
        }
        let usage = line(client, "MEMORY USAGE log SAMPLES 0");
        rows.push((calls, usage.int().unwrap_or(0) as f64));
    }
    rows
}

/// Memory of many limiters, and latencies beside them.
pub struct Growth {
    pub keys: u64,
    pub bytes_per_key: f64,
    pub resident_mb: f64,
    pub fill_per_second: f64,
    pub rows: Vec<Latency>,
}

/// Of calls at a steady rate, from the time each was due.
pub struct Latency {
    pub name: String,
    pub keys: u64,
    pub per_second: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub worst_us: f64,
}

pub fn growth(binary: &Path, modules: &[PathBuf], keys: u64, seconds: u64) -> Growth {
    let host = plain(binary, modules);
    let mut client = host.client();
    let limiter = |i: u64| {
        call(&format!(
            "RL.GCRA {} 1000000 {WINDOW_MS} * COST 1000",
            key(i)
        ))
    };
    let before = host.info("used_memory");
    let begin = std::time::Instant::now();
    fill(&mut client, keys, |i| vec![limiter(i)]);
    let fill_per_second = keys as f64 / begin.elapsed().as_secs_f64();
    let bytes = host.info("used_memory") - before;
    let resident = host.info("used_memory_rss");
    let mut rows = Vec::new();
    for per_second in [5_000, 20_000] {
        for (name, many) in [("PING", 1), ("RL.GCRA", 1000), ("RL.GCRA", keys)] {
            let one = |i: u64| {
                if name == "PING" {
                    call("PING")
                } else {
                    limiter(i % many)
                }
            };
            let spread = crate::latency::measure(&host, per_second, seconds, one);
            rows.push(Latency {
                name: name.to_owned(),
                keys: many,
                per_second,
                p50_us: spread.at(0.5),
                p99_us: spread.at(0.99),
                p999_us: spread.at(0.999),
                worst_us: spread.at(1.0),
            });
        }
    }
    Growth {
        keys,
        bytes_per_key: bytes / keys as f64,
        resident_mb: resident / 1e6,
        fill_per_second,
        rows,
    }
}
