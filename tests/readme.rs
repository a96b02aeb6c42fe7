//! What the pages show is what a server says: every transcript in README.md, SECURITY.md and docs/ is run and compared.
//!
//! A transcript is a ```` ```console ```` block. A line `$ redis-cli RL…` or `127.0.0.1:6379> RL…` is a call, the
//! lines behind it are its reply as redis-cli prints it on a terminal. The calls of a page run in order on an empty
//! server. Where a call takes the server's clock (`*`), numbers stand for any numbers.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::resp::{Client, Protocol, Value, latin1};
use support::{Server, note};

struct Call {
    /// In its page, from 1.
    line: usize,
    args: Vec<Vec<u8>>,
    expected: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README.md, SECURITY.md and all pages below docs/.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md"), root().join("SECURITY.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

fn read(page: &Path) -> String {
    fs::read_to_string(page).unwrap_or_else(|e| panic!("{}: {e}", page.display()))
}

/// A page's path as one would name it.
fn name(page: &Path) -> String {
    page.strip_prefix(root()).unwrap().display().to_string()
}

/// The calls of a page, and what they should print.
fn calls(text: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut inside = false;
    let mut fresh = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            inside = line == "```console";
            fresh = true;
            continue;
        }
        if !inside {
            continue;
        }
        let typed = line
            .strip_prefix("$ redis-cli ")
            .or_else(|| line.strip_prefix("127.0.0.1:6379> "));
        match typed {
            Some(typed) => calls.push(Call {
                line: index + 1,
                args: words(typed),
                expected: String::new(),
            }),
            None => {
                assert!(
                    !fresh,
                    "line {}: a transcript begins with a call",
                    index + 1
                );
                let expected = &mut calls.last_mut().expect("a call comes first").expected;
                expected.push_str(line);
                expected.push('\n');
            }
        }
        fresh = false;
    }
    for call in &mut calls {
        call.expected.truncate(call.expected.trim_end().len());
    }
    calls
}

/// A line as redis-cli and a shell split it: `'…'` is taken as it is, `"…"` knows `\xHH`.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    while chars.peek().is_some() {
        let quote = chars.next_if(|c| *c == '\'' || *c == '"');
        let mut word = String::new();
        while let Some(c) = chars.next_if(|c| quote.map_or(*c != ' ', |quote| *c != quote)) {
            word.push(if c == '\\' && quote == Some('"') {
                assert_eq!(chars.next(), Some('x'), "only \\x is known: {line}");
                let hex: String = chars.by_ref().take(2).collect();
                char::from(u8::from_str_radix(&hex, 16).expect("two hex digits"))
            } else {
                c
            });
        }
        if quote.is_some() {
            assert_eq!(chars.next(), quote, "a quote is left open: {line}");
        }
        words.push(word.chars().map(|c| u8::try_from(c).unwrap()).collect());
        while chars.next_if_eq(&' ').is_some() {}
    }
    words
}

/// A reply as redis-cli prints it on a terminal, behind `margin` columns, without the last line end.
fn printed(reply: &Value, margin: usize) -> String {
    match reply {
        Value::Error(text) => format!("(error) {}", latin1(text)),
        Value::Simple(text) => latin1(text),
        Value::Int(number) => format!("(integer) {number}"),
        Value::Bulk(text) => format!("\"{}\"", text.escape_ascii()).replace("\\'", "'"),
        Value::NullBulk | Value::NullArray => "(nil)".to_owned(),
        Value::Array(items) if items.is_empty() => "(empty array)".to_owned(),
        Value::Array(items) => {
            let width = items.len().to_string().len();
            let inner = margin + width + 2;
            let lines = items.iter().enumerate().map(|(index, item)| {
                let indent = if index == 0 { 0 } else { margin };
                let number = format!("{:indent$}{:>width$}) ", "", index + 1);
                number + &printed(item, inner)
            });
            lines.collect::<Vec<_>>().join("\n")
        }
        other => panic!("no RESP2 reply: {other:?}"),
    }
}

/// The text with each run of digits replaced by one.
fn shape(text: &str) -> String {
    let mut shape = String::new();
    for c in text.chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        if c != '0' || !shape.ends_with('0') {
            shape.push(c);
        }
    }
    shape
}

