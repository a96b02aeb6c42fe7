//! What the pages show is what a server says: the transcripts of all pages are run and compared, and every other block is
//! of a kind that some test runs or checks.
//!
//! A transcript is a ```` ```console ```` block. A line `$ redis-cli RL…` or `127.0.0.1:6379> RL…` is a call, the
//! lines behind it are its reply as redis-cli prints it on a terminal. The calls of a page run in order on an empty
//! server. Where a call takes the server's clock (`*`), numbers stand for any numbers.

mod support;

use std::path::Path;

use support::pages::{blocks, name, pages, read, root};
use support::resp::{Client, Protocol, Value, latin1};
use support::{Server, note};

struct Call {
    /// In its page, from 1.
    line: usize,
    args: Vec<Vec<u8>>,
    expected: String,
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
        for block in blocks(&read(&page)) {
            if block.language == "rust" {
                let code = block.lines.join("\n");
                assert!(own.contains(&code), "{}: {code}", name(&page));
                found += 1;
            }
        }
    }
    assert_eq!(found, 1);
    let server = Server::start();
    let reply = as_the_guide_calls_it(server.url()).expect("the server answers");
    assert_eq!(reply, [1, 100, 99, 0, 600]);
}

/// What runs a block of each language, or holds it to the truth. One without a language is no code: a syntax, a layout
/// or a formula; the tests below look at the first two.
const LANGUAGES: &[(&str, &str)] = &[
    ("", "tests/readme.rs"),
    ("console", "tests/readme.rs"),
    ("rust", "tests/readme.rs"),
    ("sh", "tests/shell.rs"),
    ("text", "tests/shell.rs"),
    ("conf", "tests/shell.rs"),
    ("cron", "tests/shell.rs"),
    ("http", "examples/rust/tests/services.rs"),
    ("python", "examples/rust/tests/snippets.rs"),
    ("js", "examples/rust/tests/snippets.rs"),
];

#[test]
fn every_block_is_of_a_kind_that_is_run_or_checked() {
    for (language, test) in LANGUAGES {
        let text = read(&root().join(test));
        assert!(
            text.contains(&format!("\"{language}\"")),
            "{test}: {language}"
        );
    }
    for page in pages() {
        for block in blocks(&read(&page)) {
            let known = LANGUAGES.iter().any(|(known, _)| *known == block.language);
            let file = name(&page);
            assert!(known, "{file}:{}: {}", block.line, block.language);
        }
    }
}

/// A syntax line as calls would be, with the first of alternatives and with all that is optional.
fn call_of(syntax: &str) -> Vec<String> {
    let call = syntax.split("->").next().unwrap().replace(['[', ']'], "");
    let words = call.split_whitespace().map(|word| match word {
        "key" => "syntax",
        "limit" => "10",
        "window" => "1000",
        "now" => "*",
        "b" | "k" | "n" => "2",
        word => word,
    });
    words
        .take_while(|word| *word != "|")
        .map(str::to_owned)
        .collect()
}

/// Those of docs/commands are compared by tests/pages.rs.
#[test]
fn every_syntax_line_is_accepted() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    let mut found = 0;
    for page in pages() {
        let file = name(&page);
        let blocks = blocks(&read(&page)).into_iter();
        let plain = blocks.filter(|block| block.language.is_empty() && !file.contains("commands"));
        for line in plain.flat_map(|block| block.lines) {
            let call = match line.split(' ').next().unwrap() {
                command if command.starts_with("RL.") => call_of(&line),
                // What follows the key in a script's arguments.
                "limit" => call_of(&format!("RL.GCRA key {line}")),
                _ => continue,
            };
            let reply = client.call(&call).expect("the server answers");
            assert!(
                reply.error().is_none(),
                "{file}: {line}: {call:?}: {reply:?}"
            );
            client.call(&["FLUSHALL"]).expect("the server answers");
            found += 1;
        }
    }
    assert_eq!(found, 7);
    assert!(
        client
            .call(&call_of("RL.FIXED key limit window now [BURST b]"))
            .unwrap()
            .error()
            .is_some()
    );
}

#[test]
fn the_layout_names_what_there_is() {
    let page = read(&root().join("docs/DESIGN.md"));
    let layout = blocks(&page)
        .into_iter()
        .find(|block| block.lines[0].starts_with("src/"));
    let lines = layout.expect("a layout").lines;
    let named: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split(' ').next())
        .filter(|path| !path.is_empty())
        .collect();
    for path in &named {
        assert!(root().join(path).exists(), "{path}");
    }
    assert!(named.len() > 10, "{named:?}");
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
