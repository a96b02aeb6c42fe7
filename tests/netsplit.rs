//! A primary and its replica on two hosts whose link is cut and healed while limiters are charged: no limiter is
//! stuck, and both come to the same states.
//!
//! The hosts are network namespaces, which take root and iproute2 to make. Where they cannot be made, the test says
//! so in a line that begins `NOT RUN: netsplit`; with `RL_NETSPLIT=must` it fails then. `RL_CUTS` is how often the
//! link is cut.

#[path = "support/core.rs"]
mod pure;
mod support;

use std::env;
use std::net::Ipv4Addr;
use std::process::{Command, id};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use pure::{Key, policy};
use redis_rl::limit::{Algorithm, Call, Mode};
use support::live::{COMMANDS, all_dumps, five, info_number, ok, rl, wait_until};
use support::resp::{Protocol, Value, latin1};
use support::{Server, note};

fn number(name: &str, or: u64) -> u64 {
    env::var(name).map_or(or, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number"))
    })
}

fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(line.split(' '))
        .output()
        .map_err(|e| format!("ip cannot be run: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {line}: {}", said.trim()))
}

/// Two hosts joined by a link, each with a link to the test as well, so that the test reaches both when theirs is
/// cut. The addresses are of a range for tests of networks, and none of them is routed on.
struct Hosts {
    names: [String; 2],
    /// Third number of the addresses of this run's links.
    net: u32,
}

impl Hosts {
    fn new() -> Result<Hosts, String> {
        let hosts = Hosts {
            names: ["a", "b"].map(|end| format!("rl{}{end}", id())),
            // Two runs at once are unlikely to have the same.
            net: id() % 80 * 3,
        };
        // Whatever was made is removed with it.
        hosts.make()?;
        let inside = format!("--net=/var/run/netns/{}", hosts.names[0]);
        match Command::new("nsenter").args([&inside, "true"]).status() {
            Ok(status) if status.success() => Ok(hosts),
            other => Err(format!("nsenter: {other:?}")),
        }
    }

    fn make(&self) -> Result<(), String> {
        let [a, b] = &self.names;
        for (at, name) in (0..).zip(&self.names) {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            // The test's link: its end has the host's name.
            ip(&format!(
                "link add {name} type veth peer name ctl netns {name}"
            ))?;
            ip(&format!(
                "addr add 198.18.{}.1/24 dev {name}",
                self.net + at
            ))?;
            ip(&format!("link set {name} up"))?;
            ip(&format!("-n {name} addr add {}/24 dev ctl", self.seen(at)))?;
            ip(&format!("-n {name} link set ctl up"))?;
        }
        ip(&format!(
            "-n {a} link add peer type veth peer name peer netns {b}"
        ))?;
        for (at, name) in (0..).zip(&self.names) {
            ip(&format!(
                "-n {name} addr add {}/24 dev peer",
                self.linked(at)
            ))?;
            ip(&format!("-n {name} link set peer up"))?;
        }
        Ok(())
    }

    fn address(&self, net: u32, last: u8) -> Ipv4Addr {
        let third = u8::try_from(self.net + net).expect("below 256");
        Ipv4Addr::new(198, 18, third, last)
    }

    /// Where the test sees a host.
    fn seen(&self, at: u32) -> Ipv4Addr {
        self.address(at, 2)
    }

    /// Where the other host sees it.
    fn linked(&self, at: u32) -> Ipv4Addr {
        self.address(2, u8::try_from(at + 1).expect("one of two"))
    }

    fn link(&self, state: &str) {
        ip(&format!("-n {} link set peer {state}", self.names[0])).expect("the link is ours");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // What was not made cannot be removed; a link goes with either of its ends.
            let _ = ip(&format!("link del {name}"));
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

const LIMIT: u64 = 1000;
const WINDOW_MS: u64 = 3_600_000;

#[test]
fn a_cut_link_sticks_and_parts_nothing() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(why) => {
            note(&format!("NOT RUN: netsplit: {why}"));
            assert!(env::var("RL_NETSPLIT").as_deref() != Ok("must"), "{why}");
            return;
        }
    };
    let [primary, replica] = [0, 1].map(|at: u32| {
        Server::builder()
            .inside(
                &hosts.names[usize::try_from(at).expect("one of two")],
                hosts.seen(at),
            )
            .module_args("ttl-margin-ms 3600000")
            // Whoever hears nothing for so long takes the link for broken.
            .arg("repl-timeout", "2")
            .arg("repl-ping-replica-period", "1")
            .start()
    });
    note(&format!("server: {}", primary.version_text()));
    let mut reader = replica.raw(Protocol::Resp2);
    let line = format!("REPLICAOF {} {}", hosts.linked(0), primary.port());
    ok(&mut reader, &line);
    primary.wait_in_sync(&replica);

