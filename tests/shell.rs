//! The `sh` blocks of all pages are run, line for line as they are printed, and `conf` and `cron` blocks are used.
//!
//! `sh` runs a block in a folder with links to the repository's files. There, `redis-cli` talks to a server of the
//! block's own, and `redis-server` starts one on a free port; [`PLACES`] has what else a page cannot know. Every line
//! must succeed. Behind `# => ` stands the first line of what it prints; a block of `text` behind one of `sh` is all
//! that the last line prints.
//!
//! [`WAYS`] says which lines take minutes (`make test-docs` runs those), which ones something else runs, and which ones
//! cannot be run. A line that it does not know fails. `RL_PAGE` names the only page, as in `docs/TIME.md`.

mod support;

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::pages::{Block, blocks, name, pages, read, root};
use support::{Server, find_module, note, quiet_port};

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Run,
    /// A server: runs until its block ends, and must answer.
    Serve,
    /// Takes minutes: `make test-docs` runs it.
    Long,
    /// This file, which a target of make runs, has this text; the line itself, if there is none.
    Within(&'static str, &'static str),
    /// Why not.
    Not(&'static str),
}
use Way::{Long, Not, Run, Serve, Within};

const NO_ALPINE: &str = "no Alpine to run it on";

/// By how a line begins; the first that fits.
const WAYS: &[(&str, Way)] = &[
    ("redis-cli ", Run),
    ("sha=$(redis-cli ", Run),
    ("until redis-cli ", Run),
    ("redis-rl-metrics ", Run),
    ("redis-server ", Serve),
    ("make run", Serve),
    ("make build && cargo run --example charts", Run),
    ("make build && cargo run --release --example lua_cost", Long),
    ("cargo run --release -p redis-rl-replay ", Long),
    ("make test-examples", Long),
    ("make bench", Long),
    ("PEER_MODULES=", Long),
    ("OTHER_SERVERS=", Long),
    ("scripts/setup.sh bench", Long),
    ("make test", Within(".ci/run", "part test make test\n")),
    (
        "docker ",
        Within(
            "scripts/containers.sh",
            "(docker [^#]*).*/\\1/p' docs/OPERATIONS.md)",
        ),
    ),
    (
        "apt-get install gcc-aarch64",
        Within("scripts/arm64.sh", ""),
    ),
    ("CARGO_TARGET_AARCH64", Within("scripts/arm64.sh", "")),
    ("apk ", Not(NO_ALPINE)),
    (
        "RUSTFLAGS=\"-C target-feature=-crt-static\"",
        Not(NO_ALPINE),
    ),
];

/// What a page cannot know, and what it is here.
const PLACES: &[(&str, &str)] = &[
    ("/path/to/libredis_rl.so", "$MODULE"),
    ("/path/to/libredis_cell.so", "$PEER_MODULES"),
    ("/path/to/valkey-server", "$OTHER_SERVERS"),
    ("/restored", "$PWD/restored"),
    ("/var/lib/node_exporter", "$PWD/node_exporter"),
    ("-h primary", "-p $PORT"),
    ("-h replica", "-p $REPLICA"),
    ("replica 6379", "127.0.0.1 $REPLICA"),
];

