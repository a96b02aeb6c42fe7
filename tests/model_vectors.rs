//! The model against calls whose right answers are given: every stated reply of every vector must be the model's.

mod model;

use std::collections::HashMap;

use model::{
    Algorithm, Call, MAX_DRAIN_US, MAX_NOW_US, MAX_UNITS, MAX_WINDOW_US, Mode, Model, Refused,
    multi,
};
use serde_json::{Value, json};

/// A command with its arguments judged, or an EXISTS or DEL among them.
enum Command {
    Call(Call),
    Multi {
        calls: Vec<Call>,
        force: bool,
        peek: bool,
    },
    Refund {
        units: u64,
        now_us: u64,
    },
    Inspect {
        now_us: u64,
    },
    Delete,
}

fn number(text: &str, low: u64) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|n| digits && (low..=MAX_UNITS).contains(n))
}

/// Milliseconds with a fraction, as µs.
fn time(text: &str, low: u64, high: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let us: u64 = format!("{fraction:0<3}")[..3].parse().ok()?;
    let us = whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(us)?;
    (low..=high).contains(&us).then_some(us)
}

fn algorithm(word: &str) -> Option<Algorithm> {
    Algorithm::ALL
        .into_iter()
        .find(|a| a.word().eq_ignore_ascii_case(word))
}

/// `[BURST b] [COST n]` and a mode, in any order.
fn options(mut c: Call, args: &[&str]) -> Option<Call> {
    let (mut burst, mut cost, mut mode) = (None, None, None);
    let mut args = args.iter();
    while let Some(option) = args.next() {
        match option.to_uppercase().as_str() {
            "BURST" if burst.is_none() && c.algorithm.has_burst() => {
                burst = Some(number(args.next()?, 1)?)
            }
            "COST" if cost.is_none() => cost = Some(number(args.next()?, 0)?),
            "PEEK" if mode.is_none() => mode = Some(Mode::Peek),
            "FORCE" if mode.is_none() => mode = Some(Mode::Force),
            "PARTIAL" if mode.is_none() => mode = Some(Mode::Partial),
            _ => return None,
        }
    }
    c.burst = burst.unwrap_or(c.limit);
    c.cost = cost.unwrap_or(1);
    c.mode = mode.unwrap_or(Mode::Charge);
    let fills = u128::from(c.burst) * u128::from(c.window_us)
        <= u128::from(MAX_DRAIN_US) * u128::from(c.limit);
    (fills && !(c.mode == Mode::Partial && c.cost == 0)).then_some(c)
}

fn call(
    algorithm: Algorithm,
    limit: &str,
    window: &str,
    now_us: u64,
    rest: &[&str],
) -> Option<Call> {
    let limit = number(limit, 1)?;
    let window_us = time(window, 1, MAX_WINDOW_US)?;
    options(
        Call {
            algorithm,
            limit,
            window_us,
            burst: limit,
            now_us,
            cost: 1,
            mode: Mode::Charge,
        },
        rest,
    )
}

fn now(text: &str) -> Option<u64> {
    time(text, 0, MAX_NOW_US)
}

/// The keys of a command and what it asks; None if an argument is wrong.
fn parse<'a>(args: &[&'a str]) -> Option<(Vec<&'a str>, Command)> {
    // A script that does nothing but send on its arguments.
    if let [
        "EVAL",
        "return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))",
        "1",
        key,
        command,
        rest @ ..,
    ] = args
    {
        return parse(&[&[*command, *key], rest].concat());
    }
    let name = args[0].to_uppercase();
    if name == "RL.MULTI" {
        return parse_multi(&args[1..]);
    }
    let (keys, rest) = (vec![*args.get(1)?], &args[2..]);
    let command = match (name.as_str(), rest) {
        ("RL.REFUND", [units, t]) => Command::Refund {
            units: number(units, 1)?,
            now_us: now(t)?,
        },
        ("RL.INSPECT", [t]) => Command::Inspect { now_us: now(t)? },
        ("DEL", []) => Command::Delete,
        (name, [limit, window, t, rest @ ..]) => Command::Call(call(
            algorithm(name.strip_prefix("RL.")?)?,
            limit,
            window,
            now(t)?,
            rest,
        )?),
        _ => return None,
    };
    Some((keys, command))
}