/// Runs a page's calls on an empty server; how many there were, and what went wrong.
fn run(page: &Path, client: &mut Client) -> (usize, Vec<String>) {
    let calls = calls(&read(page));
    let mut failures = Vec::new();
    client.call(&["FLUSHALL"]).expect("the server answers");
    for call in &calls {
        let reply = client.call(&call.args).expect("the server answers");
        let printed = printed(&reply, 0);
        let right = if call.args.iter().any(|arg| arg == b"*") {
            shape(&printed) == shape(&call.expected)
        } else {
            printed == call.expected
        };
        if !right {
            failures.push(format!(
                "{}:{}: the page says\n{}\nbut the server\n{printed}\n",
                name(page),
                call.line,
                call.expected
            ));
        }
    }
    (calls.len(), failures)
}

#[test]
fn every_transcript_is_what_the_server_says() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    let mut failures = Vec::new();
    let mut ran = 0;
    for page in pages() {
        let (calls, failed) = run(&page, &mut client);
        let file = name(&page);
        note(&format!("{file}: {calls} calls"));
        let least = match file.as_str() {
            "README.md" => 1,
            "docs/GUIDE.md" => 10,
            _ if file.starts_with("docs/commands") => 2,
            _ => 0,
        };
        assert!(calls >= least, "{file} has only {calls} calls");
        failures.extend(failed);
        ran += calls;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(ran >= 40, "only {ran} calls in all pages");
}

#[test]
fn every_command_page_is_of_a_command() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    let mut found = 0;
    for page in pages() {
        let file = name(&page);
        let Some(command) = file.strip_prefix("docs/commands/rl.") else {
            continue;
        };
        let command = format!("RL.{}", command.trim_end_matches(".md").to_uppercase());
        assert!(
            read(&page).starts_with(&format!("# {command}\n")),
            "{file} is titled by another name"
        );
        let info = client.call(&["COMMAND", "INFO", &command]);
        assert!(
            info.is_ok_and(|info| info.items().is_some_and(|items| !items[0].is_null())),
            "the server knows no {command}"
        );
        found += 1;
    }
    assert!(found >= 6, "only {found} pages of commands");
}

/// The fenced blocks of a text: language and lines.
fn blocks(text: &str) -> Vec<(String, Vec<String>)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inside = lines.by_ref().take_while(|line| !line.starts_with("```"));
            blocks.push((language.to_owned(), inside.map(str::to_owned).collect()));
        }
    }
    blocks
}

/// What the guide shows for Rust, with the URL of the test's server.
#[rustfmt::skip]
fn as_the_guide_calls_it(url: String) -> redis::RedisResult<[i64; 5]> {
let mut redis = redis::Client::open(url)?.get_connection()?;
let [allowed, limit, remaining, retry_after, reset_after]: [i64; 5] =
    redis::cmd("RL.GCRA").arg("user:42").arg(100).arg(60_000).arg("*").query(&mut redis)?;
    Ok([allowed, limit, remaining, retry_after, reset_after])
}

#[test]
fn the_rust_block_is_the_code_that_runs_here() {
    let own = include_str!("readme.rs");
    let mut found = 0;
    for page in pages() {
        for (language, lines) in blocks(&read(&page)) {
            if language == "rust" {
                assert!(
                    own.contains(&lines.join("\n")),
                    "{}: {lines:#?}",
                    name(&page)
                );
                found += 1;
            }
        }
    }
    assert_eq!(found, 1);
    let server = Server::start();
    let reply = as_the_guide_calls_it(server.url()).expect("the server answers");
    assert_eq!(reply, [1, 100, 99, 0, 600]);
}

/// `console` is run here, `rust` above; `python` and `js` by `make test-examples`; `sh` is looked at below. A block
/// without a language is no code: a syntax, a configuration, what a program prints.
#[test]
fn every_block_is_of_a_kind_that_is_run_or_checked() {
    let known = ["", "console", "js", "python", "rust", "sh"];
    for page in pages() {
        for (language, lines) in blocks(&read(&page)) {
            let file = name(&page);
            assert!(
                known.contains(&language.as_str()),
                "{file}: a block of {language}: {lines:#?}"
            );
        }
    }
}

