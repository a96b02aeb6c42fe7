//! The commands in a cluster of three: routing, and slots that move while calls go on.
//!
//! Calls with a given `now` are made beside the pure core, and every reply must be the core's, wherever its key is
//! at that moment. `RL_MOVES` is how often a slot moves.

#[path = "support/core.rs"]
mod pure;
mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use pure::{Key, policy};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis_rl::limit::{Algorithm, Call, Mode};
use support::cluster::{Cluster, Router, Ways, slot_of};
use support::live::{COMMANDS, dump, error, five, int, long_log, ok, rl, run, wait_until};
use support::resp::{Client, Value, latin1, patience};
use support::{note, number};

/// Keys outlive what they hold by far, so that none expires on the server's clock while `now` is the test's own.
const MARGIN: &str = "ttl-margin-ms 3600000";

fn algorithm(command: &str) -> Algorithm {
    match command {
        "RL.FIXED" => Algorithm::Fixed,
        "RL.SLIDINGLOG" => Algorithm::SlidingLog,
        "RL.SLIDINGCOUNTER" => Algorithm::SlidingCounter,
        "RL.TOKEN" => Algorithm::Token,
        "RL.GCRA" => Algorithm::Gcra,
        _ => unreachable!("{command}"),
    }
}

/// One limiter on the cluster and its double in the pure core.
struct Double {
    key: String,
    command: &'static str,
    limit: u64,
    core: Key,
}

const WINDOW_MS: u64 = 3_600_000;

/// Limiters that are called at random, each call beside the core.
struct Load {
    rng: SmallRng,
    doubles: Vec<Double>,
    now_ms: u64,
    calls: u64,
    admitted: u64,
    differences: Vec<String>,
}

impl Load {
    /// Five limiters for small limits, and five for limits that are never reached: there a log grows without end.
    fn new(tag: &str, seed: u64) -> Load {
        let doubles = COMMANDS
            .iter()
            .flat_map(|command| {
                [20, 1_000_000].map(|limit| Double {
                    key: format!("{{{tag}}}{command}:{limit}"),
                    command,
                    limit,
                    core: Key {
                        unchecked: true,
                        ..Key::default()
                    },
                })
            })
            .collect();
        Load {
            rng: SmallRng::seed_from_u64(seed),
            doubles,
            now_ms: 1_700_000_000_000,
            calls: 0,
            admitted: 0,
            differences: Vec::new(),
        }
    }

    /// One call, random, by way of the router.
    fn step(&mut self, router: &mut Router) {
        // Backwards too, at times; that counts as the newest time.
        self.now_ms += self.rng.random_range(0..4) * self.rng.random_range(0..2000);
        let now_ms = self.now_ms - self.rng.random_range(0..20) / 19 * 500;
        match self.rng.random_range(0..20) {
            0 => self.refund(router, now_ms),
            1 | 2 => self.several(router, now_ms),
            3 => self.look(router, now_ms),
            _ => self.single(router, now_ms),
        }
        self.calls += 1;
    }

