//! The scripts and functions of `lua/` beside the commands and the pure core: same calls, same replies.
//!
//! `RL_PARITY_TRACES` is the number of traces, of 200 calls each, for each algorithm; `RL_SEED` the first seed.
//! A failure names the seed that replays it.

#[path = "support/beside.rs"]
mod beside;
mod model;
#[path = "support/core.rs"]
mod pure;
mod support;

use std::env;
use std::time::{Duration, Instant};

use beside::{in_range, to_core};
use model::trace::{Step, Trace};
use model::{LOG_ENTRIES, MAX_UNITS, MAX_WINDOW_US, Mode, Model};
use pure::Key;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use support::lua::{Lua, Way};
use support::resp::{Client, Protocol, Value};
use support::{Server, note};

/// Calls of one trace.
const STEPS: usize = 200;

/// How a script's own error begins.
const BEYOND_RANGE: &str = "ERR beyond the range of this script";
const DEBT: &str = "ERR debt must be at most";

fn number(name: &str, or: u64) -> u64 {
    env::var(name).map_or(or, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number"))
    })
}

fn name(algorithm: model::Algorithm) -> String {
    algorithm.word().to_lowercase()
}

// Calls as text ---------------------------------------------------------------------------------

/// A whole number, now and then with zeros before it.
fn count_text(n: u64, rng: &mut SmallRng) -> String {
    let zeros = if rng.random_ratio(1, 20) {
        rng.random_range(1..30)
    } else {
        0
    };
    "0".repeat(zeros) + &n.to_string()
}

/// A time in one of the ways it can be written.
fn time_text(us: u64, rng: &mut SmallRng) -> String {
    let whole = count_text(us / 1000, rng);
    let fraction = format!("{:03}", us % 1000);
    let short = fraction.trim_end_matches('0');
    match rng.random_range(0..6) {
        0 => format!("{whole}.{fraction}"),
        1 => format!("{whole}.{fraction}{}", rng.random_range(0..100_000_u64)),
        _ if short.is_empty() => whole,
        _ => format!("{whole}.{short}"),
    }
}

/// `limit window now` and the options in any order and case, those at their default perhaps left out.
fn render(call: &model::Call, rng: &mut SmallRng) -> Vec<String> {
    let mut options: Vec<Vec<String>> = Vec::new();
    if call.cost != 1 || rng.random() {
        options.push(vec!["COST".into(), count_text(call.cost, rng)]);
    }
    if call.algorithm.has_burst() && (call.burst != call.limit || rng.random()) {
        options.push(vec!["BURST".into(), count_text(call.burst, rng)]);
    }
    match call.mode {
        Mode::Charge => {}
        Mode::Peek => options.push(vec!["PEEK".into()]),
        Mode::Force => options.push(vec!["FORCE".into()]),
        Mode::Partial => options.push(vec!["PARTIAL".into()]),
    }
    for option in &mut options {
        let lower = rng.random::<u32>();
        option[0] = (option[0].chars().enumerate())
            .map(|(i, c)| {
                if lower >> i & 1 == 1 {
                    c.to_ascii_lowercase()
                } else {
                    c
                }
            })
            .collect();
    }
    options.shuffle(rng);
    let mut args = vec![
        count_text(call.limit, rng),
        time_text(call.window_us, rng),
        time_text(call.now_us, rng),
    ];
    args.extend(options.into_iter().flatten());
    args
}

// Traces ----------------------------------------------------------------------------------------

/// What happens to calls beyond the range of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    /// The script must refuse it, and takes no part in the rest of the trace: it missed a charge.
    Sent,
    /// They are not sent to anybody.
    LeftOut,
}

