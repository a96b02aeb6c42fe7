//! The module's configuration: `loadmodule` arguments, redis.conf, CONFIG; and what it changes.

mod support;

use support::live::{
    COMMANDS, Monitor, all_dumps, error, int, ok, rl, run, save_and_restart, time_ms,
};
use support::resp::{Client, Protocol, Value, latin1};
use support::{Server, Shutdown};

const MOST: &str = "3155760000000";

fn client(server: &Server) -> Client {
    server.raw(Protocol::Resp2)
}

/// What CONFIG GET tells: margin, skew, names.
fn config(client: &mut Client) -> [String; 3] {
    ["ttl-margin-ms", "max-skew-ms", "compat-names"].map(|name| {
        let reply = ok(client, &format!("CONFIG GET ratelimit.{name}"));
        let items = reply.items().unwrap();
        assert_eq!(items[0], Value::bulk(format!("ratelimit.{name}")));
        latin1(items[1].bytes().unwrap())
    })
}

#[test]
fn defaults_and_arguments_and_lines() {
    for (args, lines, want) in [
        ("", vec![], ["1000", "0", "yes"]),
        ("ttl-margin-ms 200", vec![], ["200", "0", "yes"]),
        (
            "compat-names no max-skew-ms 5000 ttl-margin-ms 1",
            vec![],
            ["1", "5000", "no"],
        ),
        (
            "TTL-MARGIN-MS 0300 Compat-Names YES",
            vec![],
            ["300", "0", "yes"],
        ),
        (
            "max-skew-ms 3155760000000 ttl-margin-ms 3155760000000",
            vec![],
            [MOST, MOST, "yes"],
        ),
        ("max-skew-ms 1 max-skew-ms 2", vec![], ["1000", "2", "yes"]),
        (
            "",
            vec![
                ("ratelimit.ttl-margin-ms", "70"),
                ("ratelimit.compat-names", "no"),
            ],
            ["70", "0", "no"],
        ),
        // A line wins over an argument.
        (
            "ttl-margin-ms 5 max-skew-ms 6",
            vec![("ratelimit.ttl-margin-ms", "70")],
            ["70", "6", "yes"],
        ),
    ] {
        let mut builder = Server::builder().module_args(args);
        for (name, value) in lines {
            builder = builder.arg(name, value);
        }
        let server = builder.start();
        let mut client = client(&server);
        assert_eq!(config(&mut client), want, "{args}");
        let known = run(&mut client, "GCRA k 1 1 1").error().is_none();
        assert_eq!(known, want[2] == "yes", "{args}");
        let all = ok(&mut client, "CONFIG GET ratelimit.*");
        assert_eq!(all.items().unwrap().len(), 6);
    }
}

const WRONG_ARGS: &[(&str, &str)] = &[
    (
        "nope 1",
        "unknown module argument 'nope', it must be ttl-margin-ms, max-skew-ms or compat-names and a value",
    ),
    (
        "ratelimit.max-skew-ms 1",
        "unknown module argument 'ratelimit.max-skew-ms'",
    ),
    ("max-skew-ms 1 5", "unknown module argument '5'"),
    (
        "ttl-margin-ms",
        "module argument 'ttl-margin-ms' needs a value",
    ),
    (
        "max-skew-ms 5 compat-names",
        "module argument 'compat-names' needs a value",
    ),
    (
        "ttl-margin-ms 0",
        "module argument ttl-margin-ms must be a whole number from 1 to 3155760000000, got '0'",
    ),
    (
        "ttl-margin-ms 3155760000001",
        "ttl-margin-ms must be a whole number from 1 to 3155760000000",
    ),
    (
        "max-skew-ms -1",
        "max-skew-ms must be a whole number from 0 to 3155760000000, got '-1'",
    ),
    ("max-skew-ms 1.5", "max-skew-ms must be a whole number"),
    ("max-skew-ms 1s", "max-skew-ms must be a whole number"),
    (
        "compat-names maybe",
        "module argument compat-names must be yes or no, got 'maybe'",
    ),
];