    fn judge<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, got: &T, want: &T) {
        if got != want {
            self.differences
                .push(format!("{what}: {got:?}, the core says {want:?}"));
        }
    }

    fn single(&mut self, router: &mut Router, now_ms: u64) {
        let at = self.rng.random_range(0..self.doubles.len());
        let cost = self.rng.random_range(0..6);
        let (option, mode) = match self.rng.random_range(0..12) {
            0 => ("PEEK", Mode::Peek),
            1 => ("FORCE", Mode::Force),
            2 if cost > 0 => ("PARTIAL", Mode::Partial),
            _ => ("", Mode::Charge),
        };
        let double = &mut self.doubles[at];
        let line = format!(
            "{} {} {} {WINDOW_MS} {now_ms} COST {cost} {option}",
            double.command, double.key, double.limit
        );
        let call = Call {
            policy: policy(double.limit, WINDOW_MS * 1000, double.limit),
            now_us: now_ms * 1000,
            cost,
            mode,
        };
        let want = double
            .core
            .call(algorithm(double.command), &call)
            .expect("a small debt");
        self.admitted += u64::from(want[0] > 0 && mode != Mode::Peek);
        let reply = call_line(router, &line);
        self.judge(&line, &reply, &Value::ints(&want));
    }

    fn several(&mut self, router: &mut Router, now_ms: u64) {
        let first = self.rng.random_range(0..self.doubles.len());
        let second = (first + self.rng.random_range(1..self.doubles.len())) % self.doubles.len();
        let mut line = "RL.MULTI 2".to_string();
        for at in [first, second] {
            line += &format!(" {}", self.doubles[at].key);
        }
        line += &format!(" {now_ms}");
        for at in [first, second] {
            let Double { command, limit, .. } = &self.doubles[at];
            line += &format!(" {} {limit} {WINDOW_MS}", &command[3..]);
        }
        let mut ask = |mode: Mode| {
            [first, second].map(|at| {
                let double = &mut self.doubles[at];
                let call = Call {
                    policy: policy(double.limit, WINDOW_MS * 1000, double.limit),
                    now_us: now_ms * 1000,
                    cost: 1,
                    mode,
                };
                double
                    .core
                    .call(algorithm(double.command), &call)
                    .expect("a small debt")
            })
        };
        let peeked = ask(Mode::Peek);
        let allowed = peeked.iter().all(|reply| reply[0] == 1);
        let inner = if allowed { ask(Mode::Charge) } else { peeked };
        let retry = inner.iter().map(|reply| reply[3]).max().expect("two");
        let want = Value::Array(vec![
            Value::Int(i64::from(allowed)),
            Value::Int(if allowed { 0 } else { retry }),
            Value::Array(inner.iter().map(|reply| Value::ints(reply)).collect()),
        ]);
        self.admitted += u64::from(allowed);
        let reply = call_line(router, &line);
        self.judge(&line, &reply, &want);
    }

    fn refund(&mut self, router: &mut Router, now_ms: u64) {
        let at = self.rng.random_range(0..self.doubles.len());
        let units = self.rng.random_range(1..4);
        let double = &mut self.doubles[at];
        let line = format!("RL.REFUND {} {units} {now_ms}", double.key);
        let want = double.core.refund(units, now_ms * 1000);
        let reply = call_line(router, &line);
        let got = if reply.is_null() { None } else { reply.int() };
        let want = want.map(|units| i64::try_from(units).expect("few"));
        self.judge(&line, &got, &want);
    }

    fn look(&mut self, router: &mut Router, now_ms: u64) {
        let at = self.rng.random_range(0..self.doubles.len());
        let double = &self.doubles[at];
        let line = format!("RL.INSPECT {} {now_ms}", double.key);
        let want = double
            .core
            .state
            .as_ref()
            .map(|state| i64::try_from(state.inspect(now_ms * 1000).remaining).expect("few"));
        let reply = call_line(router, &line);
        let got = reply.items().and_then(|items| {
            items
                .iter()
                .skip_while(|item| **item != Value::bulk("remaining"))
                .nth(1)?
                .int()
        });
        self.judge(&line, &got, &want);
    }

    /// Entries for the logs whose limit is never reached.
    fn lengthen(&mut self, client: &mut Client, entries: u64) {
        let command = "RL.SLIDINGLOG";
        let double = self
            .doubles
            .iter_mut()
            .find(|double| double.command == command && double.limit > 100)
            .expect("there is one");
        let mut calls = Vec::new();
        let mut want = Vec::new();
        for _ in 0..entries {
            self.now_ms += 1;
            let line = format!(
                "{command} {} {} {WINDOW_MS} {}",
                double.key, double.limit, self.now_ms
            );
            calls.push(line.split(' ').map(str::to_string).collect());
            let call = Call {
                policy: policy(double.limit, WINDOW_MS * 1000, double.limit),
                now_us: self.now_ms * 1000,
                cost: 1,
                mode: Mode::Charge,
            };
            want.push(Value::ints(
                &double
                    .core
                    .call(Algorithm::SlidingLog, &call)
                    .expect("no debt"),
            ));
        }
        assert_eq!(client.pipeline(&calls).expect("the node answers"), want);
    }

    fn report(&self, what: &str, moves: u64, ways: Ways) {
        note(&format!(
            "{what}: {moves} moves, {} calls ({} admitted), {} differences; MOVED {}, ASK {}, TRYAGAIN and the like {}",
            self.calls,
            self.admitted,
            self.differences.len(),
            ways.moved,
            ways.asked,
            ways.again
        ));
        let first = &self.differences[..self.differences.len().min(5)];
        assert!(first.is_empty(), "{first:#?}");
    }
}