/// By how a line begins: what is done before it, and what must hold after it.
const AROUND: &[(&str, &str, &str)] = &[
    (
        "redis-cli MODULE LOAD",
        "! redis-cli RL.HELP",
        "redis-cli RL.HELP",
    ),
    (
        "redis-cli --rdb backup.rdb",
        "redis-cli RL.SLIDINGLOG kept 10 3600000 '*' COST 4",
        // "Put it where `dir` points to, as dump.rdb."
        "mkdir restored && cp backup.rdb restored/dump.rdb",
    ),
    (
        "redis-server --dir",
        "",
        "redis-cli RL.SLIDINGLOG kept 10 3600000 '*' PEEK | sed -n 3p | grep -qx 6",
    ),
    (
        "redis-cli CONFIG SET appendonly yes",
        "",
        "until redis-cli INFO persistence | grep aof_rewrite_in_progress:0; do sleep 0.1; done && \
         ls restored/appendonlydir/*.base.rdb",
    ),
    (
        "redis-cli ACL SETUSER gate",
        "",
        "redis-cli ACL DRYRUN gate RL.GCRA limits:ann 10 60000 0 | grep -qx OK && \
         redis-cli ACL DRYRUN gate RL.TOP | grep 'no permissions' && \
         redis-cli ACL DRYRUN gate RL.RESTORE limits:ann 1 x | grep 'no permissions'",
    ),
    (
        "until redis-cli -h replica ROLE",
        "",
        "redis-cli ROLE | grep -qx slave",
    ),
    (
        "redis-cli FCALL rl_gcra",
        "",
        r#"grep -qx '3) (integer) 19' "$TERMINAL""#,
    ),
    ("redis-server page.conf", "", "redis-cli RL.HELP"),
    (
        "redis-rl-metrics ",
        "mkdir -p node_exporter && redis-cli RL.GCRA k 10 1000 '*'",
        r#"grep -x 'redis_rl_checks_total{algorithm="gcra"} 1' node_exporter/redis-rl.prom"#,
    ),
    (
        // It tells the reader what to type.
        "make run",
        "",
        r#"[ "$(grep -c '^  [a-z]*-cli' "$TERMINAL")" = 3 ] && grep '^  [a-z]*-cli' "$TERMINAL" | sh -e"#,
    ),
    (
        "make build && cargo run --example charts",
        "",
        r#"[ "$(grep '^|' "$TERMINAL" | grep -cxFf docs/ALGORITHMS.md)" = 5 ]"#,
    ),
    (
        "make build && cargo run --release --example lua_cost",
        "",
        r#"! sed -n 's/^\(| [a-z]*, [a-z]* |\).*/\1/p' "$TERMINAL" | while read -r row; do grep -cF "$row" docs/LUA.md; done | grep -x 0 && \
           [ "$(grep -cE '^\| [a-z]+, (allowed|denied) \|' "$TERMINAL")" = 10 ]"#,
    ),
    (
        "cargo run --release -p redis-rl-replay ",
        "",
        "cmp replay.svg docs/charts/replay.svg",
    ),
    (
        "make bench",
        "touch begin",
        "[ target/bench/tables.md -nt begin ]",
    ),
];

/// One command, as it is printed; it may go over several lines.
struct Line {
    /// In its page, from 1.
    at: usize,
    /// What the shell does first.
    before: String,
    code: String,
    comment: String,
    /// All that it prints.
    prints: Option<String>,
}

/// What a page has to be run, block by block.
fn commands(text: &str) -> Vec<Vec<Line>> {
    let mut found: Vec<Vec<Line>> = Vec::new();
    let mut before = String::new();
    for block in blocks(text) {
        match block.language.as_str() {
            "sh" => found.push(lines(&block)),
            "text" => {
                assert_eq!(
                    before, "sh",
                    "line {}: text that nothing prints",
                    block.line
                );
                let last = found.last_mut().and_then(|lines| lines.last_mut());
                last.expect("a line").prints = Some(block.lines.join("\n"));
            }
            "conf" => {
                let conf = block.lines.join("\n");
                found.push(vec![Line {
                    before: format!("cat >page.conf <<END\n{conf}\nEND\n"),
                    ..Line::new(block.line, "redis-server page.conf")
                }]);
            }
            "cron" => found.push(
                (block.line..)
                    .zip(&block.lines)
                    .map(|(at, line)| {
                        // Five fields of time, and a user.
                        let code = line.splitn(7, ' ').last().expect("a command");
                        Line::new(at, code)
                    })
                    .collect(),
            ),
            _ => {}
        }
        before = block.language;
    }
    found
}

fn lines(block: &Block) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut goes_on = false;
    for (at, text) in (block.line..).zip(&block.lines) {
        if goes_on {
            let code = &mut lines.last_mut().expect("a line before").code;
            *code = format!("{code}\n{text}");
        } else if !text.is_empty() {
            lines.push(Line::new(at, text));
        }
        goes_on = text.ends_with('\\');
    }
    lines
}