fn parse_multi<'a>(args: &[&'a str]) -> Option<(Vec<&'a str>, Command)> {
    let n: usize = args
        .first()?
        .parse()
        .ok()
        .filter(|n| (1..=64).contains(n))?;
    let keys = args.get(1..=n)?.to_vec();
    let now_us = now(args.get(n + 1)?)?;
    let mut rest = args.get(n + 2..)?;
    let mut last_is = |word: &str| match rest {
        [before @ .., last] if last.eq_ignore_ascii_case(word) => {
            rest = before;
            true
        }
        _ => false,
    };
    let force = last_is("FORCE");
    let peek = !force && last_is("PEEK");
    let mut calls = Vec::new();
    while let [first, limit, window, more @ ..] = rest {
        let end = more
            .iter()
            .position(|a| algorithm(a).is_some())
            .unwrap_or(more.len());
        let c = call(algorithm(first)?, limit, window, now_us, &more[..end])?;
        if c.mode != Mode::Charge {
            return None;
        }
        calls.push(c);
        rest = &more[end..];
    }
    let distinct = (1..n).all(|i| !keys[..i].contains(&keys[i]));
    (rest.is_empty() && calls.len() == n && distinct)
        .then_some((keys, Command::Multi { calls, force, peek }))
}

/// The keys of one case.
type Keys = HashMap<String, Model>;

/// What the server should answer.
fn answer(keys: &mut Keys, names: &[&str], command: &Command) -> Result<Value, Refused> {
    let key = keys.entry(names[0].to_string()).or_default();
    Ok(match command {
        Command::Call(c) => json!(key.call(c)?),
        Command::Refund { units, now_us } => json!(key.refund(*units, *now_us)),
        Command::Inspect { now_us } => match key.inspect(*now_us) {
            None => Value::Null,
            Some(i) => json!([
                "algorithm",
                i.algorithm_name(),
                "limit",
                i.limit,
                "window",
                i.window(),
                "burst",
                i.burst,
                "remaining",
                i.remaining,
                "retry_after",
                i.retry_after,
                "reset_after",
                i.reset_after,
                "next_after",
                i.next_after,
                "updated",
                i.updated()
            ]),
        },
        Command::Delete => {
            let there = key.exists();
            key.delete();
            json!(i64::from(there))
        }
        Command::Multi { calls, force, peek } => {
            let mut models: Vec<Model> = names
                .iter()
                .map(|k| keys.get(*k).cloned().unwrap_or_default())
                .collect();
            let (allowed, retry_after, replies) = multi(&mut models, calls, *force, *peek)?;
            keys.extend(names.iter().map(|k| k.to_string()).zip(models));
            json!([i64::from(allowed), retry_after, replies])
        }
    })
}

#[derive(Default, Debug)]
struct Tally {
    /// Replies that a vector states and the model gave too, by command.
    compared: HashMap<String, usize>,
    /// Calls of sweeps, of which the number allowed is stated.
    swept: usize,
    /// Errors stated that are the model's to give (not about how arguments are written).
    refused: usize,
    /// Errors about arguments, and commands that are not the module's.
    skipped: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn total(&self) -> usize {
        self.compared.values().sum()
    }
}

fn sweep(keys: &mut Keys, step: &Value, args: &[&str], tally: &mut Tally) {
    let sweep = &step["sweep"];
    let us = |v: &Value| {
        time(
            v.as_str().map_or(v.to_string(), str::to_string).as_str(),
            0,
            MAX_NOW_US,
        )
        .unwrap()
    };
    let (start, pause, n) = (
        us(&sweep["now"][0]),
        us(&sweep["now"][1]),
        sweep["now"][2].as_u64().unwrap(),
    );
    let offsets: Vec<u64> = sweep
        .get("offsets")
        .map_or(vec![0], |o| o.as_array().unwrap().iter().map(us).collect());
    let times = sweep.get("times").map_or(1, |t| t.as_u64().unwrap());
    let mut allowed = vec![0u64; offsets.len()];
    for i in 0..n {
        for (offset, allowed) in offsets.iter().zip(&mut allowed) {
            let now = model::ms_text(start + i * pause + offset);
            let args: Vec<String> = args.iter().map(|a| a.replace("{now}", &now)).collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let (names, command) = parse(&args).expect("arguments that are right");
            for _ in 0..times {
                *allowed +=
                    u64::from(answer(keys, &names, &command).unwrap()[0].as_i64().unwrap() > 0);
                tally.swept += 1;
            }
        }
    }
    let want = &step["count_allowed"];
    let got = if want.is_array() {
        json!(allowed)
    } else {
        json!(allowed.iter().sum::<u64>())
    };
    if *want != got {
        tally.wrong.push(format!(
            "{args:?}: {want} are allowed, the model allows {got}"
        ));
    }
}

