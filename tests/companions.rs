//! `RL.MULTI`, `RL.INSPECT` and `RL.REFUND` on live servers: against the model, and at their edges.

mod model;
mod support;

use std::net::TcpListener;
use std::sync::Barrier;
use std::thread;

use model::trace::{Step, Trace};
use model::{Algorithm, Call, Mode, Model, Refused, ms_text};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use support::live::{
    COMMANDS, Events, Monitor, all_dumps, assert_told, dump, error, five, int, ok, rl, run,
    time_ms, wait_until,
};
use support::resp::{Client, Protocol, Value, latin1};
use support::{Server, note};

/// Limiters of a test outlive any pause of the machine: what expires is not what is tested here.
const LONG_LIVED: &str = "ttl-margin-ms 100000000";

fn client(server: &Server) -> Client {
    server.raw(Protocol::Resp2)
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_string).collect()
}

/// The reply to an RL.MULTI: allowed, `retry_after`, and the five integers of each key.
fn multi_reply(reply: &Value) -> (i64, i64, Vec<[i64; 5]>) {
    let items = reply.items().unwrap_or_default();
    let [allowed, retry_after, each] = items else {
        panic!("three items were due, got {reply:?}");
    };
    (
        allowed.int().expect("an integer"),
        retry_after.int().expect("an integer"),
        each.items().expect("a list").iter().map(five).collect(),
    )
}

fn multi(client: &mut Client, line: &str) -> (i64, i64, Vec<[i64; 5]>) {
    multi_reply(&ok(client, line))
}

/// A call's options as words, in a random order.
fn options(rng: &mut SmallRng, call: &Call) -> String {
    let mut options = Vec::new();
    if call.algorithm.has_burst() && (call.burst != call.limit || rng.random()) {
        options.push(format!("BURST {}", call.burst));
    }
    if call.cost != 1 || rng.random() {
        options.push(format!("cost {}", call.cost));
    }
    options.shuffle(rng);
    options.join(" ")
}

fn single_line(rng: &mut SmallRng, key: &str, call: &Call) -> String {
    let mode = match call.mode {
        Mode::Charge => "",
        Mode::Peek => "PEEK",
        Mode::Force => "FORCE",
        Mode::Partial => "PARTIAL",
    };
    format!(
        "RL.{} {key} {} {} {} {} {mode}",
        call.algorithm.word(),
        call.limit,
        ms_text(call.window_us),
        ms_text(call.now_us),
        options(rng, call)
    )
}

fn multi_line(rng: &mut SmallRng, keys: &[String], calls: &[Call], mode: Mode) -> String {
    let clauses: Vec<String> = calls
        .iter()
        .map(|call| {
            format!(
                "{} {} {} {}",
                call.algorithm.word(),
                call.limit,
                ms_text(call.window_us),
                options(rng, call)
            )
        })
        .collect();
    format!(
        "RL.MULTI {} {} {} {} {}",
        keys.len(),
        keys.join(" "),
        ms_text(calls[0].now_us),
        clauses.join(" "),
        match mode {
            Mode::Peek => "PEEK",
            Mode::Force => "FORCE",
            _ => "",
        }
    )
}

/// What RL.INSPECT should answer, flat as in RESP2.
fn inspected(model: &Model, now_us: u64) -> Value {
    let Some(i) = model.inspect(now_us) else {
        return Value::NullBulk;
    };
    let int = |n: u64| Value::Int(n.try_into().unwrap());
    Value::Array(vec![
        Value::bulk("algorithm"),
        Value::bulk(i.algorithm_name()),
        Value::bulk("limit"),
        int(i.limit),
        Value::bulk("window"),
        Value::bulk(i.window()),
        Value::bulk("burst"),
        int(i.burst),
        Value::bulk("remaining"),
        Value::Int(i.remaining),
        Value::bulk("retry_after"),
        Value::Int(i.retry_after),
        Value::bulk("reset_after"),
        Value::Int(i.reset_after),
        Value::bulk("next_after"),
        Value::Int(i.next_after),
        Value::bulk("updated"),
        Value::bulk(i.updated()),
    ])
}

/// How often each thing happened on all walks together.
#[derive(Debug, Default)]
struct Seen {
    allowed: u32,
    denied: u32,
    forced: u32,
    peeked: u32,
    debts: u32,
    wrong_types: u32,
    refunds: u32,
    emptied: u32,
    inspections: u32,
}

/// Keys on a live server and their models, on one random walk.
struct Walk<'a> {
    rng: SmallRng,
    client: &'a mut Client,
    keys: Vec<String>,
    traces: Vec<Trace>,
    models: Vec<Model>,
    seen: &'a mut Seen,
}

