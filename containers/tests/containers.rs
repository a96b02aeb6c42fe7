//! The module in containers: what an image does that was built from the Dockerfile, or a plain server image that the
//! module is copied into.
//!
//! - `RL_IMAGE`: images with the module in them, separated by blanks, as `make test-containers` builds them
//! - `RL_SERVER_IMAGE`: images of a server alone; `target/release/libredis_rl.so` (or `RL_MODULE`) is copied into them,
//!   so their libc must not be older than this machine's
//!
//! With neither, the official images of Redis and Valkey are taken as plain ones.

#[allow(dead_code)]
#[path = "../../tests/support/resp.rs"]
mod resp;
#[allow(dead_code)]
#[path = "../../tests/support/vectors.rs"]
mod vectors;

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use resp::Protocol;
use testcontainers::core::{ContainerPort, Mount, WaitFor};
use testcontainers::runners::SyncRunner;
use testcontainers::{Container, ContainerRequest, GenericImage, ImageExt};

const PORT: ContainerPort = ContainerPort::Tcp(6379);
const PATIENCE: Duration = Duration::from_secs(60);
const OFFICIAL: &str = "redis:8 valkey/valkey:8";

/// An image, and whether the module is in it.
struct Image {
    name: String,
    complete: bool,
}

fn images() -> Vec<Image> {
    let named = |variable: &str, complete| -> Vec<Image> {
        let list = env::var(variable).unwrap_or_default();
        list.split_whitespace()
            .map(|name| Image {
                name: name.to_string(),
                complete,
            })
            .collect()
    };
    let mut images = named("RL_IMAGE", true);
    images.extend(named("RL_SERVER_IMAGE", false));
    if images.is_empty() {
        images.extend(OFFICIAL.split(' ').map(|name| Image {
            name: name.to_string(),
            complete: false,
        }));
    }
    images
}

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace is above")
}

fn module() -> PathBuf {
    let path = env::var_os("RL_MODULE").map_or_else(
        || home().join("target/release/libredis_rl.so"),
        PathBuf::from,
    );
    path.canonicalize()
        .unwrap_or_else(|e| panic!("{}: {e}: run `make build` first", path.display()))
}

impl Image {
    fn start(&self, args: &[&str]) -> Container<GenericImage> {
        let (name, tag) = self.name.rsplit_once(':').unwrap_or((&self.name, "latest"));
        let image = GenericImage::new(name, tag)
            .with_exposed_port(PORT)
            .with_wait_for(WaitFor::message_on_stdout("Ready to accept connections"));
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_string()).collect();
        let request: ContainerRequest<GenericImage> = if self.complete {
            image.with_cmd(args)
        } else {
            let server = if name.contains("valkey") {
                "valkey-server"
            } else {
                "redis-server"
            };
            let mut command: Vec<String> = [
                server,
                "--protected-mode",
                "no",
                "--appendonly",
                "yes",
                "--loadmodule",
                "/libredis_rl.so",
            ]
            .map(str::to_string)
            .to_vec();
            command.extend(args);
            let path = module().display().to_string();
            let mount = Mount::bind_mount(path, "/libredis_rl.so")
                .with_access_mode(testcontainers::core::AccessMode::ReadOnly);
            image.with_cmd(command).with_mount(mount)
        };
        request
            .start()
            .unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

/// The mapped port, which a restart may change. The engine runs here.
fn addr(container: &Container<GenericImage>) -> SocketAddr {
    let port = container
        .get_host_port_ipv4(PORT)
        .expect("the port is mapped");
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn connect(container: &Container<GenericImage>) -> redis::Connection {
    let client = redis::Client::open(format!("redis://{}/", addr(container))).expect("an address");
    let begin = Instant::now();
    loop {
        let failure = match client.get_connection() {
            Ok(mut connection) => match redis::cmd("PING").query::<String>(&mut connection) {
                Ok(_) => return connection,
                Err(e) => e,
            },
            Err(e) => e,
        };
        assert!(begin.elapsed() < PATIENCE, "no connection: {failure}");
        sleep(Duration::from_millis(50));
    }
}

fn call<T: redis::FromRedisValue>(connection: &mut redis::Connection, line: &str) -> T {
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().unwrap_or_default());
    command.arg(words.collect::<Vec<_>>());
    command
        .query(connection)
        .unwrap_or_else(|e| panic!("{line}: {e}"))
}

fn version(connection: &mut redis::Connection) -> String {
    let info: String = call(connection, "INFO server");
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name).map(str::to_string))
    };
    field("valkey_version:")
        .map(|v| format!("valkey {v}"))
        .or_else(|| field("redis_version:").map(|v| format!("redis {v}")))
        .unwrap_or_default()
}

