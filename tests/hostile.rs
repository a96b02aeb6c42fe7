//! Hostile input over the wire: always an error or a right answer, never a crash, a hang or a key changed by an error.
//!
//! `RL_FUZZ` is the number of calls that are made up, `RL_SEED` the first seed, `RL_HUGE_MB` the size of an argument
//! that is as large as a server takes, `RL_OPTIONS` how many arguments a call of very many has. Damaged values for RESTORE are in persistence.rs, wrong numbers and options of
//! the five commands in commands.rs.

mod support;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use support::live::{COMMANDS, all_dumps, error, five, info_number, int, ok, rl, run, wait_until};
use support::resp::{Client, Protocol, Value, encode, latin1};
use support::{Server, note, number};

/// No key expires while it is looked at.
const LONG_LIVED: &str = "ttl-margin-ms 3600000";

/// A right call of every command of the module, with a key or two.
const CALLS: [&str; 17] = [
    "RL.FIXED k 10 1000 5 COST 3",
    "RL.SLIDINGLOG k 10 1000 5 COST 3 PARTIAL",
    "RL.SLIDINGCOUNTER k 10 1000 5 FORCE",
    "RL.TOKEN k 10 1000 5 BURST 20 COST 3",
    "RL.GCRA k 10 1000 5 PEEK BURST 20",
    "RL.MULTI 2 k l 5 GCRA 10 1000 BURST 3 FIXED 10 1000 COST 2",
    "RL.MULTI 1 k 5 SLIDINGLOG 10 1000 FORCE",
    "RL.INSPECT k 5",
    "RL.REFUND k 1 5",
    "RL.TOP COUNT 5",
    "RL.TOP RESET",
    "RL.HELP",
    "RL.RESTORE l 1 x",
    "RL.THROTTLE k 5 10 60 1 5",
    "CL.THROTTLE l 5 10 60 1",
    "GCRA l 5 10 60 TOKENS 2",
    "RL.GCRA l 10 1000 *",
];

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect()
}

/// Words that are none of the numbers there are.
const NO_NUMBERS: [&str; 34] = [
    "", " ", "-", "+", ".", "*", "-0", "-1", "+1", "1.", ".5", "1..2", "1.2.3", "1e3", "1E3", "1e",
    "0x10", "0b1", "1_000", "1,000", "NaN", "nan", "inf", "-inf", "Infinity", "null", "true", " 1",
    "1 ", "1\n", "1\0", "١٢", "１２", "Ⅷ",
];

/// Numbers at and beyond all bounds.
const EDGES: [&str; 26] = [
    "0",
    "0.0",
    "0.0009",
    "0.001",
    "00001",
    "1",
    "2",
    "64",
    "65",
    "127",
    "128",
    "1000",
    "1001",
    "2147483648",
    "4294967296",
    "31557600000000",
    "31557600000000.001",
    "3155760000000",
    "3155760000000.001",
    "9007199254740990",
    "9007199254740991",
    "9007199254740992",
    "9007199254740.991",
    "9007199254740.992",
    "18446744073709551616",
    "99999999999999999999999999999999999999",
];

const WORDS: [&str; 21] = [
    "COST",
    "BURST",
    "PEEK",
    "FORCE",
    "PARTIAL",
    "TOKENS",
    "COUNT",
    "RESET",
    "FIXED",
    "SLIDINGLOG",
    "SLIDINGCOUNTER",
    "TOKEN",
    "GCRA",
    "cost",
    "Peek",
    "k",
    "l",
    "text",
    "{k}",
    "*",
    "%s%n",
];

fn any_word(rng: &mut SmallRng) -> Vec<u8> {
    let text = match rng.random_range(0..6) {
        0 => *NO_NUMBERS.choose(rng).expect("some"),
        1 | 2 => *EDGES.choose(rng).expect("some"),
        3 | 4 => *WORDS.choose(rng).expect("some"),
        _ => {
            let length = rng.random_range(0..24);
            return (0..length).map(|_| rng.random()).collect();
        }
    };
    text.as_bytes().to_vec()
}

