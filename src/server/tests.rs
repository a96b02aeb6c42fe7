//! The shims on the fake server. [`Fake`] sees to it that each test gives all memory back.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use super::alloc::ServerAlloc;
use super::api::{ERR, OK};
use super::fake::{Fake, REDISMODULE_CTX_FLAGS_CLUSTER, REDISMODULE_CTX_FLAGS_REPLICATED};

/// Miri leaves out what goes through functions of variable arguments.
const VARIADIC: bool = cfg!(not(miri));

fn each(names: &[&str], what: impl Fn(&mut Fake, &str)) {
    let mut fake = Fake::start();
    for name in names {
        what(&mut fake, name);
    }
}

/// What replicas and AOF were told.
fn sent_on(fake: &mut Fake) -> Vec<String> {
    let heard = fake.heard();
    let sent = heard.split(", ").map(str::to_owned);
    sent.filter(|what| what.starts_with("RL.") || what == "verbatim")
        .collect()
}

const ALL: [&str; 5] = ["FIXED", "SLIDINGLOG", "SLIDINGCOUNTER", "TOKEN", "GCRA"];

#[test]
fn the_five_commands() {
    let calls = [
        "",
        " COST 10 PEEK",
        " COST 20 PARTIAL",
        "",
        " COST 10 FORCE",
        " COST 0",
    ];
    // allowed, remaining, retry_after, reset_after
    let bucket = [
        "1 9 0 100",
        "0 9 100 100",
        "9 0 0 1000",
        "0 0 100 1000",
        "1 0 0 2000",
        "0 0 1000 2000",
    ];
    let expected = [
        [
            "1 9 0 995",
            "0 9 995 995",
            "9 0 0 995",
            "0 0 995 995",
            "1 0 0 995",
            "0 0 995 995",
        ],
        [
            "1 9 0 1000",
            "0 9 1000 1000",
            "9 0 0 1000",
            "0 0 1000 1000",
            "1 0 0 1000",
            "0 0 1000 1000",
        ],
        [
            "1 9 0 1995",
            "0 9 996 1995",
            "9 0 0 1995",
            "0 0 996 1995",
            "1 0 0 1995",
            "0 0 1446 1995",
        ],
        bucket,
        bucket,
    ];
    let mut fake = Fake::start();
    for (name, replies) in ALL.into_iter().zip(expected) {
        let mut lived_ms = None;
        for (options, reply) in calls.into_iter().zip(replies) {
            let line = format!("RL.{name} {name} 10 1000 5{options}");
            let (allowed, rest) = reply.split_once(' ').unwrap();
            assert_eq!(
                fake.call(&line),
                format!("[5] {allowed} 10 {rest}"),
                "{line}"
            );
            let reset_ms: i64 = reply.rsplit(' ').next().unwrap().parse().unwrap();
            let keeps_ms = Some(reset_ms + 1000);
            let mut heard = Vec::new();
            if allowed != "0" {
                // No time goes by: an expiry in its band stays.
                if lived_ms != keeps_ms {
                    heard.push(format!("expire {}", reset_ms + 1000));
                }
                lived_ms = keeps_ms;
                heard.extend([format!("modified {name}, rl.charge {name}, verbatim")]);
            } else if options.is_empty() {
                heard.push(format!("rl.denied {name}"));
            }
            assert_eq!(fake.heard(), heard.join(", "), "{line}");
            assert_eq!(fake.ttl_ms(name), lived_ms);
        }
    }
}

#[test]
fn errors_change_nothing() {
    each(&ALL, |fake, name| {
        fake.set_text("text");
        fake.call("RL.FIXED fixed 10 1000 5");
        fake.call("RL.TOKEN token 10 1000 5");
        fake.heard();
        let before = fake.memory();
        let other = if name == "FIXED" { "token" } else { "fixed" };
        for (line, reply) in [
            ("k 10 1000".to_owned(), "arity".to_owned()),
            (
                "k 10 1000 5 COST".to_owned(),
                "ERR option COST needs a value".to_owned(),
            ),
            ("k 0 1000 5".to_owned(), "ERR limit must be".to_owned()),
            ("k 10 1000 -5".to_owned(), "ERR now must be".to_owned()),
            (
                "text 10 1000 5".to_owned(),
                "WRONGTYPE the key holds a string".to_owned(),
            ),
            (
                format!("{other} 10 1000 5"),
                format!(
                    "WRONGTYPE the key holds a {} limiter, not a {name} one",
                    other.to_uppercase()
                ),
            ),
        ] {
            let got = fake.call(&format!("RL.{name} {line}"));
            assert!(got.starts_with(&reply), "{line}: {got}");
        }
        assert_eq!((fake.heard(), fake.memory()), (String::new(), before));
        fake.del("fixed");
        fake.del("token");
    });
}

