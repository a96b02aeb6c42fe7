//! `packaging/redis-rl-metrics` tells Prometheus what INFO tells, and the Grafana dashboard asks for nothing else.
//! (`make test-monitoring` asks a real Prometheus.)

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value as Json;
use support::Server;
use support::live::ok;
use support::resp::Protocol;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Beside the server under test, or on PATH.
fn cli() -> PathBuf {
    let server = env::var_os("REDIS_SERVER").map(PathBuf::from);
    let beside = server
        .iter()
        .filter_map(|server| server.parent().map(Path::to_owned));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = beside.chain(env::split_paths(&path)).collect();
    let files = folders
        .iter()
        .flat_map(|folder| ["redis-cli", "valkey-cli"].map(|name| folder.join(name)));
    files
        .into_iter()
        .find(|file| file.is_file())
        .expect("redis-cli or valkey-cli")
}

fn metrics(server: &Server) -> Output {
    Command::new(root().join("packaging/redis-rl-metrics"))
        .args(["-p", &server.port().to_string()])
        .env("REDIS_CLI", cli())
        .output()
        .expect("it runs")
}

/// `name{labels}` to value, of a text in Prometheus' format; its names by type.
fn parse(text: &str) -> (BTreeMap<String, u64>, BTreeMap<String, String>) {
    let (mut values, mut types) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(
                types.insert(name.to_owned(), kind.to_owned()).is_none(),
                "{name} comes twice"
            );
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            assert!(
                types.contains_key(name.split('{').next().unwrap()),
                "{name} before its type"
            );
            let value = value.parse().expect("a number");
            assert!(
                values.insert(name.to_owned(), value).is_none(),
                "{name} comes twice"
            );
        }
    }
    (values, types)
}

#[test]
fn the_metrics_are_those_of_info() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    for call in [
        "RL.GCRA g 10 60000 0 COST 7",
        "RL.FIXED f 10 60000 0 COST 3",
        "RL.SLIDINGLOG l 2 60000 0 COST 5 PARTIAL",
    ] {
        ok(&mut client, call);
    }
    ok(&mut client, "RL.GCRA g 10 60000 0 COST 9");
    let output = metrics(&server);
    assert!(output.status.success(), "{output:?}");
    let (values, types) = parse(&String::from_utf8(output.stdout).unwrap());
    let of = |name: &str| values.get(name).copied();
    assert_eq!(of("redis_rl_checks_total{algorithm=\"gcra\"}"), Some(2));
    assert_eq!(of("redis_rl_denied_total{algorithm=\"gcra\"}"), Some(1));
    assert_eq!(
        of("redis_rl_units_refused_total{algorithm=\"gcra\"}"),
        Some(9)
    );
    assert_eq!(
        of("redis_rl_units_admitted_total{algorithm=\"slidinglog\"}"),
        Some(2)
    );
    assert_eq!(of("redis_rl_live{algorithm=\"fixed\"}"), Some(1));
    assert_eq!(types["redis_rl_live"], "gauge");
    assert_eq!(types["redis_rl_checks_total"], "counter");
    // All that INFO has, and nothing else.
    let info = server.info();
    let fields: Vec<&str> = info
        .lines()
        .filter(|line| line.starts_with("ratelimit_"))
        .collect();
    assert_eq!(values.len(), fields.len(), "{fields:?}");
    for field in fields {
        let (name, value) = field.trim_end().split_once(':').unwrap();
        let mut parts = name.splitn(3, '_').skip(1);
        let (algorithm, what) = (parts.next().unwrap(), parts.next().unwrap());
        let end = if what == "live" { "" } else { "_total" };
        assert_eq!(
            of(&format!(
                "redis_rl_{what}{end}{{algorithm=\"{algorithm}\"}}"
            )),
            value.parse().ok(),
            "{field}"
        );
    }
}

#[test]
fn a_server_without_the_module_is_told() {
    let output = metrics(&Server::builder().module(false).start());
    assert!(!output.status.success());
    assert_eq!(output.stdout, b"");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("is the module loaded"),
        "{output:?}"
    );
}

#[test]
fn the_dashboard_asks_for_metrics_that_are_there() {
    let text =
        fs::read_to_string(root().join("docs/grafana/redis-rl.json")).expect("the dashboard");
    let dashboard: Json = serde_json::from_str(&text).expect("JSON");
    let (_, types) = parse(&String::from_utf8(metrics(&Server::start()).stdout).unwrap());
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            let expr = target["expr"].as_str().expect("an expression");
            let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let names: Vec<&str> = words.filter(|word| word.starts_with("redis_rl_")).collect();
            assert!(!names.is_empty(), "{expr}");
            for name in names {
                assert!(types.contains_key(name), "{name} is not told: {expr}");
                assert_eq!(expr.contains("rate("), types[name] == "counter", "{expr}");
                asked.insert(name.to_owned());
            }
        }
    }
    assert_eq!(asked.len(), types.len(), "each metric is shown: {asked:?}");
}
