//! What a call costs inside the server, as command, script and function:
//!
//! ```sh
//! make build && cargo run --release --example lua_cost
//! ```
//!
//! The server's own count of the microseconds it spent (`INFO commandstats`), so no network and no client. Each
//! figure is over `RL_CALLS` calls (50000) on 1000 keys, pipelined in blocks of 200 that take turns; it is the
//! quarter mark of the blocks, since one in which the server had to wait for a processor tells of the machine and not
//! of the call. Everything is done `RL_RUNS` times (3). `REDIS_SERVER` chooses the server.

#[path = "../tests/support/mod.rs"]
mod support;

use std::env;
use std::io;

use support::Server;
use support::lua::{ALGORITHMS, Lua, Way};
use support::resp::{Client, Protocol};

const KEYS: usize = 1000;
const BLOCK: usize = 200;

/// Where the callers' clock begins, in ms.
const BEGIN_MS: usize = 1_791_860_000_000;

fn main() -> io::Result<()> {
    let number = |name: &str, or: usize| {
        env::var(name).map_or(or, |text| {
            text.parse()
                .unwrap_or_else(|_| panic!("{name} is a number"))
        })
    };
    let (calls, runs) = (number("RL_CALLS", 50_000), number("RL_RUNS", 3));
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    let lua = Lua::load(&mut client);
    println!(
        "{}, {calls} calls a figure, median of {runs} runs (lowest to highest)\n",
        server.version_text()
    );
    println!(
        "| call | command, µs | script, µs | function, µs | script : command | function : command |"
    );
    println!("|---|---|---|---|---|---|");
    for algorithm in ALGORITHMS {
        for allowed in [true, false] {
            let mut costs: Vec<[f64; 3]> = Vec::new();
            for _ in 0..runs {
                costs.push(measure(&mut client, &lua, algorithm, allowed, calls)?);
            }
            let of = |what: &dyn Fn(&[f64; 3]) -> f64| spread(costs.iter().map(what).collect());
            println!(
                "| {algorithm}, {} | {} | {} | {} | {} | {} |",
                if allowed { "allowed" } else { "denied" },
                of(&|c| c[0]),
                of(&|c| c[1]),
                of(&|c| c[2]),
                of(&|c| c[1] / c[0]),
                of(&|c| c[2] / c[0]),
            );
        }
    }
    Ok(())
}

fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    format!(
        "{:.1} ({:.1} to {:.1})",
        values[values.len() / 2],
        values[0],
        values[values.len() - 1]
    )
}

/// Microseconds of one call, each way.
fn measure(
    client: &mut Client,
    lua: &Lua,
    algorithm: &str,
    allowed: bool,
    calls: usize,
) -> io::Result<[f64; 3]> {
    client.call(&["FLUSHALL"])?;
    // A million per minute, of which a key sees a few hundred; or ten per day, which are spent.
    let (limit, window) = if allowed {
        ("1000000", "60000")
    } else {
        ("10", "86400000")
    };
    let call = |way: Way, n: usize, more: &[&str]| {
        let now = (BEGIN_MS + n / KEYS).to_string();
        let args: Vec<&str> = [limit, window, &now]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        lua.call(way, algorithm, &format!("{way:?}:{}", n % KEYS), &args)
    };
    for way in Way::ALL {
        let more: &[&str] = if allowed { &[] } else { &["COST", "10"] };
        let first: Vec<_> = (0..KEYS).map(|n| call(way, n, more)).collect();
        client.pipeline(&first)?;
    }
    let mut blocks = [(); 3].map(|()| Vec::new());
    for begin in (KEYS..KEYS + calls).step_by(BLOCK) {
        for (way, blocks) in Way::ALL.into_iter().zip(&mut blocks) {
            let commands: Vec<_> = (begin..begin + BLOCK).map(|n| call(way, n, &[])).collect();
            client.call(&["CONFIG", "RESETSTAT"])?;
            for reply in client.pipeline(&commands)? {
                let got = reply.items().and_then(|items| items[0].int());
                assert_eq!(
                    got,
                    Some(i64::from(allowed)),
                    "{way:?} {algorithm}: {reply:?}"
                );
            }
            let name = match way {
                Way::Command => format!("rl.{algorithm}"),
                Way::Script => "evalsha".into(),
                Way::Function => "fcall".into(),
            };
            blocks.push(spent_us(client, &name)? / BLOCK as f64);
        }
    }
    Ok(blocks.map(|mut blocks| {
        blocks.sort_by(f64::total_cmp);
        blocks[blocks.len() / 4]
    }))
}

/// What the server says it spent on a command since the statistics were reset.
fn spent_us(client: &mut Client, name: &str) -> io::Result<f64> {
    let info = client.call(&["INFO", "commandstats"])?;
    let info = String::from_utf8_lossy(info.bytes().expect("INFO is a text")).to_lowercase();
    let stat = info
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls={BLOCK},usec=")))
        .unwrap_or_else(|| panic!("{BLOCK} calls of {name} are not in {info}"));
    let digits = stat.split(',').next().unwrap_or_default();
    Ok(digits.parse().expect("a number"))
}
