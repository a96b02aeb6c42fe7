//! Faults of a live server under load: what was acknowledged is kept, and nobody is locked out.
//!
//! Limiters here have a window of many days at one given `now`, so that nothing drains and what is spent can be told
//! to the unit:
//!
//! ```text
//! acknowledged ≤ spent ≤ acknowledged + sent and never answered
//! ```
//!
//! `RL_KILLS` is how often the server is killed, `RL_CLIENTS` how many clients die in the middle of a pipeline.
//! The disk that is full is a tmpfs, which takes root to mount: where it cannot be, the test says so in a line that
//! begins `disk full: not run:`; with `RL_TMPFS=must` it fails then. A memory that is full is in commands.rs and
//! scenarios.rs, a wrong argument at load in config.rs.

mod support;

use std::env;
use std::fs;
use std::net::{Shutdown as Half, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use support::live::{
    COMMANDS, all_dumps, error, five, info_number, int, ok, rl, run, time_ms, wait_until,
};
use support::resp::{Client, Protocol, Value, encode, latin1};
use support::{Server, note, number};

const LIMIT: i64 = 1_000_000_000;
const CALLERS: usize = 3;
/// A bucket of this rate is soon full again by the server's clock, which is not the calls'.
const LONG_LIVED: &str = "ttl-margin-ms 3600000";

/// At a time of zero no window has a past, and its end is far.
fn charge(command: &str, caller: usize) -> String {
    format!("{command} {command}:{caller} {LIMIT} 864000000 0")
}

fn spent(client: &mut Client, command: &str, caller: usize) -> i64 {
    LIMIT - rl(client, &format!("{} PEEK", charge(command, caller)))[2]
}

/// What one caller was told of its limiters, one for each command.
#[derive(Clone, Copy, Default)]
struct Told {
    acknowledged: [i64; 5],
    unanswered: [i64; 5],
}

/// Calls that go on through faults; each caller has limiters of its own.
struct Load {
    addr: SocketAddr,
    over: AtomicBool,
    calls: AtomicU64,
}

impl Load {
    /// Errors that a call may have while there is a fault; it charged nothing then.
    const REFUSALS: [&str; 4] = ["LOADING ", "MISCONF ", "OOM ", "BUSY "];

    fn caller(&self, caller: usize) -> Told {
        let mut told = Told::default();
        let mut rng = SmallRng::seed_from_u64(caller as u64);
        while !self.over.load(Ordering::Relaxed) {
            let Ok(mut client) = Client::connect(self.addr, Protocol::Resp2) else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            while !self.over.load(Ordering::Relaxed) {
                let at = rng.random_range(0..5);
                let batch: usize = rng.random_range(1..=10);
                let line = charge(COMMANDS[at], caller);
                let words: Vec<&str> = line.split(' ').collect();
                let bytes = encode(&words).repeat(batch);
                let mut answered = 0;
                let lived = (|| {
                    client.write_raw(&bytes)?;
                    for _ in 0..batch {
                        let reply = client.reply()?;
                        answered += 1;
                        match reply.error() {
                            None => {
                                assert_eq!(five(&reply)[0], 1, "{line}");
                                told.acknowledged[at] += 1;
                                self.calls.fetch_add(1, Ordering::Relaxed);
                            }
                            Some(text) => assert!(
                                Self::REFUSALS.iter().any(|word| text.starts_with(word)),
                                "{text}"
                            ),
                        }
                    }
                    std::io::Result::Ok(())
                })();
                if lived.is_err() {
                    told.unanswered[at] += (batch - answered) as i64;
                    break;
                }
            }
        }
        told
    }

    fn goes_on(&self, what: &str) {
        let before = self.calls.load(Ordering::Relaxed);
        wait_until(what, || self.calls.load(Ordering::Relaxed) > before + 100);
    }
}

/// Callers while `work` goes on; then what they were told is compared with what is spent. Gives the units of both.
fn under_load(server: &mut Server, work: impl FnOnce(&mut Server, &Load)) -> (i64, i64) {
    let load = Load {
        addr: server.addr(),
        over: AtomicBool::new(false),
        calls: AtomicU64::new(0),
    };
    let told: Vec<Told> = thread::scope(|scope| {
        let load = &load;
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| scope.spawn(move || load.caller(caller)))
            .collect();
        let worked = catch_unwind(AssertUnwindSafe(|| work(server, load)));
        load.over.store(true, Ordering::Relaxed);
        let told = callers
            .into_iter()
            .map(|caller| caller.join().expect("no call goes wrong"))
            .collect();
        worked.unwrap_or_else(|why| resume_unwind(why));
        told
    });
    let mut client = server.raw(Protocol::Resp2);
    let mut sums = (0, 0);
    for (caller, told) in told.iter().enumerate() {
        for (at, command) in COMMANDS.iter().enumerate() {
            let spent = spent(&mut client, command, caller);
            let (acknowledged, unanswered) = (told.acknowledged[at], told.unanswered[at]);
            assert!(
                (acknowledged..=acknowledged + unanswered).contains(&spent),
                "{command}, caller {caller}: {acknowledged} acknowledged, {unanswered} without an answer, {spent} spent"
            );
            sums = (sums.0 + acknowledged, sums.1 + unanswered);
        }
    }
    assert!(sums.0 > 0, "nothing was charged");
    sums
}

