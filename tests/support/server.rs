//! A Redis or Valkey server that lives as long as a test needs it.
//!
//! ```ignore
//! let server = Server::start();                                   // the module loaded, nothing persisted
//! let server = Server::builder().arg("appendonly", "yes").start();
//! ```
//!
//! Each server has its own port and its own folder with `redis.conf`, `log` and its data. Dropping it kills it and
//! removes the folder, unless the test is failing: then the folder stays and the end of the log is printed.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};
use std::{env, thread};

use super::note;
use super::process::{Child, find_module, find_server, spawn};
use super::resp::{Client, Protocol, patience};

/// A busy machine or a large AOF to load stays below this.
const PATIENCE_S: u64 = 60;

/// How often a new port is tried when another process takes the one just found free.
const PORT_TRIES: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Writes an RDB file first.
    Save,
    /// Writes none; an AOF is flushed all the same.
    NoSave,
}

pub struct Builder {
    settings: Vec<(String, String)>,
    module: bool,
    module_args: String,
    namespace: Option<String>,
    host: Ipv4Addr,
    binary: Option<PathBuf>,
}

impl Builder {
    /// Another server than the one the tests run on.
    pub fn binary(mut self, binary: &Path) -> Builder {
        let found = on_path(binary);
        self.binary = Some(found.unwrap_or_else(|| panic!("{} is not there", binary.display())));
        self
    }

    /// A line of redis.conf. A later one of the same name wins.
    pub fn arg(mut self, name: &str, value: &str) -> Builder {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Whether the module is loaded (it is, unless said otherwise).
    pub fn module(mut self, load: bool) -> Builder {
        self.module = load;
        self
    }

    /// Arguments that follow the module's path on its `loadmodule` line.
    pub fn module_args(mut self, args: &str) -> Builder {
        self.module_args = args.into();
        self
    }

    /// In a network namespace of this name, on an address that it has and that can be reached from here.
    pub fn inside(mut self, namespace: &str, host: Ipv4Addr) -> Builder {
        self.namespace = Some(namespace.into());
        self.host = host;
        self.arg("bind", "0.0.0.0").arg("protected-mode", "no")
    }

    /// Starts the server and waits until it answers.
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|why| panic!("{why}"))
    }

    /// The same; if the server ends instead, what it said.
    pub fn try_start(self) -> Result<Server, String> {
        let binary = self.binary.unwrap_or_else(find_server);
        let dir = new_dir();
        let mut lines = vec![
            "bind 127.0.0.1".to_string(),
            "save \"\"".to_string(),
            "enable-debug-command yes".to_string(),
            "enable-module-command yes".to_string(),
            // Otherwise the first sync of every replica waits 5 s for company.
            "repl-diskless-sync-delay 0".to_string(),
            format!("dir \"{}\"", dir.display()),
        ];
        for (name, value) in &self.settings {
            lines.push(format!(
                "{name} {}",
                if value.is_empty() { "\"\"" } else { value }
            ));
        }
        if self.module {
            lines.push(format!(
                "loadmodule \"{}\" {}",
                find_module().display(),
                self.module_args
            ));
        }
        let mut server = Server {
            binary,
            dir,
            port: 0,
            child: None,
            namespace: self.namespace.clone(),
            host: self.host,
        };
        for _ in 0..PORT_TRIES {
            server.port = free_port();
            let port = format!("port {}", server.port);
            let conf = [lines.join("\n"), port].join("\n") + "\n";
            fs::write(server.conf(), conf).expect("redis.conf can be written");
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(why) if why.contains("in use") => continue,
                Err(why) => return Err(why),
            }
        }
        Err(format!(
            "no free port on 127.0.0.1 after {PORT_TRIES} tries"
        ))
    }
}

pub struct Server {
    binary: PathBuf,
    dir: PathBuf,
    port: u16,
    /// `None` while the server is stopped.
    child: Option<Child>,
    namespace: Option<String>,
    host: Ipv4Addr,
}

impl Server {
    pub fn start() -> Server {
        Server::builder().start()
    }

