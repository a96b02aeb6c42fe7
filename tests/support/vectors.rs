//! Runs the vector files of `tests/vectors/`: calls with their right answers, computed by an independent exact model.
//!
//! A file holds one case per line: `{"id", "title", "steps": [...], "atomic": bool}`. A step is one of
//!
//! - `{"sleep": ms}`: real time passes;
//! - `{"args": [...], ...}`: a call, with `{key}` standing for a key nobody else uses. It may state
//!   - `reply`: the exact reply, types included
//!   - `error`: how the error reply begins (an unknown command is never right)
//!   - `repeat`: send it so many times and look at the last reply
//!   - `dump_same`: `DUMP` is equal before and after
//!   - `ttl: [lo, hi]`: what `PTTL` answers right after, in ms
//!   - `exists`: what `EXISTS` answers right after
//!   - `key`: the key, or keys, those three look at (else the first argument)
//!   - `sweep: {now: [start, step, n], times, offsets}` with `count_allowed`: for each of n instants and each offset,
//!     send it `times` times with `{now}` filled in; so many replies begin with a number above 0 (one count per
//!     offset if it is a list)
//!
//!   and where it states neither reply nor error, any answer but an error is right.
//!
//! Text is sent as Latin-1, so `"\u00ff"` is the byte 0xff. An `atomic` case is one `MULTI`/`EXEC`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value as Json, json};

use super::resp::{Client, Protocol, Value, latin1};

/// What a run of a file came to.
#[derive(Default)]
pub struct Report {
    pub cases: usize,
    pub failed_cases: usize,
    pub steps: usize,
    /// One readable line per failing step.
    pub failures: Vec<String>,
}

/// Runs every case of a file against the server at `addr`.
pub fn run_file(path: &Path, addr: SocketAddr, protocol: Protocol) -> Report {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let cases: Vec<Json> = lines
        .map(|line| {
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e}: {line}", path.display()))
        })
        .collect();
    run(&cases, addr, protocol)
}

pub fn run(cases: &[Json], addr: SocketAddr, protocol: Protocol) -> Report {
    let mut report = Report::default();
    let mut client = None;
    for raw in cases {
        let case = Case::new(raw);
        report.cases += 1;
        report.steps += case.steps.len();
        let failures = report.failures.len();
        let open = match client.take() {
            Some(open) => Ok(open),
            None => Client::connect(addr, protocol),
        };
        // A case that loses its connection has failed; the next one gets a new connection.
        let run = open.and_then(|mut open| {
            // What is wrong in a case that took as long as the shortest-lived key lives says nothing: again, on new keys.
            for tries in 0.. {
                let (begin, mut failures) = (Instant::now(), Vec::new());
                Case::new(raw).run(&mut open, &mut failures)?;
                let slow = begin.elapsed() >= Duration::from_millis(400) && tries < 10;
                if failures.is_empty() || !slow {
                    report.failures.extend(failures);
                    break;
                }
            }
            Ok(open)
        });
        match run {
            Ok(open) => client = Some(open),
            Err(e) => report.failures.push(format!("{}: {e}", case.id)),
        }
        report.failed_cases += usize::from(report.failures.len() > failures);
    }
    report
}

type Args = Vec<Vec<u8>>;

struct Case {
    id: String,
    atomic: bool,
    steps: Vec<Step>,
    /// Every key the case touches, to be deleted after it.
    keys: BTreeSet<String>,
}

enum Step {
    Sleep(Duration),
    Call(Box<Call>),
}

impl Step {
    fn commands(&self) -> &[Args] {
        match self {
            Step::Sleep(_) => &[],
            Step::Call(call) => &call.commands,
        }
    }
}

