//! The commands as a client meets them: arguments, errors, options, expiry, and where they can be called from.

mod support;

use support::Server;
use support::live::{
    COMMANDS, charge_in_band, clock_stands_still, dump, error, five, has_burst, int, ok, rl, run,
    time_ms,
};
use support::resp::{Client, Protocol, Value, latin1};

const UNITS: &str = "from 1 to 9007199254740991";
const COSTS: &str = "from 0 to 9007199254740991";
const WINDOWS: &str = "from 0.001 to 3155760000000";
const NOWS: &str = "from 0 to 9007199254740.991";

const NOT_COUNTS: &[&str] = &[
    "",
    "-1",
    "+1",
    "1.0",
    "1.",
    "1e3",
    "0x10",
    " 1",
    "1 ",
    "1\r\n",
    "*",
    "nan",
    "inf",
    "9007199254740992",
    "18446744073709551617",
    "99999999999999999999999999999999999999",
    "1\0",
    "\u{661}",
];
const NOT_TIMES: &[&str] = &[
    "", "-1", "+5", ".5", "5.", ".", "1.2.3", "1e3", "0x10", " 5", "5 ", "5\n", "5.0a", "5.000a",
    "**", "nan", "inf", "1,5", "5.-1", "5.+1",
];

const NOT_WINDOWS: &[&str] = &[
    "0",
    "0.0",
    "0.0009",
    "3155760000000.001",
    "3155760000001",
    "*",
    "18446744073709551616",
];
const NOT_NOWS: &[&str] = &[
    "9007199254740.992",
    "9007199254741",
    "18446744073709551.616",
];

fn both() -> (Server, [Client; 2]) {
    // No key of a test expires while the machine is busy elsewhere.
    clients("ttl-margin-ms 3600000")
}

fn clients(module_args: &str) -> (Server, [Client; 2]) {
    let server = Server::builder().module_args(module_args).start();
    let clients = [server.raw(Protocol::Resp2), server.raw(Protocol::Resp3)];
    (server, clients)
}

/// The error that a call, whose arguments may hold blanks, must answer.
fn refused<A: AsRef<[u8]> + std::fmt::Debug>(client: &mut Client, args: &[A]) -> String {
    let reply = client.call(args).expect("the server answers");
    let text = reply
        .error()
        .unwrap_or_else(|| panic!("{args:?}: an error was due, got {reply:?}"));
    assert!(text.starts_with("ERR "), "{args:?}: {text}");
    text
}

fn names(text: &str, words: &[&str], call: &dyn std::fmt::Debug) {
    for word in words {
        assert!(text.contains(word), "{call:?}: no {word:?} in {text:?}");
    }
}

#[test]
fn a_number_that_is_none_or_out_of_range_is_named_with_its_range() {
    let (_server, [mut two, mut three]) = both();
    for command in COMMANDS {
        let key = format!("{command}:live");
        rl(&mut two, &format!("{command} {key} 10 1000 5 COST 2"));
        let before = dump(&mut two, &key);
        // The place of the argument, its name, its range, and wrong values: the usual ones, and more.
        type Row = (
            usize,
            &'static str,
            &'static str,
            [&'static [&'static str]; 2],
        );
        let mut table: Vec<Row> = vec![
            (2, "limit", UNITS, [NOT_COUNTS, &["0", "000"]]),
            (3, "window", WINDOWS, [NOT_TIMES, NOT_WINDOWS]),
            (4, "now", NOWS, [NOT_TIMES, NOT_NOWS]),
            (6, "cost", COSTS, [NOT_COUNTS, &[]]),
        ];
        if has_burst(command) {
            table.push((8, "burst", UNITS, [NOT_COUNTS, &["0"]]));
        }
        for (place, name, range, bad) in table {
            for bad in bad.concat() {
                for key in [key.as_str(), "missing"] {
                    let mut args = vec![command, key, "10", "1000", "5", "COST", "1"];
                    if has_burst(command) {
                        args.extend(["BURST", "10"]);
                    }
                    args[place] = bad;
                    for client in [&mut two, &mut three] {
                        names(&refused(client, &args), &[name, range], &args);
                    }
                }
            }
        }
        assert_eq!(dump(&mut two, &key), before, "{command}");
        assert_eq!(int(&mut two, "EXISTS missing"), 0, "{command}");
    }
}

#[test]
fn the_edges_of_every_range_are_right() {
    let (_server, [mut client, _]) = both();
    for command in COMMANDS {
        for (i, (call, limit)) in [
            ("1 0.001 0", 1),
            ("9007199254740991 0.001 0", 9_007_199_254_740_991),
            (
                "9007199254740991 3155760000000 9007199254740.991",
                9_007_199_254_740_991,
            ),
            ("1 3155760000000.0009 9007199254740.9919999", 1),
            ("1 0.0019 0.0009", 1),
            ("5 1000 * COST 0", 5),
            ("5 1000 * COST 9007199254740991 PEEK", 5),
        ]
        .iter()
        .enumerate()
        {
            let reply = rl(&mut client, &format!("{command} {command}:{i} {call}"));
            assert_eq!(reply[1], *limit, "{command} {call}");
        }
        if has_burst(command) {
            let call = format!("{command} {command}:b 9007199254740991 1000 5 BURST");
            assert_eq!(rl(&mut client, &format!("{call} 1"))[1], 1);
            assert_eq!(
                rl(&mut client, &format!("{call} 9007199254740991"))[1],
                9_007_199_254_740_991
            );
        }
    }
}

