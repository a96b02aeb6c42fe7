//! What a call costs inside the server, as command, script and function:
//!
//! ```sh
//! make build && cargo run --release --example lua_cost
//! ```
//!
//! The server's own count of the microseconds it spent (`INFO commandstats`), so no network and no client. Each
//! figure is over `RL_CALLS` calls (200000), pipelined over 1000 keys, and everything is done `RL_RUNS` times (3).
//! `REDIS_SERVER` chooses the server.

#[path = "../tests/support/mod.rs"]
mod support;

use std::env;
use std::io;

use support::Server;
use support::lua::{ALGORITHMS, Lua, Way};
use support::resp::{Client, Protocol};

const KEYS: usize = 1000;

/// Where the callers' clock begins, in ms.
const BEGIN_MS: usize = 1_791_860_000_000;

fn main() -> io::Result<()> {
    let number = |name: &str, or: usize| {
        env::var(name).map_or(or, |text| {
            text.parse()
                .unwrap_or_else(|_| panic!("{name} is a number"))
        })
    };
    let (calls, runs) = (number("RL_CALLS", 200_000), number("RL_RUNS", 3));
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
                let mut cost = [0.0; 3];
                for (cost, way) in cost.iter_mut().zip(Way::ALL) {
                    *cost = measure(&mut client, &server, &lua, way, algorithm, allowed, calls)?;
                }
                costs.push(cost);
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

/// Microseconds of one call.
fn measure(
    client: &mut Client,
    server: &Server,
    lua: &Lua,
    way: Way,
    algorithm: &str,
    allowed: bool,
    calls: usize,
) -> io::Result<f64> {
    client.call(&["FLUSHALL"])?;
    // A million per minute, of which a key sees a few hundred; or ten per day, which are spent.
    let (limit, window) = if allowed {
        ("1000000", "60000")
    } else {
        ("10", "86400000")
    };
    let call = |n: usize, more: &[&str]| {
        let now = (BEGIN_MS + n / KEYS).to_string();
        let args: Vec<&str> = [limit, window, &now]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        lua.call(way, algorithm, &format!("cost:{}", n % KEYS), &args)
    };
    let first: Vec<_> = (0..KEYS)
        .map(|n| call(n, if allowed { &[] } else { &["COST", "10"] }))
        .collect();
    client.pipeline(&first)?;
    client.call(&["CONFIG", "RESETSTAT"])?;
    let commands: Vec<_> = (KEYS..KEYS + calls).map(|n| call(n, &[])).collect();
    let expected = i64::from(allowed);
    for reply in client.pipeline(&commands)? {
        let got = reply.items().and_then(|items| items[0].int());
        assert_eq!(got, Some(expected), "{way:?} {algorithm}: {reply:?}");
    }
    let name = match way {
        Way::Command => format!("rl.{algorithm}"),
        Way::Script => "evalsha".into(),
        Way::Function => "fcall".into(),
    };
    let stat = server
        .info()
        .lines()
        .find(|line| line.to_lowercase().starts_with(&format!("cmdstat_{name}:")))
        .map(str::to_string)
        .unwrap_or_else(|| panic!("INFO commandstats does not tell of {name}"));
    let field = |name: &str| -> f64 {
        let at = stat.find(&format!("{name}=")).expect("commandstats");
        let text = &stat[at + name.len() + 1..];
        text.split(',')
            .next()
            .and_then(|text| text.parse().ok())
            .expect("a number")
    };
    assert_eq!(field("calls"), calls as f64, "{stat}");
    Ok(field("usec") / calls as f64)
}