#[test]
fn a_kill_loses_nothing_that_was_acknowledged() {
    let kills = number("RL_KILLS", 3);
    let mut server = Server::builder()
        .module_args(LONG_LIVED)
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .arg("auto-aof-rewrite-min-size", "256kb")
        .start();
    let mut rng = SmallRng::seed_from_u64(number("RL_SEED", 0));
    let (acknowledged, unanswered) = under_load(&mut server, |server, load| {
        for kill in 0..kills {
            load.goes_on(&format!("calls before kill {kill}"));
            // A moment of the load's own: after so many calls more.
            let more = rng.random_range(1..2000);
            let then = load.calls.load(Ordering::Relaxed) + more;
            wait_until("a random moment", || {
                load.calls.load(Ordering::Relaxed) >= then
            });
            server.kill9();
            server.start_again();
        }
        load.goes_on("calls after the last kill");
    });
    note(&format!(
        "{kills} kills: {acknowledged} units acknowledged, all there; {unanswered} calls without an answer"
    ));
}

#[test]
fn connections_that_are_cut_lose_nothing() {
    let mut server = Server::builder().module_args(LONG_LIVED).start();
    let rounds = number("RL_CUTS", 20);
    under_load(&mut server, |server, load| {
        let mut client = server.raw(Protocol::Resp2);
        for round in 0..rounds {
            load.goes_on(&format!("calls after cut {round}"));
            assert!(int(&mut client, "CLIENT KILL TYPE normal SKIPME yes") >= 1);
        }
    });
}

/// A server that stands still for a while, by itself or from outside, and its replica.
#[test]
fn a_server_that_stands_still_goes_on() {
    let mut server = Server::builder().module_args(LONG_LIVED).start();
    let replica = Server::builder().module_args(LONG_LIVED).start();
    replica.replica_of(&server);
    rl(
        &mut server.raw(Protocol::Resp2),
        "RL.GCRA shown 10 86400000 0",
    );
    server.wait_in_sync(&replica);
    under_load(&mut server, |server, load| {
        let mut client = server.raw(Protocol::Resp2);
        for round in 0..3 {
            load.goes_on(&format!("calls in round {round}"));
            ok(&mut client, "DEBUG SLEEP 0.2");
            load.goes_on(&format!("calls after the sleep of round {round}"));
            let pid = server.pid().to_string();
            let signal = |name: &str| {
                let status = Command::new("kill").args([name, &pid]).status();
                assert!(status.expect("kill can be run").success(), "{name}");
            };
            signal("-STOP");
            let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            wait_until("the server stands still", || state().contains(") T "));
            let before = load.calls.load(Ordering::Relaxed);
            // The replica serves on meanwhile.
            let shown = ok(&mut replica.raw(Protocol::Resp2), "RL.INSPECT shown 0");
            assert_eq!(shown.items().map(<[Value]>::len), Some(18));
            // At most what was answered before it stopped is still on its way.
            thread::sleep(Duration::from_millis(50));
            assert!(load.calls.load(Ordering::Relaxed) - before < 200);
            signal("-CONT");
            load.goes_on(&format!("calls after the stop of round {round}"));
        }
    });
    server.wait_in_sync(&replica);
    assert_eq!(
        all_dumps(&mut replica.raw(Protocol::Resp2)),
        all_dumps(&mut server.raw(Protocol::Resp2))
    );
    // While it stood still the server's clock went on: what drains by `*` has drained, and no more.
    let mut client = server.raw(Protocol::Resp2);
    let begin_ms = time_ms(&mut client);
    let mut admitted = 0;
    for _ in 0..5 {
        for _ in 0..20 {
            admitted += rl(&mut client, "RL.TOKEN clock 100 1000 * BURST 5")[0];
        }
        ok(&mut client, "DEBUG SLEEP 0.05");
    }
    let passed_ms = time_ms(&mut client) + 1 - begin_ms;
    assert!(
        (25..=5 + passed_ms / 10).contains(&admitted),
        "{admitted} in {passed_ms} ms"
    );
}

