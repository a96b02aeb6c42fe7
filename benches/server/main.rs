//! The commands on a live server, side by side: `make bench`. What each part measures, and how, its
//! file says; `report` makes `target/bench/` of it.
//!
//! | variable | meaning |
//! |---|---|
//! | `REDIS_SERVER` | the server; else the one on PATH |
//! | `PEER_MODULES` | the `.so` of redis-cell, to measure it, too |
//! | `OTHER_SERVERS` | more servers for the bytes per key, by colons |
//! | `ROUNDS` | of instructions and throughput; 3 |
//! | `ONLY` | some of instructions, throughput, memory, log; by commas |
//! | `GROWTH` | 1: ten million limiters, too; any other number: so many |

mod callgrind;
mod cases;
mod charts;
mod dump;
mod host;
mod latency;
mod memory;
mod report;
#[allow(dead_code, reason = "shared with the tests")]
#[path = "../../tests/support/resp.rs"]
mod resp;
mod throughput;

use std::env;
use std::path::{Path, PathBuf};

use report::Report;

fn main() {
    // `cargo test --benches` runs this, too, but with another argument.
    if !env::args().any(|argument| argument == "--bench") {
        return;
    }
    let server = path(&variable("REDIS_SERVER").unwrap_or_else(|| "redis-server".to_owned()));
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let own = vec![target.join("release/libredis_rl.so")];
    // The peer first: it finds its name free.
    let peer = variable("PEER_MODULES").map(|peer| path(&peer));
    let mut modules: Vec<PathBuf> = peer.iter().cloned().collect();
    modules.extend(own.iter().cloned());
    modules.push(target.join("release/examples/libfloor.so"));
    for module in &modules {
        assert!(
            module.is_file(),
            "{} is missing: `make bench` builds what it needs",
            module.display()
        );
    }
    let rounds = variable("ROUNDS").map_or(3, |text| text.parse().expect("ROUNDS is a number"));
    let only = variable("ONLY");
    let wanted = |part: &str| only.as_ref().is_none_or(|only| only.contains(part));
    let has_peer = peer.is_some();

    let folder = target.join("bench");
    let mut report = Report::new(&server, &modules);
    report.decisions = report::decisions(&target.join("criterion"));
    if !has_peer {
        report.skip("redis-cell: PEER_MODULES does not name its .so");
    }
    if wanted("instructions") {
        eprintln!("instructions per command");
        match callgrind::measure(&server, &modules, has_peer, rounds) {
            Some(counts) => report.counts = counts,
            None => report.skip(
                "instructions per command: valgrind is missing; `scripts/setup.sh bench` installs it",
            ),
        }
    }
    if wanted("throughput") {
        eprintln!("throughput");
        report.save(&folder);
        report.speeds = throughput::measure(&server, &modules, has_peer, rounds);
        report.save(&folder);
    }
    if wanted("memory") {
        eprintln!("bytes per key");
        report.key_bytes = vec![memory::keys(&server, &modules, has_peer)];
        let others = variable("OTHER_SERVERS").unwrap_or_default();
        for other in others.split(':').filter(|other| !other.is_empty()) {
            // The peer may not load there.
            report
                .key_bytes
                .push(memory::keys(&path(other), &own, false));
        }
    }
    report.save(&folder);
    if wanted("log") {
        eprintln!("logs");
        report.log_bytes = memory::logs(&server, &own);
        report.long_log = Some(memory::long_log(&server, &own, 15));
    }
    report.save(&folder);
    match variable("GROWTH") {
        Some(many) => {
            let keys = match many.parse().expect("GROWTH is a number") {
                1 => 10_000_000,
                many => many,
            };
            eprintln!("growth to {keys} limiters");
            report.growth = Some(memory::growth(&server, &own, keys, 20));
        }
        None => report.skip("growth: `make bench GROWTH=1` makes ten million limiters"),
    }
    report.save(&folder);
    println!("{}", report.tables());
    println!("written: {}", folder.display());
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|text| !text.is_empty())
}

/// A path as it is, from the top of the repository; a bare name looked up on PATH.
fn path(name: &str) -> PathBuf {
    if name.contains('/') {
        return Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    }
    let dirs = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&dirs)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{name} is not on PATH"))
}