impl Case {
    fn new(raw: &Json) -> Case {
        let id = raw["id"].as_str().expect("a case has an id").to_string();
        let key = unique_key(&id);
        let mut keys = BTreeSet::new();
        let steps = raw["steps"].as_array().expect("a case has steps").iter();
        let steps: Vec<Step> = steps
            .map(|raw| match raw.get("sleep") {
                Some(ms) => Step::Sleep(Duration::from_secs_f64(
                    ms.as_f64().expect("sleep is a number") / 1000.0,
                )),
                None => {
                    let call = Call::new(raw, &key);
                    let used = call
                        .args
                        .iter()
                        .chain(&call.keys)
                        .filter(|text| text.contains(&key));
                    keys.extend(used.cloned());
                    Step::Call(Box::new(call))
                }
            })
            .collect();
        let atomic = raw["atomic"].as_bool().unwrap_or(false);
        let sleeps = steps.iter().any(|step| matches!(step, Step::Sleep(_)));
        assert!(!(atomic && sleeps), "{id}: a transaction cannot sleep");
        Case {
            id,
            atomic,
            steps,
            keys,
        }
    }

    fn run(&self, client: &mut Client, failures: &mut Vec<String>) -> io::Result<()> {
        let mut number = 0;
        // All calls between two sleeps go out together: sent one at a time, a busy machine could take longer over
        // them than a limiter's key lives.
        let awake = |step: &Step| matches!(step, Step::Call(_));
        for group in self.steps.chunk_by(|a, b| awake(a) && awake(b)) {
            let commands = group.iter().flat_map(Step::commands).cloned().collect();
            let replies = self.send(client, commands)?;
            let mut rest = replies.as_slice();
            for step in group {
                number += 1;
                match step {
                    Step::Sleep(time) => thread::sleep(*time),
                    Step::Call(call) => {
                        let (own, others) = rest.split_at(call.commands.len());
                        rest = others;
                        self.judge(number, call, own, failures);
                    }
                }
            }
        }
        if !self.keys.is_empty() {
            let del: Vec<&str> = ["DEL"]
                .into_iter()
                .chain(self.keys.iter().map(String::as_str))
                .collect();
            client.call(&del)?;
        }
        Ok(())
    }

    /// One reply per command.
    fn send(&self, client: &mut Client, mut commands: Vec<Args>) -> io::Result<Vec<Value>> {
        if !self.atomic {
            return client.pipeline(&commands);
        }
        let count = commands.len();
        commands.insert(0, vec![b"MULTI".to_vec()]);
        commands.push(vec![b"EXEC".to_vec()]);
        match client.pipeline(&commands)?.pop() {
            Some(Value::Array(replies)) if replies.len() == count => Ok(replies),
            other => Err(io::Error::other(format!("EXEC answered {other:?}"))),
        }
    }

    fn judge(&self, number: usize, call: &Call, replies: &[Value], failures: &mut Vec<String>) {
        let wrong = call.judge(replies);
        if !wrong.is_empty() {
            let sent = cut(call.args.join(" "));
            failures.push(format!(
                "{} step {}: sent {sent} | {}",
                self.id,
                number + 1,
                wrong.join(" | ")
            ));
        }
    }
}

/// A step turned into commands, and the judgement of their replies.
struct Call {
    raw: Json,
    args: Vec<String>,
    /// The keys whose DUMP, PTTL and EXISTS are looked at.
    keys: Vec<String>,
    sweep: Option<Sweep>,
    /// All commands of the step: DUMPs, the calls, DUMPs, PTTLs, EXISTSs.
    commands: Vec<Args>,
    /// Which of `commands` belong to each of those five parts.
    parts: [Range<usize>; 5],
}

impl Call {
    fn new(raw: &Json, key: &str) -> Call {
        let mut filled = fill(raw, key);
        // `sweep` has a placeholder of its own and is left as it was.
        if let Some(sweep) = raw.get("sweep") {
            filled["sweep"] = sweep.clone();
        }
        let args: Vec<String> = texts(&filled["args"]);
        let keys = match filled.get("key") {
            Some(Json::String(one)) => vec![one.clone()],
            Some(several) => texts(several),
            None => args.iter().skip(1).take(1).cloned().collect(),
        };
        let sweep = filled.get("sweep").map(|sweep| Sweep::new(sweep, &args));
        let calls = match &sweep {
            Some(sweep) => sweep.calls.clone(),
            None => vec![bytes(&args); filled["repeat"].as_u64().unwrap_or(1) as usize],
        };
        let look = |wanted: bool, command: &str| -> Vec<Args> {
            let keys = keys.iter().filter(|_| wanted);
            keys.map(|key| bytes(&[command.to_string(), key.clone()]))
                .collect()
        };
        let dump = filled["dump_same"] == json!(true);
        let mut commands = Vec::new();
        let parts = [
            look(dump, "DUMP"),
            calls,
            look(dump, "DUMP"),
            look(filled.get("ttl").is_some(), "PTTL"),
            look(filled.get("exists").is_some(), "EXISTS"),
        ]
        .map(|part| {
            let start = commands.len();
            commands.extend(part);
            start..commands.len()
        });
        Call {
            raw: filled,
            args,
            keys,
            sweep,
            commands,
            parts,
        }
    }