/// Clients that send the better part of a pipeline and die: whole calls may count, the last, broken one never does.
#[test]
fn clients_that_die_in_the_middle_harm_nobody() {
    const CALLS: usize = 20;
    let clients = usize::try_from(number("RL_CLIENTS", 1000)).expect("a count");
    let server = Server::builder().module_args(LONG_LIVED).start();
    let mut rng = SmallRng::seed_from_u64(number("RL_SEED", 0));
    for (wave, most) in (0..clients).step_by(100).enumerate() {
        let mut streams = Vec::new();
        for client in most..clients.min(most + 100) {
            let call: Vec<String> = charge(COMMANDS[client % 5], client)
                .split(' ')
                .map(String::from)
                .collect();
            let bytes = encode(&call);
            let mut stream =
                TcpStream::connect(server.addr()).expect("the server takes connections");
            let broken = rng.random_range(1..bytes.len());
            let sent = [bytes.repeat(CALLS), bytes[..broken].to_vec()].concat();
            std::io::Write::write_all(&mut stream, &sent).expect("the server reads");
            streams.push(stream);
        }
        for (n, stream) in streams.into_iter().enumerate() {
            // Some say that they are done, some go without a word; nobody reads the answers.
            if n.is_multiple_of(2) {
                stream
                    .shutdown(Half::Both)
                    .expect("a connection can be shut");
            }
            drop(stream);
        }
        wait_until(&format!("the clients of wave {wave} are gone"), || {
            info_number(&server, "connected_clients") <= 1
        });
    }
    let mut client = server.raw(Protocol::Resp2);
    let mut all = 0;
    for caller in 0..clients {
        let spent = spent(&mut client, COMMANDS[caller % 5], caller);
        assert!(
            (0..=CALLS as i64).contains(&spent),
            "client {caller}: {spent}"
        );
        all += spent;
    }
    note(&format!(
        "{clients} clients died: {all} of their {} whole calls were charged",
        clients * CALLS
    ));
    assert!(all > 0);
}

/// A script that only looks can be killed; one that has charged cannot, and is undone by a restart without saving.
#[test]
fn a_script_that_never_ends() {
    let mut server = Server::builder()
        .module_args(LONG_LIVED)
        .arg("lua-time-limit", "10")
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .start();
    let mut client = server.raw(Protocol::Resp2);
    for command in COMMANDS {
        rl(&mut client, &charge(command, 0));
    }
    let before = all_dumps(&mut client);
    let endless = |body: &str| format!("while true do {body} end");
    let start = |server: &Server, script: &str| {
        let mut busy = server.raw(Protocol::Resp2);
        busy.write_raw(&encode(&["EVAL", script, "0"]))
            .expect("the server reads");
        let mut other = server.raw(Protocol::Resp2);
        wait_until("the script is known to be slow", || {
            run(&mut other, "PING")
                .error()
                .is_some_and(|text| text.starts_with("BUSY "))
        });
        (busy, other)
    };
    let look = endless("redis.call('RL.INSPECT', 'RL.GCRA:0', 0) redis.pcall('RL.GCRA', 'k')");
    let (mut busy, mut other) = start(&server, &look);
    assert!(error(&mut other, &charge("RL.GCRA", 0)).starts_with("BUSY "));
    assert_eq!(ok(&mut other, "SCRIPT KILL"), Value::simple("OK"));
    let killed = busy.reply().expect("an answer").error().expect("an error");
    assert!(killed.contains("killed"), "{killed}");
    assert_eq!(all_dumps(&mut client), before);

    let charges = COMMANDS
        .map(|command| format!("redis.call('{command}', '{command}:0', {LIMIT}, 864000000, 0)"));
    let (mut busy, mut other) = start(&server, &endless(&charges.join(" ")));
    let text = error(&mut other, "SCRIPT KILL");
    assert!(text.starts_with("UNKILLABLE "), "{text}");
    assert!(error(&mut other, &charge("RL.GCRA", 0)).starts_with("BUSY "));
    server.stop(support::Shutdown::NoSave);
    assert!(busy.reply().is_err(), "the connection ends");
    // The log has none of an unfinished script.
    server.start_again();
    assert_eq!(all_dumps(&mut server.raw(Protocol::Resp2)), before);
}

#[test]
fn unloading_is_refused_with_a_reason() {
    let server = Server::builder().module_args(LONG_LIVED).start();
    let mut client = server.raw(Protocol::Resp2);
    rl(&mut client, "RL.GCRA k 10 1000000 5");
    let before = all_dumps(&mut client);
    let text = error(&mut client, "MODULE UNLOAD ratelimit");
    assert!(text.contains("data type"), "{text}");
    assert_eq!(all_dumps(&mut client), before);
    assert_eq!(rl(&mut client, "RL.GCRA k 10 1000000 5")[2], 8);
}