fn call_line(router: &mut Router, line: &str) -> Value {
    let words: Vec<&str> = line.split_whitespace().collect();
    router.call(&words)
}

/// Runs the load on another thread while `work` goes on, and until it has made some more calls after it.
fn under_load(load: &mut Load, router: &mut Router, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let loader = scope.spawn(move || {
            let mut more = 300;
            while more > 0 {
                load.step(router);
                if over.load(Ordering::Relaxed) || !load.differences.is_empty() {
                    more -= 1;
                }
            }
        });
        // The loader must end even if the work fails.
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        loader.join().expect("the load goes on");
        if let Err(why) = worked {
            std::panic::resume_unwind(why);
        }
    });
}

/// Moves a slot as an operator does by hand, a few keys at a time.
fn move_by_hand(cluster: &Cluster, slot: u16, from: usize, to: usize) {
    let [source, target] = [from, to].map(|at| &cluster.nodes[at]);
    let [mut here, mut there] = [source.client(), target.client()];
    ok(
        &mut there,
        &format!("CLUSTER SETSLOT {slot} IMPORTING {}", source.id),
    );
    ok(
        &mut here,
        &format!("CLUSTER SETSLOT {slot} MIGRATING {}", target.id),
    );
    loop {
        let keys = ok(&mut here, &format!("CLUSTER GETKEYSINSLOT {slot} 2"));
        let keys: Vec<String> = keys
            .items()
            .expect("a list")
            .iter()
            .map(|key| latin1(key.bytes().expect("a key is a text")))
            .collect();
        if keys.is_empty() {
            break;
        }
        let line = format!(
            "MIGRATE 127.0.0.1 {}  0 5000 KEYS {}",
            target.server.port(),
            keys.join(" ")
        );
        // The empty key before the database is what KEYS wants, and a line of words cannot say it.
        let mut words: Vec<&str> = line.split(' ').collect();
        words[3] = "";
        let reply = here.call(&words).expect("MIGRATE answers");
        assert!(reply.error().is_none(), "{line}: {reply:?}");
        // Calls find the slot half moved for a while.
        thread::sleep(std::time::Duration::from_millis(3));
    }
    ok(
        &mut there,
        &format!("CLUSTER SETSLOT {slot} NODE {}", target.id),
    );
    ok(
        &mut here,
        &format!("CLUSTER SETSLOT {slot} NODE {}", target.id),
    );
    for node in &cluster.nodes {
        // A replica learns it from its primary.
        if node.role() == "master" {
            ok(
                &mut node.client(),
                &format!("CLUSTER SETSLOT {slot} NODE {}", target.id),
            );
        }
    }
}