impl Line {
    fn new(at: usize, text: &str) -> Line {
        let (code, comment) = text.split_once(" #").unwrap_or((text, ""));
        Line {
            at,
            before: String::new(),
            code: code.trim_end().to_owned(),
            comment: comment.trim().to_owned(),
            prints: None,
        }
    }

    fn way(&self) -> Option<Way> {
        let mut ways = WAYS.iter();
        ways.find(|(start, _)| self.code.starts_with(start))
            .map(|(_, way)| *way)
    }

    /// What the shell is told.
    fn step(&self, step: usize, way: Way) -> String {
        let mut around = AROUND.iter();
        let around = around.find(|(start, ..)| self.code.starts_with(start));
        let (before, after) = around.map_or(("", ""), |(_, before, after)| (before, after));
        let run = match way {
            Serve => format!("{{ {} & }}", self.code),
            _ => format!("{{ {}\n}}", self.code),
        };
        let (port, serves) = match way {
            Serve => (format!("PORT={}", quiet_port()), "serves $!"),
            _ => (String::new(), ":"),
        };
        let text = format!(
            "TERMINAL=$PWD/out.{step}\n\
             {{ :; {}{before}\n}} >before.{step} 2>&1 || fail {step} before\n\
             {port}\n\
             {run} >\"$TERMINAL\" 2>err.{step} && {serves} || fail {step} err\n\
             {{ :; {after}\n}} >after.{step} 2>&1 || fail {step} after\n",
            self.before,
        );
        let places = PLACES.iter();
        places.fold(text, |text, (shown, here)| text.replace(shown, here))
    }

    /// What is wrong with its output.
    fn judge(&self, printed: &str) -> Option<String> {
        let printed = printed.replace('\r', "");
        let expected = match (&self.prints, self.comment.strip_prefix("=> ")) {
            (Some(all), _) if all.trim_end() != printed.trim_end() => all,
            (_, Some(first)) if printed.lines().next() != Some(first) => first,
            _ => return None,
        };
        Some(format!(
            "the page says\n{expected}\nbut it prints\n{printed}"
        ))
    }
}

const HEAD: &str = r#"
servers=
end() {
  # Again and again: a server that writes its first AOF refuses to.
  for server in $servers; do while kill "$server" 2>/dev/null; do sleep 0.05; done; done
}
trap end EXIT
trap 'exit 1' HUP INT TERM
fail() { echo "$1 $2" >failed; exit 1; }
serves() {
  servers="$servers $1" tries=0
  until redis-cli RL.GCRA served 10 60000 '*' >/dev/null 2>&1; do
    tries=$((tries + 1))
    kill -0 "$1" 2>/dev/null && [ "$tries" -lt 600 ] || return 1
    sleep 0.1
  done
}
export PORT TERMINAL
"#;

/// A folder that looks like the repository, with `.bin` before everything else on PATH.
struct Scratch(PathBuf);