#[test]
fn what_is_sent_on_names_the_time() {
    let mut fake = Fake::start();
    fake.with(|world| world.now_us += 123);
    fake.call("RL.FIXED k 10 1000 * COST 2");
    fake.call("RL.MULTI 2 k l * FIXED 10 1000 GCRA 10 1000 FORCE");
    fake.call("RL.REFUND k 1 *");
    if VARIADIC {
        assert_eq!(
            sent_on(&mut fake),
            [
                "RL.FIXED k 10 1000 1000000000.123 COST 2",
                "RL.MULTI 2 k l 1000000000.123 FIXED 10 1000 GCRA 10 1000 FORCE",
                "RL.REFUND k 1 1000000000.123",
            ]
        );
    }
}

#[test]
fn other_names_of_gcra() {
    let mut fake = Fake::empty(|world| world.replicates_charges = true);
    assert_eq!(fake.load(&[]), OK);
    fake.heard();
    assert_eq!(fake.call("CL.THROTTLE k 14 30 60 1"), "[5] 0 15 14 -1 2");
    if VARIADIC {
        assert_eq!(
            fake.heard(),
            "expire 3000, modified k, rl.charge k, RL.GCRA k 30 60000 1000000000 BURST 15 COST 1"
        );
    }
    assert_eq!(
        fake.call("RL.THROTTLE k 14 30 60 15 1000000000"),
        "[5] 1 15 14 2 2"
    );
    assert_eq!(fake.call("GCRA k 14 30 60 TOKENS 2"), "[5] 0 15 12 -1 6");
}

/// Where Redis moves slots, it must not have to ask for the keys of what is sent on.
#[test]
fn several_limiters_are_sent_on_one_by_one_where_slots_move() {
    let mut fake = Fake::empty(|world| {
        world.replicates_charges = true;
        world.flags = REDISMODULE_CTX_FLAGS_CLUSTER;
    });
    assert_eq!(fake.load(&[]), OK);
    fake.heard();
    fake.call("RL.MULTI 4 a b c d * FIXED 10 1000 SLIDINGLOG 5 1000 COST 2 TOKEN 10 1000.5 BURST 20 COST 3 GCRA 10 1000 COST 0");
    fake.call("RL.MULTI 2 a d 7.25 FIXED 10 1000 COST 20 GCRA 10 1000 BURST 4 FORCE");
    fake.call("RL.MULTI 2 a d 7.25 FIXED 10 1000 GCRA 10 1000");
    if VARIADIC {
        assert_eq!(
            sent_on(&mut fake),
            [
                "RL.FIXED a 10 1000 1000000000 COST 1",
                "RL.SLIDINGLOG b 5 1000 1000000000 COST 2",
                "RL.TOKEN c 10 1000.5 1000000000 BURST 20 COST 3",
                "RL.FIXED a 10 1000 7.25 COST 20 FORCE",
                "RL.GCRA d 10 1000 7.25 BURST 4 COST 1 FORCE",
            ]
        );
    }
}