impl Walk<'_> {
    fn new<'a>(seed: u64, client: &'a mut Client, seen: &'a mut Seen) -> Walk<'a> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let count: usize = rng.random_range(1..=6);
        let first: usize = rng.random_range(0..5);
        let trace = |i: usize| {
            Trace::new(
                seed * 100 + i as u64,
                Algorithm::ALL[(first + i) % Algorithm::ALL.len()],
            )
        };
        Walk {
            rng,
            client,
            keys: (0..count).map(|i| format!("walk:{seed}:{i}")).collect(),
            traces: (0..count).map(trace).collect(),
            models: vec![Model::default(); count],
            seen,
        }
    }

    fn dumps(&mut self) -> Vec<Option<Vec<u8>>> {
        let keys = self.keys.clone();
        keys.iter().map(|key| dump(self.client, key)).collect()
    }

    fn step(&mut self) {
        let leader = self.rng.random_range(0..self.keys.len());
        let step = self.traces[leader].step();
        match self.rng.random_range(0..10) {
            0..6 => self.multi(step.now_us()),
            6 => self.inspect(step.now_us()),
            _ => self.single(leader, &step),
        }
    }

    fn single(&mut self, at: usize, step: &Step) {
        let key = self.keys[at].clone();
        match step {
            Step::Call(call) => {
                let line = single_line(&mut self.rng, &key, call);
                let got = run(self.client, &line);
                match self.models[at].call(call) {
                    Ok(reply) => {
                        assert_eq!(got, Value::ints(&reply), "{line}");
                        self.traces[at].told(step, &reply);
                    }
                    Err(refused) => assert!(got.error().is_some(), "{line}: {refused:?}, {got:?}"),
                }
            }
            Step::Refund { units, now_us } => {
                let line = format!("RL.REFUND {key} {units} {}", ms_text(*now_us));
                let existed = self.models[at].exists();
                let want = match self.models[at].refund(*units, *now_us) {
                    Some(remaining) => Value::Int(remaining.try_into().unwrap()),
                    None => Value::NullBulk,
                };
                assert_eq!(run(self.client, &line), want, "{line}");
                self.seen.refunds += u32::from(existed);
                self.seen.emptied += u32::from(existed && !self.models[at].exists());
                let exists = int(self.client, &format!("EXISTS {key}"));
                assert_eq!(exists == 1, self.models[at].exists(), "{line}");
            }
        }
    }

    fn inspect(&mut self, now_us: u64) {
        for (key, model) in self.keys.iter().zip(&self.models) {
            let line = format!("RL.INSPECT {key} {}", ms_text(now_us));
            assert_eq!(run(self.client, &line), inspected(model, now_us), "{line}");
            self.seen.inspections += u32::from(model.exists());
        }
    }

    fn multi(&mut self, now_us: u64) {
        let mut chosen: Vec<usize> = (0..self.keys.len()).collect();
        chosen.shuffle(&mut self.rng);
        chosen.truncate(self.rng.random_range(1..=chosen.len()));
        let mut calls: Vec<Call> = chosen
            .iter()
            .map(|&at| self.traces[at].call(now_us))
            .collect();
        if self.rng.random_ratio(1, 20) {
            // Perhaps of a wrong algorithm.
            let call = &mut calls[0];
            call.algorithm = Algorithm::ALL[self.rng.random_range(0..5)];
            if !call.algorithm.has_burst() {
                call.burst = call.limit;
            }
        }
        let mode = match self.rng.random_range(0..10) {
            0 => Mode::Peek,
            1 | 2 => Mode::Force,
            _ => Mode::Charge,
        };
        let keys: Vec<String> = chosen.iter().map(|&at| self.keys[at].clone()).collect();
        let line = multi_line(&mut self.rng, &keys, &calls, mode);

        let mut models: Vec<Model> = chosen.iter().map(|&at| self.models[at].clone()).collect();
        let want = model::multi(&mut models, &calls, mode == Mode::Force, mode == Mode::Peek);
        let before = self.dumps();
        let got = run(self.client, &line);
        let mut silent = true;
        match want {
            Ok((allowed, retry_after, each)) => {
                let want = Value::Array(vec![
                    Value::Int(allowed.into()),
                    Value::Int(retry_after),
                    Value::Array(each.iter().map(|reply| Value::ints(reply)).collect()),
                ]);
                assert_eq!(got, want, "{line}");
                silent = !allowed || mode == Mode::Peek;
                let count = match (mode, allowed) {
                    (Mode::Peek, _) => &mut self.seen.peeked,
                    (Mode::Force, _) => &mut self.seen.forced,
                    (_, true) => &mut self.seen.allowed,
                    (_, false) => &mut self.seen.denied,
                };
                *count += 1;
                for ((&at, call), reply) in chosen.iter().zip(&calls).zip(&each) {
                    self.traces[at].told(&Step::Call(*call), reply);
                }
            }
            Err(Refused::WrongType) => {
                self.seen.wrong_types += 1;
                let text = got.error().unwrap_or_else(|| panic!("{line}: {got:?}"));
                let differs = |(&at, call): (&usize, &Call)| {
                    let held = self.models[at].inspect(now_us);
                    held.is_some_and(|held| held.algorithm != call.algorithm)
                };
                let first = chosen.iter().zip(&calls).position(differs).unwrap() + 1;
                let start = format!("WRONGTYPE clause {first}: ");
                assert!(text.starts_with(&start), "{line}: {text}");
            }
            Err(Refused::Debt) => {
                self.seen.debts += 1;
                let text = got.error().unwrap_or_else(|| panic!("{line}: {got:?}"));
                assert!(text.starts_with("ERR clause "), "{line}: {text}");
                assert!(text.contains(": debt must be at most "), "{line}: {text}");
            }
        }
        if silent {
            assert!(self.dumps() == before, "{line} changed a key");
        }
        for (at, model) in chosen.into_iter().zip(models) {
            self.models[at] = model;
        }
    }
}

/// Every reply is the model's, whatever denies or errs changes no key, and a replica comes to the same states.
#[test]
fn random_walks_go_as_the_model_says() {
    let [primary, replica] = [(); 2].map(|()| Server::builder().module_args(LONG_LIVED).start());
    replica.replica_of(&primary);
    let mut client = client(&primary);
    let mut seen = Seen::default();
    for seed in 0..150 {
        let mut walk = Walk::new(seed, &mut client, &mut seen);
        for _ in 0..80 {
            walk.step();
        }
    }
    primary.wait_in_sync(&replica);
    let mut other = replica.raw(Protocol::Resp2);
    assert_eq!(all_dumps(&mut client), all_dumps(&mut other));
    note(&format!("{seen:?}"));
    let Seen {
        allowed,
        denied,
        forced,
        peeked,
        debts,
        wrong_types,
        refunds,
        emptied,
        inspections,
    } = seen;
    for (count, least) in [
        (allowed, 500),
        (denied, 500),
        (forced, 300),
        (peeked, 200),
        (debts, 10),
        (wrong_types, 20),
        (refunds, 100),
        (emptied, 20),
        (inspections, 500),
    ] {
        assert!(count >= least, "{count} of {least}");
    }
}

/// Three live limiters, `a`, `b` and `full`, the last one full; and a string.
fn three_limiters(client: &mut Client) {
    ok(client, "RL.FIXED a 10 1000000 5 COST 2");
    ok(client, "RL.GCRA b 10 1000000 5 COST 2");
    ok(client, "RL.SLIDINGLOG full 10 1000000 5 COST 10");
    ok(client, "SET text x");
}