#[test]
fn a_number_may_be_written_in_several_ways() {
    let (_server, [mut client, _]) = both();
    for command in COMMANDS {
        let plain = rl(
            &mut client,
            &format!("{command} plain 7 1500.25 3.5 COST 2"),
        );
        let state = dump(&mut client, "plain");
        for (i, call) in [
            "007 1500.250 3.50 COST 02",
            "000000000000000000000000000000000000007 0001500.25 03.5 COST 2",
            "7 1500.2509 3.5009999999999999999999999999 COST 2",
            "7 00000000000000000000000000001500.25 0000000000000000000000003.5000 cost 2",
        ]
        .iter()
        .enumerate()
        {
            let key = format!("way{i}");
            assert_eq!(rl(&mut client, &format!("{command} {key} {call}")), plain);
            assert_eq!(dump(&mut client, &key), state, "{command} {call}");
        }
        ok(&mut client, "FLUSHALL");
    }
}

#[test]
fn a_bucket_that_takes_too_long_to_drain_is_refused() {
    let (_server, [mut client, _]) = both();
    for command in ["RL.TOKEN", "RL.GCRA"] {
        for (policy, most, too_much) in [
            ("1 3155760000000 5", 10, 11_i64),
            ("2 3155760000000 5", 20, 21),
            ("1000 1 5", 9_007_199_254_740_991_i64, 0),
            ("1 1 5", 31_557_600_000_000, 31_557_600_000_001),
            ("3 1.001 5", 94_578_221_778_221, 94_578_221_778_222),
        ] {
            let reply = rl(
                &mut client,
                &format!("{command} k {policy} BURST {most} PEEK"),
            );
            assert_eq!(reply[1], most);
            if too_much > 0 {
                let line = format!("{command} k {policy} BURST {too_much}");
                names(
                    &error(&mut client, &line),
                    &[
                        "ERR",
                        "burst",
                        "limit",
                        "window",
                        "1000 years",
                        "31557600000000",
                    ],
                    &line,
                );
            }
        }
        assert_eq!(int(&mut client, "EXISTS k"), 0);
    }
}

#[test]
fn a_wrong_option_is_named() {
    let (_server, [mut two, mut three]) = both();
    for command in COMMANDS {
        let key = format!("{command}:live");
        rl(&mut two, &format!("{command} {key} 10 1000 5"));
        let before = dump(&mut two, &key);
        let mut table: Vec<(&str, &[&str])> = vec![
            ("FOO", &["FOO"]),
            ("PEEKS", &["PEEKS"]),
            ("COS 1", &["COS"]),
            ("7", &["7"]),
            ("PEEK 7", &["7"]),
            ("COST 1 2", &["2"]),
            ("COST", &["COST", "value"]),
            ("PEEK COST", &["COST", "value"]),
            ("COST 1 COST 1", &["COST", "twice"]),
            ("COST 1 PEEK cost 2", &["COST", "twice"]),
            ("PEEK PEEK", &["PEEK", "twice"]),
            ("FORCE COST 1 force", &["FORCE", "twice"]),
            ("PARTIAL PARTIAL", &["PARTIAL", "twice"]),
            ("PEEK FORCE", &["PEEK", "FORCE"]),
            ("FORCE PEEK", &["PEEK", "FORCE"]),
            ("PEEK PARTIAL", &["PEEK", "PARTIAL"]),
            ("PARTIAL COST 2 FORCE", &["PARTIAL", "FORCE"]),
            (
                "PARTIAL COST 0",
                &["cost", "from 1 to 9007199254740991", "PARTIAL"],
            ),
            (
                "COST 0 PARTIAL",
                &["cost", "from 1 to 9007199254740991", "PARTIAL"],
            ),
        ];
        if has_burst(command) {
            table.push(("BURST", &["BURST", "value"]));
            table.push(("BURST 5 BURST 5", &["BURST", "twice"]));
        } else {
            table.push(("BURST 5", &["BURST"]));
            table.push(("BURST", &["BURST"]));
        }
        for (options, words) in table {
            for key in [key.as_str(), "missing"] {
                let line = format!("{command} {key} 10 1000 5 {options}");
                for client in [&mut two, &mut three] {
                    let text = error(client, &line);
                    assert!(text.starts_with("ERR "), "{line}: {text}");
                    names(&text, words, &line);
                }
            }
        }
        names(
            &refused(&mut two, &[command, "missing", "10", "1000", "5", ""]),
            &["option", "''"],
            &command,
        );
        assert_eq!(dump(&mut two, &key), before, "{command}");
        assert_eq!(int(&mut two, "EXISTS missing"), 0, "{command}");
    }
}