/// Programs that a test has no use for running: a server in the foreground, an engine of containers, other machines.
const NOT_RUN: [&str; 7] = [
    "redis-server",
    "docker",
    "rustup",
    "apt-get",
    "apk",
    "CARGO_TARGET",
    "RUSTFLAGS=",
];

#[test]
fn every_shell_line_names_what_there_is() {
    let makefile = read(&root().join("Makefile"));
    let has_target = |word: &str| makefile.contains(&format!("\n{word}: "));
    let workspace = read(&root().join("Cargo.toml"));
    let mut found = 0;
    for page in pages() {
        let file = name(&page);
        for (_, lines) in blocks(&read(&page))
            .into_iter()
            .filter(|(language, _)| language == "sh")
        {
            let text = lines.join("\n").replace("\\\n", " ");
            for part in text.lines().flat_map(|line| line.split(" && ")) {
                let code = part.split(" #").next().unwrap().trim();
                let words: Vec<&str> = code
                    .split_whitespace()
                    .skip_while(|word| {
                        word.contains("_MODULES=")
                            || word.contains("_SERVERS=")
                            || word.contains("_SERVER=")
                    })
                    .collect();
                let after = |flag: &str| {
                    words
                        .iter()
                        .position(|word| *word == flag)
                        .map(|at| words[at + 1])
                };
                let Some(program) = words.first() else {
                    continue;
                };
                found += 1;
                let known = match *program {
                    "make" => words[1..]
                        .iter()
                        .all(|word| word.contains('=') || has_target(word)),
                    "cargo" => {
                        [
                            ("--example", "examples"),
                            ("--test", "tests"),
                            ("--bench", "benches"),
                        ]
                        .iter()
                        .all(|(flag, folder)| {
                            after(flag).is_none_or(|it| {
                                root().join(folder).join(format!("{it}.rs")).exists()
                            })
                        }) && after("-p")
                            .is_none_or(|it| workspace.contains(it.trim_start_matches("redis-rl-")))
                    }
                    "redis-cli" => true,
                    _ if program.starts_with("scripts/") => root().join(program).exists(),
                    _ => {
                        code.starts_with("sha=$(redis-cli")
                            || NOT_RUN.iter().any(|not| code.starts_with(not))
                    }
                };
                assert!(known, "{file}: {code}");
            }
        }
    }
    assert!(found >= 20, "only {found} shell lines");
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let mut found = 0;
    for page in pages() {
        for link in read(&page).split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = page.parent().unwrap().join(target);
            assert!(path.exists(), "{} links to {target}", name(&page));
            found += 1;
        }
    }
    assert!(found > 0, "no link at all");
}

#[test]
fn replies_print_as_redis_cli_prints_them() {
    let nested = Value::Array(vec![
        Value::Int(1),
        Value::Array(vec![
            Value::bulk("a\"b\\'\n\u{1}"),
            Value::Array(vec![]),
            Value::NullBulk,
        ]),
    ]);
    let lines = [
        "1) (integer) 1",
        r#"2) 1) "a\"b\\'\n\x01""#,
        "   2) (empty array)",
        "   3) (nil)",
    ];
    assert_eq!(printed(&nested, 0), lines.join("\n"));
    let ten = printed(&Value::ints(&[7; 10]), 0);
    assert!(ten.starts_with(" 1) (integer) 7\n 2)"), "{ten}");
    assert!(ten.ends_with("\n10) (integer) 7"), "{ten}");
    assert_eq!(
        words(r#"RL.X 'a b' "\x00\xffz" '*'"#),
        [&b"RL.X"[..], b"a b", b"\x00\xffz", b"*"]
    );
    assert_eq!(shape("1) (integer) 1700\n2) -1"), "0) (integer) 0\n0) -0");
}

#[test]
fn a_wrong_transcript_is_found() {
    let text = "```console\n$ redis-cli PING\nPONG\n```\n\n```console\n127.0.0.1:6379> ECHO x\n\"y\"\n\n```\n";
    let found = calls(text);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].line, found[0].expected.as_str()), (2, "PONG"));
    assert_eq!((found[1].line, found[1].expected.as_str()), (7, "\"y\""));
    assert_ne!(printed(&Value::bulk("x"), 0), found[1].expected);
}
