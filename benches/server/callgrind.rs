//! Instructions per command: the server runs under callgrind, calls go out in pipelined batches, and
//! the counts before and after are dumped. Counts hardly depend on what else the machine does.
//!
//! A round is a server of its own, since each draws a seed for its hash tables that decides whose
//! names and keys collide. Before a case all keys are dropped, so every table is of the same size.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cases::{Case, Group, Scripts, all, key};
use crate::dump::{Dump, Place, base};
use crate::host::{Host, Plan, words};
use crate::resp::{Client, encode};

/// Calls sent at once, as a pipelining client does.
const BATCH: u64 = 100;
const WARM_UP: u64 = 2 * BATCH;
const CALLS: u64 = 10 * BATCH;
/// Scripts take long under callgrind.
const CALLS_OF_LUA: u64 = 3 * BATCH;
/// The cases whose functions are listed.
const LISTED: [&str; 9] = [
    "SET PX",
    "GCRA, allowed, floor",
    "GCRA, allowed",
    "SLIDINGLOG, allowed",
    "RL.MULTI of 1, allowed",
    "RL.MULTI of 2, allowed",
    "GCRA, allowed, now *",
    "GCRA, denied",
    "GCRA, denied, 1000 keys",
];

#[derive(Clone)]
pub struct Count {
    pub name: String,
    pub group: Group,
    /// The middle of the rounds.
    pub instructions: f64,
    pub least: f64,
    pub most: f64,
    /// Instructions per call by place, largest first; of some cases, in the last round.
    pub functions: Vec<(String, f64)>,
    pub files: Vec<(String, f64)>,
    pub objects: Vec<(String, f64)>,
    /// What the module calls, with all that does in turn.
    pub calls: Vec<(String, f64)>,
    /// What counting and remembering denials takes.
    pub watching: f64,
}

impl Count {
    /// How far the rounds lie apart, by their middle.
    pub fn spread(&self) -> f64 {
        (self.most - self.least) / self.instructions
    }
}

/// `None` where valgrind is missing.
pub fn measure(
    binary: &Path,
    modules: &[PathBuf],
    peer: bool,
    rounds: usize,
) -> Option<Vec<Count>> {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !there("valgrind") || !there("callgrind_control") {
        return None;
    }
    let mut all_rounds: Vec<Vec<Count>> = Vec::new();
    for number in 1..=rounds {
        eprintln!("  round {number} of {rounds}");
        all_rounds.push(round(binary, modules, peer));
    }
    let mut counts = all_rounds.last().cloned().unwrap_or_default();
    for (place, count) in counts.iter_mut().enumerate() {
        let mut got: Vec<f64> = all_rounds
            .iter()
            .map(|round| round[place].instructions)
            .collect();
        got.sort_by(f64::total_cmp);
        count.instructions = got[got.len() / 2];
        count.least = got[0];
        count.most = got[got.len() - 1];
    }
    Some(counts)
}

fn round(binary: &Path, modules: &[PathBuf], peer: bool) -> Vec<Count> {
    let host = Host::start(&Plan {
        binary,
        modules,
        under: &[
            "valgrind",
            "--tool=callgrind",
            "--compress-strings=no",
            "--compress-pos=no",
            "--callgrind-out-file={dir}/callgrind",
        ],
        // The fewer the server's own chores, the smaller the spread.
        options: &["--hz", "1"],
    });
    let mut client = host.client();
    let scripts = Scripts::load(&mut client);
    let mut dumps = Dumps { host: &host };
    all(&scripts, peer)
        .iter()
        .map(|case| one(&mut client, &mut dumps, case))
        .collect()
}

fn one(client: &mut Client, dumps: &mut Dumps, case: &Case) -> Count {
    words(client, &["FLUSHALL"]);
    let mut sent = 0;
    let mut send = |client: &mut Client, calls: u64| {
        for _ in 0..calls / BATCH {
            let batch: Vec<u8> = (0..BATCH)
                .flat_map(|_| {
                    sent += 1;
                    encode(&(case.call)(&key(sent % case.keys), sent))
                })
                .collect();
            client.write_raw(&batch).expect("the server reads");
            for _ in 0..BATCH {
                let reply = client.reply().expect("the server answers");
                assert!(reply.error().is_none(), "{}: {reply:?}", case.name);
            }
        }
        sent
    };
    if let Some(setup) = &case.setup {
        for own in 0..case.keys {
            words(client, &setup(&key(own)));
        }
    }
    send(client, WARM_UP);
    let calls = match case.group {
        Group::UsualLua | Group::ExactLua => CALLS_OF_LUA,
        _ => CALLS,
    };
    dumps.next();
    let so_far = send(client, calls);
    let dump = dumps.next();
    case.check(client, &key(0), so_far + 1);
    let per_call = |cost: u64| cost as f64 / calls as f64;
    let sorted = |costs: BTreeMap<String, u64>| -> Vec<(String, f64)> {
        let mut rows: Vec<_> = costs
            .into_iter()
            .map(|(name, cost)| (name, per_call(cost)))
            .filter(|(_, cost)| *cost >= 0.5)
            .collect();
        rows.sort_by(|a, b| b.1.total_cmp(&a.1));
        rows
    };
    let listed = LISTED.contains(&case.name.as_str());
    let by = |name: fn(&Place) -> String| {
        let mut sums = BTreeMap::<String, u64>::new();
        for (place, cost) in dump.places.iter().filter(|_| listed) {
            *sums.entry(name(place)).or_default() += cost;
        }
        sorted(sums)
    };
    let instructions = per_call(dump.total);
    Count {
        name: case.name.clone(),
        group: case.group,
        instructions,
        least: instructions,
        most: instructions,
        functions: by(|place| format!("{} ({})", place.function, base(&place.object))),
        files: by(|place| place.file.clone()),
        objects: by(|place| base(&place.object).to_owned()),
        calls: sorted(if listed { dump.calls } else { BTreeMap::new() }),
        watching: per_call(dump.watching),
    }
}

/// The counts that callgrind writes on demand, each since the one before.
struct Dumps<'a> {
    host: &'a Host,
}

impl Dumps<'_> {
    fn next(&mut self) -> Dump {
        let pid = self.host.pid().to_string();
        let done = Command::new("callgrind_control")
            .args(["--dump", &pid])
            .output()
            .expect("callgrind_control runs");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        let files = fs::read_dir(self.host.dir()).expect("the server's folder");
        let dump = files
            .filter_map(|file| {
                let path = file.ok()?.path();
                base(&path.to_string_lossy())
                    .starts_with("callgrind.")
                    .then_some(path)
            })
            .next()
            .expect("callgrind has written a dump");
        let text = String::from_utf8_lossy(&fs::read(&dump).expect("the dump")).into_owned();
        fs::remove_file(&dump).expect("the dump goes");
        Dump::read(&text)
    }
}