#[test]
fn options_come_in_any_order_and_case() {
    let (_server, [mut client, _]) = both();
    for command in COMMANDS {
        let burst: &[&str] = if has_burst(command) {
            &["BURST 6", "burst 6", "BuRsT 6"]
        } else {
            &[""]
        };
        for mode in ["", "PEEK", "Peek", "FORCE", "force", "PARTIAL", "pArTiAl"] {
            let mut replies = Vec::new();
            for burst in burst {
                for cost in ["COST 4", "cost 4", "cOsT 4"] {
                    let name = if cost == "cost 4" {
                        command.to_lowercase()
                    } else {
                        command.to_owned()
                    };
                    for options in [
                        [cost, burst, mode],
                        [cost, mode, burst],
                        [burst, cost, mode],
                        [burst, mode, cost],
                        [mode, cost, burst],
                        [mode, burst, cost],
                    ] {
                        ok(&mut client, "DEL k");
                        rl(&mut client, &format!("{name} k 6 1000 5 COST 3 {burst}"));
                        let line = format!("{name} k 6 1000 5 {}", options.join(" "));
                        replies.push((rl(&mut client, &line), dump(&mut client, "k"), line));
                    }
                }
            }
            for (reply, state, line) in &replies {
                assert_eq!((reply, state), (&replies[0].0, &replies[0].1), "{line}");
            }
        }
        ok(&mut client, "DEL k");
    }
}

#[test]
fn the_first_fault_from_the_left_is_told() {
    let (_server, [mut client, _]) = both();
    ok(&mut client, "SET text x");
    for command in COMMANDS {
        for (arguments, named) in [
            ("x x x FOO", "limit"),
            ("10 x x FOO", "window"),
            ("10 1000 x FOO", "now"),
            ("10 1000 5 COST x FOO", "cost"),
            ("10 1000 5 FOO COST x", "FOO"),
            ("10 1000 5 PEEK FORCE COST x", "FORCE"),
            ("10 1000 5 COST 1 COST x", "COST"),
            ("10 1000 5 PARTIAL COST 0 FOO", "FOO"),
            ("10 1000 5 COST", "COST"),
        ] {
            // Before the key's type is looked at.
            for key in ["missing", "text"] {
                let line = format!("{command} {key} {arguments}");
                let text = error(&mut client, &line);
                assert!(text.starts_with("ERR "), "{line}: {text}");
                let faults = ["limit", "window", "now", "cost", "FOO", "FORCE", "COST"];
                let first = text
                    .split(|c: char| !c.is_ascii_alphabetic())
                    .find(|word| faults.contains(word));
                assert_eq!(first, Some(named), "{line}: {text}");
            }
        }
        if has_burst(command) {
            let line = format!("{command} text 1 3155760000000 5 BURST 11");
            names(&error(&mut client, &line), &["1000 years"], &line);
        }
        let line = format!("{command} text 10 1000 5");
        assert!(error(&mut client, &line).starts_with("WRONGTYPE "));
    }
}

#[test]
fn too_few_arguments_are_the_servers_own_error() {
    let (_server, [mut client, _]) = both();
    let own = |client: &mut Client, line: &str| {
        let text = error(client, line).to_lowercase();
        let name = line.split(' ').next().unwrap_or_default().to_lowercase();
        assert_eq!(
            text,
            format!("err wrong number of arguments for '{name}' command")
        );
    };
    for command in COMMANDS {
        for arguments in ["", "k", "k 10", "k 10 1000"] {
            own(&mut client, format!("{command} {arguments}").trim_end());
        }
    }
    for arguments in ["", " k", " k 1", " k 1 x y"] {
        own(&mut client, &format!("RL.RESTORE{arguments}"));
    }
    assert_eq!(int(&mut client, "DBSIZE"), 0);
}

#[test]
fn a_key_of_another_type_is_named() {
    let (_server, [mut client, _]) = both();
    for line in [
        "SET string x",
        "RPUSH list x",
        "HSET hash x y",
        "SADD set x",
        "ZADD zset 1 x",
        "XADD stream * x y",
    ] {
        ok(&mut client, line);
    }
    for command in COMMANDS {
        ok(&mut client, &format!("{command} {command} 10 1000 5"));
    }
    let dumps = support::live::all_dumps(&mut client);
    for command in COMMANDS {
        for mode in ["", "PEEK", "FORCE", "PARTIAL", "COST 0", "COST 11"] {
            for (key, shown) in [
                ("string", "string"),
                ("list", "list"),
                ("hash", "hash"),
                ("set", "set"),
                ("zset", "sorted set"),
                ("stream", "stream"),
            ] {
                let line = format!("{command} {key} 10 1000 5 {mode}");
                let text = error(&mut client, &line);
                assert!(text.starts_with("WRONGTYPE "), "{line}: {text}");
                names(&text, &[shown], &line);
            }
            for other in COMMANDS.into_iter().filter(|other| *other != command) {
                let line = format!("{command} {other} 10 1000 5 {mode}");
                let text = error(&mut client, &line);
                assert!(text.starts_with("WRONGTYPE "), "{line}: {text}");
                names(&text, &[&command[3..], &other[3..]], &line);
            }
        }
    }
    assert_eq!(support::live::all_dumps(&mut client), dumps);
}

