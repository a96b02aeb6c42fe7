//! docs/redis-rl.7, the manual page, is what COMMAND DOCS says, and that comes from the rows that parse the calls.
//! `RL_WRITE=1 cargo test --test manual` writes it.

#[path = "support/docs.rs"]
mod docs;
mod support;

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use docs::{children, commands, joined, leaves, number, range, text};
use support::Server;
use support::live::ok;
use support::resp::{Client, Protocol, Value};

/// A text as man(7) takes it.
fn roff(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('*', "\\(**")
}

/// `redis-rl.7.in` with the commands in the place of the line `@COMMANDS@`.
fn manual(client: &mut Client) -> String {
    let mut told = String::new();
    for command in commands(client) {
        let docs = ok(client, &format!("COMMAND DOCS {command}"));
        let Value::Map(pairs) = &docs else {
            panic!("{docs:?}");
        };
        let docs = &pairs[0].1;
        let args = children(docs);
        let line = format!("{command} {}", joined(args, " "));
        let summary = text(docs, "summary").expect("a summary");
        let complexity = text(docs, "complexity").expect("a complexity");
        write!(
            told,
            ".TP\n.B {}\n{}. Complexity: {}.\n",
            roff(line.trim_end()),
            roff(&summary),
            roff(&complexity)
        )
        .unwrap();
        let mut found = Vec::new();
        leaves(args, &mut found);
        let numbers: Vec<String> = found
            .iter()
            .filter_map(|(name, _)| Some(format!("{name} {}", range(number(&command, name)?))))
            .collect();
        if !numbers.is_empty() {
            writeln!(told, "Ranges: {}.", roff(&numbers.join("; "))).unwrap();
        }
    }
    let frame = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/redis-rl.7.in");
    let frame = fs::read_to_string(frame).expect("the frame");
    frame
        .replace("@COMMANDS@\n", &told)
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
}

#[test]
fn the_manual_page_is_current() {
    let server = Server::start();
    let new = manual(&mut server.raw(Protocol::Resp3));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/redis-rl.7");
    if env::var_os("RL_WRITE").is_some() {
        fs::write(&path, &new).expect("the page can be written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        new == kept,
        "docs/redis-rl.7 is old: RL_WRITE=1 cargo test --test manual"
    );
    for command in ["RL.FIXED key limit", "RL.MULTI numkeys", "GCRA key"] {
        assert!(new.contains(command), "no {command}");
    }
}