    pub fn builder() -> Builder {
        Builder {
            settings: Vec::new(),
            module: true,
            module_args: String::new(),
            namespace: None,
            host: Ipv4Addr::LOCALHOST,
            binary: None,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((self.host, self.port))
    }

    pub fn url(&self) -> String {
        format!("redis://{}:{}/", self.host, self.port)
    }

    /// Where redis.conf, the log and the data are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// All that the server has printed since it was first started.
    pub fn log(&self) -> String {
        fs::read(self.log_file())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// The kind and version: `("redis", (7, 0, 15))` or `("valkey", (8, 1, 1))`.
    pub fn version(&self) -> (&'static str, (u32, u32, u32)) {
        let info = self.info();
        let (name, text) = match field(&info, "valkey_version") {
            Some(version) => ("valkey", version),
            None => (
                "redis",
                field(&info, "redis_version").expect("INFO tells the version"),
            ),
        };
        let mut numbers = text.split('.').map(|part| part.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        (name, (next(), next(), next()))
    }

    /// `redis 7.0.15`, for messages.
    pub fn version_text(&self) -> String {
        let (name, (major, minor, patch)) = self.version();
        format!("{name} {major}.{minor}.{patch}")
    }

    pub fn connect(&self) -> redis::Connection {
        redis::Client::open(self.url())
            .and_then(|client| client.get_connection())
            .unwrap_or_else(|e| panic!("no connection to {}: {e}", self.url()))
    }

    /// A client that keeps the exact types of replies.
    pub fn raw(&self, protocol: Protocol) -> Client {
        Client::connect(self.addr(), protocol)
            .unwrap_or_else(|e| panic!("no connection to {}: {e}", self.url()))
    }

    /// The program that runs.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// The server's own command line client.
    pub fn cli_binary(&self) -> PathBuf {
        find_cli(&self.binary)
    }

    /// What the server's own command line client says.
    pub fn cli(&self, args: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new(self.cli_binary())
            .args(["-p", &port])
            .args(args)
            .stdin(Stdio::null())
            .output()
            .expect("the client runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{args:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }

    /// All of `INFO everything`.
    pub fn info(&self) -> String {
        self.try_info()
            .unwrap_or_else(|e| panic!("INFO failed on {}: {e}", self.url()))
    }

    /// One field of INFO, such as `info_field("rdb_changes_since_last_save")`.
    pub fn info_field(&self, name: &str) -> Option<String> {
        field(&self.info(), name).map(str::to_string)
    }

    /// Asks the server to stop and waits until it has.
    pub fn stop(&mut self, how: Shutdown) {
        let word = if how == Shutdown::Save {
            "SAVE"
        } else {
            "NOSAVE"
        };
        // The server closes the connection instead of answering, unless it refuses.
        if let Ok(reply) = self.raw(Protocol::Resp2).call(&["SHUTDOWN", word]) {
            panic!("SHUTDOWN {word} answered {reply:?}");
        }
        let mut child = self.child.take().expect("the server runs");
        let status = child.wait().expect("the server can be waited for");
        assert!(status.success(), "the server ended with {status}");
    }

    /// Ends the server as a power cut would.
    pub fn kill9(&mut self) {
        let mut child = self.child.take().expect("the server runs");
        child.kill().expect("the server can be killed");
        child.wait().expect("the server can be waited for");
    }

    /// Starts a stopped or killed server again, on the same port and data, and waits until it has loaded them.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "the server is still running");
        let begin = Instant::now();
        while let Err(why) = self.launch() {
            // The port may still be held by an outgoing connection of somebody else for a moment.
            assert!(
                why.contains("in use") && begin.elapsed() < patience(PATIENCE_S),
                "{why}"
            );
            sleep(Duration::from_millis(50));
        }
    }

    /// Stops without writing an RDB file and starts again: what is there afterwards was persisted before.
    pub fn restart(&mut self) {
        self.stop(Shutdown::NoSave);
        self.start_again();
    }

    /// Makes this server a replica of `primary` and waits until it holds the same data.
    pub fn replica_of(&self, primary: &Server) {
        let port = primary.port.to_string();
        let reply = self
            .raw(Protocol::Resp2)
            .call(&["REPLICAOF", "127.0.0.1", &port]);
        assert!(
            matches!(&reply, Ok(r) if r.error().is_none()),
            "REPLICAOF answered {reply:?}"
        );
        primary.wait_in_sync(self);
    }

    /// Waits until `replica` has applied all that this server has written by now.
    pub fn wait_in_sync(&self, replica: &Server) {
        let written = |server: &Server| -> i64 {
            server
                .info_field("master_repl_offset")
                .and_then(|n| n.parse().ok())
                .unwrap_or(-1)
        };
        let target = written(self);
        let begin = Instant::now();
        loop {
            let info = replica.info();
            let applied: i64 = field(&info, "slave_repl_offset")
                .and_then(|n| n.parse().ok())
                .unwrap_or(-1);
            if field(&info, "master_link_status") == Some("up")
                // Asked anew each time: a primary takes a new id when its first replica comes.
                && field(&info, "master_replid") == self.info_field("master_replid").as_deref()
                && applied >= target
                // The primary takes it for online only once the replica has acknowledged something.
                && self.info().contains(&format!("port={},state=online", replica.port()))
            {
                return;
            }
            assert!(
                begin.elapsed() < patience(PATIENCE_S),
                "the replica is at {applied}, not at {target}\n{}",
                replica.log_tail()
            );
            sleep(Duration::from_millis(5));
        }
    }

    fn conf(&self) -> PathBuf {
        self.dir.join("redis.conf")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Runs the binary and waits until it has loaded its data.
    fn launch(&mut self) -> Result<(), String> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())
            .expect("the log can be written");
        let before = self.log().len();
        let mut command = Command::new(&self.binary);
        if let Some(namespace) = &self.namespace {
            // It becomes the server, so that the child is the server's.
            command = Command::new("nsenter");
            command
                .arg(format!("--net=/var/run/netns/{namespace}"))
                .arg(&self.binary);
        }
        command
            .arg(self.conf())
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(clone(&log))
            .stderr(log);
        let mut child = spawn(&mut command)
            .map_err(|e| format!("{} cannot be run: {e}", self.binary.display()))?;
        let begin = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("the server can be waited for") {
                let log = self.log();
                let said = log.get(before..).unwrap_or(&log);
                return Err(format!(
                    "{} ended with {status}:\n{said}",
                    self.binary.display()
                ));
            }
            // If the port was lost to another server, that one may be who answers: only ours has our redis.conf.
            if let Ok(info) = self.try_info()
                && field(&info, "config_file") == self.conf().to_str()
                && field(&info, "loading") == Some("0")
            {
                self.child = Some(child);
                return Ok(());
            }
            if begin.elapsed() > patience(PATIENCE_S) {
                // A child that is gone already needs no killing.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "no answer after {:?}:\n{}",
                    patience(PATIENCE_S),
                    self.log_tail()
                ));
            }
            sleep(Duration::from_millis(5));
        }
    }