#[test]
fn no_byte_breaks_the_protocol() {
    let (_server, clients) = both();
    let mut long = vec![b'x'; 100_000];
    long[50] = b'\n';
    let weird: Vec<Vec<u8>> = (0..=255_u8)
        .map(|byte| vec![byte])
        .filter(|bytes| !bytes[0].is_ascii_digit() && bytes[0] != b'*')
        .chain([
            b"\r\n+OK\r\n".to_vec(),
            b"\0\0".to_vec(),
            b"\xff\xfe\0".to_vec(),
            b"%s%n%d".to_vec(),
            b"'\"\\".to_vec(),
            long,
        ])
        .collect();
    for mut client in clients {
        for command in COMMANDS {
            let mut calls = Vec::new();
            for bytes in &weird {
                let good: [&[u8]; 7] = [
                    command.as_bytes(),
                    b"k",
                    b"10",
                    b"1000",
                    b"5",
                    b"COST",
                    b"1",
                ];
                for place in 2..good.len() {
                    let mut args: Vec<&[u8]> = good.to_vec();
                    args[place] = bytes;
                    calls.push(args);
                }
            }
            for (reply, args) in client.pipeline(&calls).unwrap().iter().zip(&calls) {
                let Value::Error(text) = reply else {
                    panic!("{args:?}: {reply:?}");
                };
                assert!(
                    text.len() < 400 && text.iter().all(|byte| (b' '..=b'~').contains(byte)),
                    "{:?}",
                    text.escape_ascii().to_string()
                );
            }
            assert_eq!(ok(&mut client, "PING"), Value::simple("PONG"));
            assert_eq!(int(&mut client, "EXISTS k"), 0);
            // As a key any byte is right.
            for bytes in weird.iter().chain([&Vec::new()]) {
                let args: [&[u8]; 5] = [command.as_bytes(), bytes, b"10", b"1000", b"5"];
                assert_eq!(five(&client.call(&args).unwrap())[2], 9);
            }
            ok(&mut client, "FLUSHALL");
        }
    }
}

#[test]
fn a_reply_is_five_integers_in_both_protocols() {
    let (_server, clients) = both();
    for mut client in clients {
        for command in COMMANDS {
            // Fixed windows end at 1000 and 2000; the rest counts from the charge at 0.
            let [reset, retry] = match command {
                "RL.FIXED" | "RL.SLIDINGLOG" => [1000, 1000],
                // 2 of 2 used in the window before weigh 1 or less from 1500 on, that is after 1500 at the latest.
                "RL.SLIDINGCOUNTER" => [2000, 1001],
                _ => [1000, 500],
            };
            let reply = ok(&mut client, &format!("{command} k 2 1000 0 COST 2"));
            assert_eq!(reply, Value::ints(&[1, 2, 0, 0, reset]), "{command}");
            let reply = ok(&mut client, &format!("{command} k 2 1000 0"));
            assert_eq!(reply, Value::ints(&[0, 2, 0, retry, reset]), "{command}");
            let reply = ok(&mut client, &format!("{command} k 2 1000 0 COST 3"));
            assert_eq!(reply, Value::ints(&[0, 2, 0, -1, reset]), "{command}");
            ok(&mut client, "DEL k");
        }
    }
}

#[test]
fn a_debt_beyond_its_bounds_is_refused() {
    let (_server, [mut client, _]) = both();
    let debt = |client: &mut Client, line: &str| {
        let before = (dump(client, "k"), int(client, "PEXPIRETIME k"));
        names(
            &error(client, line),
            &["ERR ", "debt", "9007199254740991", "1000 years"],
            &line,
        );
        assert_eq!(
            (dump(client, "k"), int(client, "PEXPIRETIME k")),
            before,
            "{line}"
        );
    };
    for command in COMMANDS {
        ok(&mut client, "DEL k");
        let call = format!("{command} k 1000 1 5 FORCE COST");
        for cost in ["9007199254740991", "1000"] {
            let reply = rl(&mut client, &format!("{call} {cost}"));
            assert_eq!(reply[..3], [1, 1000, 0], "{command}");
        }
        debt(&mut client, &format!("{call} 1"));
        debt(&mut client, &format!("{call} 9007199254740991"));
        assert_eq!(rl(&mut client, &format!("{call} 0"))[0], 1, "{command}");
        // The largest debt can be kept and moved.
        let bytes = dump(&mut client, "k").unwrap();
        let reply = client.call(&[b"RESTORE".as_slice(), b"moved", b"0", &bytes, b"REPLACE"]);
        assert_eq!(reply.unwrap(), Value::simple("OK"), "{command}");
        assert_eq!(dump(&mut client, "moved"), Some(bytes), "{command}");
    }
    // A year a unit.
    for command in ["RL.TOKEN", "RL.GCRA"] {
        ok(&mut client, "DEL k");
        let call = format!("{command} k 1 31557600000 5 FORCE COST");
        debt(&mut client, &format!("{call} 1002"));
        assert_eq!(int(&mut client, "EXISTS k"), 0);
        let reply = rl(&mut client, &format!("{call} 1001"));
        assert_eq!(reply, [1, 1, 0, 0, 31_557_600_000 * 1001]);
        debt(&mut client, &format!("{call} 1"));
    }
}

