//! What an operator sees: INFO, RL.TOP, keyspace events, the ACL category, RL.HELP.

mod support;

use support::live::{
    COMMANDS, Events, error, info_number, int, ok, rl, run, save_and_restart, wait_until,
};
use support::resp::{Client, Protocol, Value, latin1};
use support::{Server, note};

const FIELDS: [&str; 8] = [
    "checks",
    "allowed",
    "denied",
    "forced",
    "errors",
    "units_admitted",
    "units_refused",
    "live",
];

fn client(server: &Server) -> Client {
    server.raw(Protocol::Resp2)
}

fn name(command: &str) -> String {
    command[3..].to_lowercase()
}

/// The counts of one algorithm, in the order of [`FIELDS`].
fn counts(server: &Server, command: &str) -> [i64; 8] {
    FIELDS.map(|field| info_number(server, &format!("ratelimit_{}_{field}", name(command))))
}

fn live(server: &Server) -> [i64; 5] {
    COMMANDS.map(|command| counts(server, command)[7])
}

#[test]
fn info_counts_exactly() {
    let server = Server::start();
    let mut client = client(&server);
    ok(&mut client, "SET text x");
    for command in COMMANDS {
        assert_eq!(counts(&server, command), [0; 8], "{command}");
        let mut want = [0; 8];
        for (line, counted) in [
            // checks, allowed, denied, forced, errors, admitted, refused, live
            ("@ k 5 100000 5 COST 3", [1, 1, 0, 0, 0, 3, 0, 1]),
            ("@ k 5 100000 5 COST 3", [1, 0, 1, 0, 0, 0, 3, 0]),
            ("@ k 5 100000 5 COST 5 PARTIAL", [1, 1, 0, 0, 0, 2, 3, 0]),
            ("@ k 5 100000 5 COST 2 PARTIAL", [1, 0, 1, 0, 0, 0, 2, 0]),
            ("@ k 5 100000 5 COST 4 FORCE", [1, 1, 0, 1, 0, 4, 0, 0]),
            ("@ k 5 100000 5 PEEK", [1, 0, 0, 0, 0, 0, 0, 0]),
            ("@ k 5 100000 5 COST 0", [1, 0, 1, 0, 0, 0, 0, 0]),
            ("@ k 5 100000 5 COST 0 FORCE", [1, 1, 0, 1, 0, 0, 0, 0]),
            ("@ k 5 100000 x", [0, 0, 0, 0, 1, 0, 0, 0]),
            ("@ text 5 100000 5", [0, 0, 0, 0, 1, 0, 0, 0]),
            ("@ none 5 100000 5 COST 6", [1, 0, 1, 0, 0, 0, 6, 0]),
            ("@ other 5 100000 5", [1, 1, 0, 0, 0, 1, 0, 1]),
            // Refunds and looks are no checks.
            ("RL.REFUND other 1 5", [0, 0, 0, 0, 0, 0, 0, -1]),
            ("RL.INSPECT k 5", [0; 8]),
            ("RL.INSPECT text 5", [0; 8]),
            // Several: each that charges, or, if one denies, those that deny.
            (
                "RL.MULTI 2 a b 5 # 5 100000 # 5 100000 COST 2",
                [2, 2, 0, 0, 0, 3, 0, 2],
            ),
            (
                "RL.MULTI 2 a b 5 # 5 100000 # 5 100000 COST 4",
                [1, 0, 1, 0, 0, 0, 4, 0],
            ),
            (
                "RL.MULTI 2 a b 5 # 5 100000 # 5 100000 PEEK",
                [2, 0, 0, 0, 0, 0, 0, 0],
            ),
            (
                "RL.MULTI 2 a b 5 # 5 100000 # 5 100000 COST 4 FORCE",
                [2, 2, 0, 2, 0, 5, 0, 0],
            ),
            (
                "RL.MULTI 2 a text 5 # 5 100000 # 5 100000",
                [0, 0, 0, 0, 1, 0, 0, 0],
            ),
            // Whose error it is cannot be told.
            ("RL.MULTI 2 a b 5 # 5 100000", [0; 8]),
            ("DEL k a b", [0, 0, 0, 0, 0, 0, 0, -3]),
        ] {
            let line = line.replace('@', command).replace('#', &command[3..]);
            run(&mut client, &line);
            for (want, counted) in want.iter_mut().zip(counted) {
                *want += counted;
            }
            assert_eq!(counts(&server, command), want, "{line}");
        }
    }
    // The names of other limiters are GCRA.
    let before = counts(&server, "RL.GCRA");
    for line in [
        "CL.THROTTLE k 4 1 1000 2",
        "RL.THROTTLE k 4 1 1000 9",
        "GCRA k 4 1 1000 TOKENS 0",
        "GCRA k 4 1 x",
    ] {
        run(&mut client, line);
    }
    let gained: Vec<i64> = counts(&server, "RL.GCRA")
        .iter()
        .zip(before)
        .map(|(now, before)| now - before)
        .collect();
    assert_eq!(gained, [3, 2, 1, 0, 1, 2, 9, 1]);
    // A section of its own.
    let section = ok(&mut client, "INFO ratelimit");
    let section = latin1(section.bytes().unwrap());
    assert!(section.contains("# ratelimit"), "{section}");
    assert_eq!(section.matches(':').count(), 40, "{section}");
    ok(&mut client, "CONFIG RESETSTAT");
}