#[test]
fn a_wrong_argument_keeps_the_module_out_and_the_log_says_why() {
    for (args, says) in WRONG_ARGS {
        match Server::builder().module_args(args).try_start() {
            Ok(_) => panic!("{args}: the server started"),
            Err(said) => assert!(said.contains(says), "{args}: {said}"),
        }
    }
    for (name, value) in [
        ("ratelimit.ttl-margin-ms", "0"),
        ("ratelimit.max-skew-ms", "x"),
        ("ratelimit.compat-names", "maybe"),
        ("ratelimit.nope", "1"),
    ] {
        match Server::builder().arg(name, value).try_start() {
            Ok(_) => panic!("{name} {value}: the server started"),
            // Some servers do not name the line, but all say that it is a module's configuration.
            Err(said) => assert!(
                said.contains(name) || said.contains("Module Configuration"),
                "{name} {value}: {said}"
            ),
        }
    }
}

/// Where the module under test is, as a server tells.
fn module_path() -> String {
    let server = Server::start();
    let reply = ok(&mut client(&server), "MODULE LIST");
    // Newer servers have modules of their own in the list.
    let modules = reply.items().unwrap().iter();
    let mut modules = modules.map(|module| module.items().unwrap());
    let module = modules
        .find(|module| module.contains(&Value::bulk("ratelimit")))
        .expect("it is loaded");
    let at = module.iter().position(|item| *item == Value::bulk("path"));
    latin1(module[at.expect("a path") + 1].bytes().unwrap())
}

/// A data type would: servers keep it when its module fails to load.
#[test]
fn a_load_that_fails_leaves_no_memory() {
    let path = module_path();
    let server = Server::builder().module(false).start();
    let mut client = client(&server);
    // It keeps calls, and is not what this is about.
    ok(&mut client, "CONFIG SET slowlog-log-slower-than -1");
    let used = |client: &mut Client| {
        let loads = vec![vec!["MODULE", "LOAD", &path, "ttl-margin-ms", "0"]; 1000];
        for reply in client.pipeline(&loads).unwrap() {
            assert!(reply.error().is_some(), "{reply:?}");
        }
        let used: u64 = server.info_field("used_memory").unwrap().parse().unwrap();
        used
    };
    // At first the server's own buffers fill.
    let before = used(&mut client);
    let after = used(&mut client);
    assert!(after < before + 65_536, "{before} {after}");
}

#[test]
fn loading_fails_as_a_whole_and_can_be_tried_again() {
    let path = module_path();
    let server = Server::builder().module(false).start();
    let mut client = client(&server);
    for (args, says) in WRONG_ARGS {
        error(&mut client, &format!("MODULE LOAD {path} {args}"));
        assert!(server.log().contains(says), "{args}");
        assert!(error(&mut client, "RL.GCRA k 1 1 1").starts_with("ERR unknown command"));
        assert_eq!(
            ok(&mut client, "CONFIG GET ratelimit.*"),
            Value::Array(vec![])
        );
    }
    error(
        &mut client,
        &format!("MODULE LOADEX {path} CONFIG ratelimit.ttl-margin-ms 0"),
    );
    ok(
        &mut client,
        &format!("MODULE LOADEX {path} CONFIG ratelimit.max-skew-ms 7 ARGS ttl-margin-ms 50"),
    );
    assert_eq!(config(&mut client), ["50", "7", "yes"]);
    assert_eq!(rl(&mut client, "RL.GCRA k 1 1000 *")[0], 1);
    // Once is enough.
    error(&mut client, &format!("MODULE LOAD {path}"));
    assert_eq!(config(&mut client), ["50", "7", "yes"]);
}

#[test]
fn config_set_judges_and_rewrite_keeps() {
    let mut server = Server::builder().module_args("ttl-margin-ms 200").start();
    let mut admin = client(&server);
    for line in [
        "CONFIG SET ratelimit.ttl-margin-ms 0",
        "CONFIG SET ratelimit.ttl-margin-ms -5",
        "CONFIG SET ratelimit.ttl-margin-ms 3155760000001",
        "CONFIG SET ratelimit.max-skew-ms -1",
        "CONFIG SET ratelimit.max-skew-ms x",
        "CONFIG SET ratelimit.compat-names no",
        "CONFIG SET ratelimit.compat-names yes",
        "CONFIG SET ratelimit.nope 1",
        // All of them or none.
        "CONFIG SET ratelimit.max-skew-ms 5 ratelimit.ttl-margin-ms 0",
    ] {
        error(&mut admin, line);
        assert_eq!(config(&mut admin), ["200", "0", "yes"], "{line}");
    }
    assert!(error(&mut admin, "CONFIG SET ratelimit.compat-names no").contains("immutable"));
    ok(
        &mut admin,
        "CONFIG SET ratelimit.max-skew-ms 5000 ratelimit.ttl-margin-ms 300",
    );
    assert_eq!(config(&mut admin), ["300", "5000", "yes"]);
    ok(&mut admin, "CONFIG REWRITE");
    save_and_restart(&mut server);
    let mut admin = client(&server);
    assert_eq!(config(&mut admin), ["300", "5000", "yes"]);
    // Back to none.
    ok(&mut admin, "CONFIG SET ratelimit.max-skew-ms 0");
    ok(&mut admin, "CONFIG REWRITE");
    server.stop(Shutdown::NoSave);
    server.start_again();
    assert_eq!(config(&mut client(&server)), ["300", "0", "yes"]);
}