#[test]
fn calls_work_in_a_transaction() {
    let (_server, clients) = both();
    for mut client in clients {
        for command in COMMANDS {
            ok(&mut client, "MULTI");
            for arguments in ["2 1000 5", "x 1000 5", "2 1000 5 COST 3", "2 1000 5"] {
                assert_eq!(
                    run(&mut client, &format!("{command} k {arguments}")),
                    Value::simple("QUEUED")
                );
            }
            let replies = ok(&mut client, "EXEC");
            let replies = replies.items().unwrap();
            assert_eq!(five(&replies[0])[..3], [1, 2, 1], "{command}");
            assert!(replies[1].error().unwrap().contains("limit"), "{command}");
            assert_eq!(five(&replies[2])[..4], [0, 2, 1, -1], "{command}");
            assert_eq!(five(&replies[3])[..3], [1, 2, 0], "{command}");
            // An arity error is found when it is queued.
            ok(&mut client, "MULTI");
            error(&mut client, &format!("{command} k 2"));
            assert!(error(&mut client, "EXEC").starts_with("EXECABORT"));
            ok(&mut client, "DEL k");
        }
    }
}

#[test]
fn calls_work_in_scripts_and_functions() {
    let (_server, clients) = both();
    let reply_of = |client: &mut Client, args: &[&str]| client.call(args).unwrap();
    for (i, mut client) in clients.into_iter().enumerate() {
        let library = "#!lua name=limits\n\
            redis.register_function('check', function(keys, args)\n\
              return redis.call(args[1], keys[1], unpack(args, 2)) end)";
        let loaded = reply_of(&mut client, &["FUNCTION", "LOAD", "REPLACE", library]);
        assert_eq!(loaded, Value::bulk("limits"));
        for command in COMMANDS {
            let call = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))";
            let pcall = "return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))";
            let three = "redis.setresp(3) return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))";
            for (n, script) in [call, pcall, three].into_iter().enumerate() {
                let key = format!("{command}:{i}:{n}");
                let mut args = vec!["EVAL", script, "1", &key, command, "2", "1000", "5"];
                assert_eq!(five(&reply_of(&mut client, &args))[..3], [1, 2, 1]);
                args.extend(["COST", "2"]);
                assert_eq!(five(&reply_of(&mut client, &args))[..3], [0, 2, 1]);
                args[5] = "x";
                let text = reply_of(&mut client, &args).error().unwrap();
                names(&text, &["ERR", "limit", "from 1 to"], &args);
                args.truncate(6);
                args[5] = "2";
                let text = reply_of(&mut client, &args).error().unwrap();
                names(&text, &["rong number of arg"], &args);
            }
            // pcall hands the error to the script as a table, and the script goes on.
            let caught = "local r = redis.pcall(ARGV[1], KEYS[1], '0', '1', '2') \
                local s = redis.call(ARGV[1], KEYS[1], '9', '1000', '5') return {r.err, s[3]}";
            let key = format!("{command}:{i}:caught");
            let reply = reply_of(&mut client, &["EVAL", caught, "1", &key, command]);
            let items = reply.items().unwrap();
            names(&latin1(items[0].bytes().unwrap()), &["limit"], &command);
            assert_eq!(items[1], Value::Int(8));
            // A function.
            let key = format!("{command}:{i}:function");
            let args = ["FCALL", "check", "1", &key, command, "2", "1000", "5"];
            assert_eq!(five(&reply_of(&mut client, &args))[..3], [1, 2, 1]);
            // A read-only script may not call a command that writes.
            let key = format!("{command}:{i}:ro");
            let args = ["EVAL_RO", call, "1", &key, command, "2", "1000", "5"];
            assert!(reply_of(&mut client, &args).error().is_some());
            assert_eq!(int(&mut client, &format!("EXISTS {key}")), 0);
        }
    }
}