#[test]
fn a_call_finds_its_way_from_any_node() {
    let cluster = Cluster::start(3, 1, MARGIN);
    note(&format!(
        "server: {}",
        cluster.nodes[0].server.version_text()
    ));
    let mut served = [0; 3];
    for start in 0..3 {
        let mut router = cluster.router();
        for (i, command) in COMMANDS.iter().cycle().take(60).enumerate() {
            // Everything is asked of one node first, and MOVED leads on.
            router.believe(cluster.nodes[start].server.port());
            let key = format!("user:{start}:{i}");
            let owner = cluster.owner(slot_of(key.as_bytes()));
            served[owner] += 1;
            let moved = router.ways.moved;
            let line = format!("{command} {key} 10 3600000 5 COST 3");
            assert_eq!(
                five(&call_line(&mut router, &line))[..3],
                [1, 10, 7],
                "{line}"
            );
            assert_eq!(
                router.ways.moved - moved,
                u64::from(owner != start),
                "{line}"
            );
            assert_eq!(
                int(&mut cluster.nodes[owner].client(), &format!("EXISTS {key}")),
                1
            );
            router.believe(cluster.nodes[start].server.port());
            assert_eq!(
                call_line(&mut router, &format!("RL.REFUND {key} 2 5")),
                Value::Int(9)
            );
            router.believe(cluster.nodes[start].server.port());
            let shown = call_line(&mut router, &format!("RL.INSPECT {key} 5"));
            assert_eq!(shown.items().map(<[Value]>::len), Some(18));
            let name = &command[3..];
            router.believe(cluster.nodes[start].server.port());
            let line =
                format!("RL.MULTI 2 {{{key}}}a {{{key}}}b 5 {name} 10 3600000 FIXED 10 3600000");
            let reply = call_line(&mut router, &line);
            assert_eq!(reply.items().expect("a list")[0], Value::Int(1), "{line}");
        }
    }
    assert!(served.iter().all(|count| *count > 20), "{served:?}");

    // The replica of the owner shows what it has to who asks for it, and charges nothing.
    let key = "user:0:0";
    let owner = cluster.owner(slot_of(key.as_bytes()));
    let (primary, replica) = (&cluster.nodes[owner], &cluster.nodes[owner + 3]);
    primary.server.wait_in_sync(&replica.server);
    let mut reader = replica.client();
    let moved = format!(
        "MOVED {} 127.0.0.1:{}",
        slot_of(key.as_bytes()),
        primary.server.port()
    );
    assert_eq!(error(&mut reader, &format!("RL.INSPECT {key} 5")), moved);
    ok(&mut reader, "READONLY");
    let here = ok(&mut primary.client(), &format!("RL.INSPECT {key} 5"));
    assert_eq!(ok(&mut reader, &format!("RL.INSPECT {key} 5")), here);
    for line in [
        format!("RL.FIXED {key} 10 3600000 5"),
        format!("RL.FIXED {key} 10 3600000 5 PEEK"),
        format!("RL.REFUND {key} 1 5"),
        format!("RL.MULTI 1 {key} 5 FIXED 10 3600000 PEEK"),
    ] {
        assert_eq!(error(&mut reader, &line), moved, "{line}");
    }
    assert_eq!(dump(&mut reader, key), dump(&mut primary.client(), key));

    // In a transaction, and in a script that says its key, a foreign key is refused and nothing is charged.
    let mut foreign = cluster.nodes[(owner + 1) % 3].client();
    let before = dump(&mut primary.client(), key);
    ok(&mut foreign, "MULTI");
    assert_eq!(
        error(&mut foreign, &format!("RL.FIXED {key} 10 3600000 5")),
        moved
    );
    assert!(error(&mut foreign, "EXEC").starts_with("EXECABORT"));
    let script = "return redis.call('RL.FIXED', KEYS[1], 10, 3600000, 5)";
    let reply = foreign
        .call(&["EVAL", script, "1", key])
        .expect("an answer");
    assert_eq!(reply.error().as_deref(), Some(moved.as_str()));
    let script = "return redis.call('RL.FIXED', ARGV[1], 10, 3600000, 5)";
    let reply = foreign
        .call(&["EVAL", script, "0", key])
        .expect("an answer");
    assert!(
        reply.error().expect("refused").contains("non local key"),
        "{reply:?}"
    );
    assert_eq!(dump(&mut primary.client(), key), before);
}