/// A call of one of the module's commands, mostly a right one with a few faults; up to 20 arguments.
fn any_call(rng: &mut SmallRng) -> Vec<Vec<u8>> {
    let mut call = words(CALLS.choose(rng).expect("some"));
    if rng.random_ratio(1, 3) {
        call.truncate(1);
        let count = rng.random_range(0..=20);
        call.extend((0..count).map(|_| any_word(rng)));
        return call;
    }
    for _ in 0..rng.random_range(0..4) {
        let at = rng.random_range(1..=call.len());
        match rng.random_range(0..5) {
            0 => call.insert(at, any_word(rng)),
            1 if at < call.len() => drop(call.remove(at)),
            2 if at < call.len() => call.insert(at, call[at].clone()),
            3 => call.truncate(at),
            _ if at < call.len() => call[at] = any_word(rng),
            _ => call.push(any_word(rng)),
        }
    }
    call.truncate(21);
    call
}

/// How a call is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Transaction,
    Call,
    Pcall,
    Function,
    /// By a client that was blocked when it arrived.
    Blocked,
}

const WAYS: [Way; 5] = [
    Way::Plain,
    Way::Transaction,
    Way::Call,
    Way::Pcall,
    Way::Function,
];

impl Way {
    /// The commands, the last of which has the answer or an EXEC's.
    fn commands(self, call: Vec<Vec<u8>>) -> Vec<Vec<Vec<u8>>> {
        let behind = |line: &[&str], call: Vec<Vec<u8>>| {
            let head = line.iter().map(|word| word.as_bytes().to_vec());
            head.chain(call).collect::<Vec<_>>()
        };
        match self {
            Way::Plain => vec![call],
            Way::Transaction => vec![words("MULTI"), call, words("EXEC")],
            Way::Call => vec![behind(
                &["EVAL", "return redis.call(unpack(ARGV))", "0"],
                call,
            )],
            Way::Pcall => vec![behind(
                &["EVAL", "return redis.pcall(unpack(ARGV))", "0"],
                call,
            )],
            Way::Function => vec![behind(&["FCALL", "any", "0"], call)],
            Way::Blocked => vec![words("BLPOP nothing 0.001"), call],
        }
    }
}

fn plain_text(text: &[u8]) -> bool {
    text.len() < 600 && text.iter().all(|byte| (b' '..=b'~').contains(byte))
}

/// An answer is of a kind that there is, and an error one short line.
fn assert_sound(reply: &Value, of: &dyn Fn() -> String) {
    match reply {
        Value::Error(text) => assert!(plain_text(text), "{}: {reply:?}", of()),
        Value::Array(items) => {
            for item in items {
                assert_sound(item, of);
            }
            let numbers: Vec<i64> = items.iter().filter_map(Value::int).collect();
            if items.len() == 5 && numbers.len() == 5 {
                assert!(
                    numbers.iter().all(|n| (-1..1 << 53).contains(n)),
                    "{}: {reply:?}",
                    of()
                );
            }
        }
        Value::Map(_) | Value::Int(_) | Value::Bulk(_) | Value::Simple(_) => {}
        null if null.is_null() => {}
        other => panic!("{}: {other:?}", of()),
    }
}