/// A call, and what is to be answered.
struct Planned {
    args: Vec<String>,
    /// `Err` for a debt that is too large.
    want: Result<[i64; 5], ()>,
    scripts: Scripts,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scripts {
    Answer,
    Refuse,
    Out,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Calls that core and command were compared on, and those that the scripts were, too.
    calls: u64,
    scripted: u64,
    left_out: u64,
    /// Traces, and those that left the range of a script.
    traces: u64,
    ended: u64,
    errors: u64,
    charged: u64,
    denied: u64,
}

fn plan(
    seed: u64,
    algorithm: model::Algorithm,
    beyond: Beyond,
    tally: &mut Tally,
) -> (Vec<Planned>, i64, i64) {
    let mut trace = Trace::new(seed, algorithm);
    let mut rng = SmallRng::seed_from_u64(!seed);
    let (mut key, mut naive) = (Key::default(), Model::default());
    let mut planned: Vec<Planned> = Vec::new();
    let mut scripts = Scripts::Answer;
    // `reset_after` of the last charge, and of the last one that the scripts made.
    let (mut reset, mut scripts_reset) = (-1, -1);
    let mut tries = 0;
    while planned.len() < STEPS && tries < 5 * STEPS {
        let step = trace.step();
        let Step::Call(call) = step else { continue };
        tries += 1;
        let refused = scripts == Scripts::Answer && !in_range(&mut key, &naive, &call);
        if refused && beyond == Beyond::LeftOut {
            tally.left_out += 1;
            continue;
        }
        let (core_algorithm, core_call) = to_core(&call);
        let before = key.state.clone();
        let want = key.call(core_algorithm, &core_call).map_err(|_| ());
        if algorithm == model::Algorithm::SlidingCounter {
            let naive = naive.call(&call).map_err(|_| ());
            assert_eq!(want, naive, "core and model, seed {seed}: {call:?}");
        }
        if refused {
            scripts = Scripts::Refuse;
            tally.ended += 1;
        }
        match want {
            Ok(reply) => {
                trace.told(&step, &reply);
                let charges = call.mode != Mode::Peek && call.cost > 0 && reply[0] > 0;
                assert!(
                    charges || key.state == before,
                    "seed {seed}: {call:?} changed"
                );
                if charges {
                    reset = reply[4];
                    if scripts == Scripts::Answer {
                        scripts_reset = reset;
                    }
                }
                tally.charged += u64::from(charges);
                tally.denied += u64::from(reply[0] == 0);
            }
            Err(()) => tally.errors += 1,
        }
        tally.calls += 1;
        tally.scripted += u64::from(scripts == Scripts::Answer);
        planned.push(Planned {
            args: render(&call, &mut rng),
            want,
            scripts,
        });
        if scripts == Scripts::Refuse {
            scripts = Scripts::Out;
        }
    }
    tally.traces += 1;
    (planned, reset, scripts_reset)
}

fn right(want: &Result<[i64; 5], ()>, got: &Value) -> bool {
    match want {
        Ok(reply) => *got == Value::ints(reply),
        Err(()) => got.error().is_some_and(|text| text.starts_with(DEBT)),
    }
}

fn run_trace(
    client: &mut Client,
    lua: &Lua,
    seed: u64,
    algorithm: model::Algorithm,
    beyond: Beyond,
    tally: &mut Tally,
) {
    let (planned, reset, scripts_reset) = plan(seed, algorithm, beyond, tally);
    let name = name(algorithm);
    let keys = Way::ALL.map(|way| format!("{{{way:?}:{name}:{seed}:{beyond:?}}}"));
    // One transaction, so that no key expires while the machine is busy elsewhere.
    let mut commands: Vec<Vec<Vec<u8>>> = vec![words(&["MULTI"]), words(&["TIME"])];
    for step in &planned {
        for (way, key) in Way::ALL.iter().zip(&keys) {
            if *way == Way::Command || step.scripts != Scripts::Out {
                commands.push(lua.call(*way, &name, key, &step.args));
            }
        }
    }
    commands.extend(keys.iter().map(|key| words(&["PTTL", key])));
    commands.push(words(&["TIME"]));
    commands.extend(keys.iter().map(|key| words(&["DEL", key])));
    commands.push(words(&["EXEC"]));
    let count = commands.len() - 2;
    // A script may see the clock go on while a transaction's stands still. So what is wrong in one that took as long as
    // the shortest-lived key lives says nothing, and it is run again.
    for tries in 0.. {
        let begin = Instant::now();
        let replies = client
            .pipeline(&commands)
            .expect("the server answers")
            .pop();
        let took = begin.elapsed();
        let Some(Value::Array(replies)) = replies else {
            panic!("EXEC answered {replies:?}");
        };
        assert_eq!(replies.len(), count);
        let Some(wrong) = judge(&replies, &planned, reset, scripts_reset) else {
            return;
        };
        assert!(
            took >= Duration::from_millis(400) && tries < 20,
            "{algorithm:?}, RL_SEED={seed} ({beyond:?}), {wrong}"
        );
    }
}

/// What is wrong in the replies to a planned trace.
fn judge(replies: &[Value], planned: &[Planned], reset: i64, scripts_reset: i64) -> Option<String> {
    let mut replies = replies.iter();
    let mut next = || replies.next().expect("a reply to each command");
    let begin_ms = time_ms(next());
    for (n, step) in planned.iter().enumerate() {
        let command = next();
        let [script, function] = [(); 2].map(|()| (step.scripts != Scripts::Out).then(&mut next));
        let scripts_right = [script, function].iter().flatten().all(|got| {
            if step.scripts == Scripts::Refuse {
                got.error()
                    .is_some_and(|text| text.starts_with(BEYOND_RANGE))
            } else {
                right(&step.want, got) && (step.want.is_ok() || *got == command)
            }
        });
        if !right(&step.want, command) || !scripts_right {
            return Some(format!(
                "step {}: {}\n  core     {:?}\n  command  {command:?}\n  script   {}\n  function {}",
                n + 1,
                step.args.join(" "),
                step.want,
                shown(script, step.scripts),
                shown(function, step.scripts)
            ));
        }
    }
    let pttls = [(); 3].map(|()| next().int().expect("PTTL answers a number"));
    let passed_ms = time_ms(next()) - begin_ms;
    for ((pttl, way), reset) in
        pttls
            .iter()
            .zip(Way::ALL)
            .zip([reset, scripts_reset, scripts_reset])
    {
        let right = if reset < 0 {
            *pttl == -2
        } else {
            (reset + 500 - passed_ms - 1..=reset + 1000).contains(pttl)
        };
        if !right {
            return Some(format!(
                "PTTL {pttl} of the {way:?} after reset_after {reset}"
            ));
        }
    }
    None
}

fn shown(got: Option<&Value>, scripts: Scripts) -> String {
    match (got, scripts) {
        (Some(got), Scripts::Refuse) => format!("{got:?} (this call is beyond its range)"),
        (Some(got), _) => format!("{got:?}"),
        (None, _) => "left its range before".into(),
    }
}

fn time_ms(reply: &Value) -> i64 {
    let part = |i: usize| -> i64 {
        let text = reply
            .items()
            .and_then(|items| items[i].bytes())
            .expect("TIME");
        String::from_utf8_lossy(text).parse().expect("TIME")
    };
    part(0) * 1000 + part(1) / 1000
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn traces(algorithm: model::Algorithm) {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    let lua = Lua::load(&mut client);
    let first = number("RL_SEED", 0);
    let count = number("RL_PARITY_TRACES", 200);
    let bounded = !matches!(
        algorithm,
        model::Algorithm::Fixed | model::Algorithm::SlidingLog
    );
    for beyond in [Beyond::LeftOut, Beyond::Sent] {
        if beyond == Beyond::Sent && !bounded {
            continue;
        }
        let mut tally = Tally::default();
        for seed in first..first + count {
            run_trace(&mut client, &lua, seed, algorithm, beyond, &mut tally);
        }
        note(&format!(
            "parity {algorithm:?}, beyond the range: {beyond:?}, {}: {tally:?}",
            server.version_text()
        ));
        assert_eq!(tally.traces, count);
        if !bounded {
            assert_eq!(
                (tally.left_out, tally.scripted),
                (0, tally.calls),
                "all is in range"
            );
        }
        if count >= 100 {
            // Otherwise the test would have become one of something else.
            let all = count * STEPS as u64;
            let least = if beyond == Beyond::LeftOut { 95 } else { 50 };
            assert!(tally.scripted * 100 >= all * least, "{tally:?}");
            assert!(
                tally.charged * 10 >= tally.calls && tally.denied * 10 >= tally.calls,
                "{tally:?}"
            );
            assert_eq!(tally.ended > 0, beyond == Beyond::Sent, "{tally:?}");
        }
    }
}

#[test]
fn fixed() {
    traces(model::Algorithm::Fixed);
}

#[test]
fn slidinglog() {
    traces(model::Algorithm::SlidingLog);
}

#[test]
fn slidingcounter() {
    traces(model::Algorithm::SlidingCounter);
}

#[test]
fn token() {
    traces(model::Algorithm::Token);
}

#[test]
fn gcra() {
    traces(model::Algorithm::Gcra);
}

/// A log of a million entries: beyond that, script and command merge the oldest two alike.
#[test]
#[ignore = "two million calls: `make parity` runs it"]
fn a_full_log() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    let lua = Lua::load(&mut client);
    let ways = [Way::Command, Way::Script];
    let keys = ways.map(|way| format!("{way:?}"));
    let mut key = Key {
        unchecked: true,
        ..Key::default()
    };
    let call = |now_us, cost, mode| model::Call {
        algorithm: model::Algorithm::SlidingLog,
        limit: MAX_UNITS,
        window_us: MAX_WINDOW_US,
        burst: MAX_UNITS,
        now_us,
        cost,
        mode,
    };
    let entries = LOG_ENTRIES as u64;
    let charges = (0..entries + 3).map(|i| call(MAX_WINDOW_US + i, 1, Mode::Charge));
    let end_us = 2 * MAX_WINDOW_US;
    // The oldest four are one now, and count until the last of them is too old.
    let looks = (0..6).map(|i| call(end_us + i, 1, Mode::Peek));
    let late = [
        call(end_us + entries / 2, 5, Mode::Charge),
        call(end_us + entries / 2, MAX_UNITS, Mode::Charge),
        call(end_us + entries - 1, MAX_UNITS - 3, Mode::Charge),
        call(end_us + entries + 1, MAX_UNITS - 9, Mode::Partial),
    ];
    let calls: Vec<model::Call> = charges.chain(looks).chain(late).collect();
    let mut rng = SmallRng::seed_from_u64(0);
    let mut used = Vec::new();
    for calls in calls.chunks(100_000) {
        let mut want = Vec::new();
        let mut commands = Vec::new();
        for call in calls {
            let (algorithm, core_call) = to_core(call);
            let reply = key.call(algorithm, &core_call).expect("no debt");
            if call.mode == Mode::Peek {
                used.push(MAX_UNITS - u64::try_from(reply[2]).unwrap());
            }
            want.push(reply);
            let args = render(call, &mut rng);
            for (way, key) in ways.iter().zip(&keys) {
                commands.push(lua.call(*way, "slidinglog", key, &args));
            }
        }
        let replies = client.pipeline(&commands).expect("the server answers");
        for ((call, want), got) in calls.iter().zip(&want).zip(replies.chunks(2)) {
            let want = Value::ints(want);
            assert!(
                got.iter().all(|got| *got == want),
                "{call:?}: {want:?}, got {got:?}"
            );
        }
    }
    assert_eq!(
        used,
        [0, 0, 0, 4, 5, 6].map(|gone| entries + 3 - gone),
        "units in use as the oldest age out"
    );
}
