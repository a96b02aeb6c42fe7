//! State written by a module of the next encoding version is refused by name, by whatever road it comes.
//!
//! No such module exists yet. One is built from this one's source with the version raised; where only the bytes
//! matter they are made, this one's with the version raised where it stands. RESTORE and RL.RESTORE are in
//! `persistence.rs`.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use support::live::{aof_file, error, int, ok, rewrite_aof, rl, run, wait_until};
use support::payload::{HEADER, Payload};
use support::resp::{Client, Protocol};
use support::{Builder, Server, Shutdown, note};

const REFUSAL: &str =
    "rate limiter of encoding version 2: this module reads versions up to 1, load a newer one";

fn client(server: &Server) -> Client {
    server.raw(Protocol::Resp2)
}

/// Files without a checksum, whose bytes can be changed.
fn builder() -> Builder {
    Server::builder()
        .arg("rdbchecksum", "no")
        .arg("rdbcompression", "no")
}

/// The RDB file of a server with one limiter, its encoding version raised; and the DUMP of that limiter.
fn next_file() -> (Vec<u8>, Vec<u8>) {
    let mut server = builder().start();
    let mut client = client(&server);
    rl(&mut client, "RL.GCRA next 10 86400000 5");
    let payload = Payload::of(&support::live::dump(&mut client, "next").unwrap());
    server.stop(Shutdown::Save);
    let mut file = fs::read(server.dir().join("dump.rdb")).expect("there is a file");
    // Behind the type and the mark of a 64-bit length; the version is the lowest ten bits.
    let id = &payload.value[2..HEADER];
    let places: Vec<usize> = (0..file.len() - id.len())
        .filter(|at| file[*at..].starts_with(id))
        .collect();
    assert!(!places.is_empty(), "the file has no limiter");
    for at in places {
        file[at + 7] = 2;
    }
    let mut next = payload.value.clone();
    next[HEADER - 1] = 2;
    (file, payload.with(&next))
}

fn folder(server: &Server, name: &str) -> String {
    let dir = server.dir().join(name);
    fs::create_dir(&dir).expect("a folder can be made");
    dir.display().to_string()
}

/// Writes a file unless it says so already, so that cargo need not build it again.
fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).ok().as_deref() != Some(text) {
        fs::create_dir_all(path.parent().expect("a file is in a folder"))
            .expect("a folder can be made");
        fs::write(path, text).expect("a file can be written");
    }
}

/// The source as it will be: it writes version 2, and reads 1, too.
fn copy_raised(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        let copy = to.join(path.file_name().expect("it has a name"));
        if path.is_dir() {
            copy_raised(&path, &copy);
            continue;
        }
        let mut text = fs::read_to_string(&path).expect("source is text");
        if path.ends_with("src/codec.rs") {
            for (old, new) in [
                ("VERSION: u32 = 1;", "VERSION: u32 = 2;"),
                (
                    "        VERSION => read_state",
                    "        1 | VERSION => read_state",
                ),
            ] {
                assert_eq!(text.matches(old).count(), 1, "{old}");
                text = text.replace(old, new);
            }
        }
        write(&copy, &text);
    }
}