#[test]
fn the_margin_is_how_long_a_key_outlives_its_reset() {
    let server = Server::start();
    let mut client = client(&server);
    for command in COMMANDS {
        for margin_ms in [1000, 100_000, 1, 2, 3_155_760_000_000, 50_000] {
            ok(
                &mut client,
                &format!("CONFIG SET ratelimit.ttl-margin-ms {margin_ms}"),
            );
            let before_ms = time_ms(&mut client);
            let reply = rl(&mut client, &format!("{command} k 1000 500000 5"));
            let after_ms = time_ms(&mut client) + 1;
            let expires_ms = int(&mut client, "PEXPIRETIME k");
            let least_ms = before_ms + reply[4] + margin_ms / 2;
            let most_ms = after_ms + reply[4] + margin_ms;
            assert!(
                (least_ms..=most_ms).contains(&expires_ms),
                "{command} {margin_ms}: {expires_ms} is not from {least_ms} to {most_ms}"
            );
        }
        ok(&mut client, "DEL k");
    }
    // It lives no longer than the margin says, and no shorter.
    ok(&mut client, "CONFIG SET ratelimit.ttl-margin-ms 1");
    rl(&mut client, "RL.FIXED k 10 1 0.5");
    support::live::wait_until("the key expires", || int(&mut client, "EXISTS k") == 0);
}

/// The two times in an error about skew: the server's and the caller's.
fn skew(text: &str, most_ms: i64) -> (f64, String) {
    let start = format!("ERR now must be within {most_ms} ms of the server's clock, which is ");
    let rest = text
        .strip_prefix(&start)
        .unwrap_or_else(|| panic!("{text}"));
    let (server, got) = rest
        .split_once(", got ")
        .unwrap_or_else(|| panic!("{text}"));
    (server.parse().unwrap(), got.to_string())
}

const TIMED: &[&str] = &[
    "RL.FIXED fixed 10 1000000 @",
    "RL.SLIDINGLOG log 10 1000000 @ COST 2",
    "RL.SLIDINGCOUNTER counter 10 1000000 @ FORCE",
    "RL.TOKEN token 10 1000000 @ BURST 5",
    "RL.GCRA gcra 10 1000000 @ PEEK",
    "RL.MULTI 2 fixed new @ FIXED 10 1000000 GCRA 10 1000000",
    "RL.MULTI 2 fixed new @ FIXED 10 1000000 GCRA 10 1000000 PEEK",
    "RL.INSPECT log @",
    "RL.INSPECT none @",
    "RL.REFUND log 1 @",
    "RL.THROTTLE gcra 1 2 3 1 @",
];