#[test]
fn several_limiters_are_charged_or_none() {
    let mut fake = Fake::start();
    fake.set_text("text");
    let allowed = "[3] 1 0 [3] [5] 1 10 9 0 995 [5] 1 5 3 0 1000 [5] 1 10 7 0 300";
    let line = "RL.MULTI 3 a b c 5 FIXED 10 1000 SLIDINGLOG 5 1000 COST 2 TOKEN 10 1000 COST 3";
    assert_eq!(fake.call(line), allowed);
    assert_eq!(
        fake.heard(),
        "expire 1995, expire 2000, expire 1300, modified a, rl.charge a, modified b, rl.charge b, modified c, rl.charge c, verbatim"
    );
    assert_eq!(
        fake.call(line),
        allowed
            .replace("9 0", "8 0")
            .replace("3 0 1000", "1 0 1000")
            .replace("7 0 300", "4 0 600")
    );
    fake.heard();
    let states = ["a", "b", "c"].map(|key| fake.save(key));
    let denied = "[3] 0 1000 [3] [5] 1 10 8 0 995 [5] 0 5 1 1000 1000 [5] 1 10 4 0 600";
    assert_eq!(fake.call(line), denied);
    assert_eq!(fake.heard(), "rl.denied b");
    assert_eq!(fake.call(&format!("{line} PEEK")), denied);
    for (line, reply) in [
        ("RL.MULTI 2 a a 5 FIXED 10 1000 FIXED 10 1000", "ERR"),
        (
            "RL.MULTI 2 a text 5 FIXED 10 1000 GCRA 10 1000",
            "WRONGTYPE clause 2: the key holds a string",
        ),
        (
            "RL.MULTI 2 a b 5 FIXED 10 1000 GCRA 10 1000",
            "WRONGTYPE clause 2: the key holds a SLIDINGLOG",
        ),
        // A debt too large is told after a wrong type, wherever that stands.
        (
            "RL.MULTI 2 a text 5 FIXED 1 1000 COST 9007199254740991 GCRA 10 1000 FORCE",
            "WRONGTYPE clause 2",
        ),
        (
            "RL.MULTI 2 a c 5 FIXED 1 1000 COST 9007199254740991 TOKEN 10 1000 FORCE",
            "ERR clause 1: debt",
        ),
    ] {
        let got = fake.call(line);
        assert!(got.starts_with(reply), "{line}: {got}");
    }
    assert_eq!(fake.heard(), "");
    assert_eq!(["a", "b", "c"].map(|key| fake.save(key)), states);
    assert_eq!(
        fake.call(&format!("{line} FORCE")),
        "[3] 1 0 [3] [5] 1 10 7 0 995 [5] 1 5 0 0 1000 [5] 1 10 1 0 900"
    );
    fake.with(|world| world.asks_for_keys = true);
    assert_eq!(fake.call(line), "2 3 4");
    fake.with(|world| world.asks_for_keys = false);
}

/// Opening a key may expire it, and another module that hears of it may write.
#[test]
fn several_limiters_are_looked_at_once_all_are_open() {
    let mut fake = Fake::start();
    fake.call("RL.FIXED a 10 1000 5");
    let narrow = fake.memory();
    fake.with(|world| {
        world.on_open = Some((
            "b",
            Box::new(|fake| {
                fake.call("RL.FIXED a 8589934592 1000 5 COST 3");
            }),
        ));
    });
    let reply = fake.call("RL.MULTI 2 a b 5 FIXED 10 1000 FIXED 10 1000");
    assert_eq!(reply, "[3] 1 0 [2] [5] 1 10 5 0 995 [5] 1 10 9 0 995");
    assert_eq!(narrow, (1, 32));
    assert_eq!(fake.memory(), (2, 64 + 32));
}

#[test]
fn a_limiter_is_looked_at_and_refunded() {
    let mut fake = Fake::start();
    fake.set_text("text");
    assert_eq!(fake.call("RL.INSPECT k 5"), "null");
    assert_eq!(fake.call("RL.REFUND k 1 5"), "null");
    assert_eq!(fake.call("RL.INSPECT k"), "arity");
    assert!(fake.call("RL.INSPECT text 5").starts_with("WRONGTYPE"));
    assert!(fake.call("RL.REFUND text 1 5").starts_with("WRONGTYPE"));
    for name in ALL {
        fake.call(&format!("RL.{name} k 10 1000.5 7 COST 3"));
        fake.heard();
        let told = fake.call("RL.INSPECT k 7");
        let expected = format!(
            "{{9}} algorithm {} limit 10 window 1000.5 burst 10 remaining 7 retry_after 0 reset_after ",
            name.to_lowercase()
        );
        assert!(
            told.starts_with(&expected) && told.ends_with(" updated 7"),
            "{told}"
        );
        assert_eq!(fake.heard(), "");
        assert_eq!(fake.call("RL.REFUND k 2 7"), "9");
        assert_eq!(fake.heard(), "modified k, rl.refund k, verbatim");
        assert_eq!(fake.call("RL.REFUND k 2 7"), "10");
        assert_eq!(fake.heard(), "modified k, del k, verbatim");
        assert_eq!(fake.memory().0, 0);
    }
}