#[test]
fn a_star_is_the_servers_clock() {
    let (server, [mut client, _]) = both();
    // The window began in 1970 and ends in 2070, so that reset_after tells the time of the call.
    const CENTURY_MS: i64 = 3_155_760_000_000;
    for (command, windows) in [("RL.FIXED", 1), ("RL.SLIDINGCOUNTER", 2)] {
        let before_ms = time_ms(&mut client);
        let reply = rl(
            &mut client,
            &format!("{command} {command} 5 {CENTURY_MS} *"),
        );
        let after_ms = time_ms(&mut client) + 1;
        let now_ms = windows * CENTURY_MS - reply[4];
        assert!(
            (before_ms - 1..=after_ms).contains(&now_ms),
            "{command}: {now_ms} is not from {before_ms} to {after_ms}"
        );
    }
    // The others count from the call.
    for command in ["RL.SLIDINGLOG", "RL.TOKEN", "RL.GCRA"] {
        let before_ms = time_ms(&mut client);
        rl(&mut client, &format!("{command} {command} 1 60000 *"));
        let after_ms = time_ms(&mut client) + 1;
        let peek = format!("{command} {command} 1 60000 {} PEEK", after_ms + 10);
        let now_ms = after_ms + 10 + rl(&mut client, &peek)[4] - 60_000;
        assert!(
            (before_ms - 1..=after_ms).contains(&now_ms),
            "{command}: {now_ms} is not from {before_ms} to {after_ms}"
        );
    }
    if !clock_stands_still(&server) {
        return;
    }
    let twice = "redis.call(ARGV[1], KEYS[1], 5, 86400000, '*') \
        local x = 0 for i = 1, 300000 do x = x + i end \
        redis.call(ARGV[1], KEYS[2], 5, 86400000, '*') return x";
    for command in COMMANDS {
        ok(&mut client, "MULTI");
        ok(&mut client, &format!("{command} one 5 86400000 *"));
        client
            .call(&["EVAL", "for i = 1, 300000 do end", "0"])
            .unwrap();
        ok(&mut client, &format!("{command} other 5 86400000 *"));
        ok(&mut client, "EXEC");
        assert_eq!(
            dump(&mut client, "one"),
            dump(&mut client, "other"),
            "{command}"
        );
        ok(&mut client, "DEL one other");
        let args = ["EVAL", twice, "2", "one", "other", command];
        assert!(client.call(&args).unwrap().error().is_none());
        assert_eq!(
            dump(&mut client, "one"),
            dump(&mut client, "other"),
            "{command}"
        );
        ok(&mut client, "DEL one other");
    }
}

#[test]
fn a_charge_keeps_the_expiry_in_its_band() {
    let (_server, [mut client, _]) = clients("");
    for command in COMMANDS {
        let call = format!("{command} k 1000 100000 5");
        charge_in_band(&mut client, "k", &call);
        for change in [
            "PERSIST k",
            "PEXPIRE k 40000",
            "EXPIRE k 1000000",
            "PEXPIREAT k 9000000000000",
        ] {
            assert_eq!(int(&mut client, change), 1, "{command} {change}");
            charge_in_band(&mut client, "k", &call);
            for mode in ["FORCE", "PARTIAL", "COST 5"] {
                assert_eq!(int(&mut client, change), 1, "{command} {change}");
                charge_in_band(&mut client, "k", &format!("{call} {mode}"));
            }
        }
        // A longer window, a shorter one, a time far ahead of the server's, a debt, no time at all.
        for call in [
            "1000 200000 6",
            "1000 3000 7",
            "1000 100000 9000000000000",
            "1000 100000 9000000000000 COST 5000 FORCE",
            "1000000 0.001 9007199254740.991",
        ] {
            charge_in_band(&mut client, "k", &format!("{command} k {call}"));
        }
        ok(&mut client, "DEL k");
        // RESTORE with another expiry, or none.
        rl(&mut client, &call);
        let bytes = dump(&mut client, "k").unwrap();
        for ttl in ["0", "40000", "9000000"] {
            let args = [
                b"RESTORE".as_slice(),
                b"k",
                ttl.as_bytes(),
                &bytes,
                b"REPLACE",
            ];
            assert_eq!(client.call(&args).unwrap(), Value::simple("OK"));
            charge_in_band(&mut client, "k", &call);
        }
        ok(&mut client, "DEL k");
    }
}

#[test]
fn an_expiry_in_its_band_stays() {
    let (_server, [mut client, _]) = clients("");
    for command in COMMANDS {
        let call = format!("{command} k 1000000 100000 5");
        let mut seen = false;
        support::live::wait_until("a round within half a margin", || {
            ok(&mut client, "DEL k");
            rl(&mut client, &call);
            let expires_ms = int(&mut client, "PEXPIRETIME k");
            let reply = rl(&mut client, &call);
            let after_ms = time_ms(&mut client) + 1;
            // Only where the second charge came in time is the expiry still in its band.
            seen = after_ms + reply[4] + 500 <= expires_ms;
            if seen {
                assert_eq!(int(&mut client, "PEXPIRETIME k"), expires_ms, "{command}");
            }
            seen
        });
        ok(&mut client, "DEL k");
    }
}

#[test]
fn calls_that_charge_nothing_leave_the_expiry() {
    let (_server, [mut client, _]) = clients("");
    for command in COMMANDS {
        let call = format!("{command} k 5 100000 5");
        rl(&mut client, &format!("{call} COST 5"));
        for expiry in ["PERSIST k", "PEXPIRE k 50000", "EXPIRE k 1000000"] {
            ok(&mut client, expiry);
            let expires_ms = int(&mut client, "PEXPIRETIME k");
            for rest in ["", "COST 6", "PARTIAL", "PEEK", "COST 0", "COST 0 FORCE"] {
                rl(&mut client, &format!("{call} {rest}"));
                error(&mut client, &format!("{call} {rest} FOO"));
                assert_eq!(
                    int(&mut client, "PEXPIRETIME k"),
                    expires_ms,
                    "{command} {expiry} {rest}"
                );
            }
        }
        ok(&mut client, "DEL k");
    }
    // Nor do they make a key.
    for command in COMMANDS {
        for rest in ["COST 6", "PEEK", "COST 0", "COST 0 FORCE"] {
            rl(&mut client, &format!("{command} none 5 100000 5 {rest}"));
        }
    }
    assert_eq!(int(&mut client, "DBSIZE"), 0);
}