/// B76: made-up calls of every command, in every way that a command can be sent.
#[test]
fn made_up_calls_are_answered_or_refused() {
    const BATCH: u64 = 500;
    // A client that is blocked waits for a turn of the server's clock.
    let server = Server::builder()
        .module_args(LONG_LIVED)
        .arg("hz", "500")
        .start();
    let mut clients = [Protocol::Resp2, Protocol::Resp3].map(|protocol| server.raw(protocol));
    let mut known = server.raw(Protocol::Resp2);
    let listed = ok(&mut known, "COMMAND LIST FILTERBY MODULE ratelimit");
    for name in listed.items().expect("a list") {
        let name = latin1(name.bytes().expect("a name")).to_uppercase();
        assert!(
            CALLS
                .iter()
                .any(|call| call.split(' ').next() == Some(&name)),
            "{name} is not tried"
        );
    }
    ok(&mut known, "DEBUG SET-ACTIVE-EXPIRE 0");
    let library = "#!lua name=any\nredis.register_function('any', function(keys, args) return redis.call(unpack(args)) end)";
    assert!(
        known
            .call(&["FUNCTION", "LOAD", library])
            .unwrap()
            .error()
            .is_none()
    );
    let (first, calls) = (number("RL_SEED", 0), number("RL_FUZZ", 40_000));
    let (mut answered, mut refused, mut unchanged) = (0_u64, 0_u64, 0_u64);
    for seed in first..first + calls.div_ceil(BATCH) {
        let mut rng = SmallRng::seed_from_u64(seed);
        ok(&mut known, "FLUSHALL");
        ok(&mut known, "SET text x");
        for client in &mut clients {
            let mut sent = Vec::new();
            let mut ways = Vec::new();
            for _ in 0..BATCH / 2 {
                let way = match rng.random_range(0..60) {
                    0 => Way::Blocked,
                    n => WAYS[n % WAYS.len()],
                };
                let call = any_call(&mut rng);
                let shown = format!(
                    "RL_SEED={seed} {way:?}: {}",
                    call.join(&b' ').escape_ascii()
                );
                // Of some calls, what an error leaves is looked at.
                if rng.random_ratio(1, 10) && !matches!(way, Way::Transaction | Way::Blocked) {
                    let before = run(&mut known, "DEBUG DIGEST");
                    let reply = client
                        .call(&way.commands(call)[0])
                        .expect("the server lives");
                    assert_sound(&reply, &|| shown.clone());
                    if reply.error().is_some() {
                        assert_eq!(
                            run(&mut known, "DEBUG DIGEST"),
                            before,
                            "{shown}: {reply:?}"
                        );
                        unchanged += 1;
                    }
                    continue;
                }
                let commands = way.commands(call);
                ways.push((shown, commands.len()));
                sent.extend(commands);
            }
            let replies = client.pipeline(&sent).expect("the server lives");
            let mut replies = replies.iter();
            for (shown, count) in ways {
                for reply in replies.by_ref().take(count) {
                    assert_sound(reply, &|| shown.clone());
                    *if reply.error().is_some() {
                        &mut refused
                    } else {
                        &mut answered
                    } += 1;
                }
            }
            assert_eq!(ok(client, "PING"), Value::simple("PONG"));
        }
        // Whatever was made can be saved and loaded.
        let before = ok(&mut known, "DEBUG DIGEST");
        ok(&mut known, "DEBUG RELOAD");
        assert_eq!(ok(&mut known, "DEBUG DIGEST"), before, "RL_SEED={seed}");
    }
    note(&format!(
        "{calls} calls made up from seed {first}: {answered} answers, {refused} errors, {unchanged} errors looked behind"
    ));
    assert!(answered * 10 > calls && refused * 10 > calls && unchanged * 100 > calls);
}

/// The numbers of every command, one after the other, as everything that is none.
#[test]
fn no_other_spelling_is_a_number() {
    let server = Server::builder().module_args(LONG_LIVED).start();
    let mut client = server.raw(Protocol::Resp2);
    let mut tried = 0;
    for line in CALLS {
        ok(&mut client, "FLUSHALL");
        ok(&mut client, "RL.GCRA k 10 1000 5");
        let before = all_dumps(&mut client);
        let call = words(line);
        // RL.RESTORE's number is the encoding's version.
        let places =
            (1..call.len()).filter(|at| call[*at].iter().all(|byte| byte.is_ascii_digit()));
        for at in places {
            for wrong in NO_NUMBERS {
                // A time may be a star.
                if wrong == "*" {
                    continue;
                }
                let mut call = call.clone();
                call[at] = wrong.as_bytes().to_vec();
                let reply = client.call(&call).expect("the server lives");
                let text = reply
                    .error()
                    .unwrap_or_else(|| panic!("{line} with {wrong:?}: {reply:?}"));
                assert!(plain_text(text.as_bytes()), "{text}");
                tried += 1;
            }
        }
        assert_eq!(all_dumps(&mut client), before, "{line}");
    }
    assert!(tried > 30 * NO_NUMBERS.len(), "{tried}");
}