fn run_step(keys: &mut Keys, step: &Value, tally: &mut Tally) {
    let Some(args) = step.get("args") else { return }; // real time passes: nothing to the model
    let args: Vec<&str> = args
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a.as_str().unwrap())
        .collect();
    if step.get("sweep").is_some() {
        return sweep(keys, step, &args, tally);
    }
    let parsed = parse(&args);
    let Some((names, command)) = parsed else {
        let about_arguments = step.get("error").is_some();
        if !about_arguments && !["PING", "EXISTS", "PERSIST"].contains(&args[0]) {
            tally.wrong.push(format!("{args:?}: not understood"));
        }
        tally.skipped += 1;
        return;
    };
    let before = keys.clone();
    let mut got = answer(keys, &names, &command);
    for _ in 1..step.get("repeat").map_or(1, |n| n.as_u64().unwrap()) {
        got = answer(keys, &names, &command);
    }
    let checked: Vec<&str> = match step.get("key") {
        None => names.clone(),
        Some(Value::Array(several)) => several.iter().map(|k| k.as_str().unwrap()).collect(),
        Some(one) => vec![one.as_str().unwrap()],
    };
    let now = |k: &&str| keys.get(*k).cloned().unwrap_or_default();
    if step.get("dump_same").is_some() {
        for k in checked
            .iter()
            .filter(|k| now(k) != before.get(**k).cloned().unwrap_or_default())
        {
            tally.wrong.push(format!("{args:?}: changed {k}"));
        }
    }
    if let Some(want) = step.get("exists") {
        for k in checked
            .iter()
            .filter(|k| u64::from(now(k).exists()) != want.as_u64().unwrap())
        {
            tally
                .wrong
                .push(format!("{args:?}: {k} exists is not {want}"));
        }
    }
    match (step.get("error"), step.get("reply"), got) {
        (Some(want), _, Err(refused)) => {
            let prefix = if refused == Refused::WrongType {
                "WRONGTYPE"
            } else {
                "ERR"
            };
            if !prefix.starts_with(want.as_str().unwrap()) {
                tally.wrong.push(format!(
                    "{args:?}: {want}, the model refuses it as {refused:?}"
                ));
            }
            tally.refused += 1;
        }
        (None, Some(want), Ok(got)) if *want == got => {
            *tally.compared.entry(args[0].to_uppercase()).or_default() += 1;
        }
        (None, None, Ok(_)) => {}
        (_, _, got) => tally.wrong.push(format!(
            "{args:?}: the vector is {step}, the model says {got:?}"
        )),
    }
}

/// Runs one file; the replies compared.
fn run(file: &str) -> usize {
    let path = format!("{}/tests/vectors/{file}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let mut tally = Tally::default();
    for line in std::fs::read_to_string(&path).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let mut keys = Keys::new();
        for (n, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let wrong = tally.wrong.len();
            run_step(&mut keys, step, &mut tally);
            for w in &mut tally.wrong[wrong..] {
                *w = format!("{} step {}: {w}", case["id"], n + 1);
            }
        }
    }
    println!(
        "{file}: {} replies compared {:?}, {} calls of sweeps, {} refusals, {} steps skipped, {} wrong",
        tally.total(),
        tally.compared,
        tally.swept,
        tally.refused,
        tally.skipped,
        tally.wrong.len()
    );
    assert!(tally.wrong.is_empty(), "{}", tally.wrong.join("\n"));
    tally.total()
}

#[test]
fn published_vectors() {
    assert!(run("published") >= 1150);
}

#[test]
fn random_vectors() {
    assert!(run("random") >= 3200);
}

#[test]
fn report_vectors() {
    assert!(run("reports") >= 850);
}

#[test]
fn companion_vectors() {
    assert!(run("companions") >= 2900);
}
