//! The scripts of lua/ beside the core: the same histories, and any text as arguments.

#![no_main]

#[path = "../../tests/support/beside.rs"]
mod beside;
mod history;
#[path = "../../tests/model/mod.rs"]
mod model;
#[path = "../../tests/support/core.rs"]
mod pure;

use history::History;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use mlua::{Function, Lua, Variadic};
use model::trace::Step;
use model::{Mode, Model, ms_text};
use redis_rl::args::{self, Now};
use redis_rl::limit::{Algorithm, Call, MAX_UNITS};

const SCRIPTS: [(&str, &str); 5] = [
    ("fixed", include_str!("../../lua/fixed.lua")),
    ("slidinglog", include_str!("../../lua/slidinglog.lua")),
    (
        "slidingcounter",
        include_str!("../../lua/slidingcounter.lua"),
    ),
    ("token", include_str!("../../lua/token.lua")),
    ("gcra", include_str!("../../lua/gcra.lua")),
];
const BEYOND_RANGE: &str = "ERR beyond the range of this script";

thread_local! {
    static SERVER: Lua = {
        let lua = Lua::new();
        lua.load(include_str!("../redis.lua")).exec().expect("the server's script is right");
        let load: Function = lua.globals().get("load").expect("it is there");
        for (name, text) in SCRIPTS {
            load.call::<()>((name, text)).expect("a script compiles");
        }
        lua
    };
}

/// What a script answers: five integers as text, or an error.
fn script(lua: &Lua, algorithm: Algorithm, args: &[impl AsRef<[u8]>]) -> String {
    let run: Function = lua.globals().get("run").expect("it is there");
    let args: Variadic<mlua::String> = args
        .iter()
        .map(|arg| lua.create_string(arg).expect("memory"))
        .collect();
    run.call((algorithm.name(), "key", args))
        .unwrap_or_else(|e| panic!("{algorithm:?}: {e}"))
}

fuzz_target!(|bytes: &[u8]| {
    SERVER.with(|lua| {
        let clear: Function = lua.globals().get("clear").expect("it is there");
        clear.call::<()>(()).expect("it cannot fail");
        match bytes.split_first() {
            Some((b'a'..=b'z', _)) => texts(lua, bytes),
            // Bytes that end too early make a shorter history.
            Some((_, bytes)) => drop(same(lua, &mut Unstructured::new(bytes))),
            None => {}
        }
    });
});

/// One call of any words: refused alike, or answered alike.
fn texts(lua: &Lua, bytes: &[u8]) {
    let mut words = bytes.split(|byte| *byte == b' ');
    let name = words.next().unwrap_or_default();
    let args: Vec<&[u8]> = words.collect();
    let Some(algorithm) = Algorithm::ALL.iter().find(|a| a.name().as_bytes() == name) else {
        return;
    };
    let got = script(lua, *algorithm, &args);
    let want = match args::parse_check(*algorithm, args.as_slice()) {
        // A server looks for too few before anything else.
        _ if args.len() < 3 => format!(
            "ERR wrong number of arguments for 'rl.{}' command",
            algorithm.name()
        ),
        Err(error) => format!("ERR {error}"),
        Ok(check) => {
            let Now::Us(now_us) = check.now else { return };
            let call = Call {
                policy: check.policy,
                now_us,
                cost: check.cost,
                mode: check.mode,
            };
            match pure::Key::default().call(*algorithm, &call) {
                Ok(reply) => text(&reply),
                Err(_) => {
                    "ERR debt must be at most 9007199254740991 units and drain within 1000 years"
                        .into()
                }
            }
        }
    };
    assert!(
        got == want || got.starts_with(BEYOND_RANGE),
        "{got:?} for {want:?}"
    );
}

fn text(reply: &[i64; 5]) -> String {
    reply.map(|n| n.to_string()).join(" ")
}

fn same(lua: &Lua, bytes: &mut Unstructured) -> Result<()> {
    let mut history = History::new(bytes)?;
    let (mut core, mut naive) = (pure::Key::default(), Model::default());
    while let Some(step) = history.step()? {
        let Step::Call(call) = step else { continue };
        let (algorithm, core_call) = beside::to_core(&call);
        let in_range = beside::in_range(&mut core, &naive, &call);
        let got = script(lua, algorithm, &words(&call));
        let want = core.call(algorithm, &core_call);
        // Only the largest counts are asked of it.
        let _ = naive.call(&call);
        if !in_range {
            assert!(got.starts_with(BEYOND_RANGE), "{call:?}: {got}");
            break;
        }
        match want {
            Ok(reply) => {
                assert_eq!(got, text(&reply), "{call:?}");
                history.told(&reply);
            }
            Err(_) => assert!(
                got.starts_with("ERR debt must be at most"),
                "{call:?}: {got}"
            ),
        }
    }
    Ok(())
}

fn words(call: &model::Call) -> Vec<String> {
    let mut words = vec![
        call.limit.to_string(),
        ms_text(call.window_us),
        ms_text(call.now_us),
    ];
    words.extend(["COST".into(), call.cost.to_string()]);
    if call.algorithm.has_burst() {
        words.extend(["BURST".into(), call.burst.to_string()]);
    }
    words.extend(match call.mode {
        Mode::Charge => None,
        Mode::Peek => Some("PEEK".into()),
        Mode::Force => Some("FORCE".into()),
        Mode::Partial => Some("PARTIAL".into()),
    });
    debug_assert!(call.cost <= MAX_UNITS);
    words
}