/// As a half moved slot is: what is there is served, what is not is asked for elsewhere.
#[test]
fn a_half_moved_slot_serves_each_key_where_it_is() {
    let cluster = Cluster::start(3, 0, MARGIN);
    let slot = slot_of(b"h");
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    let [source, target] = [from, to].map(|at| &cluster.nodes[at]);
    let [mut here, mut there] = [source.client(), target.client()];
    for command in COMMANDS {
        rl(
            &mut here,
            &format!("{command} {{h}}{command}:old 10 3600000 5 COST 4"),
        );
    }
    let before: BTreeMap<String, Vec<u8>> = support::live::all_dumps(&mut here);
    let expiry = int(&mut here, "PEXPIRETIME {h}RL.GCRA:old");
    ok(
        &mut there,
        &format!("CLUSTER SETSLOT {slot} IMPORTING {}", source.id),
    );
    ok(
        &mut here,
        &format!("CLUSTER SETSLOT {slot} MIGRATING {}", target.id),
    );
    let ask = format!("ASK {slot} 127.0.0.1:{}", target.server.port());
    let moved = format!("MOVED {slot} 127.0.0.1:{}", source.server.port());
    for command in COMMANDS {
        let call = |kind: &str| format!("{command} {{h}}{command}:{kind} 10 3600000 5");
        // There is one here, and there will be another.
        assert_eq!(rl(&mut here, &format!("{} PEEK", call("old")))[2], 6);
        assert_eq!(error(&mut here, &call("new")), ask);
        assert_eq!(error(&mut here, &format!("{} PEEK", call("new"))), ask);
        assert_eq!(
            error(&mut here, &format!("RL.INSPECT {{h}}{command}:new 5")),
            ask
        );
        assert_eq!(
            error(&mut here, &format!("RL.REFUND {{h}}{command}:new 1 5")),
            ask
        );
        assert_eq!(error(&mut there, &call("new")), moved);
        ok(&mut there, "ASKING");
        assert_eq!(rl(&mut there, &call("new"))[..3], [1, 10, 9]);
        // ASKING is for one call.
        assert_eq!(error(&mut there, &call("new")), moved);
        // One key here and one there: nobody can serve both.
        let name = &command[3..];
        let both = format!(
            "RL.MULTI 2 {{h}}{command}:old {{h}}{command}:new 5 {name} 10 3600000 {name} 10 3600000"
        );
        assert!(error(&mut here, &both).starts_with("TRYAGAIN"));
        ok(&mut there, "ASKING");
        assert!(error(&mut there, &both).starts_with("TRYAGAIN"));
        // Two keys that are both there.
        let late = format!(
            "RL.MULTI 2 {{h}}{command}:new {{h}}{command}:new2 5 {name} 10 3600000 {name} 10 3600000"
        );
        assert_eq!(error(&mut here, &late), ask);
    }
    assert_eq!(
        support::live::all_dumps(&mut here),
        before,
        "nothing was charged on the way"
    );
    move_by_hand(&cluster, slot, from, to);
    assert_eq!(int(&mut here, "DBSIZE"), 0);
    for (key, bytes) in &before {
        assert_eq!(dump(&mut there, key).as_ref(), Some(bytes), "{key}");
        let algorithm = key.trim_start_matches("{h}").trim_end_matches(":old");
        assert_eq!(
            rl(
                &mut there,
                &format!("{algorithm} {key} 10 3600000 5 COST 6")
            )[..3],
            [1, 10, 0]
        );
    }
    // The time to live is counted from the arrival.
    let arrived = int(&mut there, "PEXPIRETIME {h}RL.GCRA:old");
    assert!(arrived >= expiry - 1, "{arrived} {expiry}");
}