#[test]
fn a_key_whose_time_is_over_is_a_fresh_one() {
    let (_server, [mut client, _]) = clients("");
    for command in COMMANDS {
        assert_eq!(rl(&mut client, &format!("{command} k 1 100000 5"))[0], 1);
        assert_eq!(rl(&mut client, &format!("{command} k 1 100000 5"))[0], 0);
        assert_eq!(int(&mut client, "PEXPIREAT k 1"), 1);
        // Another algorithm may take it, as it may take a missing key.
        let other = if command == "RL.GCRA" {
            "RL.TOKEN"
        } else {
            "RL.GCRA"
        };
        assert_eq!(rl(&mut client, &format!("{other} k 1 100000 5"))[0], 1);
        ok(&mut client, "DEL k");
    }
}

/// The caller decides what to do without a limiter: a full memory is an error of the server's own, for every call.
#[test]
fn a_full_memory_is_the_servers_own_error() {
    let (_server, clients) = both();
    for mut client in clients {
        for command in COMMANDS {
            rl(&mut client, &format!("{command} k 5 1000000 5"));
            let before = (dump(&mut client, "k"), int(&mut client, "PEXPIRETIME k"));
            ok(&mut client, "CONFIG SET maxmemory 1");
            for key in ["k", "new"] {
                for mode in ["", "FORCE", "PARTIAL", "COST 9", "PEEK", "COST 0"] {
                    let line = format!("{command} {key} 5 1000000 5 {mode}");
                    let text = error(&mut client, &line);
                    assert!(text.starts_with("OOM "), "{line}: {text}");
                    let script =
                        format!("return redis.call('{}')", line.trim().replace(' ', "','"));
                    let text = client.call(&["EVAL", &script, "0"]).unwrap().error();
                    assert!(text.expect("an error").contains("OOM"), "{line}");
                }
            }
            let text = error(&mut client, "RL.RESTORE new 1 x");
            assert!(text.starts_with("OOM "), "{text}");
            ok(&mut client, "CONFIG SET maxmemory 0");
            let after = (dump(&mut client, "k"), int(&mut client, "PEXPIRETIME k"));
            assert_eq!(after, before, "{command}");
            assert_eq!(int(&mut client, "EXISTS new"), 0, "{command}");
            ok(&mut client, "DEL k");
        }
    }
}

/// Limiters that are evicted are fresh ones, and no reply is half of one and half of the other.
#[test]
fn an_evicted_key_is_a_fresh_one() {
    let (server, [mut client, _]) = both();
    let used: u64 = server.info_field("used_memory").unwrap().parse().unwrap();
    for policy in [
        "allkeys-random",
        "allkeys-lru",
        "allkeys-lfu",
        "volatile-ttl",
    ] {
        ok(&mut client, "FLUSHALL");
        ok(
            &mut client,
            &format!("CONFIG SET maxmemory-policy {policy}"),
        );
        ok(
            &mut client,
            &format!("CONFIG SET maxmemory {}", used + 400_000),
        );
        for command in COMMANDS {
            let calls: Vec<Vec<String>> = (0..10_000)
                .map(|i| {
                    let line = format!("{command} {command}:{} 3 1000000 5", i * i % 4093);
                    line.split(' ').map(str::to_string).collect()
                })
                .collect();
            for reply in client.pipeline(&calls).unwrap() {
                let reply = five(&reply);
                let right = match reply[..3] {
                    [1, 3, remaining] => (0..=2).contains(&remaining) && reply[3] == 0,
                    [0, 3, 0] => reply[3] > 0,
                    _ => false,
                };
                assert!(right && reply[4] > 0, "{command} {policy}: {reply:?}");
            }
        }
        let evicted: u64 = server.info_field("evicted_keys").unwrap().parse().unwrap();
        assert!(evicted > 0, "{policy}: the memory was never full");
        ok(&mut client, "CONFIG RESETSTAT");
        ok(&mut client, "CONFIG SET maxmemory 0");
    }
}

/// A value of a map by its name.
fn get<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Map(pairs) = map else {
        panic!("not a map: {map:?}");
    };
    pairs
        .iter()
        .find(|(key, _)| key.bytes() == Some(name.as_bytes()))
        .map(|(_, value)| value)
}

fn text(map: &Value, name: &str) -> Option<String> {
    get(map, name).map(|value| {
        let bytes = value.bytes();
        latin1(bytes.unwrap_or_else(|| panic!("{name} is {value:?}")))
    })
}

fn texts(list: Option<&Value>) -> Vec<String> {
    let items = list.and_then(Value::items).unwrap_or_default().iter();
    items
        .map(|item| latin1(item.bytes().expect("a text")))
        .collect()
}