impl Scratch {
    fn new(file: &str, server: &Server) -> Scratch {
        let name = format!("shell-{}-{}", std::process::id(), file.replace('/', "-"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // Of a process of the same number, if that was killed.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder");
        for entry in fs::read_dir(root()).expect("the repository") {
            let name = entry.expect("the repository").file_name();
            // What `make run` keeps is its user's.
            if name != "appendonlydir" && name != "dump.rdb" && name != ".git" {
                symlink(root().join(&name), folder.join(&name)).expect("a link");
            }
        }
        fs::create_dir(folder.join(".bin")).expect("a folder");
        let scratch = Scratch(folder);
        let cli = server.cli_binary().display().to_string();
        let binary = server.binary().display().to_string();
        for name in ["redis", "valkey"] {
            scratch.wrap(
                &format!("{name}-cli"),
                // On a terminal replies are marked with their types; -e: an error is a failure.
                &format!("[ /dev/stdout -ef \"$TERMINAL\" ] && set -- --no-raw \"$@\"\nexec '{cli}' -e -p \"$PORT\" \"$@\""),
            );
            scratch.wrap(
                &format!("{name}-server"),
                &format!("exec '{binary}' \"$@\" --port \"$PORT\" --bind 127.0.0.1"),
            );
        }
        // So that nothing is built twice.
        let cargo = format!(
            "PATH='{}'\ncase $1 in -*) exec cargo \"$@\" ;; esac\nsub=$1\nshift\nexec cargo \"$sub\" --manifest-path '{}' \"$@\"",
            env::var("PATH").expect("PATH"),
            root().join("Cargo.toml").display()
        );
        scratch.wrap("cargo", &cargo);
        scratch
    }

    fn wrap(&self, name: &str, script: &str) {
        let path = self.0.join(".bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a script");
    }

    fn said(&self, file: &str) -> String {
        let bytes = fs::read(self.0.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs the lines of one block.
    fn run(
        &self,
        server: &Server,
        replica: Option<&Server>,
        lines: &[&Line],
    ) -> Result<(), String> {
        let mut script = HEAD.to_owned();
        for (step, line) in lines.iter().enumerate() {
            script += &line.step(step, line.way().expect("known"));
        }
        let file = self.0.join("script");
        fs::write(&file, script).expect("a script");
        let path = [".bin", "packaging"].map(|folder| self.0.join(folder).display().to_string());
        // A loop that waits in vain ends, too.
        let patience_s = if lines[0].way() == Some(Long) {
            "14400"
        } else {
            "300"
        };
        let mut command = Command::new("timeout");
        // What the make that may have started this test has set is not for those that it starts.
        for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
            command.env_remove(name);
        }
        let status = command
            .args(["-k", "60", patience_s, "sh"])
            .arg(file)
            .current_dir(&self.0)
            .env(
                "PATH",
                format!("{}:{}", path.join(":"), env::var("PATH").unwrap()),
            )
            .env("PORT", server.port().to_string())
            .env("REPLICA", replica.map_or(0, Server::port).to_string())
            .env("MODULE", find_module())
            .env("REDIS_SERVER", server.binary())
            .env("REDIS_URL", server.url())
            .stdin(Stdio::null())
            .stdout(File::create(self.0.join("shell")).expect("a file"))
            .stderr(File::create(self.0.join("shell.err")).expect("a file"))
            .status()
            .expect("sh runs");
        let failed = self.said("failed");
        if let [step, part] = failed.split_whitespace().collect::<Vec<_>>()[..] {
            let line = lines[step.parse::<usize>().unwrap()];
            let said =
                [format!("out.{step}"), format!("{part}.{step}")].map(|file| self.said(&file));
            return Err(format!(
                "{}: {}: failed ({part}):\n{}",
                line.at,
                line.code,
                said.join("\n")
            ));
        }
        if !status.success() {
            return Err(format!(
                "{}: {status}: {}",
                lines[0].at,
                self.said("shell.err")
            ));
        }
        for (step, line) in lines.iter().enumerate() {
            if let Some(wrong) = line.judge(&self.said(&format!("out.{step}"))) {
                return Err(format!("{}: {}: {wrong}", line.at, line.code));
            }
        }
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Why the line is not run, neither here nor elsewhere.
fn not_run(line: &Line, way: Way, server: &Server) -> Option<String> {
    if let Not(why) = way {
        return Some(why.to_owned());
    }
    for name in ["PEER_MODULES", "OTHER_SERVERS"] {
        if line.code.starts_with(name) && env::var_os(name).is_none() {
            return Some(format!("{name} names none"));
        }
    }
    // "From Redis 7.4 and Valkey 8 on."
    let (kind, version) = server.version();
    if line.code.contains("@ratelimit") && kind == "redis" && version < (7, 4, 0) {
        assert!(!server.cli(&["ACL", "CAT"]).contains("ratelimit"));
        return Some("no categories of modules before Redis 7.4".to_owned());
    }
    None
}

/// Runs the lines of a page, the long ones or the others; how many there were, and what went wrong.
fn run(file: &str, text: &str, long: bool) -> (usize, Vec<String>) {
    let (mut ran, mut failures) = (0, Vec::new());
    let mut scratch = None;
    for block in commands(text) {
        let other = |line: &Line| line.way().is_some_and(|way| (way == Long) != long);
        if block.iter().all(other) {
            continue;
        }
        let has = |text: &str| block.iter().any(|line| line.code.contains(text));
        let server = Server::builder().module(!has("MODULE LOAD")).start();
        let replica = has("-h replica").then(Server::start);
        if let Some(replica) = &replica {
            replica.replica_of(&server);
        }
        let mut here = Vec::new();
        for line in &block {
            let place = format!("{file}:{}: {}", line.at, line.code);
            let Some(way) = line.way() else {
                failures.push(format!("{place}: nothing runs this line"));
                continue;
            };
            if (way == Long) != long {
                continue;
            }
            if let Within(within, text) = way {
                let text = if text.is_empty() { &line.code } else { text };
                if !read(&root().join(within)).contains(text) {
                    failures.push(format!("{place}: {within} has no {text}"));
                }
            }
            match not_run(line, way, &server) {
                Some(why) => note(&format!("NOT RUN: {}: {why}", place.replace('\n', " "))),
                None if matches!(way, Within(..)) => {}
                None => here.push(line),
            }
        }
        if here.is_empty() {
            continue;
        }
        ran += here.len();
        let scratch = scratch.get_or_insert_with(|| Scratch::new(file, &server));
        if let Err(wrong) = scratch.run(&server, replica.as_ref(), &here) {
            failures.push(format!("{file}:{wrong}"));
        }
    }
    (ran, failures)
}

fn run_all(long: bool) {
    let (mut ran, mut failures) = (0, Vec::new());
    let only = env::var("RL_PAGE").unwrap_or_default();
    for page in pages() {
        let file = name(&page);
        if !file.contains(&only) {
            continue;
        }
        let (lines, failed) = run(&file, &read(&page), long);
        if lines > 0 {
            note(&format!("{file}: {lines} lines of the shell"));
        }
        ran += lines;
        failures.extend(failed);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let least = if long { 5 } else { 17 };
    assert!(
        ran >= if only.is_empty() { least } else { 1 },
        "only {ran} lines in all pages"
    );
}

#[test]
fn every_line_runs() {
    run_all(false);
}

#[test]
#[ignore = "minutes each: `make test-docs`"]
fn every_long_line_runs() {
    run_all(true);
}

#[test]
fn a_wrong_page_is_found() {
    let sh = |code: &str| format!("```sh\n{code}\n```\n");
    let wrong = |text: &str| run("wrong.md", text, false).1.join("\n");
    assert_eq!(wrong(&sh("redis-cli ECHO a   # => \"a\"")), "");
    for (page, told) in [
        (
            sh("redis-cli ECHO a   # => \"b\""),
            "wrong.md:2: redis-cli ECHO a: the page says",
        ),
        (
            sh("redis-cli ECHO a") + "\n```text\n\"b\"\n```\n",
            "the page says\n\"b\"",
        ),
        (
            sh("redis-cli ECHO a\nredis-cli RL.GCRA k"),
            "wrong.md:3: redis-cli RL.GCRA k: failed",
        ),
        (
            sh("redis-cli ECHO a |\\\n grep b"),
            "wrong.md:2: redis-cli ECHO a",
        ),
        (sh("redis-cli ECHO 'a"), "wrong.md:2: exit status"),
        (
            sh("redis-server --none"),
            "wrong.md:2: redis-server --none: failed (err)",
        ),
        (sh("make love"), "nothing runs this line"),
        (
            "```conf\nloadmodule /none\n```\n".to_owned(),
            "redis-server page.conf: failed (err)",
        ),
        (
            "```cron\n* * * * * me redis-rl-metrics -x\n```\n".to_owned(),
            "wrong.md:2: redis-rl-metrics -x: failed",
        ),
    ] {
        let found = wrong(&page);
        assert!(found.contains(told), "{page}\n{found}");
    }
}