    let (over, calls, live) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let cuts = number("RL_CUTS", 3);
    let mut resyncs = (0, 0);
    thread::scope(|scope| {
        let (over, calls, live) = (&over, &calls, &live);
        let primary = &primary;
        let caller = scope.spawn(move || {
            let mut client = primary.raw(Protocol::Resp2);
            let mut cores: Vec<Key> = COMMANDS
                .iter()
                .map(|_| Key {
                    unchecked: true,
                    ..Key::default()
                })
                .collect();
            let algorithms = [
                Algorithm::Fixed,
                Algorithm::SlidingLog,
                Algorithm::SlidingCounter,
                Algorithm::Token,
                Algorithm::Gcra,
            ];
            let mut now_ms = 1_700_000_000_000;
            while !over.load(Ordering::Relaxed) {
                for ((command, algorithm), core) in COMMANDS.iter().zip(algorithms).zip(&mut cores)
                {
                    now_ms += 1300;
                    let line = format!("{command} {command} {LIMIT} {WINDOW_MS} {now_ms} COST 3");
                    let call = Call {
                        policy: policy(LIMIT, WINDOW_MS * 1000, LIMIT),
                        now_us: now_ms * 1000,
                        cost: 3,
                        mode: Mode::Charge,
                    };
                    let want = core.call(algorithm, &call).expect("no debt");
                    assert_eq!(rl(&mut client, &line), want, "{line}");
                    // On the server's clock: 20 per 100 ms, and it is never stuck for longer than that.
                    let line = format!("{command} live:{command} 20 100 *");
                    live.fetch_add(
                        u64::from(five(&ok(&mut client, &line))[0] == 1),
                        Ordering::Relaxed,
                    );
                    calls.fetch_add(2, Ordering::Relaxed);
                }
            }
        });
        // The caller must end even if this fails.
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let goes_on = |what: &str| {
                let before = (calls.load(Ordering::Relaxed), live.load(Ordering::Relaxed));
                wait_until(what, || {
                    calls.load(Ordering::Relaxed) > before.0 + 500
                        && live.load(Ordering::Relaxed) > before.1 + 50
                });
            };
            for cut in 0..cuts {
                goes_on("calls go on while the hosts are joined");
                // A primary streams nothing until the replica's first acknowledgement.
                primary.wait_in_sync(&replica);
                let link = || replica.info_field("master_link_status");
                // By turns: too short to be noticed; until the replica gives up; until the primary has forgotten
                // what the replica missed, so that all is sent anew.
                let size = if cut % 3 == 2 { "16kb" } else { "64mb" };
                ok(
                    &mut primary.raw(Protocol::Resp2),
                    &format!("CONFIG SET repl-backlog-size {size}"),
                );
                let full = info_number(primary, "sync_full");
                hosts.link("down");
                if cut % 3 == 0 {
                    goes_on("calls go on in a short cut");
                } else {
                    wait_until("the replica misses its primary", || {
                        link().as_deref() == Some("down")
                    });
                    goes_on("calls go on while the link is cut");
                }
                if cut % 3 == 2 {
                    wait_until("the primary gives the replica up", || {
                        info_number(primary, "connected_slaves") == 0
                    });
                    let offset = info_number(primary, "master_repl_offset");
                    wait_until("the backlog is too short", || {
                        info_number(primary, "master_repl_offset") > offset + 100_000
                    });
                }
                // What the replica shows meanwhile is old, and shown.
                let mut reader = replica.raw(Protocol::Resp2);
                let shown = ok(&mut reader, "RL.INSPECT RL.GCRA 1700000000000");
                assert!(
                    shown.items().is_some_and(|items| items.len() == 18),
                    "{shown:?}"
                );
                hosts.link("up");
                wait_until("the replica follows again", || {
                    link().as_deref() == Some("up") && info_number(primary, "connected_slaves") == 1
                });
                primary.wait_in_sync(&replica);
                if cut % 3 == 2 {
                    assert!(info_number(primary, "sync_full") > full, "cut {cut}");
                }
            }
            resyncs = (
                info_number(primary, "sync_partial_ok"),
                info_number(primary, "sync_full"),
            );
        }));
        over.store(true, Ordering::Relaxed);
        caller.join().expect("every reply is the core's");
        if let Err(why) = worked {
            std::panic::resume_unwind(why);
        }
    });
    primary.wait_in_sync(&replica);
    let mut client = primary.raw(Protocol::Resp2);
    let states = all_dumps(&mut client);
    assert_eq!(states.len(), 10);
    assert_eq!(all_dumps(&mut reader), states);
    let digest = |reply: Value| latin1(reply.bytes().expect("a digest"));
    assert_eq!(
        digest(ok(&mut reader, "DEBUG DIGEST")),
        digest(ok(&mut client, "DEBUG DIGEST"))
    );
    note(&format!(
        "netsplit: {cuts} cuts, {} calls, 0 differences; {} partial and {} full resyncs, all states equal",
        calls.load(Ordering::Relaxed),
        resyncs.0,
        resyncs.1
    ));
    // Alive afterwards, on both sides.
    for command in COMMANDS {
        wait_until("no limiter is stuck", || {
            five(&ok(
                &mut client,
                &format!("{command} live:{command} 20 100 *"),
            ))[0]
                == 1
        });
    }
    ok(&mut reader, "REPLICAOF NO ONE");
    for command in COMMANDS {
        wait_until("no limiter is stuck", || {
            five(&ok(
                &mut reader,
                &format!("{command} live:{command} 20 100 *"),
            ))[0]
                == 1
        });
    }
}