// A full disk -----------------------------------------------------------------------------------

/// A small disk, as long as it is needed.
struct Disk(PathBuf);

impl Disk {
    fn mount(megabytes: u32) -> Result<Disk, String> {
        let dir = env::temp_dir().join(format!("redis-rl-disk-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(&dir)
            .output()
            .map_err(|e| format!("mount cannot be run: {e}"));
        match output {
            Ok(output) if output.status.success() => Ok(Disk(dir)),
            other => {
                let _ = fs::remove_dir(&dir);
                Err(other.map_or_else(|e| e, |output| latin1(&output.stderr).trim().to_string()))
            }
        }
    }

    /// Leaves so many bytes free at most.
    fn fill(&self, free: usize) {
        let ballast = self.0.join("ballast");
        let mut file = fs::File::create(ballast).expect("a file can be made");
        let mut written: u64 = 0;
        while let Ok(n) = std::io::Write::write(&mut file, &[0; 4096]) {
            written += n as u64;
        }
        file.set_len(written.saturating_sub(free as u64))
            .expect("a file can be cut");
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("ballast")).expect("the ballast is there");
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a server that is still ending may have a file open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_full_disk_loses_nothing_that_was_acknowledged() {
    let disk = match Disk::mount(16) {
        Ok(disk) => disk,
        Err(why) => {
            assert!(env::var("RL_TMPFS").as_deref() != Ok("must"), "{why}");
            note(&format!("disk full: not run: {why}"));
            return;
        }
    };
    let mut server = Server::builder()
        .module_args(LONG_LIVED)
        .arg("dir", &format!("\"{}\"", disk.path().display()))
        .arg("save", "3600 1000000")
        .arg("appendonly", "yes")
        .arg("appendfsync", "everysec")
        .arg("aof-use-rdb-preamble", "no")
        .arg("rdbcompression", "no")
        .arg("auto-aof-rewrite-percentage", "0")
        .start();
    let (acknowledged, _) = under_load(&mut server, |server, load| {
        let mut client = server.raw(Protocol::Resp2);
        // Something to write: more than will be free.
        for at in 0..300 {
            ok(&mut client, &format!("RL.FIXED user:{at} 10 86400000 0"));
        }
        ok(&mut client, "DEBUG POPULATE 20000 filler 100");
        load.goes_on("calls before the disk is full");
        disk.fill(1 << 20);
        let finished = |server: &Server, name: &str| {
            wait_until(name, || info_number(server, name) == 0);
        };
        ok(&mut client, "BGSAVE");
        finished(server, "rdb_bgsave_in_progress");
        assert_eq!(
            server.info_field("rdb_last_bgsave_status").as_deref(),
            Some("err")
        );
        // The server refuses to charge what it cannot save; nobody is told that he was let in.
        wait_until("charges are refused", || {
            error_text(&mut client).is_some_and(|text| text.starts_with("MISCONF "))
        });
        let shown = ok(&mut client, "RL.INSPECT user:7 0");
        assert_eq!(shown.items().map(<[Value]>::len), Some(18));
        ok(&mut client, "CONFIG SET stop-writes-on-bgsave-error no");
        ok(&mut client, "BGREWRITEAOF");
        finished(server, "aof_rewrite_in_progress");
        assert_eq!(
            server.info_field("aof_last_bgrewrite_status").as_deref(),
            Some("err")
        );
        // On until not even a call can be logged.
        wait_until("the log cannot be written", || {
            server.info_field("aof_last_write_status").as_deref() == Some("err")
        });
        wait_until("charges are refused again", || {
            error_text(&mut client).is_some_and(|text| text.starts_with("MISCONF "))
        });
        disk.empty();
        load.goes_on("calls when the disk has room again");
        ok(&mut client, "BGREWRITEAOF");
        finished(server, "aof_rewrite_scheduled");
        finished(server, "aof_rewrite_in_progress");
        for name in ["aof_last_bgrewrite_status", "aof_last_write_status"] {
            assert_eq!(server.info_field(name).as_deref(), Some("ok"), "{name}");
        }
    });
    let mut client = server.raw(Protocol::Resp2);
    let before = all_dumps(&mut client);
    server.restart();
    assert_eq!(all_dumps(&mut server.raw(Protocol::Resp2)), before);
    note(&format!(
        "disk full: {acknowledged} units acknowledged, all there after it and after a restart"
    ));
    // Before the disk goes.
    drop(server);
}

fn error_text(client: &mut Client) -> Option<String> {
    run(client, "RL.GCRA probe 5 1000 0").error()
}