#[test]
fn a_slot_moved_by_hand_changes_no_decision() {
    let cluster = Cluster::start(3, 0, MARGIN);
    let slot = slot_of(b"m");
    let mut load = Load::new("m", number("RL_SEED", 1));
    let mut router = cluster.router();
    load.lengthen(&mut cluster.nodes[cluster.owner(slot)].client(), 20_000);
    for _ in 0..2000 {
        load.step(&mut router);
    }
    let moves = number("RL_MOVES", 12);
    under_load(&mut load, &mut router, || {
        for _ in 0..moves {
            let from = cluster.owner(slot);
            move_by_hand(&cluster, slot, from, (from + 1) % 3);
        }
    });
    load.report("by hand", moves, router.ways);
    assert!(
        router.ways.moved > 0 && router.ways.asked > 0,
        "{:?}",
        router.ways
    );
}

/// Whether the server can move slots by itself; says so where it cannot.
fn moves_slots(cluster: &Cluster) -> bool {
    let server = &cluster.nodes[0].server;
    let (name, version) = server.version();
    let since = if name == "valkey" {
        (9, 0, 0)
    } else {
        (8, 4, 0)
    };
    if version < since {
        note(&format!(
            "NOT RUN: atomic slot migration: {} has none",
            server.version_text()
        ));
    }
    version >= since
}

/// Has the server move a slot, and does not wait for it.
fn move_by_server(cluster: &Cluster, slot: u16, from: usize, to: usize) {
    let [source, target] = [from, to].map(|at| &cluster.nodes[at]);
    let (at, line) = if source.server.version().0 == "valkey" {
        let id = &target.id;
        let line = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {id}");
        (source, line)
    } else {
        (target, format!("CLUSTER MIGRATION IMPORT {slot} {slot}"))
    };
    ok(&mut at.client(), &line);
}

/// The same where the server moves slots by itself, and the calls see it only at the end.
#[test]
fn a_slot_moved_by_the_server_changes_no_decision() {
    let cluster = Cluster::start(3, 1, MARGIN);
    if !moves_slots(&cluster) {
        return;
    }
    let slot = slot_of(b"m");
    let mut load = Load::new("m", number("RL_SEED", 2));
    let mut router = cluster.router();
    load.lengthen(&mut cluster.nodes[cluster.owner(slot)].client(), 20_000);
    for _ in 0..2000 {
        load.step(&mut router);
    }
    let moves = number("RL_MOVES", 4).min(20);
    under_load(&mut load, &mut router, || {
        for _ in 0..moves {
            let from = cluster.owner(slot);
            let to = (from + 1) % 3;
            move_by_server(&cluster, slot, from, to);
            wait_until("the slot has moved", || cluster.owner(slot) == to);
        }
    });
    load.report("by the server", moves, router.ways);
    assert!(router.ways.moved > 0, "{:?}", router.ways);
    // The replicas have followed.
    let owner = cluster.owner(slot);
    let (primary, replica) = (&cluster.nodes[owner], &cluster.nodes[owner + 3]);
    primary.server.wait_in_sync(&replica.server);
    let mut reader = replica.client();
    ok(&mut reader, "READONLY");
    for double in &load.doubles {
        assert_eq!(
            dump(&mut reader, &double.key),
            dump(&mut primary.client(), &double.key),
            "{}",
            double.key
        );
    }
}

