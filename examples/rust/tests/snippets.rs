//! The Python and Node blocks of all pages run as they are, but for the port of the server.

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::Server;
use support::pages::{self, root};

/// The blocks of one language, by page.
fn blocks(language: &str) -> Vec<(String, Vec<String>)> {
    let of = |page: &PathBuf| {
        let blocks = pages::blocks(&pages::read(page)).into_iter();
        let inside = blocks.filter(|block| block.language == language);
        let inside: Vec<String> = inside.map(|block| block.lines.join("\n")).collect();
        (pages::name(page), inside)
    };
    let all = pages::pages();
    all.iter()
        .map(of)
        .filter(|(_, inside)| !inside.is_empty())
        .collect()
}

/// Replaces what must be there.
fn put(code: &str, old: &str, new: &str) -> String {
    assert!(code.contains(old), "no {old} in\n{code}");
    code.replace(old, new)
}

fn run(name: &str, mut command: Command) {
    let output = command
        .current_dir(root())
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn python() {
    let mut ran = 0;
    for (page, blocks) in blocks("python") {
        let server = Server::start();
        ran += blocks.len();
        // The blocks of a page build on each other.
        let code = put(
            &blocks.join("\n"),
            "redis.Redis()",
            &format!("redis.Redis(port={})", server.port()),
        );
        let check = if code.contains("gcra_by_hand") {
            "\nr.script_flush()\nassert gcra_by_hand('by:hand', 100, 60000, '*')[:3] == [1, 100, 99]\n"
        } else {
            ""
        };
        let code = format!(
            "{code}\nassert (allowed, remaining) in [(1, 99), (1, 19)], (allowed, remaining){check}"
        );
        let mut python = Command::new(root().join("target/examples/venv/bin/python"));
        python.args(["-B", "-c", &code]);
        run(&page, python);
    }
    assert_eq!(ran, 3);
}

#[test]
fn node() {
    let mut ran = 0;
    for (page, blocks) in blocks("js") {
        for block in blocks {
            let server = Server::start();
            let code = if block.contains("ioredis") {
                put(
                    &block,
                    "new Redis()",
                    &format!("new Redis({})", server.port()),
                )
            } else {
                put(
                    &block,
                    "createClient()",
                    &format!("createClient({{ url: '{}' }})", server.url()),
                )
            };
            let code =
                format!("{code}\nprocess.exit(allowed === 1 && remaining === 19 ? 0 : 1);\n");
            // Beside node_modules, where imports are looked for.
            let file = root().join(format!("target/examples/node/snippet-{ran}.mjs"));
            fs::write(&file, code).expect("run `make test-examples`");
            let mut node = Command::new("node");
            node.arg(file);
            run(&page, node);
            ran += 1;
        }
    }
    assert_eq!(ran, 2);
}
