//! A server to measure: any binary, any modules, maybe under valgrind.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::resp::{Client, Protocol, Value, latin1};

const PATIENCE: Duration = Duration::from_secs(120);

/// What to start.
pub struct Plan<'a> {
    pub binary: &'a Path,
    pub modules: &'a [PathBuf],
    /// A program and its options that run the server; `{dir}` is the server's folder.
    pub under: &'a [&'a str],
    /// As on the command line of the server.
    pub options: &'a [&'a str],
}

pub struct Host {
    child: Child,
    dir: PathBuf,
    port: u16,
}

impl Host {
    pub fn start(plan: &Plan) -> Host {
        let since_epoch = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let dir = std::env::temp_dir().join(format!("redis-rl-bench-{}", since_epoch.as_nanos()));
        fs::create_dir(&dir).expect("the temporary folder can be written");
        let port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .expect("there is a free port")
            .port();
        let folder = dir.to_string_lossy();
        let under = plan.under.iter().map(|word| word.replace("{dir}", &folder));
        let mut words: Vec<String> = under.collect();
        words.push(plan.binary.to_string_lossy().into_owned());
        let port_text = port.to_string();
        for option in ["--bind", "127.0.0.1", "--port", &port_text] {
            words.push(option.to_owned());
        }
        for option in ["--save", "", "--dir", &folder] {
            words.push(option.to_owned());
        }
        words.extend(plan.options.iter().map(|&option| option.to_owned()));
        for module in plan.modules {
            words.push("--loadmodule".to_owned());
            words.push(module.to_string_lossy().into_owned());
        }
        let log = File::create(dir.join("log")).expect("the log can be written");
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a handle can be doubled"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", words[0]));
        let mut host = Host { child, dir, port };
        host.wait();
        host
    }

    fn wait(&mut self) {
        let begin = Instant::now();
        loop {
            let pong = Client::connect(self.addr(), Protocol::Resp2)
                .and_then(|mut client| client.call(&["PING"]));
            match pong {
                Ok(Value::Simple(_)) => return,
                _ if self.child.try_wait().is_ok_and(|end| end.is_some()) => {
                    panic!("the server ended:\n{}", self.log());
                }
                _ if begin.elapsed() > PATIENCE => panic!("no answer:\n{}", self.log()),
                _ => sleep(Duration::from_millis(20)),
            }
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn client(&self) -> Client {
        Client::connect(self.addr(), Protocol::Resp2).expect("the server lets clients in")
    }

    /// A field of INFO; 0 if it is not there.
    pub fn info(&self, name: &str) -> f64 {
        self.info_text(name)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0.0)
    }

    pub fn info_text(&self, name: &str) -> Option<String> {
        let info = words(&mut self.client(), &["INFO", "everything"]);
        let info = latin1(info.bytes()?);
        let field = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.to_owned());
        info.lines().find_map(field)
    }

    /// `redis 7.0.15`.
    pub fn version(&self) -> String {
        match self.info_text("valkey_version") {
            Some(version) => format!("valkey {version}"),
            None => format!(
                "redis {}",
                self.info_text("redis_version").unwrap_or_default()
            ),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone after this.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A call that must not fail.
pub fn words<A: AsRef<[u8]>>(client: &mut Client, words: &[A]) -> Value {
    let call = || -> Vec<String> { words.iter().map(|word| latin1(word.as_ref())).collect() };
    let reply = client
        .call(words)
        .unwrap_or_else(|e| panic!("{:?}: {e}", call()));
    assert!(reply.error().is_none(), "{:?}: {reply:?}", call());
    reply
}

/// A call given as one line.
pub fn line(client: &mut Client, line: &str) -> Value {
    words(client, &line.split_whitespace().collect::<Vec<_>>())
}