    fn try_info(&self) -> std::io::Result<String> {
        let reply = Client::connect(self.addr(), Protocol::Resp2)?.call(&["INFO", "everything"])?;
        let bytes = reply
            .bytes()
            .ok_or_else(|| std::io::Error::other(format!("{reply:?}")))?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// Sends a signal to a server by its own pid.
pub fn signal(name: &str, server: &Server) {
    let pid = server.pid().to_string();
    let sent = Command::new("kill").args([name, &pid]).status();
    assert!(sent.expect("kill can be run").success());
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A server that ends by itself looks for leaks then, where something looks for it.
            if env::var_os("RL_END_GENTLY").is_some() {
                end_gently(&mut child);
            }
            // It may have ended by itself; either way it is gone after this.
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            note(&format!(
                "\nThe server's folder is kept: {}\n{}",
                self.dir.display(),
                self.log_tail()
            ));
        } else {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Asks a server to end, and waits for it for a while.
fn end_gently(child: &mut Child) {
    let pid = child.id().to_string();
    let _ = Command::new("kill").arg(pid).status();
    let begin = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && begin.elapsed() < patience(PATIENCE_S / 2) {
        sleep(Duration::from_millis(20));
    }
}

/// A field of INFO's text.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim_end)
}

fn clone(file: &File) -> File {
    file.try_clone().expect("a file handle can be doubled")
}

/// A port nobody listens on now. Somebody may a moment later: the caller tries again then.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("127.0.0.1 has a free port");
    listener
        .local_addr()
        .expect("a bound socket has an address")
        .port()
}

/// The same for a program that cannot be told to try again: below the ports that outgoing connections and
/// [`free_port`] take.
pub fn quiet_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let first = std::process::id() as usize % 1_000 * 20;
    loop {
        let port = 10_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let port = u16::try_from(port).expect("below 30,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn new_dir() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let since_epoch = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let name = format!(
        "redis-rl-{}-{}-{:x}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed),
        since_epoch.subsec_nanos()
    );
    let dir = env::temp_dir().join(name);
    fs::create_dir(&dir).unwrap_or_else(|e| panic!("{} cannot be made: {e}", dir.display()));
    // The server reports where it is without symbolic links.
    dir.canonicalize().expect("the folder just made is there")
}

/// The client beside the server, or else any: they speak the same.
fn find_cli(server: &Path) -> PathBuf {
    let beside = server
        .to_str()
        .and_then(|path| path.strip_suffix("-server"))
        .map(|path| PathBuf::from(format!("{path}-cli")));
    beside
        .filter(|path| path.is_file())
        .or_else(|| {
            ["redis-cli", "valkey-cli"]
                .iter()
                .find_map(|name| on_path(Path::new(name)))
        })
        .expect("a redis-cli or valkey-cli is beside the server or on PATH")
}

/// A path with a slash as it is, a bare name looked up on PATH.
pub fn on_path(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return std::path::absolute(name).ok().filter(|path| path.is_file());
    }
    env::split_paths(&env::var_os("PATH")?)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}
