//! The vector files against a live server, in both protocols.

mod support;

use std::path::PathBuf;

use serde_json::json;
use support::resp::Protocol;
use support::{Server, note, root, vectors};

fn file(name: &str) -> PathBuf {
    root().join("tests/vectors").join(name)
}

fn check(name: &str) {
    let server = Server::start();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let report = vectors::run_file(&file(name), server.addr(), protocol);
        note(&format!(
            "{name}: {} cases, {} steps, {protocol:?}, {}",
            report.cases,
            report.steps,
            server.version_text()
        ));
        assert!(report.cases > 0, "{name} holds no case");
        assert!(
            report.failures.is_empty(),
            "{name}, {protocol:?}: {} of {} cases failed\n{}",
            report.failed_cases,
            report.cases,
            report.failures.join("\n")
        );
    }
}

#[test]
fn published() {
    check("published.jsonl");
}

#[test]
fn random() {
    check("random.jsonl");
}

#[test]
fn reports() {
    check("reports.jsonl");
}

#[test]
fn companions() {
    check("companions.jsonl");
}

/// The runner itself: a server that knows none of the commands gets no case right.
#[test]
fn without_the_module_every_case_fails() {
    let server = Server::builder().module(false).start();
    for name in [
        "published.jsonl",
        "random.jsonl",
        "reports.jsonl",
        "companions.jsonl",
    ] {
        let report = vectors::run_file(&file(name), server.addr(), Protocol::Resp2);
        assert_eq!(
            report.failed_cases, report.cases,
            "{name}: some case passed without the module"
        );
    }
}

/// The runner itself: each thing a step can state is held against plain commands, right and then wrong.
#[test]
fn each_statement_is_checked() {
    let server = Server::builder().module(false).start();
    let set = json!({"args": ["SET", "{key}", "\u{ff}", "PX", "5000"]});
    let sweep = |counts| {
        json!({"args": ["EVAL", "return {tonumber(ARGV[1]) % 2}", "0", "{now}"],
               "sweep": {"now": ["10", 1, 4], "times": 3, "offsets": [0, "2"]}, "count_allowed": counts})
    };
    let right = [
        json!([set, {"args": ["GET", "{key}"], "reply": "\u{ff}", "ttl": [4000, 5000], "exists": 1, "dump_same": true}]),
        json!([{"args": ["GET", "{key}"], "reply": null, "exists": 0, "ttl": [-2, -2], "dump_same": true}]),
        json!([{"args": ["INCR", "{key}"], "repeat": 7, "reply": 7}]),
        json!([{"args": ["SET", "{key}", "1", "NOSUCH"], "error": "ERR syntax"}]),
        json!([{"args": ["MSET", "{key}:a", "1", "{key}:b", "2"], "key": ["{key}:a", "{key}:b"], "exists": 1}]),
        json!([{"args": ["EVAL", "return {1, 'a', {2}}", "0"], "reply": [1, "a", [2]]}]),
        json!([sweep(json!([6, 6]))]),
        json!([sweep(json!(12))]),
    ];
    let wrong = [
        json!([set, {"args": ["GET", "{key}"], "reply": "\u{fe}"}]),
        json!([set, {"args": ["GET", "{key}"], "ttl": [1, 100]}]),
        json!([set, {"args": ["GET", "{key}"], "exists": 0}]),
        json!([{"args": ["INCR", "{key}"], "dump_same": true}]),
        json!([{"args": ["INCR", "{key}"], "reply": "1"}]),
        json!([{"args": ["INCR", "{key}"], "reply": true}]),
        json!([{"args": ["INCR", "{key}"], "error": "ERR"}]),
        json!([{"args": ["NO.SUCH", "{key}"], "error": "ERR"}]),
        json!([{"args": ["NO.SUCH", "{key}"]}]),
        json!([{"args": ["MSET", "{key}:a", "1", "{key}:b", "2"], "key": ["{key}:a", "{key}:c"], "exists": 1}]),
        json!([{"args": ["EVAL", "return {1, 'a', {2}}", "0"], "reply": [1, "a", [2, 3]]}]),
        json!([sweep(json!([6, 5]))]),
        json!([sweep(json!(11))]),
    ];
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        for atomic in [false, true] {
            let run = |steps| {
                let case = json!({"id": "self", "title": "", "steps": steps, "atomic": atomic});
                vectors::run(&[case], server.addr(), protocol)
            };
            for steps in &right {
                assert_eq!(run(steps).failures, [""; 0], "{steps} is right");
            }
            // An unknown command breaks a MULTI at once, and that counts as a failure too.
            for steps in &wrong {
                assert_eq!(run(steps).failed_cases, 1, "{steps} is wrong");
            }
        }
    }
}