/// 2³³ units do not fit into 32 bytes, and neither does a log of two.
#[test]
fn a_state_that_grows_moves_into_a_box() {
    each(&ALL, |fake, name| {
        fake.call(&format!("RL.{name} k 10 1000 5"));
        assert_eq!(fake.memory(), (1, 32));
        fake.call(&format!("RL.{name} k 8589934592 1000 5"));
        assert_eq!(fake.memory(), (1, 64));
        // It stays there, and is packed where it is made anew.
        assert_eq!(
            fake.call(&format!("RL.{name} k 10 1000 5 COST 0"))
                .split(' ')
                .nth(3),
            Some("8")
        );
        fake.call(&format!("RL.{name} k 10 1000 5"));
        assert_eq!(fake.memory(), (1, 64));
        let bytes = fake.save("k");
        fake.del("k");
        let value = fake.read(1, &bytes);
        fake.put("k", value);
        assert_eq!(fake.memory(), (1, 32));
        assert_eq!(fake.save("k"), bytes);
        fake.del("k");
    });
}

#[test]
fn every_state_is_kept_moved_and_freed() {
    let mut fake = Fake::start();
    for name in ALL {
        fake.call(&format!("RL.{name} narrow:{name} 10 1000 5 COST 3"));
        fake.call(&format!("RL.{name} wide:{name} 8589934592 1000 5 COST 3"));
    }
    let lengths = if cfg!(miri) { [2, 300] } else { [2, 5000] };
    for entries in lengths {
        for at in 0..entries {
            fake.call(&format!(
                "RL.SLIDINGLOG log:{entries} 9007199254740991 1000000000 {}.001 COST {}",
                at * 700,
                at + 5
            ));
        }
    }
    // Some have died at the front.
    fake.call(&format!(
        "RL.SLIDINGLOG log:{} 9007199254740991 100000 {}",
        lengths[1],
        lengths[1] * 700
    ));
    let names = ALL.map(|name| [format!("narrow:{name}"), format!("wide:{name}")]);
    for key in names
        .concat()
        .into_iter()
        .chain(lengths.map(|entries| format!("log:{entries}")))
    {
        let told = fake.call(&format!("RL.INSPECT {key} 5"));
        let bytes = fake.save(&key);
        fake.on_value(&key, |methods, _, value| {
            // SAFETY: the type's functions, on a key's value, here and below.
            unsafe { methods.digest.unwrap()(ptr::null_mut(), value) };
        });
        assert_eq!(fake.written(), bytes);
        fake.heard();
        fake.on_value(&key, |methods, name, value| {
            // SAFETY: as above.
            unsafe { methods.aof_rewrite.unwrap()(ptr::null_mut(), name, value) };
        });
        if VARIADIC {
            assert_eq!(fake.heard(), format!("RL.RESTORE {key} 1"));
            assert_eq!(fake.written(), bytes);
        }
        // Three more of it: by a load, an AOF, and a copy.
        let loaded = fake.read(1, &bytes);
        fake.put("loaded", loaded);
        assert_eq!(
            fake.call_bytes(&[b"RL.RESTORE", b"restored", b"1", &bytes]),
            "OK"
        );
        assert_eq!(
            fake.call_bytes(&[b"RL.RESTORE", b"restored", b"1", &bytes]),
            "BUSYKEY the key exists already"
        );
        // SAFETY: as above.
        let copied = fake.on_value(&key, |methods, name, value| unsafe {
            methods.copy.unwrap()(name, name, value)
        });
        fake.put("copied", copied);
        for key in [&key, "loaded", "restored", "copied"] {
            let (before, mut moved) = (fake.memory(), fake.defrag(key));
            moved += fake.defrag(key);
            assert_eq!(fake.memory(), before, "the old blocks are gone");
            assert_eq!(
                (fake.save(key), fake.call(&format!("RL.INSPECT {key} 5"))),
                (bytes.clone(), told.clone())
            );
            // SAFETY: as above.
            let effort = fake.on_value(key, |methods, name, value| unsafe {
                methods.free_effort.unwrap()(name, value)
            });
            // SAFETY: as above.
            let used = fake.on_value(key, |methods, _, value| unsafe {
                methods.mem_usage.unwrap()(value)
            });
            fake.del(key);
            let freed = (before.0 - fake.memory().0, before.1 - fake.memory().1);
            // A log also has the list of its blocks, which does not move, and what names that.
            let is_log = key.starts_with("log") || told.contains("slidinglog") && freed.0 > 1;
            assert_eq!(moved, 2 * (freed.0 - usize::from(is_log)));
            assert_eq!((effort, used), (freed.0 - 2 * usize::from(is_log), freed.1));
        }
    }
    assert_eq!(fake.memory().0, 0);
}

