//! COMMAND DOCS as the pages and the manual show it: syntax lines, arguments, ranges.

// Each test file that includes it uses some of it.
#![allow(dead_code)]

use redis_rl::args::{self, Millis, Number, Unit};

use crate::support::live::ok;
use crate::support::resp::{Client, Value, latin1};

/// A value of a map by its name.
pub fn get<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Map(pairs) = map else {
        panic!("not a map: {map:?}");
    };
    let found = pairs
        .iter()
        .find(|(key, _)| key.bytes() == Some(name.as_bytes()));
    found.map(|(_, value)| value)
}

pub fn text(map: &Value, name: &str) -> Option<String> {
    get(map, name).map(|value| latin1(value.bytes().expect("a text")))
}

pub fn children(map: &Value) -> &[Value] {
    get(map, "arguments")
        .and_then(Value::items)
        .unwrap_or_default()
}

pub fn joined(args: &[Value], by: &str) -> String {
    args.iter().map(syntax).collect::<Vec<_>>().join(by)
}

/// An argument of COMMAND DOCS as a syntax line shows it.
pub fn syntax(arg: &Value) -> String {
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
pub fn leaves(args: &[Value], found: &mut Vec<(String, String)>) {
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
pub fn number(command: &str, name: &str) -> Option<&'static Number> {
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

pub fn range(number: &Number) -> String {
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

pub fn commands(client: &mut Client) -> Vec<String> {
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