/// What stands in COMMAND DOCS for one argument: name, type, token, flags.
fn argument(arg: &Value) -> (String, String, Option<String>, Vec<String>) {
    (
        text(arg, "name").expect("a name"),
        text(arg, "type").expect("a type"),
        text(arg, "token"),
        texts(get(arg, "flags")),
    )
}

#[test]
fn command_docs_tell_all() {
    let (_server, [_, mut client]) = both();
    let row = |name: &str, kind: &str, token: Option<&str>, flags: &[&str]| {
        (
            name.to_string(),
            kind.to_string(),
            token.map(str::to_string),
            flags.iter().map(ToString::to_string).collect::<Vec<_>>(),
        )
    };
    let mut summaries = Vec::new();
    for command in COMMANDS {
        let docs = ok(&mut client, &format!("COMMAND DOCS {command}"));
        let Value::Map(pairs) = &docs else {
            panic!("{docs:?}");
        };
        assert_eq!(pairs.len(), 1);
        let (name, docs) = &pairs[0];
        assert!(
            name.bytes()
                .unwrap()
                .eq_ignore_ascii_case(command.as_bytes())
        );
        let summary = text(docs, "summary").expect("a summary");
        assert!(summary.len() > 10, "{command}: {summary}");
        summaries.push(summary);
        let since = text(docs, "since").expect("since");
        assert_eq!(
            since
                .split('.')
                .filter(|part| part.parse::<u32>().is_ok())
                .count(),
            3
        );
        assert_eq!(text(docs, "group").as_deref(), Some("module"));
        assert_eq!(text(docs, "module").as_deref(), Some("ratelimit"));
        assert!(
            text(docs, "complexity")
                .expect("a complexity")
                .starts_with("O(")
        );

        let args = get(docs, "arguments")
            .and_then(Value::items)
            .expect("arguments");
        let mut want = vec![
            row("key", "key", None, &[]),
            row("limit", "integer", None, &[]),
            row("window", "double", None, &[]),
            row("now", "string", None, &[]),
        ];
        if has_burst(command) {
            want.push(row("burst", "integer", Some("BURST"), &["optional"]));
        }
        want.push(row("cost", "integer", Some("COST"), &["optional"]));
        want.push(row("mode", "oneof", None, &["optional"]));
        assert_eq!(
            args.iter().map(argument).collect::<Vec<_>>(),
            want,
            "{command}"
        );
        assert_eq!(get(&args[0], "key_spec_index"), Some(&Value::Int(0)));
        for arg in &args[1..args.len() - 1] {
            assert!(text(arg, "summary").is_some(), "{command} {arg:?}");
            assert_eq!(get(arg, "key_spec_index"), None);
        }
        let modes = get(args.last().unwrap(), "arguments").and_then(Value::items);
        assert_eq!(
            modes
                .expect("modes")
                .iter()
                .map(argument)
                .collect::<Vec<_>>(),
            [
                row("peek", "pure-token", Some("PEEK"), &[]),
                row("force", "pure-token", Some("FORCE"), &[]),
                row("partial", "pure-token", Some("PARTIAL"), &[]),
            ],
            "{command}"
        );
    }
    summaries.sort();
    summaries.dedup();
    assert_eq!(summaries.len(), COMMANDS.len(), "{summaries:?}");
}

#[test]
fn command_info_tells_flags_and_keys() {
    let (_server, [mut client, mut three]) = both();
    let table = COMMANDS
        .iter()
        .map(|name| (*name, -5, "fast", ["RW", "access", "update"].as_slice()))
        .chain([("RL.RESTORE", 4, "admin", ["OW", "insert"].as_slice())]);
    for (command, arity, flag, key_flags) in table {
        let info = ok(&mut three, &format!("COMMAND INFO {command}"));
        let info = info.items().unwrap()[0].items().unwrap();
        assert_eq!(info[1], Value::Int(arity), "{command}");
        let mut flags = texts(Some(&info[2]));
        flags.sort();
        let mut want = vec!["denyoom", "module", "write", flag];
        want.sort_unstable();
        assert_eq!(flags, want, "{command}");
        assert_eq!(info[3..6], [Value::Int(1), Value::Int(1), Value::Int(1)]);
        let specs = info[8].items().unwrap();
        assert_eq!(specs.len(), 1, "{command}");
        let mut flags = texts(get(&specs[0], "flags"));
        flags.sort();
        assert_eq!(flags, key_flags, "{command}");
        let begin = get(&specs[0], "begin_search").unwrap();
        assert_eq!(text(begin, "type").as_deref(), Some("index"));
        assert_eq!(
            get(get(begin, "spec").unwrap(), "index"),
            Some(&Value::Int(1))
        );
        let find = get(&specs[0], "find_keys").unwrap();
        assert_eq!(text(find, "type").as_deref(), Some("range"));
        assert_eq!(
            get(get(find, "spec").unwrap(), "lastkey"),
            Some(&Value::Int(0))
        );
    }
    for command in COMMANDS {
        let line = format!("COMMAND GETKEYS {command} k 1 2 3 COST 4 PEEK");
        assert_eq!(ok(&mut client, &line), Value::Array(vec![Value::bulk("k")]));
    }
}