#[test]
fn bytes_that_encode_nothing_are_refused() {
    each(&ALL, |fake, name| {
        fake.call(&format!("RL.{name} k 10 1000 5"));
        fake.call(&format!("RL.{name} k 10 1000 6"));
        let bytes = fake.save("k");
        fake.heard();
        let before = fake.memory();
        let refused = |fake: &mut Fake, version, bytes: &[u8], why: &str| {
            assert!(fake.read(version, bytes).is_null());
            assert!(!VARIADIC || fake.heard().starts_with(&format!("warning: {why}")));
            let reply =
                fake.call_bytes(&[b"RL.RESTORE", b"r", version.to_string().as_bytes(), bytes]);
            assert!(reply.starts_with(&format!("ERR {why}")), "{reply}");
        };
        refused(fake, 2, &bytes, "rate limiter of encoding version 2");
        refused(fake, 1, &[&bytes[..], b"x"].concat(), "damaged");
        for end in 0..bytes.len() {
            refused(fake, 1, &bytes[..end], "damaged");
        }
        fake.with(|world| world.without = Some("io"));
        assert!(fake.read(1, &bytes).is_null());
        fake.with(|world| world.without = None);
        assert_eq!((fake.heard(), fake.memory()), (String::new(), before));
        fake.del("k");
    });
}

#[test]
fn a_limiter_lives_as_long_as_what_is_charged() {
    let mut fake = Fake::start();
    let pass = |fake: &mut Fake, ms: u64| fake.with(|world| world.now_us += ms * 1000);
    fake.call("RL.GCRA k 10 1000 5");
    assert_eq!(fake.ttl_ms("k"), Some(1100));
    // Within half of the margin it is left alone.
    pass(&mut fake, 600);
    fake.call("RL.GCRA k 10 1000 505");
    assert_eq!(fake.ttl_ms("k"), Some(1100));
    pass(&mut fake, 500);
    fake.call("RL.GCRA k 10 1000 505 COST 0");
    fake.call("RL.GCRA k 10 1000 505 PEEK");
    assert_eq!(fake.ttl_ms("k"), Some(600));
    pass(&mut fake, 600);
    assert_eq!(fake.call("RL.INSPECT k 505"), "null");
    assert_eq!(fake.memory().0, 0);
}

#[test]
fn a_caller_may_be_held_to_the_servers_clock() {
    let mut fake = Fake::empty(|_| ());
    assert_eq!(
        fake.load(&["MAX-SKEW-MS", "1000", "ttl-margin-ms", "4000"]),
        OK
    );
    assert_eq!(
        fake.call("RL.GCRA k 10 1000 1000001000"),
        "[5] 1 10 9 0 100"
    );
    assert_eq!(fake.ttl_ms("k"), Some(4100));
    assert!(
        fake.call("RL.GCRA k 10 1000 1000001000.001")
            .starts_with("ERR now must be within 1000 ms")
    );
    fake.with(|world| world.flags = REDISMODULE_CTX_FLAGS_REPLICATED);
    assert_eq!(
        fake.call("RL.GCRA k 10 1000 1000001100"),
        "[5] 1 10 9 0 100"
    );
}

#[test]
fn a_server_that_lacks_something_is_refused() {
    for name in Fake::FUNCTIONS
        .iter()
        .filter(|name| !Fake::OPTIONAL.contains(name))
    {
        let mut fake = Fake::empty(|world| world.without = Some(name));
        assert_eq!(fake.load(&[]), ERR, "{name}");
        if VARIADIC {
            assert_eq!(
                fake.heard(),
                format!(
                    "warning: this server is too old for redis-rl: it has no {name}; Redis 7.0 is the first that will do"
                )
            );
        }
    }
}

/// The type comes last: a server keeps that of a module that fails to load.
#[test]
fn a_load_that_fails_leaves_no_type() {
    let arguments: [&[&str]; 5] = [
        &["ttl-margin-ms"],
        &["ttl-margin-ms", "0"],
        &["speed", "1"],
        &["compat-names", "maybe"],
        &["max-skew-ms", "-1"],
    ];
    for arguments in arguments {
        let mut fake = Fake::empty(|_| ());
        assert_eq!(fake.load(arguments), ERR);
        let heard = fake.heard();
        assert!(!heard.contains("type "), "{heard}");
        assert!(!VARIADIC || heard.contains("warning: "), "{heard}");
    }
    for step in ["config", "info", "RL.FIXED", "RL.THROTTLE", "type"] {
        let mut fake = Fake::empty(|world| world.without = Some(step));
        assert_eq!(fake.load(&[]), ERR);
        assert_eq!(fake.heard().contains("type "), step == "type");
    }
    // Others' names are taken where they are free, unless told not to.
    for (step, arguments, taken) in [("", "yes", 14), ("CL.THROTTLE", "yes", 13), ("", "no", 12)] {
        let mut fake = Fake::empty(|world| (world.without, world.is_valkey) = (Some(step), true));
        assert_eq!(fake.load(&["compat-names", arguments]), OK);
        let heard = fake.heard();
        assert_eq!(heard.matches("type ratelimit 1").count(), 1);
        assert!(heard.contains("options 0x"));
        assert_eq!(fake.with(|world| world.commands()), taken, "{heard}");
    }
}