    /// All that is wrong.
    fn judge(&self, replies: &[Value]) -> Vec<String> {
        let [before, got, after, pttls, exists] = self.parts.clone().map(|part| &replies[part]);
        let mut wrong: Vec<String> = self.judge_calls(got).into_iter().collect();
        for (key, (before, after)) in self.keys.iter().zip(before.iter().zip(after)) {
            if before != after {
                let what = match (before.is_null(), after.is_null()) {
                    (true, _) => "made",
                    (_, true) => "gone",
                    _ => "changed",
                };
                wrong.push(format!(
                    "DUMP {key}: expected as before the step, got {what}"
                ));
            }
        }
        for (key, ttl) in self.keys.iter().zip(pttls) {
            let band = [0, 1].map(|i| self.raw["ttl"][i].as_i64().expect("ttl is [lo, hi]"));
            if !ttl
                .int()
                .is_some_and(|ttl| band[0] <= ttl && ttl <= band[1])
            {
                wrong.push(format!("PTTL {key}: expected {band:?}, got {ttl:?}"));
            }
        }
        for (key, exists) in self.keys.iter().zip(exists) {
            if !same(&self.raw["exists"], exists) {
                wrong.push(format!(
                    "EXISTS {key}: expected {}, got {exists:?}",
                    self.raw["exists"]
                ));
            }
        }
        wrong
    }

    fn judge_calls(&self, got: &[Value]) -> Option<String> {
        if let Some(sweep) = &self.sweep {
            return sweep.judge(&self.raw["count_allowed"], got);
        }
        let last = got.last().expect("a step sends at least one call");
        let error = last.error();
        if let Some(prefix) = self.raw.get("error") {
            let prefix = prefix.as_str().expect("error is a text");
            let right = error
                .is_some_and(|e| e.starts_with(prefix) && !e.starts_with("ERR unknown command"));
            (!right).then(|| format!("expected error {prefix}..., got {}", show(last)))
        } else if let Some(reply) = self.raw.get("reply") {
            (!same(reply, last))
                .then(|| format!("expected {}, got {}", cut(reply.to_string()), show(last)))
        } else {
            error.map(|e| format!("expected no error, got {}", cut(e)))
        }
    }
}

/// The calls of a sweep, and for each the index of its offset.
struct Sweep {
    calls: Vec<Args>,
    offset_of: Vec<usize>,
    offsets: usize,
}

impl Sweep {
    fn new(raw: &Json, args: &[String]) -> Sweep {
        let (start, step) = (micros(&raw["now"][0]), micros(&raw["now"][1]));
        let instants = raw["now"][2]
            .as_i64()
            .expect("sweep.now is [start, step, n]");
        let offsets = match raw.get("offsets") {
            Some(list) => list
                .as_array()
                .expect("offsets is a list")
                .iter()
                .map(micros)
                .collect(),
            None => vec![0],
        };
        let times = raw["times"].as_u64().unwrap_or(1);
        let mut sweep = Sweep {
            calls: Vec::new(),
            offset_of: Vec::new(),
            offsets: offsets.len(),
        };
        for i in 0..instants {
            for (which, offset) in offsets.iter().enumerate() {
                let now = ms_text(start + i * step + offset);
                let call: Vec<String> = args.iter().map(|arg| arg.replace("{now}", &now)).collect();
                for _ in 0..times {
                    sweep.calls.push(bytes(&call));
                    sweep.offset_of.push(which);
                }
            }
        }
        sweep
    }

