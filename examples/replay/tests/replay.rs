//! The program on its example log, beside a live server: the figures that docs/TIME.md shows, and nothing left behind.

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::Server;
use support::live::ok;
use support::resp::Protocol;

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Runs it, and what it printed.
fn replay(server: &Server, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_redis-rl-replay"))
        .args(args)
        .env("REDIS_URL", server.url())
        .output()
        .expect("it runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// How many calls an aligned window denies, counted without the module.
fn denied_by_hand(log: &str, limit: u64, window_s: u64, shift_s: u64) -> u64 {
    let mut used: HashMap<(String, u64), u64> = HashMap::new();
    let mut denied = 0;
    for line in log.lines().filter(|line| line.contains('[')) {
        let time = &line[line.find('[').unwrap() + 13..][..8];
        let part = |i: usize| time[i..i + 2].parse::<u64>().unwrap();
        // Of that day at +0100; the days before it are whole windows.
        let at_s = 86_400 + part(0) * 3_600 + part(3) * 60 + part(6) - 3_600 + shift_s;
        let address = line.split(' ').next().unwrap().to_owned();
        let used = used.entry((address, at_s / window_s)).or_default();
        if *used < limit {
            *used += 1
        } else {
            denied += 1
        }
    }
    denied
}

#[test]
fn the_page_shows_what_it_prints() {
    let server = Server::start();
    let chart = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay.svg");
    let log = here("access.log");
    let policies = [
        "FIXED 40 60000",
        "SLIDINGLOG 40 60000",
        "GCRA 40 60000 BURST 20",
    ];
    let mut args = vec![log.to_str().unwrap(), "--chart", chart.to_str().unwrap()];
    args.extend(policies);
    let printed = replay(&server, &args);
    let page = fs::read_to_string(here("../../docs/TIME.md")).expect("the page");
    assert!(
        page.contains(&printed),
        "docs/TIME.md should contain\n{printed}"
    );
    let kept = fs::read_to_string(here("../../docs/charts/replay.svg")).unwrap_or_default();
    let drawn = fs::read_to_string(&chart).expect("a chart");
    assert!(
        drawn == kept,
        "docs/charts/replay.svg is old: copy {}",
        chart.display()
    );
    assert_eq!(
        server.raw(Protocol::Resp2).call(&["DBSIZE"]).unwrap().int(),
        Some(0),
        "keys are left"
    );
}

#[test]
fn it_denies_what_is_counted_by_hand() {
    let server = Server::start();
    let log = fs::read_to_string(here("access.log")).unwrap();
    for (limit, window_s, shift_s) in [
        (30, 60, 30),
        (40, 60, 30),
        (30, 3_600, 0),
        (30, 3_600, 1_800),
    ] {
        let policy = format!("FIXED {limit} {}", window_s * 1_000);
        let shift = format!("--shift-ms={}", shift_s * 1_000);
        let printed = replay(
            &server,
            &[here("access.log").to_str().unwrap(), &shift, &policy],
        );
        let denied = denied_by_hand(&log, limit, window_s, shift_s);
        assert!(denied > 0, "{policy} denies nothing, which shows nothing");
        assert!(
            printed.contains(&format!("\n  {denied} of ")),
            "{policy} {shift}: {denied} by hand, but\n{printed}"
        );
    }
}

#[test]
fn a_wrong_policy_is_told_and_leaves_no_key() {
    let server = Server::start();
    let output = Command::new(env!("CARGO_BIN_EXE_redis-rl-replay"))
        .args([here("access.log").to_str().unwrap(), "GCRA 0 60000"])
        .env("REDIS_URL", server.url())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("limit must be a whole number"), "{said}");
    assert_eq!(
        ok(&mut server.raw(Protocol::Resp2), "DBSIZE").int(),
        Some(0)
    );
}