#[test]
fn a_denial_is_announced_once() {
    let mut fake = Fake::start();
    for _ in 0..2 {
        fake.call("RL.FIXED k 1 1000 5 COST 2");
        assert_eq!(fake.heard(), "rl.denied k");
        fake.call("RL.FIXED k 1 1000 5 COST 2");
        fake.call("RL.FIXED k 1 1000 5 COST 2 PEEK");
        assert_eq!(fake.heard(), "");
        // Another database's key of the same name is another.
        fake.with(|world| world.database = 1);
        fake.call("RL.FIXED k 1 1000 5");
        fake.with(|world| world.database = 0);
        fake.del("k");
        fake.heard();
        fake.call("RL.FIXED k 1 1000 5 COST 2");
        assert_eq!(fake.heard(), "");
        fake.call("RL.FIXED k 1 1000 5");
        fake.del("k");
        fake.heard();
    }
}

const MINUTE_US: u64 = 60_000_000;

fn deny(fake: &mut Fake, times: u64, apart_us: u64) {
    for _ in 0..times {
        fake.call("RL.FIXED k 1 1000 5 COST 2");
        fake.with(|world| world.now_us += apart_us);
    }
}

/// Rare denials are counted at their time: they are not halved for minutes before them.
#[test]
fn denials_are_halved_once_a_minute() {
    let mut fake = Fake::empty(|world| world.now_us = 1_000 * MINUTE_US);
    assert_eq!(fake.load(&[]), OK);
    for _ in 0..3 {
        // Twelve in this minute, and nothing for five.
        deny(&mut fake, 12, 5_000_000 - 1);
        assert_eq!(fake.call("RL.TOP"), "{1} k 12");
        fake.with(|world| world.now_us += 12);
        assert_eq!(fake.call("RL.TOP"), "{1} k 6");
        fake.with(|world| world.now_us += 5 * MINUTE_US);
    }
    assert_eq!(fake.call("RL.TOP"), "{0}");
    // Where they come fast, the clock is looked at once in 16: so many may be halved too often.
    let many = if cfg!(miri) { 100 } else { 1_000 };
    deny(&mut fake, many, 1_000);
    fake.with(|world| world.now_us += 5 * MINUTE_US);
    deny(&mut fake, 20, 1_000);
    let shown = fake.call("RL.TOP");
    let count: u64 = shown.strip_prefix("{1} k ").unwrap().parse().unwrap();
    assert!((4..=20 + (many >> 5)).contains(&count), "{shown}");
}

#[test]
fn what_is_counted_is_told() {
    let mut fake = Fake::start();
    fake.call("RL.TOKEN k 10 1000 5 COST 4");
    assert!(fake.info().contains("token_live 1"));
    fake.del("k");
    let before = fake.info();
    assert!(!before.contains("live"), "{before}");
    fake.with(|world| world.without = Some("section"));
    assert_eq!(fake.info(), "");
    assert!(fake.call("RL.HELP").contains("RL.FIXED"));
}

#[test]
fn the_heap_is_the_servers() {
    let mut fake = Fake::start();
    let layout = Layout::from_size_align(100, 8).unwrap();
    // SAFETY: blocks of `ServerAlloc`, each given back.
    unsafe {
        let block = ServerAlloc.alloc(layout);
        block.write_bytes(7, 100);
        assert_eq!(fake.memory(), (1, 100));
        let block = ServerAlloc.realloc(block, layout, 1000);
        assert_eq!((fake.memory(), *block.add(99)), ((1, 1000), 7));
        ServerAlloc.dealloc(block, Layout::from_size_align(1000, 8).unwrap());
        assert!(
            ServerAlloc
                .alloc(Layout::from_size_align(64, 64).unwrap())
                .is_null()
        );
    }
    assert_eq!(fake.memory().0, 0);
}