/// A module of the next encoding version.
fn next_module() -> PathBuf {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let next = home.join("target/next");
    for folder in ["src", "benches"] {
        copy_raised(&home.join(folder), &next.join(folder));
    }
    let manifest = fs::read_to_string(home.join("Cargo.toml")).expect("there is a manifest");
    let (_, package) = manifest
        .split_once("\n[package]")
        .expect("a workspace, then the package");
    write(
        &next.join("Cargo.toml"),
        &format!("[workspace]\n\n[package]{package}"),
    );
    let lock = fs::read_to_string(home.join("Cargo.lock")).expect("there is a lock file");
    // Cargo takes out what only the other members need.
    if !next.join("Cargo.lock").exists() {
        write(&next.join("Cargo.lock"), &lock);
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--lib"])
        .current_dir(&next)
        .env("CARGO_TARGET_DIR", next.join("target"))
        .output()
        .expect("cargo runs");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let name = format!(
        "{}redis_rl{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    next.join("target/debug").join(name)
}

/// It reads what this one wrote; this one refuses what it wrote, and a replica with it does not go on without.
#[test]
fn a_module_of_the_next_version_reads_this_ones_and_is_refused() {
    let module = next_module();
    let next = || {
        Server::builder()
            .module(false)
            .arg("loadmodule", &module.display().to_string())
    };
    let old = Server::start();
    let mut old_client = client(&old);
    for algorithm in ["FIXED", "SLIDINGLOG", "SLIDINGCOUNTER", "TOKEN", "GCRA"] {
        rl(
            &mut old_client,
            &format!("RL.{algorithm} {algorithm} 10 86400000 5 COST 3"),
        );
    }

    // The replica first, as upgrades go.
    let upgraded = next().start();
    upgraded.replica_of(&old);
    old.wait_in_sync(&upgraded);
    let mut upgraded_client = client(&upgraded);
    for algorithm in ["FIXED", "SLIDINGLOG", "SLIDINGCOUNTER", "TOKEN", "GCRA"] {
        let line = format!("RL.INSPECT {algorithm} 5");
        assert_eq!(ok(&mut upgraded_client, &line), ok(&mut old_client, &line));
    }
    ok(&mut upgraded_client, "REPLICAOF NO ONE");
    rl(&mut upgraded_client, "RL.GCRA GCRA 10 86400000 6");

    let dump = support::live::dump(&mut upgraded_client, "GCRA").expect("there is a key");
    let reply = old_client
        .call(&[b"RESTORE".as_slice(), b"back", b"0", &dump])
        .expect("the server answers");
    assert!(reply.error().is_some(), "{reply:?}");
    assert_eq!(int(&mut old_client, "EXISTS back"), 0);
    let behind = Server::start();
    // It keeps trying, or ends, as at_a_full_sync tells.
    let line = format!("REPLICAOF 127.0.0.1 {}", upgraded.port());
    ok(&mut client(&behind), &line);
    for server in [&old, &behind] {
        wait_until("the log line", || server.log().contains(REFUSAL));
    }
}

#[test]
fn at_restore() {
    let (_, dump) = next_file();
    let server = Server::start();
    let mut client = client(&server);
    let reply = client
        .call(&[b"RESTORE".as_slice(), b"next", b"0", &dump])
        .expect("the server answers");
    assert!(reply.error().is_some(), "{reply:?}");
    wait_until("the log line", || server.log().contains(REFUSAL));
    assert_eq!(int(&mut client, "DBSIZE"), 0);
    assert_eq!(
        error(&mut client, "RL.RESTORE next 2 x"),
        format!("ERR {REFUSAL}")
    );
}

/// A server that would start without its limiters would forgive them all: it does not start.
#[test]
fn at_start_from_a_file() {
    let (file, _) = next_file();
    let other = Server::start();
    let dir = folder(&other, "rdb");
    fs::write(Path::new(&dir).join("dump.rdb"), file).expect("a file can be written");
    let said = builder()
        .arg("dir", &dir)
        .try_start()
        .err()
        .expect("the server does not start");
    assert!(said.contains(REFUSAL), "{said}");
}

/// A primary that answers one PSYNC with a file, and then is silent.
fn primary_with(file: Vec<u8>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("127.0.0.1 has a free port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let file = file.clone();
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..length]).to_uppercase();
                    let mut answer = Vec::new();
                    if text.contains("\nPSYNC\r") {
                        let id = "0123456789".repeat(4);
                        write!(answer, "+FULLRESYNC {id} 0\r\n${}\r\n", file.len()).unwrap();
                        answer.extend_from_slice(&file);
                    } else if text.contains("PING") {
                        answer.extend_from_slice(b"+PONG\r\n");
                    } else {
                        // Several may come in one piece; `capa psync2` is none of the above.
                        for _ in 0..text.matches("REPLCONF").count() {
                            answer.extend_from_slice(b"+OK\r\n");
                        }
                    }
                    if stream.write_all(&answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// The server decides what becomes of the replica: it keeps trying, or ends. It never goes on without the limiters.
#[test]
fn at_a_full_sync() {
    let (file, _) = next_file();
    for load in ["disabled", "swapdb"] {
        let replica = builder().arg("repl-diskless-load", load).start();
        let port = primary_with(file.clone());
        ok(
            &mut client(&replica),
            &format!("REPLICAOF 127.0.0.1 {port}"),
        );
        wait_until("the log line", || replica.log().contains(REFUSAL));
        thread::sleep(Duration::from_millis(300));
        match Client::connect(replica.addr(), Protocol::Resp2) {
            Ok(mut client) => {
                let info = String::from_utf8_lossy(
                    client
                        .call(&["INFO", "replication"])
                        .expect("the server answers")
                        .bytes()
                        .expect("a text"),
                )
                .into_owned();
                assert!(info.contains("master_link_status:down"), "{info}");
                note(&format!(
                    "{}, diskless load {load}: the replica stays without",
                    replica.version_text()
                ));
            }
            Err(_) => note(&format!("diskless load {load}: the replica ends")),
        }
    }
}

/// Replaying an AOF, a server logs errors and goes on; on a server that has `propagation-error-behavior` it can be
/// told to stop.
#[test]
fn at_a_replay() {
    let mut server = Server::builder()
        .arg("appendonly", "yes")
        .arg("aof-use-rdb-preamble", "no")
        .start();
    let mut first = client(&server);
    rl(&mut first, "RL.GCRA next 10 86400000 5");
    rewrite_aof(&server);
    let written = aof_file(&server, "base.aof");
    assert_eq!(written.len(), 1);
    server.stop(Shutdown::NoSave);
    let dir = server.dir().join("appendonlydir");
    let mut changed = 0;
    for entry in fs::read_dir(&dir).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        let mut bytes = fs::read(&path).expect("the file can be read");
        let old = b"RL.RESTORE\r\n$4\r\nnext\r\n$1\r\n1\r\n";
        if let Some(at) = bytes.windows(old.len()).position(|part| part == old) {
            bytes[at + old.len() - 3] = b'2';
            fs::write(&path, bytes).expect("the file can be written");
            changed += 1;
        }
    }
    assert_eq!(changed, 1);
    server.start_again();
    assert!(server.log().contains(REFUSAL), "{}", server.log());
    assert_eq!(int(&mut client(&server), "EXISTS next"), 0);
    server.stop(Shutdown::NoSave);

    let dir = server.dir().display().to_string();
    let strict = Server::builder()
        .arg("appendonly", "yes")
        .arg("dir", &dir)
        .arg("propagation-error-behavior", "panic")
        // A panic writes a long report, and on some servers hangs in it.
        .arg("crash-log-enabled", "no")
        .arg("crash-memcheck-enabled", "no")
        .try_start();
    match strict {
        Err(said) => assert!(
            said.contains(REFUSAL) || said.contains("Bad directive"),
            "{said}"
        ),
        Ok(server) => {
            let reply = run(&mut client(&server), "EXISTS next");
            panic!("{} went on without: {reply:?}", server.version_text());
        }
    }
}