/// An argument as large as a server takes is refused where it lies: nobody copies it.
#[test]
fn a_huge_argument_is_refused_where_it_lies() {
    let size = usize::try_from(number("RL_HUGE_MB", 4) << 20).expect("a size");
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    let mut refused = 0;
    for line in CALLS {
        let call = words(line);
        for (at, word) in call.iter().enumerate().skip(1) {
            // A key may be as long as it likes.
            if [&b"k"[..], b"l"].contains(&word.as_slice()) {
                continue;
            }
            for fill in [b'9', b'0', b'x'] {
                let mut huge = call.clone();
                huge[at] = vec![fill; size];
                huge[at].extend(word);
                let reply = client.call(&huge).expect("the server lives");
                // Zeros before a number are part of it.
                if fill == b'0' && word.iter().all(|byte| byte.is_ascii_digit()) {
                    continue;
                }
                let text = reply.error();
                let text = text.unwrap_or_else(|| panic!("{line}, {at}: {reply:?}"));
                assert!(plain_text(text.as_bytes()), "{text}");
                refused += 1;
            }
        }
    }
    // The server itself reads into a buffer, and makes it larger once or twice.
    let peak = info_number(&server, "used_memory_peak");
    let most = i64::try_from(size).expect("a size") * 5 / 2 + (8 << 20);
    note(&format!(
        "{refused} arguments of {size} bytes refused; at most {peak} bytes used"
    ));
    assert!(peak < most, "{peak} bytes for arguments of {size}");
    // As a key it works like any other, and is given back with it.
    let key = vec![b'k'; size];
    for line in CALLS.iter().filter(|line| line.contains(" k ")) {
        let mut call = words(line);
        for word in call.iter_mut().filter(|word| *word == b"k") {
            word.clone_from(&key);
        }
        let reply = client.call(&call).expect("the server lives");
        assert_sound(&reply, &|| (*line).to_string());
        ok(&mut client, "FLUSHALL");
    }
    drop(client);
    wait_until("the memory is given back", || {
        info_number(&server, "used_memory") < 8 << 20
    });
}

/// Up to a million arguments, which a server takes.
#[test]
fn a_call_of_very_many_options_is_refused() {
    let many = usize::try_from(number("RL_OPTIONS", 100_000)).expect("a count");
    let server = Server::builder().module_args(LONG_LIVED).start();
    let mut client = server.raw(Protocol::Resp2);
    rl(&mut client, "RL.GCRA k 10 1000000 5");
    let before = all_dumps(&mut client);
    let mut refused = |head: &str, more: &[&str]| {
        let mut call = words(head);
        let more = more.iter().cycle().take(many);
        call.extend(more.map(|word| word.as_bytes().to_vec()));
        // More than a pipeline's buffers: written while nothing is read.
        client
            .write_raw(&encode(&call))
            .expect("the server reads on");
        let reply = client.reply().expect("the server lives");
        let text = reply
            .error()
            .unwrap_or_else(|| panic!("{head} …: {reply:?}"));
        assert!(plain_text(text.as_bytes()), "{text}");
    };
    for command in COMMANDS {
        for more in [
            &["COST", "1"][..],
            &["PEEK"],
            &["FORCE", "PEEK"],
            &["nonsense"],
            &[""],
            &["COST"],
        ] {
            refused(&format!("{command} k 10 1000 5"), more);
        }
    }
    for head in [
        "RL.MULTI 1 k 5",
        "RL.MULTI 64",
        "RL.MULTI 1000000",
        "RL.MULTI 1 k 5 GCRA 10 1000",
    ] {
        for more in [
            &["GCRA", "10", "1000"][..],
            &["k"],
            &["COST", "1"],
            &["PEEK"],
        ] {
            refused(head, more);
        }
    }
    for head in [
        "RL.INSPECT k 5",
        "RL.REFUND k 1 5",
        "RL.TOP",
        "RL.TOP COUNT 5",
        "RL.THROTTLE k 5 10 60 1 5",
        "CL.THROTTLE k 5 10 60 1",
        "GCRA k 5 10 60",
        "RL.RESTORE l 1 x",
    ] {
        refused(head, &["TOKENS", "1"]);
    }
    assert_eq!(all_dumps(&mut client), before);
}