/// Calls that are wrong, and what the answer must say.
const WRONG: &[(&str, &[&str])] = &[
    // numkeys
    (
        "RL.MULTI 0 a b 5 FIXED 10 1000",
        &["ERR numkeys must be a whole number from 1 to 64, got '0'"],
    ),
    (
        "RL.MULTI 65 a b 5 FIXED 10 1000",
        &["ERR numkeys must be a whole number from 1 to 64, got '65'"],
    ),
    ("RL.MULTI -1 a b 5 FIXED 10 1000", &["ERR numkeys ", "'-1'"]),
    ("RL.MULTI 1.0 a 5 FIXED 10 1000", &["ERR numkeys "]),
    ("RL.MULTI a b 5 FIXED 10 1000", &["ERR numkeys ", "'a'"]),
    (
        "RL.MULTI 18446744073709551617 a 5 FIXED 10 1000",
        &["ERR numkeys "],
    ),
    (
        "RL.MULTI 6 a b 5 FIXED 10 1000",
        &["ERR numkeys is 6, but no more than 6 arguments follow it"],
    ),
    (
        "RL.MULTI 64 a b 5 FIXED 10 1000",
        &["ERR numkeys is 64, but no more than 6 arguments follow it"],
    ),
    // keys and now
    (
        "RL.MULTI 2 a a 5 FIXED 10 1000 FIXED 10 1000",
        &["ERR key 'a' is given twice"],
    ),
    (
        "RL.MULTI 3 a b a 5 FIXED 10 1000 GCRA 10 1000 FIXED 10 1000",
        &["ERR key 'a' is given twice"],
    ),
    (
        "RL.MULTI 3 new a new x FIXED 10",
        &["ERR key 'new' is given twice"],
    ),
    (
        "RL.MULTI 2 a b FIXED 10 1000 GCRA 10 1000",
        &["ERR now must be milliseconds from 0 to 9007199254740.991, or *, got 'FIXED'"],
    ),
    (
        "RL.MULTI 1 a b 5 FIXED 10 1000",
        &["ERR now must", "got 'b'"],
    ),
    (
        "RL.MULTI 1 a -5 FIXED 10 1000",
        &["ERR now must", "got '-5'"],
    ),
    // how many clauses
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000000",
        &["ERR 2 keys need 2 clauses, got 1"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000000 PEEK",
        &["ERR 2 keys need 2 clauses, got 1"],
    ),
    (
        "RL.MULTI 3 a b new 5 FIXED 10 1000000 FORCE",
        &["ERR 3 keys need 3 clauses, got 1"],
    ),
    (
        "RL.MULTI 5 a b c d 5 6",
        &["ERR 5 keys need 5 clauses, got 0"],
    ),
    (
        "RL.MULTI 1 a 5 FIXED 10 1000000 FIXED 10 1000000",
        &["ERR 1 keys need 1 clauses, got more"],
    ),
    (
        "RL.MULTI 1 a 5 FIXED 10 1000000 gcra",
        &["ERR 1 keys need 1 clauses, got more"],
    ),
    // where PEEK and FORCE may stand
    (
        "RL.MULTI 1 a 5 PEEK FIXED 10 1000000",
        &["ERR option PEEK must be the very last argument"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000000 force GCRA 10 1000000",
        &["ERR option FORCE must be the very last argument"],
    ),
    (
        "RL.MULTI 1 a 5 FIXED 10 1000000 PEEK COST 2",
        &["ERR option PEEK must be the very last argument"],
    ),
    (
        "RL.MULTI 1 a 5 FIXED 10 1000000 PEEK PEEK",
        &["ERR option PEEK must be the very last argument"],
    ),
    (
        "RL.MULTI 1 a 5 FIXED 10 1000000 FORCE PEEK",
        &["ERR option FORCE must be the very last argument"],
    ),
    (
        "RL.MULTI 1 a 5 FIXED 10 1000000 PEEK x",
        &["ERR option PEEK must be the very last argument"],
    ),
    // in a clause
    (
        "RL.MULTI 1 a 5 PEEP 10 1000",
        &[
            "ERR clause 1: unknown algorithm 'PEEP'",
            "FIXED, SLIDINGLOG, SLIDINGCOUNTER, TOKEN or GCRA",
        ],
    ),
    (
        "RL.MULTI 1 a 5 RL.FIXED 10 1000",
        &["ERR clause 1: unknown algorithm 'RL.FIXED'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 10 1000",
        &["ERR clause 1: unknown option '10'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 0 1000 GCRA 10 1000",
        &["ERR clause 1: limit must be a whole number from 1 to 9007199254740991, got '0'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA 1e3 1000",
        &["ERR clause 2: limit must", "'1e3'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA PEEK",
        &["ERR clause 2: limit must", "'PEEK'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA",
        &["ERR clause 2: limit is missing"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA 10",
        &["ERR clause 2: window is missing"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA 10 FORCE",
        &["ERR clause 2: window must be milliseconds from 0.001 to 3155760000000, got 'FORCE'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 .5 GCRA 10 1000",
        &["ERR clause 1: window must", "'.5'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 * GCRA 10 1000",
        &["ERR clause 1: window must", "'*'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA 10 1000 COST",
        &["ERR clause 2: option COST needs a value"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 COST GCRA 10 1000",
        &["ERR clause 1: cost must be a whole number from 0 to 9007199254740991, got 'GCRA'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA 10 1000 COST -1 PEEK",
        &["ERR clause 2: cost must", "'-1'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA 10 1000 BURST 0",
        &["ERR clause 2: burst must be a whole number from 1 to 9007199254740991, got '0'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA 10 1000 BURST 5 burst 5",
        &["ERR clause 2: option BURST is given twice"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 COST 1 COST 1 GCRA 10 1000",
        &["ERR clause 1: option COST is given twice"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 BURST 5 GCRA 10 1000",
        &["ERR clause 1: unknown option 'BURST'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA 10 1000 PARTIAL",
        &["ERR clause 2: unknown option 'PARTIAL'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 FOO GCRA 10 1000",
        &["ERR clause 1: unknown option 'FOO'"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA 1 3155760000000 BURST 11",
        &["ERR clause 2: burst x window / limit must be at most 1000 years"],
    ),
    // left to right: the first fault is the one told
    ("RL.MULTI 0 a a x FOO 0 0", &["ERR numkeys"]),
    ("RL.MULTI 2 a b x FOO 0 0", &["ERR now"]),
    (
        "RL.MULTI 2 a b 5 FOO 0 0 FIXED 0 0",
        &["ERR clause 1: unknown algorithm"],
    ),
    (
        "RL.MULTI 2 text b 5 FIXED 10 1000 GCRA 0 1000",
        &["ERR clause 2: limit"],
    ),
    // what the keys hold
    (
        "RL.MULTI 2 text b 5 FIXED 10 1000000 GCRA 10 1000000",
        &["WRONGTYPE clause 1: the key holds a string, not a rate limiter"],
    ),
    (
        "RL.MULTI 2 b text 5 GCRA 10 1000000 FIXED 10 1000000",
        &["WRONGTYPE clause 2: the key holds a string"],
    ),
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000000 TOKEN 10 1000000 FORCE",
        &["WRONGTYPE clause 2: the key holds a GCRA limiter, not a TOKEN one"],
    ),
    (
        "RL.MULTI 2 a b 5 SLIDINGCOUNTER 10 1000000 GCRA 10 1000000 PEEK",
        &["WRONGTYPE clause 1: the key holds a FIXED limiter, not a SLIDINGCOUNTER one"],
    ),
    (
        "RL.MULTI 3 full new text 5 SLIDINGLOG 10 1000000 FIXED 10 1000 FIXED 10 1000",
        &["WRONGTYPE clause 3: "],
    ),
    // a debt
    (
        "RL.MULTI 2 a b 5 FIXED 10 1000000 GCRA 1 3155760000000 COST 20 FORCE",
        &["ERR clause 2: debt must be at most 9007199254740991 units and drain within 1000 years"],
    ),
    (
        "RL.MULTI 2 full a 5 SLIDINGLOG 9 1000000 COST 9007199254740991 FIXED 10 1000000 FORCE",
        &["ERR clause 1: debt must"],
    ),
    (
        "RL.MULTI 3 new1 new2 new3 5 FIXED 1 1000 TOKEN 10 1000 GCRA 1 3155760000000 COST 20 FORCE",
        &["ERR clause 3: debt must"],
    ),
    // too few at all
    ("RL.MULTI", &["ERR wrong number of arguments"]),
    ("RL.MULTI 1", &["ERR wrong number of arguments"]),
    (
        "RL.MULTI 1 a 5 FIXED 10",
        &["ERR wrong number of arguments"],
    ),
    // the other two
    ("RL.INSPECT a", &["ERR wrong number of arguments"]),
    ("RL.INSPECT a 5 6", &["ERR wrong number of arguments"]),
    (
        "RL.INSPECT a x",
        &["ERR now must be milliseconds from 0 to 9007199254740.991, or *, got 'x'"],
    ),
    ("RL.INSPECT missing -1", &["ERR now must"]),
    (
        "RL.INSPECT text 5",
        &["WRONGTYPE the key holds a string, not a rate limiter"],
    ),
    ("RL.REFUND a 1", &["ERR wrong number of arguments"]),
    ("RL.REFUND a 1 5 6", &["ERR wrong number of arguments"]),
    (
        "RL.REFUND a 0 5",
        &["ERR units must be a whole number from 1 to 9007199254740991, got '0'"],
    ),
    ("RL.REFUND a 9007199254740992 5", &["ERR units must"]),
    ("RL.REFUND a 1.5 x", &["ERR units must"]),
    ("RL.REFUND a 1 x", &["ERR now must"]),
    ("RL.REFUND missing 1 x", &["ERR now must"]),
    (
        "RL.REFUND text 1 5",
        &["WRONGTYPE the key holds a string, not a rate limiter"],
    ),
];

#[test]
fn an_error_names_the_clause_and_changes_nothing() {
    let server = Server::start();
    let [mut two, mut three] = [Protocol::Resp2, Protocol::Resp3].map(|p| server.raw(p));
    three_limiters(&mut two);
    let expires = |client: &mut Client| {
        ["a", "b", "full"].map(|key| int(client, &format!("PEXPIRETIME {key}")))
    };
    let before = (all_dumps(&mut two), expires(&mut two));
    for (line, says) in WRONG {
        for client in [&mut two, &mut three] {
            let text = error(client, line);
            assert!(text.starts_with(says[0]), "{line}: {text}");
            for part in &says[1..] {
                assert!(text.contains(part), "{line}: {text}");
            }
        }
        assert_eq!((all_dumps(&mut two), expires(&mut two)), before, "{line}");
    }
    // In a script and in a transaction, too.
    let script = "return redis.pcall(unpack(ARGV)).err";
    let mut args = vec!["EVAL", script, "0"];
    args.extend("RL.MULTI 2 a b 5 FIXED 10 1000000 TOKEN 10 1000000".split(' '));
    let reply = two.call(&args).unwrap();
    let text = reply
        .error()
        .unwrap_or_else(|| latin1(reply.bytes().unwrap()));
    assert!(text.contains("clause 2"), "{text}");
    assert_eq!((all_dumps(&mut two), expires(&mut two)), before);
}

/// A foreign key at each place, among limiters that exist and that do not: nothing is charged, nothing made.
#[test]
fn one_key_of_a_wrong_type_and_nothing_is_charged() {
    let server = Server::start();
    let mut client = client(&server);
    three_limiters(&mut client);
    ok(&mut client, "RPUSH list x");
    ok(&mut client, "HSET hash x y");
    ok(&mut client, "SADD set x");
    ok(&mut client, "ZADD zset 1 x");
    ok(&mut client, "XADD stream * x y");
    let before = all_dumps(&mut client);
    let good = [
        "a FIXED 10 1000000",
        "b GCRA 10 1000000",
        "new1 TOKEN 10 1000",
        "new2 SLIDINGLOG 10 1000",
    ];
    let mut tried = 0;
    for foreign in [
        "text FIXED",
        "list GCRA",
        "hash TOKEN",
        "set SLIDINGLOG",
        "zset SLIDINGCOUNTER",
        "stream FIXED",
        "a GCRA",
        "b TOKEN",
        "full FIXED",
    ] {
        let (key, algorithm) = foreign.split_once(' ').unwrap();
        for place in 0..=good.len() {
            let mut clauses: Vec<String> = good
                .iter()
                .filter(|clause| !clause.starts_with(&format!("{key} ")))
                .map(ToString::to_string)
                .collect();
            let place = place.min(clauses.len());
            clauses.insert(place, format!("{key} {algorithm} 10 1000000"));
            let (keys, rest): (Vec<&str>, Vec<&str>) = clauses
                .iter()
                .map(|clause| clause.split_once(' ').unwrap())
                .unzip();
            for mode in ["", "PEEK", "FORCE"] {
                let line = format!(
                    "RL.MULTI {} {} 5 {} {mode}",
                    keys.len(),
                    keys.join(" "),
                    rest.join(" ")
                );
                let text = error(&mut client, &line);
                assert!(
                    text.starts_with(&format!("WRONGTYPE clause {}: the key holds a ", place + 1)),
                    "{line}: {text}"
                );
                assert_eq!(all_dumps(&mut client), before, "{line}");
                tried += 1;
            }
        }
    }
    assert!(tried >= 100);
}

#[test]
fn up_to_sixty_four_different_keys() {
    let server = Server::start();
    let mut client = client(&server);
    for count in [1, 2, 63, 64] {
        let keys: Vec<String> = (0..count).map(|i| format!("k{i}")).collect();
        let clauses: Vec<String> = (0..count)
            .map(|i| format!("{} {} 1000000", &COMMANDS[i % 5][3..], i + 2))
            .collect();
        let line = format!(
            "RL.MULTI {count} {} 5 {}",
            keys.join(" "),
            clauses.join(" ")
        );
        let (allowed, retry_after, each) = multi(&mut client, &line);
        assert_eq!((allowed, retry_after, each.len()), (1, 0, count));
        for (i, reply) in each.iter().enumerate() {
            let limit = i as i64 + 2;
            assert_eq!(reply[..4], [1, limit, limit - 1, 0], "{i}");
        }
        assert_eq!(int(&mut client, "DBSIZE"), count as i64);
        // One that denies, and none is charged.
        let full = format!("{} COST 1", line.replace("FIXED 2 ", "FIXED 1 "));
        let (allowed, retry_after, each) = multi(&mut client, &full);
        assert!(allowed == (0) && retry_after > 0, "{each:?}");
        assert_eq!(each.iter().filter(|reply| reply[0] == 0).count(), 1);
        ok(&mut client, "FLUSHALL");
    }
    // Any bytes make a key, none too.
    let keys: [&[u8]; 3] = [b"", b"\x00\xff", b" a\r\n"];
    let mut args: Vec<&[u8]> = vec![b"RL.MULTI", b"3"];
    args.extend(keys);
    args.extend([
        b"5".as_slice(),
        b"FIXED",
        b"2",
        b"1000000",
        b"gcra",
        b"2",
        b"1000000",
        b"Token",
        b"2",
        b"1000000",
    ]);
    let (allowed, _, each) = multi_reply(&client.call(&args).unwrap());
    assert_eq!((allowed, each.len()), (1, 3));
    for key in keys {
        assert_eq!(
            client.call(&[b"EXISTS".as_slice(), key]).unwrap(),
            Value::Int(1)
        );
    }
}

/// Replies worked out by hand.
#[test]
fn all_or_none() {
    let server = Server::start();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut client = server.raw(protocol);
        ok(&mut client, "FLUSHALL");
        let line =
            "RL.MULTI 3 s m d 0 GCRA 2 1000 FIXED 10 60000 COST 4 SLIDINGLOG 100 86400000 COST 4";
        let mut call = |line: &str| multi(&mut client, line);
        assert_eq!(
            call(line),
            (
                1,
                0,
                vec![
                    [1, 2, 1, 0, 500],
                    [1, 10, 6, 0, 60_000],
                    [1, 100, 96, 0, 86_400_000]
                ]
            )
        );
        assert_eq!(
            call(line),
            (
                1,
                0,
                vec![
                    [1, 2, 0, 0, 1000],
                    [1, 10, 2, 0, 60_000],
                    [1, 100, 92, 0, 86_400_000]
                ]
            )
        );
        // Two deny, the longest wait counts; each answers as PEEK does.
        let denied = (
            0,
            60_000,
            vec![
                [0, 2, 0, 500, 1000],
                [0, 10, 2, 60_000, 60_000],
                [1, 100, 92, 0, 86_400_000],
            ],
        );
        assert_eq!(call(line), denied);
        assert_eq!(call(&format!("{line} PEEK")), denied);
        // One never fits.
        let never = line.replace("COST 4 SLIDING", "COST 11 SLIDING");
        assert_eq!(
            call(&never),
            (
                0,
                -1,
                vec![
                    [0, 2, 0, 500, 1000],
                    [0, 10, 2, -1, 60_000],
                    [1, 100, 92, 0, 86_400_000]
                ]
            )
        );
        // A cost settled afterwards.
        assert_eq!(
            call(&format!("{line} FORCE")),
            (
                1,
                0,
                vec![
                    [1, 2, 0, 0, 1500],
                    [1, 10, 0, 0, 60_000],
                    [1, 100, 88, 0, 86_400_000]
                ]
            )
        );
        assert_eq!(
            call(&format!(
                "{} PEEK",
                line.replace("COST 4", "COST 0")
                    .replace("1000 FIXED", "1000 COST 0 FIXED")
            )),
            (
                0,
                60_000,
                vec![
                    [0, 2, 0, 500, 1500],
                    [0, 10, 0, 60_000, 60_000],
                    [1, 100, 88, 0, 86_400_000]
                ]
            )
        );
        // A look that fits.
        assert_eq!(
            call("RL.MULTI 1 s 3000 GCRA 2 1000 peek"),
            (1, 0, vec![[1, 2, 2, 0, 0]])
        );
        assert_eq!(
            call("RL.MULTI 1 none 3000 GCRA 2 1000 PEEK"),
            (1, 0, vec![[1, 2, 2, 0, 0]])
        );
        assert_eq!(int(&mut client, "EXISTS none"), 0);
    }
}

fn strings(reply: &Value) -> Vec<String> {
    let items = reply
        .items()
        .unwrap_or_else(|| panic!("a list was due, got {reply:?}"));
    items
        .iter()
        .map(|item| latin1(item.bytes().expect("a text")))
        .collect()
}

#[test]
fn the_server_knows_the_keys() {
    let server = Server::start();
    let mut client = client(&server);
    for (line, keys) in [
        ("RL.MULTI 2 a b 5 FIXED 1 1 GCRA 1 1", vec!["a", "b"]),
        (
            "RL.MULTI 3 a b c * FIXED 1 1 GCRA 1 1 TOKEN 1 1 BURST 4 PEEK",
            vec!["a", "b", "c"],
        ),
        ("RL.MULTI 1 5 5 FIXED 1 1", vec!["5"]),
        ("RL.INSPECT a 5", vec!["a"]),
        ("RL.REFUND a 1 5", vec!["a"]),
        ("RL.THROTTLE a 1 2 3 4 5", vec!["a"]),
        ("CL.THROTTLE a 1 2 3 4", vec!["a"]),
        ("GCRA a 1 2 3 TOKENS 4", vec!["a"]),
    ] {
        assert_eq!(
            strings(&ok(&mut client, &format!("COMMAND GETKEYS {line}"))),
            keys,
            "{line}"
        );
        let flagged = ok(&mut client, &format!("COMMAND GETKEYSANDFLAGS {line}"));
        for (item, key) in flagged.items().unwrap().iter().zip(&keys) {
            let [name, flags] = item.items().unwrap() else {
                panic!("{item:?}")
            };
            assert_eq!(latin1(name.bytes().unwrap()), *key);
            let mut flags = strings(flags);
            flags.sort();
            let want: &[&str] = if line.starts_with("RL.INSPECT") {
                &["RO", "access"]
            } else {
                &["RW", "access", "update"]
            };
            assert_eq!(flags, want, "{line}");
        }
        assert_eq!(flagged.items().unwrap().len(), keys.len());
    }
    for numkeys in ["0", "x", "-1", "9", "99999999999999999999"] {
        error(
            &mut client,
            &format!("COMMAND GETKEYS RL.MULTI {numkeys} a b 5 FIXED 1 1"),
        );
    }
    for (command, arity, flags) in [
        ("RL.MULTI", -7, vec!["denyoom", "fast", "write"]),
        ("RL.INSPECT", 3, vec!["fast", "readonly"]),
        ("RL.REFUND", 4, vec!["fast", "write"]),
        ("RL.TOP", -1, vec!["admin", "readonly"]),
        ("RL.HELP", 1, vec!["fast", "stale"]),
        ("RL.THROTTLE", -5, vec!["denyoom", "fast", "write"]),
        ("CL.THROTTLE", -5, vec!["denyoom", "fast", "write"]),
        ("GCRA", -5, vec!["denyoom", "fast", "write"]),
    ] {
        let info = ok(&mut client, &format!("COMMAND INFO {command}"));
        let info = info.items().unwrap()[0].items().unwrap();
        assert_eq!(info[1], Value::Int(arity), "{command}");
        let mut got = strings(&info[2]);
        // Servers tell of keys that only a key spec finds in a flag of their own.
        got.retain(|flag| flag != "module" && flag != "movablekeys");
        got.sort();
        assert_eq!(got, flags, "{command}");
    }
}

#[test]
fn acl_patterns_hold_for_every_key() {
    let server = Server::start();
    let mut admin = client(&server);
    three_limiters(&mut admin);
    ok(&mut admin, "ACL SETUSER writer on nopass ~a* +@all");
    ok(&mut admin, "ACL SETUSER reader on nopass %R~* +@all");
    let mut writer = client(&server);
    ok(&mut writer, "AUTH writer x");
    let mut reader = client(&server);
    ok(&mut reader, "AUTH reader x");
    let refused = |client: &mut Client, line: &str| {
        let text = error(client, line);
        assert!(
            text.starts_with("NOPERM") && text.contains("key"),
            "{line}: {text}"
        );
    };
    let before = all_dumps(&mut admin);
    for command in COMMANDS {
        refused(&mut writer, &format!("{command} b 10 1000000 5"));
        refused(&mut reader, &format!("{command} new 10 1000000 5"));
        // PEEK reads, but it is a command that writes.
        refused(&mut reader, &format!("{command} new 10 1000000 5 PEEK"));
    }
    for line in [
        "RL.MULTI 2 a b 5 FIXED 10 1000000 GCRA 10 1000000",
        "RL.MULTI 2 b a 5 GCRA 10 1000000 FIXED 10 1000000",
        "RL.MULTI 1 b 5 GCRA 10 1000000 PEEK",
        "RL.INSPECT b 5",
        "RL.REFUND b 1 5",
        "RL.THROTTLE b 1 2 3",
        "CL.THROTTLE b 1 2 3",
        "GCRA b 1 2 3",
    ] {
        refused(&mut writer, line);
    }
    for line in [
        "RL.MULTI 1 a 5 FIXED 10 1000000",
        "RL.MULTI 1 a 5 FIXED 10 1000000 PEEK",
        "RL.REFUND a 1 5",
        "GCRA a 1 2 3",
    ] {
        refused(&mut reader, line);
    }
    assert_eq!(all_dumps(&mut admin), before);
    // And what is allowed.
    assert_eq!(
        multi(
            &mut writer,
            "RL.MULTI 2 a a2 5 FIXED 10 1000000 GCRA 10 1000000"
        )
        .0,
        1
    );
    for key in ["a", "b", "full"] {
        assert_eq!(
            ok(&mut reader, &format!("RL.INSPECT {key} 5"))
                .items()
                .unwrap()
                .len(),
            18
        );
    }
    assert!(ok(&mut reader, "RL.INSPECT none 5").is_null());
    assert_eq!(ok(&mut writer, "RL.INSPECT a 5").items().unwrap().len(), 18);
}

/// A node of a cluster, with a bus port that is free.
fn cluster_node() -> (Server, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let bus = listener.local_addr().unwrap().port();
    drop(listener);
    let server = Server::builder()
        .arg("cluster-enabled", "yes")
        .arg("cluster-port", &bus.to_string())
        .arg("cluster-require-full-coverage", "no")
        .start();
    (server, bus)
}

#[test]
fn a_cluster_routes_by_the_keys() {
    let [(one, _), (two, bus)] = [cluster_node(), cluster_node()];
    let mut client = client(&one);
    let mut other = two.raw(Protocol::Resp2);
    ok(&mut client, "CLUSTER ADDSLOTSRANGE 0 8191");
    ok(&mut other, "CLUSTER ADDSLOTSRANGE 8192 16383");
    ok(
        &mut client,
        &format!("CLUSTER MEET 127.0.0.1 {} {bus}", two.port()),
    );
    for client in [&mut client, &mut other] {
        wait_until("the cluster is one", || {
            let info = ok(client, "CLUSTER INFO");
            let info = latin1(info.bytes().unwrap());
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        });
    }
    // b lies in slot 3300, a in 15495.
    assert_eq!(int(&mut client, "CLUSTER KEYSLOT b"), 3300);
    assert_eq!(int(&mut client, "CLUSTER KEYSLOT a"), 15495);
    let moved = format!("MOVED 15495 127.0.0.1:{}", two.port());
    for line in [
        "RL.MULTI 2 {a}1 {a}2 5 FIXED 10 1000000 GCRA 10 1000000",
        "RL.MULTI 1 a 5 FIXED 10 1000000 PEEK",
        "RL.INSPECT a 5",
        "RL.REFUND a 1 5",
        "RL.THROTTLE a 1 2 3",
        "CL.THROTTLE a 1 2 3",
        "GCRA a 1 2 3",
        "RL.GCRA a 1 2 3",
    ] {
        assert_eq!(error(&mut client, line), moved, "{line}");
    }
    for line in [
        "RL.MULTI 2 {b}1 {a}1 5 FIXED 10 1000000 GCRA 10 1000000",
        "RL.MULTI 2 a b 5 FIXED 10 1000000 GCRA 10 1000000 PEEK",
        "RL.MULTI 3 b b2 b3 5 FIXED 10 1000000 GCRA 10 1000000 FIXED 1 1",
    ] {
        for client in [&mut client, &mut other] {
            let text = error(client, line);
            assert!(text.starts_with("CROSSSLOT "), "{line}: {text}");
        }
    }
    assert_eq!(int(&mut client, "DBSIZE") + int(&mut other, "DBSIZE"), 0);
    let line = "RL.MULTI 2 {b}1 {b}2 5 FIXED 10 1000000 GCRA 10 1000000";
    assert_eq!(multi(&mut client, line).0, 1);
    assert_eq!(multi(&mut other, &line.replace("{b}", "{a}")).0, 1);
    assert_eq!(int(&mut other, "RL.REFUND {a}2 1 5"), 10);
    assert_eq!(
        ok(&mut client, "RL.INSPECT {b}1 5").items().unwrap().len(),
        18
    );
}

#[test]
fn inspect_tells_all_there_is() {
    let server = Server::start();
    let [mut two, mut three] = [Protocol::Resp2, Protocol::Resp3].map(|p| server.raw(p));
    ok(
        &mut two,
        "RL.TOKEN k 60 3600000.5 1700000000000.25 BURST 10 COST 8",
    );
    // 8 tokens at 60,000.008… ms each.
    let flat = Value::Array(vec![
        Value::bulk("algorithm"),
        Value::bulk("token"),
        Value::bulk("limit"),
        Value::Int(60),
        Value::bulk("window"),
        Value::bulk("3600000.5"),
        Value::bulk("burst"),
        Value::Int(10),
        Value::bulk("remaining"),
        Value::Int(2),
        Value::bulk("retry_after"),
        Value::Int(0),
        Value::bulk("reset_after"),
        Value::Int(480_001),
        Value::bulk("next_after"),
        Value::Int(60_001),
        Value::bulk("updated"),
        Value::bulk("1700000000000.25"),
    ]);
    let before = all_dumps(&mut two);
    let expires_ms = int(&mut two, "PEXPIRETIME k");
    assert_eq!(ok(&mut two, "RL.INSPECT k 1700000000000.25"), flat);
    // An earlier time counts as the newest.
    assert_eq!(ok(&mut two, "RL.INSPECT k 0"), flat);
    let pairs = flat
        .items()
        .unwrap()
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair[1].clone()));
    assert_eq!(
        ok(&mut three, "RL.INSPECT k 1700000000000.25"),
        Value::Map(pairs.collect())
    );
    assert_eq!(ok(&mut two, "RL.INSPECT none 5"), Value::NullBulk);
    assert!(ok(&mut three, "RL.INSPECT none *").is_null());
    // In a script as in RESP2, in a read-only one too.
    let args = [
        "EVAL_RO",
        "return redis.call('RL.INSPECT', KEYS[1], ARGV[1])",
        "1",
        "k",
        "1700000000000.25",
    ];
    assert_eq!(two.call(&args).unwrap(), flat);
    assert_eq!(all_dumps(&mut two), before);
    assert_eq!(int(&mut two, "PEXPIRETIME k"), expires_ms);
    // Full, by the server's clock.
    ok(&mut two, "RL.FIXED full 1 3155760000000 *");
    let Value::Map(pairs) = ok(&mut three, "RL.INSPECT full *") else {
        panic!("no map")
    };
    let get = |name: &str| {
        &pairs
            .iter()
            .find(|(key, _)| *key == Value::bulk(name))
            .unwrap()
            .1
    };
    assert_eq!(*get("remaining"), Value::Int(0));
    assert_eq!(get("retry_after"), get("next_after"));
    assert_eq!(get("reset_after"), get("next_after"));
}

#[test]
fn a_replica_inspects_and_refuses_to_charge() {
    let [primary, replica] = [Server::start(), Server::start()];
    replica.replica_of(&primary);
    let mut client = client(&primary);
    let mut other = replica.raw(Protocol::Resp2);
    for command in COMMANDS {
        ok(
            &mut client,
            &format!("{command} {command} 10 1000000 5 COST 3"),
        );
    }
    primary.wait_in_sync(&replica);
    for command in COMMANDS {
        let line = format!("RL.INSPECT {command} 6");
        assert_eq!(ok(&mut other, &line), ok(&mut client, &line));
    }
    for line in [
        "RL.MULTI 1 RL.FIXED 5 FIXED 10 1000000",
        "RL.REFUND RL.FIXED 1 5",
        "CL.THROTTLE k 1 2 3",
        "RL.MULTI 1 RL.FIXED 5 FIXED 10 1000000 PEEK",
    ] {
        let text = error(&mut other, line);
        assert!(text.starts_with("READONLY "), "{line}: {text}");
    }
}

#[test]
fn a_refund_moves_no_time_and_leaves_the_expiry() {
    let server = Server::start();
    let mut client = client(&server);
    let mut events = Events::of(&server);
    for command in COMMANDS {
        let charge = format!("{command} k 10 100000 50000 COST 4");
        rl(&mut client, &charge);
        events.sent(&mut client);
        let updated = |client: &mut Client| {
            let reply = ok(client, "RL.INSPECT k 50000");
            latin1(reply.items().unwrap()[17].bytes().unwrap())
        };
        for expiry in ["PEXPIRE k 5000000", "PERSIST k"] {
            ok(&mut client, expiry);
            let expires_ms = int(&mut client, "PEXPIRETIME k");
            events.sent(&mut client);
            // Later; and earlier, which counts as the newest time.
            for now in ["50001", "0", "50000"] {
                rl(&mut client, "RL.FIXED other 10 1 5 PEEK");
                let left = int(&mut client, &format!("RL.REFUND k 1 {now}"));
                assert!((6..=9).contains(&left), "{command}: {left}");
                assert_eq!(updated(&mut client), "50000", "{command}");
                assert_eq!(int(&mut client, "PEXPIRETIME k"), expires_ms, "{command}");
                assert_eq!(events.sent(&mut client), ["rl.refund k"], "{command}");
            }
            rl(&mut client, &format!("{command} k 10 100000 50000 COST 3"));
            events.sent(&mut client);
        }
        // Nothing is spent at a late time: nothing changes, and nobody hears of it.
        let before = dump(&mut client, "k");
        let offset = int(&mut client, "DBSIZE");
        assert_eq!(int(&mut client, "RL.REFUND k 5 900000"), 10, "{command}");
        assert_eq!(dump(&mut client, "k"), before);
        assert_eq!(int(&mut client, "DBSIZE"), offset);
        assert_eq!(events.sent(&mut client), [""; 0]);
        // More than is spent: a fresh limiter, so no key.
        assert_eq!(int(&mut client, "RL.REFUND k 9007199254740991 50000"), 10);
        assert_eq!(events.sent(&mut client), ["del k"], "{command}");
        assert_eq!(int(&mut client, "EXISTS k"), 0);
        assert!(ok(&mut client, "RL.REFUND k 1 50000").is_null());
        assert_eq!(events.sent(&mut client), [""; 0]);
    }
}

#[test]
fn a_refund_breaks_a_watch_only_if_it_changes() {
    let server = Server::start();
    let [mut watcher, mut client] = [(); 2].map(|()| client(&server));
    for command in COMMANDS {
        rl(&mut client, &format!("{command} k 10 100000 5 COST 4"));
        for (line, breaks) in [
            ("RL.REFUND k 1 900000", false),
            ("RL.REFUND none 1 5", false),
            ("RL.INSPECT k 5", false),
            ("RL.REFUND k 1 5", true),
            ("RL.REFUND k 10 5", true),
        ] {
            ok(&mut watcher, "WATCH k none");
            run(&mut client, line);
            ok(&mut watcher, "MULTI");
            ok(&mut watcher, "PING");
            assert_eq!(
                ok(&mut watcher, "EXEC").is_null(),
                breaks,
                "{command}: {line}"
            );
        }
    }
}

#[test]
fn several_are_replicated_as_they_came() {
    let [primary, replica] = [(); 2].map(|()| Server::builder().module_args(LONG_LIVED).start());
    replica.replica_of(&primary);
    let mut client = client(&primary);
    let mut monitor = Monitor::start(&replica);
    let sent = [
        "RL.MULTI 2 a b 5 FIXED 010 1000000.0009 cost 02 GCRA 10 1000000 BURST 9",
        "rl.multi 3 c g d * SLIDINGLOG 10 3155760000000 FIXED 10 1000000 TOKEN 5 3155760000000 COST 2 BURST 7 FORCE",
        "RL.MULTI 2 e f * SLIDINGCOUNTER 10 3155760000000 COST 0 FIXED 10 3155760000000 COST 3",
        "RL.REFUND a 1 6",
        "rl.refund f 1 *",
        "RL.REFUND f 2 *",
    ]
    .map(str::to_string);
    let silent = [
        "RL.MULTI 2 a b 5 FIXED 10 1000000 COST 10 GCRA 10 1000000",
        "RL.MULTI 2 a b * FIXED 10 1000000 GCRA 10 1000000 PEEK",
        "RL.MULTI 2 a b 5 FIXED 10 1000000 COST 0 GCRA 10 1000000 COST 0",
        "RL.MULTI 2 a b 5 FIXED 10 1000000 COST 0 GCRA 10 1000000 COST 0 FORCE",
        "RL.MULTI 2 a b 5 FIXED 10 1000000 FIXED 10 1000000",
        "RL.REFUND none 1 *",
        "RL.REFUND a 1 90000000",
        "RL.INSPECT a *",
    ];
    let before_ms = time_ms(&mut client) - 1;
    for line in &sent {
        ok(&mut client, line);
        for line in silent {
            run(&mut client, line);
        }
    }
    let after_ms = time_ms(&mut client) + 1;
    ok(&mut client, "SET end mark");
    let told: Vec<String> = monitor
        .until("mark")
        .into_iter()
        .filter(|line| !line.starts_with("SELECT"))
        .collect();
    // The last refund emptied its key, and is still told as itself.
    assert_told(&told, &sent, before_ms, after_ms);
    primary.wait_in_sync(&replica);
    let mut other = replica.raw(Protocol::Resp2);
    let dumps = all_dumps(&mut client);
    assert_eq!(
        dumps.keys().collect::<Vec<_>>(),
        ["a", "b", "c", "d", "end", "g"]
    );
    assert_eq!(all_dumps(&mut other), dumps);
}

/// Which keys a call charges, by number, and how much.
type Charges = Vec<(usize, i64)>;

#[test]
fn many_at_once_never_admit_more_than_each_limit() {
    const CONNECTIONS: u64 = 10;
    const CALLS: usize = 1000;
    let server = Server::builder().module_args(LONG_LIVED).start();
    // Shared keys with limits of their own, and by each connection another choice of them per call.
    let limits: [(&str, &str, i64); 6] = [
        ("k0", "FIXED", 700),
        ("k1", "SLIDINGLOG", 900),
        ("k2", "SLIDINGCOUNTER", 1100),
        ("k3", "TOKEN", 1300),
        ("k4", "GCRA", 1500),
        ("k5", "GCRA", 1700),
    ];
    let barrier = Barrier::new(CONNECTIONS as usize);
    let worker = &|seed: u64| {
        let mut client = server.raw(Protocol::Resp2);
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut admitted = [0; 6];
        let mut calls: Vec<(Charges, Vec<String>)> = Vec::new();
        for _ in 0..CALLS {
            let mut chosen: Vec<usize> = (0..6).collect();
            chosen.shuffle(&mut rng);
            chosen.truncate(rng.random_range(1..=4));
            let chosen: Charges = chosen
                .into_iter()
                .map(|at| (at, rng.random_range(1..=5)))
                .collect();
            let keys: Vec<&str> = chosen.iter().map(|(at, _)| limits[*at].0).collect();
            let clauses: Vec<String> = chosen
                .iter()
                .map(|(at, cost)| {
                    format!("{} {} 1000000 COST {cost}", limits[*at].1, limits[*at].2)
                })
                .collect();
            let line = format!(
                "RL.MULTI {} {} 5 {}",
                keys.len(),
                keys.join(" "),
                clauses.join(" ")
            );
            calls.push((chosen, words(&line)));
        }
        barrier.wait();
        for batch in calls.chunks(10) {
            let sent: Vec<Vec<String>> = batch.iter().map(|(_, words)| words.clone()).collect();
            for ((chosen, _), reply) in batch.iter().zip(client.pipeline(&sent).unwrap()) {
                let (allowed, _, each) = multi_reply(&reply);
                assert_eq!(allowed == 1, each.iter().all(|reply| reply[0] == 1));
                for (at, cost) in chosen.iter().filter(|_| allowed == 1) {
                    admitted[*at] += cost;
                }
            }
        }
        admitted
    };
    let admitted: Vec<[i64; 6]> = thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|seed| scope.spawn(move || worker(seed)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let mut client = client(&server);
    for (at, (key, algorithm, limit)) in limits.into_iter().enumerate() {
        let sum: i64 = admitted.iter().map(|each| each[at]).sum();
        assert!(sum <= limit, "{key}: {sum} of {limit}");
        // As much as was told is spent: all or none.
        let peek = rl(
            &mut client,
            &format!("RL.{algorithm} {key} {limit} 1000000 5 PEEK"),
        );
        assert_eq!(peek[2], limit - sum, "{key}");
        note(&format!("{key} {algorithm}: {sum} of {limit}"));
        // Alone, hardly a call is denied before the limit is reached: the walk came there.
        assert!(at > 0 || sum > limit - 5, "{key}: only {sum} of {limit}");
    }
}