#[test]
fn a_replica_counts_what_arrives() {
    let [primary, replica] = [Server::start(), Server::start()];
    replica.replica_of(&primary);
    let mut client = client(&primary);
    for command in COMMANDS {
        rl(
            &mut client,
            &format!("{command} {command} 5 100000 5 COST 3"),
        );
        rl(
            &mut client,
            &format!("{command} {command} 5 100000 5 COST 3"),
        );
        rl(
            &mut client,
            &format!("{command} {command} 5 100000 5 COST 3 FORCE"),
        );
    }
    primary.wait_in_sync(&replica);
    for command in COMMANDS {
        assert_eq!(
            counts(&primary, command),
            [3, 2, 1, 1, 0, 6, 3, 1],
            "{command}"
        );
        assert_eq!(
            counts(&replica, command),
            [2, 2, 0, 1, 0, 6, 0, 1],
            "{command}"
        );
    }
}

#[test]
fn the_living_are_counted_through_everything() {
    let mut server = Server::builder()
        .module_args("ttl-margin-ms 100000000")
        .start();
    let mut client = client(&server);
    let fill = |client: &mut Client, from: usize, to: usize| {
        let calls: Vec<Vec<String>> = COMMANDS
            .iter()
            .flat_map(|command| {
                (from..to).map(move |i| {
                    // The second charge makes a log one that needs memory of its own.
                    format!("{command} {command}:{i} 10 1000000 {}", i % 7)
                        .split(' ')
                        .map(str::to_string)
                        .collect()
                })
            })
            .collect();
        for _ in 0..2 {
            for reply in client.pipeline(&calls).unwrap() {
                assert!(reply.error().is_none(), "{reply:?}");
            }
        }
    };
    fill(&mut client, 0, 100);
    assert_eq!(live(&server), [100; 5]);
    for command in COMMANDS {
        ok(&mut client, &format!("DEL {command}:0 {command}:1"));
        ok(&mut client, &format!("UNLINK {command}:2"));
        ok(&mut client, &format!("SET {command}:3 x"));
        ok(&mut client, &format!("RENAME {command}:5 {command}:4"));
        ok(&mut client, &format!("COPY {command}:6 {command}:copy"));
        ok(
            &mut client,
            &format!("COPY {command}:7 {command}:8 REPLACE"),
        );
        ok(&mut client, &format!("PEXPIRE {command}:9 1"));
        ok(&mut client, &format!("RL.REFUND {command}:10 10 1000"));
        ok(&mut client, &format!("MOVE {command}:11 1"));
    }
    // Gone: 0 to 3, one of the renamed, the expired, the refunded; come: the copy.
    // What goes may be freed in the background, whatever way it goes: Valkey does so unless told otherwise.
    wait_until("the expired are gone", || live(&server) == [94; 5]);
    let sum = int(&mut client, "DBSIZE");
    assert_eq!(sum, 5 * 94, "with five strings, without five moved");
    ok(&mut client, "SWAPDB 0 1");
    ok(&mut client, "SWAPDB 0 1");
    assert_eq!(live(&server), [94; 5]);
    ok(&mut client, "DEBUG RELOAD");
    wait_until("the old ones are gone", || live(&server) == [94; 5]);
    save_and_restart(&mut server);
    let mut client = server.raw(Protocol::Resp2);
    assert_eq!(live(&server), [94; 5]);
    ok(&mut client, "FLUSHDB ASYNC");
    wait_until("the flushed are gone", || live(&server) == [1; 5]);
    ok(&mut client, "FLUSHALL");
    wait_until("the flushed are gone", || live(&server) == [0; 5]);
    fill(&mut client, 0, 2000);
    assert_eq!(live(&server), [2000; 5]);
    ok(&mut client, "FLUSHALL ASYNC");
    wait_until("the flushed are gone", || live(&server) == [0; 5]);
}

