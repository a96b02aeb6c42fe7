//! The tests of `tests/`, their servers in containers (`lib.rs` tells of which image); and what an image promises that
//! was built from the Dockerfile.

// Each of them brings its own `support`.
#![allow(clippy::duplicate_mod)]

#[path = "../../tests/commands.rs"]
mod commands;
#[path = "../../tests/companions.rs"]
mod companions;
#[path = "../../tests/config.rs"]
mod config;
#[path = "../../tests/failover.rs"]
mod failover;
#[path = "../../tests/faults.rs"]
mod faults;
#[path = "../../tests/hostile.rs"]
mod hostile;
#[path = "../../tests/operations.rs"]
mod operations;
#[path = "../../tests/persistence.rs"]
mod persistence;
#[path = "../../tests/replication.rs"]
mod replication;
#[path = "../../tests/scenarios.rs"]
mod scenarios;
#[path = "../../tests/silence.rs"]
mod silence;
#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../../tests/vectors.rs"]
mod vectors;
#[path = "../../tests/watching.rs"]
mod watching;

use std::net::SocketAddr;

use redis_rl_containers::Image;
use support::live::{dump, ok, rl, wait_until};
use support::resp::{Client, Protocol, Value};
use testcontainers::core::{ContainerPort, ExecCommand};
use testcontainers::runners::SyncRunner;
use testcontainers::{Container, GenericImage, ImageExt};

const PORT: ContainerPort = ContainerPort::Tcp(6379);

/// The image as its users run it: its own entrypoint, user, volume and network.
fn start(args: &[&str]) -> Container<GenericImage> {
    let image = Image::under_test();
    assert!(
        image.complete,
        "RL_IMAGE names no image of the Dockerfile: use `--skip image_`"
    );
    let request = image.generic().with_exposed_port(PORT);
    let request = request.with_cmd(args.iter().copied());
    request
        .start()
        .unwrap_or_else(|e| panic!("{}: {e}", image.name))
}

/// A client on the published port, which a restart may change.
fn client(container: &Container<GenericImage>) -> Client {
    let mut found = None;
    wait_until("the server answers", || {
        let port = container.get_host_port_ipv4(PORT);
        let connect =
            |port| Client::connect(SocketAddr::from(([127, 0, 0, 1], port)), Protocol::Resp2);
        found = port.ok().and_then(|port| connect(port).ok());
        let ping = found.as_mut().map(|client| client.call(&["PING"]));
        matches!(ping, Some(Ok(reply)) if reply == Value::simple("PONG"))
    });
    found.expect("it answered")
}

fn setting(client: &mut Client, name: &str) -> String {
    let reply = ok(client, &format!("CONFIG GET {name}"));
    let value = reply.items().and_then(|items| items.get(1)?.bytes());
    String::from_utf8_lossy(value.expect("a setting")).into_owned()
}

const CALLS: [(&str, [i64; 2]); 5] = [
    ("RL.FIXED f 5 31536000000 1700000000000", [1, 2]),
    ("RL.SLIDINGLOG l 5 86400000 1700000000000", [1, 2]),
    ("RL.SLIDINGCOUNTER c 5 86400000 1700000000000", [1, 2]),
    ("RL.TOKEN t 5 86400000 1700000000000", [1, 2]),
    ("RL.GCRA g 5 86400000 1700000000000", [1, 2]),
];

/// What is spent is there after a stop in order, and after one that leaves no time for it.
#[test]
fn image_restarted_loses_nothing() {
    let container = start(&["--appendfsync", "always"]);
    let mut before = client(&container);
    for (line, [allowed, remaining]) in CALLS {
        let reply = rl(&mut before, &format!("{line} COST 3"));
        assert_eq!([reply[0], reply[2]], [allowed, remaining], "{line}");
    }
    let dumps = |client: &mut Client| ["f", "l", "c", "t", "g"].map(|key| dump(client, key));
    let kept = dumps(&mut before);
    for timeout_s in [None, Some(0)] {
        let stopped = container.stop_with_timeout(timeout_s);
        stopped.expect("the container stops");
        container.start().expect("the container starts again");
        assert_eq!(dumps(&mut client(&container)), kept, "{timeout_s:?}");
    }
}

/// What the Dockerfile promises beside the module.
#[test]
fn image_is_as_the_dockerfile_says() {
    let container = start(&["--maxmemory", "64mb"]);
    let mut client = client(&container);
    assert_eq!(
        setting(&mut client, "maxmemory"),
        "67108864",
        "arguments reach the server"
    );
    assert_eq!(setting(&mut client, "appendonly"), "yes");
    let status =
        "while read -r a b c; do if [ \"$a\" = Uid: ]; then echo $b; fi; done </proc/1/status";
    let mut user = container
        .exec(ExecCommand::new(["sh", "-c", status]))
        .expect("a shell");
    let user = user.stdout_to_vec().expect("an answer");
    let user = String::from_utf8_lossy(&user).trim().to_string();
    assert!(
        !user.is_empty() && user != "0",
        "the server runs as {user:?}"
    );
}
