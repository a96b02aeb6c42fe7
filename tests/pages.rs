//! Every command has its page, and the page says what COMMAND DOCS says: syntax, arguments, ranges, complexity.

mod support;

use std::fs;
use std::path::Path;

use redis_rl::args::{self, Millis, Number, Unit};
use support::Server;
use support::live::ok;
use support::resp::{Client, Protocol, Value, latin1};

/// A value of a map by its name.
fn get<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Map(pairs) = map else {
        panic!("not a map: {map:?}");
    };
    let found = pairs
        .iter()
        .find(|(key, _)| key.bytes() == Some(name.as_bytes()));
    found.map(|(_, value)| value)
}

fn text(map: &Value, name: &str) -> Option<String> {
    get(map, name).map(|value| latin1(value.bytes().expect("a text")))
}

fn children(map: &Value) -> &[Value] {
    get(map, "arguments")
        .and_then(Value::items)
        .unwrap_or_default()
}

fn joined(args: &[Value], by: &str) -> String {
    args.iter().map(syntax).collect::<Vec<_>>().join(by)
}

/// An argument of COMMAND DOCS as a syntax line shows it.
fn syntax(arg: &Value) -> String {
    let kind = text(arg, "type").expect("a type");
    let flags: Vec<String> = get(arg, "flags")
        .and_then(Value::items)
        .unwrap_or_default()
        .iter()
        .map(|flag| latin1(flag.bytes().expect("a text")))
        .collect();
    let has = |flag: &str| flags.iter().any(|has| has == flag);
    let mut shown = match (kind.as_str(), text(arg, "token")) {
        ("pure-token", Some(token)) => token,
        ("oneof", None) => joined(children(arg), " | "),
        ("block", None) => joined(children(arg), " "),
        (_, Some(token)) => format!("{token} {}", text(arg, "name").expect("a name")),
        (_, None) => text(arg, "name").expect("a name"),
    };
    if kind == "oneof" && !has("optional") {
        shown = format!("<{shown}>");
    }
    if has("multiple") {
        shown = if kind == "block" {
            format!("<{shown}> ...")
        } else {
            format!("{shown} [{shown} ...]")
        };
    }
    if has("optional") {
        shown = format!("[{shown}]");
    }
    shown
}

/// What stands in the table for each argument: `name`, `TOKEN name` or `TOKEN`.
fn leaves(args: &[Value], found: &mut Vec<(String, String)>) {
    for arg in args {
        let name = text(arg, "name").expect("a name");
        match (
            text(arg, "type").expect("a type").as_str(),
            text(arg, "token"),
        ) {
            ("oneof" | "block", _) => leaves(children(arg), found),
            ("pure-token", Some(token)) => found.push((name, token)),
            (_, Some(token)) => found.push((name.clone(), format!("{token} {name}"))),
            (_, None) => found.push((name.clone(), name)),
        }
    }
}

/// The row from which an argument is parsed, where it is a number.
fn number(command: &str, name: &str) -> Option<&'static Number> {
    Some(match (command, name) {
        (_, "limit") => &args::LIMIT,
        (_, "window") => &args::WINDOW,
        (_, "now") => &args::NOW,
        (_, "burst") => &args::BURST,
        (_, "cost") => &args::COST,
        (_, "numkeys") => &args::NUMKEYS,
        (_, "units") => &args::UNITS,
        (_, "max_burst") => &args::MAX_BURST,
        ("RL.TOP", "count") => &args::TOP_COUNT,
        (_, "count") => &args::COUNT_PER_PERIOD,
        ("GCRA", "period") => &args::PERIOD,
        (_, "period") => &args::PERIOD_WHOLE,
        (_, "quantity") => &args::QUANTITY,
        (_, "tokens_per_period") => &args::TOKENS_PER_PERIOD,
        (_, "tokens") => &args::TOKENS,
        (_, "version") => &args::VERSION,
        _ => return None,
    })
}