#[test]
fn the_vectors_come_out() {
    for image in images() {
        let container = image.start(&[]);
        eprintln!("{}: {}", image.name, version(&mut connect(&container)));
        for name in ["published", "random", "reports", "companions"] {
            let file = home().join(format!("tests/vectors/{name}.jsonl"));
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let report = vectors::run_file(&file, addr(&container), protocol);
                assert!(report.cases > 0, "{name} holds no case");
                assert!(
                    report.failures.is_empty(),
                    "{}, {name}: {}",
                    image.name,
                    report.failures.join("\n")
                );
            }
        }
    }
}

const CALLS: [(&str, [i64; 2]); 5] = [
    ("RL.FIXED f 5 31536000000 1700000000000", [1, 2]),
    ("RL.SLIDINGLOG l 5 86400000 1700000000000", [1, 2]),
    ("RL.SLIDINGCOUNTER c 5 86400000 1700000000000", [1, 2]),
    ("RL.TOKEN t 5 86400000 1700000000000", [1, 2]),
    ("RL.GCRA g 5 86400000 1700000000000", [1, 2]),
];

/// What remains after the three units spent is there after a stop in order, and after a power cut.
#[test]
fn a_restart_loses_nothing() {
    for image in images() {
        let container = image.start(&["--appendfsync", "always"]);
        let mut connection = connect(&container);
        for (line, [allowed, remaining]) in CALLS {
            let reply: [i64; 5] = call(&mut connection, &format!("{line} COST 3"));
            assert_eq!([reply[0], reply[2]], [allowed, remaining], "{line}");
        }
        let mut before: Vec<Vec<u8>> = Vec::new();
        for key in ["f", "l", "c", "t", "g"] {
            before.push(call(&mut connection, &format!("DUMP {key}")));
        }
        for how in ["stop", "kill"] {
            if how == "stop" {
                container.stop().expect("the container stops");
            } else {
                container
                    .stop_with_timeout(Some(0))
                    .expect("the container is killed");
            }
            container.start().expect("the container starts again");
            let mut connection = connect(&container);
            for (key, before) in ["f", "l", "c", "t", "g"].iter().zip(&before) {
                let now: Vec<u8> = call(&mut connection, &format!("DUMP {key}"));
                assert_eq!(&now, before, "{}: {key} after {how}", image.name);
            }
            for (line, [allowed, remaining]) in CALLS {
                let reply: [i64; 5] = call(&mut connection, &format!("{line} COST 2 PEEK"));
                assert_eq!([reply[0], reply[2]], [allowed, remaining], "{line}");
            }
        }
    }
}

/// What the Dockerfile promises beside the module.
#[test]
fn the_image_is_as_the_dockerfile_says() {
    for image in images().iter().filter(|image| image.complete) {
        let container = image.start(&["--maxmemory", "64mb"]);
        let mut connection = connect(&container);
        let memory: Vec<String> = call(&mut connection, "CONFIG GET maxmemory");
        assert_eq!(memory[1], "67108864", "arguments reach the server");
        let append: Vec<String> = call(&mut connection, "CONFIG GET appendonly");
        assert_eq!(append[1], "yes");
        let mut user = container
            .exec(testcontainers::core::ExecCommand::new([
                "sh",
                "-c",
                "while read -r a b c; do if [ \"$a\" = Uid: ]; then echo $b; fi; done </proc/1/status",
            ]))
            .expect("a shell");
        let user = user.stdout_to_vec().expect("an answer");
        let user = String::from_utf8_lossy(&user).trim().to_string();
        assert!(
            !user.is_empty() && user != "0",
            "the server runs as {user:?}"
        );
    }
}