/// What comes with a slot was let in where it comes from, whatever the new node thinks of its time.
#[test]
fn calls_that_follow_a_slot_are_not_judged_again() {
    let cluster = Cluster::start(3, 0, MARGIN);
    if !moves_slots(&cluster) {
        return;
    }
    let slot = slot_of(b"m");
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    let [mut here, mut there] = [from, to].map(|at| cluster.nodes[at].client());
    long_log(&mut here, "{m}log", 200_000);
    ok(&mut there, "CONFIG SET ratelimit.max-skew-ms 1");
    move_by_server(&cluster, slot, from, to);
    let [single, several] = [
        "RL.FIXED {m}a 1000000 31557600000 1700000000000",
        "RL.MULTI 2 {m}b {m}c 1700000000000 GCRA 1000000 31557600000 BURST 2000000 TOKEN 1000000 31557600000 FORCE",
    ];
    let [mut singles, mut severals] = [0, 0];
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < patience(60), "the slot does not move");
        if run(&mut here, single).error().is_some() {
            break;
        }
        singles += 1;
        if run(&mut here, several).error().is_some() {
            break;
        }
        severals += 1;
    }
    wait_until("the slot has moved", || cluster.owner(slot) == to);
    assert!(severals > 0);
    ok(&mut there, "CONFIG SET ratelimit.max-skew-ms 0");
    for (line, remaining) in [
        (
            "RL.FIXED {m}a 1000000 31557600000 1700000000000 PEEK",
            1_000_000 - singles,
        ),
        (
            "RL.GCRA {m}b 1000000 31557600000 1700000000000 BURST 2000000 PEEK",
            2_000_000 - severals,
        ),
        (
            "RL.TOKEN {m}c 1000000 31557600000 1700000000000 PEEK",
            1_000_000 - severals,
        ),
    ] {
        assert_eq!(rl(&mut there, line)[2], remaining, "{line}");
    }
    note(&format!(
        "{singles} and {severals} calls came with the slot"
    ));
}

#[test]
fn acl_patterns_hold_on_every_node() {
    let cluster = Cluster::start(3, 0, MARGIN);
    for node in &cluster.nodes {
        ok(&mut node.client(), "ACL SETUSER ann on >secret ~a* +@all");
        ok(
            &mut node.client(),
            "ACL SETUSER ron on >secret %R~a* %R~{a}* +@all",
        );
        ok(&mut node.client(), "ACL SETUSER tag on >secret ~{a}* +@all");
    }
    let mut ann = cluster.router().auth("ann", "secret");
    let mut ron = cluster.router().auth("ron", "secret");
    let mut tag = cluster.router().auth("tag", "secret");
    let refused = |reply: Value, line: &str| {
        let text = reply.error().unwrap_or_default();
        assert!(text.starts_with("NOPERM"), "{line}: {reply:?}");
    };
    for i in 0..12 {
        for command in COMMANDS {
            let line = format!("{command} a:{command}:{i} 10 3600000 5");
            assert_eq!(five(&call_line(&mut ann, &line))[2], 9);
            refused(call_line(&mut ron, &line), &line);
            let line = format!("{command} b:{command}:{i} 10 3600000 5");
            refused(call_line(&mut ann, &line), &line);
        }
        let line = format!("RL.INSPECT a:RL.GCRA:{i} 5");
        assert!(call_line(&mut ron, &line).error().is_none());
        let line = format!("RL.REFUND a:RL.GCRA:{i} 1 5");
        refused(call_line(&mut ron, &line), &line);
        let line = format!("RL.INSPECT b:{i} 5");
        refused(call_line(&mut ron, &line), &line);
        // One key that is not allowed and nothing is charged, whichever it is.
        for (one, other) in [("{a}", "b{a}"), ("b{a}", "{a}")] {
            let line = format!("RL.MULTI 2 {one}{i} {other}{i} 5 GCRA 10 3600000 FIXED 10 3600000");
            refused(call_line(&mut tag, &line), &line);
        }
        let line = format!("RL.MULTI 2 {{a}}{i} {{a}}x{i} 5 GCRA 10 3600000 FIXED 10 3600000");
        let reply = call_line(&mut tag, &line);
        assert_eq!(reply.items().expect("a list")[0], Value::Int(1), "{line}");
        refused(call_line(&mut ron, &line), &line);
    }
    let kept: i64 = cluster
        .nodes
        .iter()
        .map(|node| int(&mut node.client(), "DBSIZE"))
        .sum();
    // Each GCRA of ann is there, too: a refund was refused.
    assert_eq!(kept, 12 * 5 + 12 * 2);
}