/// Whoever has not said who he is, or may not, changes nothing.
#[test]
fn strangers_are_turned_away() {
    let server = Server::builder().module_args(LONG_LIVED).start();
    let mut owner = server.raw(Protocol::Resp2);
    let mut stranger = server.raw(Protocol::Resp2);
    rl(&mut owner, "RL.GCRA k 10 1000 5");
    rl(&mut owner, "RL.FIXED l 10 1000 5");
    // Whoever is connected stays who he is: the stranger is asked anew.
    ok(&mut owner, "CONFIG SET requirepass secret");
    drop(std::mem::replace(
        &mut stranger,
        server.raw(Protocol::Resp2),
    ));
    let before = run(&mut owner, "DEBUG DIGEST");
    for line in CALLS {
        let text = error(&mut stranger, line);
        if text.starts_with("ERR Protocol error: unauthenticated") {
            // So many arguments are not even read, and the connection ends.
            stranger = server.raw(Protocol::Resp2);
        } else {
            assert!(text.starts_with("NOAUTH "), "{line}: {text}");
        }
    }
    let script = [
        "EVAL",
        "return redis.call('RL.GCRA', 'k', 10, 1000, 5)",
        "0",
    ];
    let reply = stranger.call(&script).expect("the server lives");
    assert!(
        reply
            .error()
            .is_some_and(|text| text.starts_with("NOAUTH ")),
        "{reply:?}"
    );
    // A user with every command, but for other keys; one who may read only; one without these commands; one with none.
    for (user, rights, refused) in [
        ("others", "~other:* +@all", 13),
        ("reader", "%R~* +@all", 12),
        (
            "plain",
            "~* +@all -rl.fixed -rl.slidinglog -rl.slidingcounter -rl.token -rl.gcra -rl.multi -rl.inspect -rl.refund -rl.top -rl.help -rl.restore -rl.throttle -cl.throttle -gcra",
            17,
        ),
        ("nobody", "~* -@all", 17),
    ] {
        ok(&mut owner, &format!("ACL SETUSER {user} on >pw {rights}"));
        let mut client = server.raw(Protocol::Resp2);
        ok_or_denied(&mut client, user);
        let mut turned_away = 0;
        for line in CALLS {
            if run(&mut client, line)
                .error()
                .is_some_and(|text| text.starts_with("NOPERM "))
            {
                turned_away += 1;
            }
        }
        assert!(
            turned_away >= refused,
            "{user}: only {turned_away} were refused"
        );
        assert_eq!(run(&mut owner, "DEBUG DIGEST"), before, "{user}");
    }
}

fn ok_or_denied(client: &mut Client, user: &str) {
    let reply = client
        .call(&["AUTH", user, "pw"])
        .expect("the server lives");
    assert_eq!(reply, Value::simple("OK"), "{user}");
}

/// A key of a name with every byte is a key like any other, in every command.
#[test]
fn any_bytes_are_a_key() {
    let server = Server::builder().module_args(LONG_LIVED).start();
    let every: Vec<u8> = (0..=255).collect();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut client = server.raw(protocol);
        for key in [every.as_slice(), b"", b"\0", b"\r\n", b"{", b"{}", b"{}k"] {
            for command in COMMANDS {
                let mut send = |line: &str| {
                    let mut call = words(line);
                    call.iter_mut()
                        .filter(|word| *word == b"KEY")
                        .for_each(|word| *word = key.to_vec());
                    client.call(&call).expect("the server lives")
                };
                let name = &command[3..];
                assert_eq!(
                    five(&send(&format!("{command} KEY 10 1000000 5 COST 3")))[..3],
                    [1, 10, 7]
                );
                let reply = send(&format!("RL.MULTI 1 KEY 5 {name} 10 1000000"));
                assert_eq!(
                    five(&reply.items().expect("three")[2].items().expect("one")[0])[2],
                    6
                );
                assert_eq!(send("RL.REFUND KEY 2 5"), Value::Int(8));
                assert!(matches!(
                    send("RL.INSPECT KEY 5"),
                    Value::Map(_) | Value::Array(_)
                ));
                // Denied, so that the tables of denials know it.
                assert_eq!(
                    five(&send(&format!("{command} KEY 10 1000000 5 COST 9")))[0],
                    0
                );
                assert!(send("RL.TOP").error().is_none());
                let dump = send("DUMP KEY");
                let restored = client.call(&[
                    b"RESTORE",
                    key,
                    b"0",
                    dump.bytes().expect("there"),
                    b"REPLACE",
                ]);
                assert_eq!(restored.unwrap(), Value::simple("OK"));
                assert_eq!(client.call(&[b"DEL", key]).unwrap(), Value::Int(1));
            }
        }
        assert_eq!(int(&mut client, "DBSIZE"), 0);
    }
}