#[test]
fn a_clock_too_far_from_the_servers_is_refused_with_both() {
    let server = Server::builder().module_args("max-skew-ms 60000").start();
    let mut client = client(&server);
    ok(&mut client, "RL.SLIDINGLOG log 10 1000000 * COST 3");
    let before = all_dumps(&mut client);
    for line in TIMED {
        for now in [-61_000, 61_000, 9_000_000_000, i64::MIN] {
            let before_ms = time_ms(&mut client);
            let now = if now == i64::MIN {
                "5".to_string()
            } else {
                format!("{}.25", before_ms + now)
            };
            let call = line.replace('@', &now);
            let text = error(&mut client, &call);
            let (server_ms, got) = skew(&text, 60_000);
            assert_eq!(got, now, "{call}");
            let after_ms = time_ms(&mut client) + 1;
            assert!(
                before_ms as f64 <= server_ms && server_ms <= after_ms as f64,
                "{call}: {text}"
            );
        }
        assert_eq!(all_dumps(&mut client), before, "{line}");
    }
    // Near enough, or the server's own.
    for line in TIMED {
        for skew in [-55_000, 0, 55_000] {
            let now = (time_ms(&mut client) + skew).to_string();
            ok(&mut client, &line.replace('@', &now));
        }
        ok(&mut client, &line.replace('@', "*"));
    }
    ok(&mut client, "CL.THROTTLE cl 1 2 3");
    // A bad number is told first.
    assert!(error(&mut client, "RL.FIXED k 10 1000 x").contains("got 'x'"));
    assert!(error(&mut client, "RL.FIXED k 10 1000 5 FOO").contains("unknown option"));
    // In a script and in a transaction as anywhere.
    let script = [
        "EVAL",
        "return redis.pcall('RL.FIXED', KEYS[1], 1, 1000, 5).err",
        "1",
        "k",
    ];
    let reply = client.call(&script).unwrap();
    assert!(latin1(reply.bytes().unwrap()).contains("now must be within 60000 ms"));
    ok(&mut client, "MULTI");
    ok(&mut client, "RL.FIXED k 1 1000 5");
    let reply = ok(&mut client, "EXEC");
    assert!(
        reply.items().unwrap()[0]
            .error()
            .unwrap()
            .contains("now must be within")
    );
    // Off: any clock will do.
    ok(&mut client, "CONFIG SET ratelimit.max-skew-ms 0");
    ok(&mut client, "RL.FIXED any 10 1000 5");
    ok(&mut client, "RL.FIXED any 10 1000 9007199254740.991");
    ok(&mut client, "CONFIG SET ratelimit.max-skew-ms 1");
    error(&mut client, "RL.FIXED any 10 1000 5");
}

#[test]
fn what_was_let_in_once_is_not_judged_again() {
    let mut primary = Server::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .module_args("ttl-margin-ms 100000000")
        .start();
    // Stricter, with no room for any clock, and with another margin.
    let replica = Server::builder()
        .arg("appendonly", "yes")
        .arg("ratelimit.max-skew-ms", "1")
        .module_args("compat-names no ttl-margin-ms 200000000")
        .start();
    replica.replica_of(&primary);
    let mut client = client(&primary);
    let mut monitor = Monitor::start(&replica);
    for now in ["5", "9000000000000", "*"] {
        for line in TIMED {
            run(&mut client, &line.replace('@', now));
        }
    }
    ok(&mut client, "MULTI");
    ok(&mut client, "RL.FIXED a 10 1000000 5");
    ok(
        &mut client,
        "RL.MULTI 2 a b 6 FIXED 10 1000000 TOKEN 10 1000000",
    );
    ok(&mut client, "EXEC");
    let script = "redis.call('RL.FIXED', KEYS[1], 10, 1000000, 5) return redis.call('RL.REFUND', KEYS[1], 1, 5)";
    client.call(&["EVAL", script, "1", "c"]).unwrap();
    client
        .call(&[
            "EVAL",
            &script.replace(", 1, 5", ", 1, 4").replace("10,", "11,"),
            "1",
            "d",
        ])
        .unwrap();
    ok(&mut client, "RL.FIXED d 11 1000000 5 COST 2");
    ok(&mut client, "SET end mark");
    assert!(monitor.until("mark").len() > 20);
    primary.wait_in_sync(&replica);
    let dumps = all_dumps(&mut client);
    assert!(dumps.len() >= 9, "{:?}", dumps.keys());
    let mut other = replica.raw(Protocol::Resp2);
    assert_eq!(all_dumps(&mut other), dumps);
    // Its own clients are judged.
    assert!(error(&mut other, "RL.INSPECT log 5").contains("now must be within 1 ms"));
    // The band is that of the server that runs the charge.
    for (client, margin_ms) in [(&mut client, 100_000_000), (&mut other, 200_000_000)] {
        let ttl_ms = int(client, "PTTL d");
        assert!(
            (margin_ms / 2..=margin_ms + 1_000_000).contains(&ttl_ms),
            "{ttl_ms}"
        );
    }
    // Nor is a replayed AOF.
    ok(
        &mut client,
        "CONFIG SET ratelimit.max-skew-ms 1 appendfsync always",
    );
    ok(&mut client, "CONFIG REWRITE");
    primary.restart();
    let mut client = primary.raw(Protocol::Resp2);
    assert_eq!(config(&mut client)[1], "1");
    assert_eq!(all_dumps(&mut client), dumps);
    ok(&mut client, "DEBUG LOADAOF");
    assert_eq!(all_dumps(&mut client), dumps);
    error(&mut client, "RL.FIXED a 10 1000000 5");
}