    fn judge(&self, want: &Json, got: &[Value]) -> Option<String> {
        let mut counts = vec![0_u64; self.offsets];
        for (which, reply) in self.offset_of.iter().zip(got) {
            match reply.items().and_then(|items| items.first()?.int()) {
                Some(allowed) => counts[*which] += u64::from(allowed > 0),
                None => {
                    return Some(format!(
                        "expected an array of integers, got {}",
                        show(reply)
                    ));
                }
            }
        }
        let counted = if want.is_array() {
            json!(counts)
        } else {
            json!(counts.iter().sum::<u64>())
        };
        (counted != *want).then(|| format!("number allowed: expected {want}, got {counted}"))
    }
}

/// Equal, and of the same types all the way down: true is not 1, an error is not a text. JSON has one kind of text,
/// null and list, so the RESP types of each are one here, and a map is the list of its names and values.
fn same(want: &Json, got: &Value) -> bool {
    let all = |want: &[Json], got: &[&Value]| {
        want.len() == got.len() && want.iter().zip(got).all(|(want, got)| same(want, got))
    };
    match (want, got) {
        (Json::Array(want), Value::Map(pairs)) => all(
            want,
            &pairs
                .iter()
                .flat_map(|(name, value)| [name, value])
                .collect::<Vec<_>>(),
        ),
        (Json::Array(want), _) => got
            .items()
            .is_some_and(|items| all(want, &items.iter().collect::<Vec<_>>())),
        (Json::String(want), _) => got.bytes().is_some_and(|text| *want == latin1(text)),
        (Json::Number(want), Value::Int(n)) => want.as_i64() == Some(*n),
        (Json::Number(want), Value::Double(d)) => want.is_f64() && want.as_f64() == Some(*d),
        (Json::Bool(want), Value::Bool(b)) => want == b,
        (Json::Null, _) => got.is_null(),
        _ => false,
    }
}

/// Puts the case's key in place of `{key}`, everywhere.
fn fill(json: &Json, key: &str) -> Json {
    match json {
        Json::String(text) => Json::String(text.replace("{key}", key)),
        Json::Array(items) => items.iter().map(|item| fill(item, key)).collect(),
        Json::Object(map) => map
            .iter()
            .map(|(name, value)| (name.clone(), fill(value, key)))
            .collect(),
        other => other.clone(),
    }
}

/// In braces, so that all keys made from it lie in one cluster slot.
fn unique_key(id: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!(
        "{{rl:{id}:{}:{:x}:{count}}}",
        std::process::id(),
        now.as_nanos()
    )
}

fn texts(list: &Json) -> Vec<String> {
    let items = list
        .as_array()
        .unwrap_or_else(|| panic!("not a list: {list}"))
        .iter();
    items
        .map(|item| {
            item.as_str()
                .unwrap_or_else(|| panic!("not a text: {item}"))
                .to_string()
        })
        .collect()
}

fn bytes(args: &[String]) -> Args {
    let byte = |c: char| u8::try_from(c).unwrap_or_else(|_| panic!("{c:?} is not in Latin-1"));
    args.iter()
        .map(|arg| arg.chars().map(byte).collect())
        .collect()
}

/// Milliseconds, written as a number or a text, in whole microseconds: no float comes near them.
fn micros(ms: &Json) -> i64 {
    let text = ms.as_str().map_or_else(|| ms.to_string(), str::to_string);
    let (sign, digits) = text
        .strip_prefix('-')
        .map_or((1, text.as_str()), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let us: String = fraction.chars().chain("000".chars()).take(3).collect();
    let us: i64 = format!("{whole}{us}")
        .parse()
        .unwrap_or_else(|_| panic!("not a time in ms: {ms}"));
    sign * us
}

fn ms_text(us: i64) -> String {
    match us % 1000 {
        0 => format!("{}", us / 1000),
        rest => format!("{}.{rest:03}", us / 1000),
    }
}

fn show(value: &Value) -> String {
    cut(format!("{value:?}"))
}

/// A failing line stays a line.
fn cut(text: String) -> String {
    let text: String = text
        .escape_default()
        .collect::<String>()
        .replace("\\\"", "\"");
    match text.char_indices().nth(300) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}