fn range(number: &Number) -> String {
    let shown = |value: u64| match number.unit {
        Unit::Count => value.to_string(),
        Unit::Milliseconds | Unit::Instant => Millis(value).to_string(),
        Unit::WholeSeconds | Unit::Seconds => match value % 1_000_000 {
            0 => (value / 1_000_000).to_string(),
            us => format!("{}.{us:06}", value / 1_000_000),
        },
    };
    format!("{} to {}", shown(number.min), shown(number.max))
}

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs/commands")
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn commands(client: &mut Client) -> Vec<String> {
    let list = ok(client, "COMMAND LIST FILTERBY MODULE ratelimit");
    let mut names: Vec<String> = list
        .items()
        .unwrap()
        .iter()
        .map(|name| latin1(name.bytes().unwrap()).to_uppercase())
        .collect();
    names.sort();
    names
}

#[test]
fn every_command_has_a_page_that_says_what_it_takes() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp3);
    let common = page("README.md");
    let names = commands(&mut client);
    assert_eq!(names.len(), 14, "{names:?}");
    for command in &names {
        let file = format!("{}.md", command.to_lowercase());
        let page = page(&file);
        let docs = ok(&mut client, &format!("COMMAND DOCS {command}"));
        let Value::Map(pairs) = &docs else {
            panic!("{docs:?}");
        };
        let docs = &pairs[0].1;
        let args = children(docs);
        let line = format!("{command} {}", joined(args, " "));
        let head = format!("# {command}\n\n```\n{}\n```\n", line.trim_end());
        assert!(page.starts_with(&head), "{file} should begin with\n{head}");

        let complexity = text(docs, "complexity").unwrap();
        let brief = complexity.split(" with ").next().unwrap();
        assert!(
            page.replace('\n', " ")
                .contains(&format!("**Complexity** {brief}")),
            "{file}: {complexity}"
        );
        for part in ["**Since** 0.1.0", "```console\n"] {
            assert!(page.contains(part), "{file}: {part}");
        }
        // What the five have in common stands on one page.
        let shared = page.contains("[Arguments](README.md#arguments)");
        for part in ["Reply", "Errors"] {
            let own = page.contains(&format!("**{part}**"));
            assert!(
                own || shared || page.contains(&format!("## {part}")),
                "{file}: {part}"
            );
        }
        let table = if shared { &common } else { &page };
        let mut found = Vec::new();
        leaves(args, &mut found);
        for (name, shown) in found {
            let start = format!("| `{shown}` |");
            // The algorithms are words of the syntax line.
            if command == "RL.MULTI"
                && shown == name.to_uppercase()
                && !["PEEK", "FORCE"].contains(&shown.as_str())
            {
                continue;
            }
            let row = table.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("{file}: no row {start}"));
            if let Some(number) = number(command, &name) {
                assert!(
                    row.contains(&range(number)),
                    "{file}: {row}: {}",
                    range(number)
                );
            }
        }
        assert!(
            common.contains(&format!("[{command}]({file})")),
            "the list has no {command}"
        );
    }
}

#[test]
fn summaries_are_told_for_every_argument() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp3);
    for command in commands(&mut client) {
        let docs = ok(&mut client, &format!("COMMAND DOCS {command}"));
        let Value::Map(pairs) = &docs else {
            panic!("{docs:?}");
        };
        let docs = &pairs[0].1;
        assert!(text(docs, "summary").unwrap().len() > 10, "{command}");
        assert_eq!(text(docs, "since").as_deref(), Some("0.1.0"), "{command}");
        assert_eq!(
            text(docs, "module").as_deref(),
            Some("ratelimit"),
            "{command}"
        );
        for arg in children(docs) {
            let name = text(arg, "name").unwrap();
            if number(&command, &name).is_some() {
                assert!(text(arg, "summary").is_some(), "{command} {name}");
            }
        }
    }
}