/// The rows of RL.TOP.
fn top(client: &mut Client, rest: &str) -> Vec<(String, i64)> {
    let reply = ok(client, &format!("RL.TOP {rest}"));
    let items = reply.items().unwrap();
    items
        .chunks(2)
        .map(|pair| (latin1(pair[0].bytes().unwrap()), pair[1].int().unwrap()))
        .collect()
}

fn deny(client: &mut Client, key: &str, times: usize) {
    let call: Vec<String> = format!("RL.GCRA {key} 1 1000 5 COST 2")
        .split(' ')
        .map(str::to_string)
        .collect();
    for reply in client.pipeline(&vec![call; times]).unwrap() {
        assert_eq!(reply, Value::ints(&[0, 1, 1, -1, 0]));
    }
}

fn rows(rows: &[(&str, i64)]) -> Vec<(String, i64)> {
    rows.iter()
        .map(|(key, count)| ((*key).to_string(), *count))
        .collect()
}

/// Counts are halved with every minute of the server's clock: these tests do their work within one.
fn within_a_minute(mut work: impl FnMut()) {
    let minute = || {
        std::time::SystemTime::now()
            .duration_since(std::time::SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    while minute() % 60 > 50 {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    work();
}

#[test]
fn top_names_the_most_denied_first() {
    within_a_minute(|| {
        let server = Server::start();
        let mut client = client(&server);
        assert_eq!(top(&mut client, ""), []);
        for (i, key) in ["d", "b", "c", "a"].iter().enumerate() {
            deny(&mut client, key, i + 1);
        }
        assert_eq!(
            top(&mut client, ""),
            rows(&[("a", 4), ("c", 3), ("b", 2), ("d", 1)])
        );
        assert_eq!(top(&mut client, "COUNT 2"), rows(&[("a", 4), ("c", 3)]));
        assert_eq!(top(&mut client, "count 1000").len(), 4);
        // What is no denial of a call that asked for units is not counted.
        for line in [
            "RL.GCRA d 1 1000 5",
            "RL.GCRA d 1 1000 5 COST 2 PEEK",
            "RL.GCRA d 1 1000 5 COST 9 FORCE",
            "RL.GCRA d 1 1000 5 COST 0",
            "RL.GCRA d 0 1000 5",
            "RL.MULTI 2 d e 5 GCRA 1 1000 GCRA 1 1000 PEEK",
        ] {
            run(&mut client, line);
        }
        assert_eq!(top(&mut client, "")[3], ("d".to_string(), 1));
        // Every way to be denied is.
        for line in [
            "RL.GCRA d 1 1000 5 PARTIAL",
            "RL.MULTI 2 d e 5 GCRA 1 1000 GCRA 1 1000",
            "CL.THROTTLE d 0 1 1 2",
            "RL.FIXED f 1 1000 5 COST 2",
        ] {
            run(&mut client, line);
        }
        assert_eq!(
            top(&mut client, ""),
            rows(&[("a", 4), ("d", 4), ("c", 3), ("b", 2), ("f", 1)])
        );
        // Ten, unless told.
        for i in 0..20 {
            deny(&mut client, &format!("k{i}"), 10 + i);
        }
        assert_eq!(top(&mut client, "").len(), 10);
        assert_eq!(top(&mut client, "")[0], ("k19".to_string(), 29));
        assert_eq!(top(&mut client, "COUNT 100").len(), 25);
        // Each database has its own.
        ok(&mut client, "SELECT 1");
        assert_eq!(top(&mut client, ""), []);
        deny(&mut client, "a", 2);
        assert_eq!(top(&mut client, ""), rows(&[("a", 2)]));
        let mut three = server.raw(Protocol::Resp3);
        ok(&mut three, "SELECT 1");
        assert_eq!(
            ok(&mut three, "RL.TOP"),
            Value::Map(vec![(Value::bulk("a"), Value::Int(2))])
        );
        for (line, says) in [
            ("RL.TOP COUNT", "ERR option COUNT needs a value"),
            (
                "RL.TOP COUNT 0",
                "ERR count must be a whole number from 1 to 1000, got '0'",
            ),
            ("RL.TOP COUNT 1001", "ERR count must"),
            ("RL.TOP COUNT 5 6", "ERR unknown argument '6'"),
            ("RL.TOP RESET now", "ERR unknown argument 'now'"),
            (
                "RL.TOP 5",
                "ERR unknown argument '5', it must be COUNT n or RESET",
            ),
        ] {
            let text = error(&mut client, line);
            assert!(text.starts_with(says), "{line}: {text}");
        }
        assert_eq!(ok(&mut client, "RL.TOP reset"), Value::simple("OK"));
        assert_eq!(top(&mut client, ""), []);
        ok(&mut client, "SELECT 0");
        assert_eq!(top(&mut client, ""), []);
        deny(&mut client, "z", 1);
        assert_eq!(top(&mut client, ""), rows(&[("z", 1)]));
    });
}

#[test]
fn a_flood_of_keys_hides_no_heavy_one_and_takes_no_memory() {
    within_a_minute(|| {
        let server = Server::start();
        let mut client = client(&server);
        // In each round two heavy keys and 50 that never come again.
        let round = |client: &mut Client, i: usize| {
            deny(client, "heavy", 4);
            deny(client, "half", 2);
            let calls: Vec<Vec<String>> = (0..50)
                .map(|j| {
                    format!("RL.GCRA once:{i}:{j} 1 1000 5 COST 2")
                        .split(' ')
                        .map(str::to_string)
                        .collect()
                })
                .collect();
            client.pipeline(&calls).unwrap();
        };
        for i in 0..100 {
            round(&mut client, i);
        }
        let before = info_number(&server, "used_memory");
        for i in 100..400 {
            round(&mut client, i);
        }
        let grown = info_number(&server, "used_memory") - before;
        assert!(grown < 80_000, "{grown} bytes for 15,000 keys");
        let shown = top(&mut client, "COUNT 1000");
        assert_eq!(shown.len(), 1000);
        assert_eq!(shown[0].0, "heavy");
        assert_eq!(shown[1].0, "half");
        // Never too low, at most a 128th of all too high.
        let most = 400 * 56 / 128;
        assert!(
            (1600..=1600 + most).contains(&shown[0].1),
            "{:?}",
            &shown[..2]
        );
        assert!(
            (800..=800 + most).contains(&shown[1].1),
            "{:?}",
            &shown[..2]
        );
        // A long key is shown up to 1024 bytes.
        ok(&mut client, "RL.TOP RESET");
        let long = "x".repeat(5000);
        deny(&mut client, &long, 3);
        assert_eq!(top(&mut client, ""), rows(&[(&long[..1024], 3)]));
        assert_eq!(int(&mut client, "DBSIZE"), 0);
    });
}

/// True where a module can put its commands into the server's own ACL categories.
fn has_categories(server: &Server) -> bool {
    let (name, version) = server.version();
    name == "valkey" || version >= (7, 2, 0)
}

#[test]
fn top_is_for_administrators() {
    let server = Server::start();
    let mut admin = client(&server);
    deny(&mut admin, "secret", 1);
    ok(&mut admin, "ACL SETUSER app on nopass ~* +@all -@admin");
    ok(&mut admin, "ACL SETUSER ops on nopass +@admin");
    let mut app = client(&server);
    ok(&mut app, "AUTH app x");
    if !has_categories(&server) {
        // The server puts no module's command into a category: it must be named.
        ok(&mut app, "RL.TOP");
        ok(&mut admin, "ACL SETUSER app -rl.top -rl.restore");
        ok(&mut admin, "ACL SETUSER ops +rl.top");
    }
    for line in ["RL.TOP", "RL.TOP RESET", "RL.RESTORE k 1 x"] {
        assert!(error(&mut app, line).starts_with("NOPERM"), "{line}");
    }
    ok(&mut app, "RL.GCRA k 1 1000 5");
    ok(&mut app, "RL.HELP");
    let mut ops = client(&server);
    ok(&mut ops, "AUTH ops x");
    assert_eq!(top(&mut ops, "").len(), 1);
    ok(&mut ops, "RL.TOP RESET");
}

#[test]
fn the_acl_category_is_there_where_the_server_can() {
    let server = Server::start();
    let mut admin = client(&server);
    let can = match server.version() {
        ("valkey", _) => true,
        (_, version) => version >= (7, 4, 0),
    };
    let categories = ok(&mut admin, "ACL CAT");
    let has = categories
        .items()
        .unwrap()
        .iter()
        .any(|name| name.bytes() == Some(b"ratelimit"));
    assert_eq!(has, can, "{}", server.version_text());
    note(&format!(
        "{}: category @ratelimit {has}",
        server.version_text()
    ));
    for (command, own) in [
        ("rl.fixed", "@fast @write"),
        ("rl.slidinglog", "@fast @write"),
        ("rl.slidingcounter", "@fast @write"),
        ("rl.token", "@fast @write"),
        ("rl.gcra", "@fast @write"),
        ("rl.multi", "@fast @write"),
        ("rl.refund", "@fast @write"),
        ("rl.inspect", "@fast @read"),
        ("rl.top", "@admin @dangerous @read @slow"),
        ("rl.help", "@fast"),
        ("rl.restore", "@admin @dangerous @slow @write"),
        ("rl.throttle", "@fast @write"),
        ("cl.throttle", "@fast @write"),
        ("gcra", "@fast @write"),
    ] {
        let mut want: Vec<&str> = if has_categories(&server) {
            own.split(' ').collect()
        } else {
            Vec::new()
        };
        if can {
            want.push("@ratelimit");
        }
        want.sort_unstable();
        let info = ok(&mut admin, &format!("COMMAND INFO {command}"));
        let listed = info.items().unwrap()[0].items().unwrap()[6]
            .items()
            .unwrap()
            .to_vec();
        let mut listed: Vec<String> = listed
            .iter()
            .map(|name| latin1(name.bytes().unwrap()))
            .collect();
        listed.sort();
        assert_eq!(listed, want, "{command}");
    }
    if !can {
        assert!(error(&mut admin, "ACL SETUSER app on nopass ~* +@ratelimit").contains("ategory"));
        return;
    }
    ok(
        &mut admin,
        "ACL SETUSER app on nopass ~* +@ratelimit -@admin",
    );
    let mut app = client(&server);
    ok(&mut app, "AUTH app x");
    ok(&mut app, "RL.GCRA k 1 1000 5");
    ok(&mut app, "CL.THROTTLE k 1 1 1");
    ok(&mut app, "RL.INSPECT k 5");
    assert!(error(&mut app, "SET k x").starts_with("NOPERM"));
    assert!(error(&mut app, "RL.TOP").starts_with("NOPERM"));
    // Without the right to write.
    ok(&mut admin, "ACL SETUSER app -@write");
    assert!(error(&mut app, "RL.GCRA k 1 1000 5").starts_with("NOPERM"));
    ok(&mut app, "RL.INSPECT k 5");
}

#[test]
fn events_of_the_companions() {
    let server = Server::start();
    let mut client = client(&server);
    let mut events = Events::of(&server);
    for (line, want) in [
        (
            "RL.MULTI 2 a b 5 FIXED 2 100000 GCRA 3 100000",
            vec!["rl.charge a", "rl.charge b"],
        ),
        ("RL.MULTI 2 a b 5 FIXED 2 100000 GCRA 3 100000 PEEK", vec![]),
        (
            "RL.MULTI 2 a b 5 FIXED 2 100000 COST 0 GCRA 3 100000",
            vec!["rl.charge b"],
        ),
        // The one that denies.
        (
            "RL.MULTI 2 a b 5 FIXED 2 100000 GCRA 3 100000 COST 2",
            vec!["rl.denied b"],
        ),
        (
            "RL.MULTI 2 a b 5 FIXED 2 100000 GCRA 3 100000 COST 2",
            vec![],
        ),
        (
            "RL.MULTI 2 a b 5 FIXED 2 100000 COST 2 GCRA 3 100000 COST 2",
            vec!["rl.denied a"],
        ),
        (
            "RL.MULTI 2 a b 5 FIXED 2 100000 COST 2 GCRA 3 100000 COST 2 FORCE",
            vec!["rl.charge a", "rl.charge b"],
        ),
        (
            "RL.MULTI 2 b a 5 GCRA 3 100000 FIXED 2 100000",
            vec!["rl.denied b", "rl.denied a"],
        ),
        ("RL.MULTI 2 a b 5 FIXED 2 100000 FIXED 3 100000", vec![]),
        ("RL.INSPECT a 5", vec![]),
        ("RL.REFUND a 1 5", vec!["rl.refund a"]),
        ("RL.REFUND a 5 5", vec!["del a"]),
        ("RL.REFUND a 5 5", vec![]),
        ("RL.REFUND b 1 900000", vec![]),
        // A refund lets nobody in by itself: the next denial is not the first after an allowed call.
        ("RL.REFUND b 1 5", vec!["rl.refund b"]),
        ("RL.GCRA b 3 100000 5 COST 3", vec![]),
        ("CL.THROTTLE c 0 1 1000", vec!["rl.charge c"]),
        ("CL.THROTTLE c 0 1 1000 0", vec![]),
        ("CL.THROTTLE c 0 1 1000", vec!["rl.denied c"]),
        ("GCRA c 0 1 1000", vec![]),
        ("RL.TOP", vec![]),
    ] {
        run(&mut client, line);
        assert_eq!(events.sent(&mut client), want, "{line}");
    }
}

#[test]
fn help_names_every_command() {
    let server = Server::start();
    let mut client = client(&server);
    let help = ok(&mut client, "RL.HELP");
    let lines: Vec<String> = help
        .items()
        .unwrap()
        .iter()
        .map(|line| latin1(line.bytes().unwrap()))
        .collect();
    for command in COMMANDS.iter().chain(&[
        "RL.MULTI",
        "RL.INSPECT",
        "RL.REFUND",
        "RL.TOP",
        "RL.THROTTLE",
        "RL.HELP",
    ]) {
        assert!(
            lines
                .iter()
                .any(|line| line.split(' ').next() == Some(command)),
            "{command}"
        );
    }
    assert!(error(&mut client, "RL.HELP x").starts_with("ERR wrong number of arguments"));
}
