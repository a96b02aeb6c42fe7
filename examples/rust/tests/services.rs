//! The same HTTP scenario for every example service: real clients, real clocks, a live server.
//!
//! `make test-examples` builds the services first. Each runs twice on one server: one fails open, one fails closed and
//! sends the older headers, too. The server is a cluster of one node, so keys that share no slot would be refused.

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::env;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use reqwest::{Client, Response};
use support::live::{ok, wait_until};
use support::resp::Protocol;
use support::{Server, note, pages, quiet_port};

/// Longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Of the calls to Redis: above what a busy machine takes while there is a server, short while there is none.
const PATIENT_MS: &str = "10000";
const SHORT_MS: &str = "300";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn built(name: &str) -> PathBuf {
    let path = root().join("target/examples").join(name);
    assert!(
        path.exists(),
        "{} is not there: run `make test-examples`",
        path.display()
    );
    path
}

fn python(file: &str) -> Command {
    let mut command = Command::new(built("venv/bin/python"));
    command
        .arg(root().join("examples/python").join(file))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn node() -> Command {
    let mut command = Command::new("node");
    command.arg(built("node/app.js"));
    command
}

#[test]
fn rust() {
    scenario("rust", || {
        Command::new(env!("CARGO_BIN_EXE_redis-rl-examples"))
    });
}

#[test]
fn python_asgi() {
    scenario("python asgi", || python("asgi.py"));
}

#[test]
fn python_wsgi() {
    scenario("python wsgi", || python("wsgi.py"));
}

#[test]
fn node_express() {
    scenario("node", node);
}

#[test]
fn go() {
    scenario("go", || Command::new(built("go-service")));
}

struct Service {
    child: Child,
    port: u16,
}

impl Service {
    fn start(
        mut command: Command,
        server: &Server,
        timeout_ms: &str,
        settings: &[(&str, &str)],
    ) -> Service {
        let port = quiet_port();
        let child = command
            .env("PORT", port.to_string())
            .env("REDIS_URL", server.url())
            .env("REDIS_TIMEOUT_MS", timeout_ms)
            .envs(settings.iter().copied())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mut service = Service { child, port };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = service.child.try_wait().unwrap();
            assert!(ended.is_none(), "{command:?} ended with {ended:?}");
            assert!(begin.elapsed() < PATIENCE, "{command:?} does not listen");
            sleep(Duration::from_millis(20));
        }
        service
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone after this.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client on an address of its own: 127.0.0.`host`.
fn client(host: u8) -> Client {
    let address = Ipv4Addr::new(127, 0, 0, host);
    Client::builder()
        .local_address(Some(address.into()))
        .timeout(PATIENCE)
        .build()
        .unwrap()
}

async fn get(client: &Client, service: &Service, path: &str, key: &str) -> Response {
    client
        .get(service.url(path))
        .header("X-Api-Key", key)
        .send()
        .await
        .unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response
        .headers()
        .get(name)
        .map(|value| value.to_str().unwrap())
}

fn number(response: &Response, name: &str) -> Option<u64> {
    header(response, name).map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}")))
}

/// `"key";r=99;t=1, "ip";r=9;t=1` as name to (r, t).
fn state(response: &Response) -> HashMap<String, (u64, u64)> {
    let text =
        header(response, "RateLimit").unwrap_or_else(|| panic!("no RateLimit: {response:?}"));
    let one = |item: &str| {
        let mut parts = item.split(';');
        let name = parts
            .next()?
            .strip_prefix('"')?
            .strip_suffix('"')?
            .to_owned();
        let r = parts.next()?.strip_prefix("r=")?.parse().ok()?;
        let t = parts.next()?.strip_prefix("t=")?.parse().ok()?;
        parts.next().is_none().then_some((name, (r, t)))
    };
    text.split(", ")
        .map(|item| one(item).unwrap_or_else(|| panic!("RateLimit: {text}")))
        .collect()
}

fn scenario(name: &str, command: impl Fn() -> Command) {
    let begin = Instant::now();
    let mut server = Server::builder().arg("cluster-enabled", "yes").start();
    let mut redis = server.raw(Protocol::Resp2);
    ok(&mut redis, "CLUSTER ADDSLOTSRANGE 0 16383");
    wait_until("the cluster is up", || {
        server.info_field("cluster_enabled").is_some() && {
            let info = redis.call(&["CLUSTER", "INFO"]).unwrap();
            String::from_utf8_lossy(info.bytes().unwrap()).contains("cluster_state:ok")
        }
    });
    let start = |server: &Server, timeout_ms: &str| {
        let closed = [("FAIL", "closed"), ("LEGACY_HEADERS", "1")];
        let open = Service::start(command(), server, timeout_ms, &[("FAIL", "open")]);
        (open, Service::start(command(), server, timeout_ms, &closed))
    };
    let (open, closed) = start(&server, PATIENT_MS);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        headers(&open, &closed).await;
        one_address(&open).await;
        let (admitted, sent) = many_addresses(&open).await;
        tokens(&open).await;
        let calls = lease(&open, &server).await;
        note(&format!("{name}: {admitted} of {sent} admitted by a key of 100; 1200 requests of a hot key in {calls} calls"));
    });

    let (open, closed) = start(&server, SHORT_MS);
    signal("-STOP", server.pid());
    runtime.block_on(without_redis(&open, &closed));
    signal("-CONT", server.pid());
    runtime.block_on(back_again(&open, &closed));
    server.kill9();
    runtime.block_on(without_redis(&open, &closed));
    // One that starts without Redis is no worse off.
    let late = Service::start(command(), &server, SHORT_MS, &[("FAIL", "open")]);
    runtime.block_on(without_redis(&late, &closed));
    server.start_again();
    runtime.block_on(back_again(&open, &closed));
    runtime.block_on(back_again(&late, &closed));
    note(&format!(
        "{name}: the scenario took {:.1} s",
        begin.elapsed().as_secs_f64()
    ));
}

fn signal(which: &str, pid: u32) {
    assert!(
        Command::new("kill")
            .args([which, &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

async fn headers(open: &Service, closed: &Service) {
    let response = get(&client(2), open, "/api", "ann").await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        header(&response, "RateLimit-Policy"),
        Some(r#""key";q=100;w=60, "ip";q=10;w=1"#)
    );
    let page = pages::read(&pages::root().join("examples/README.md"));
    let mut blocks = pages::blocks(&page).into_iter();
    let shown = blocks.find(|block| block.language == "http");
    let shown = shown.expect("an answer is shown").lines;
    assert_eq!(shown[0], format!("HTTP/1.1 {}", response.status()));
    for name in ["RateLimit-Policy", "RateLimit"] {
        // A slow machine may be there almost a second later.
        let value = header(&response, name).unwrap().replace("t=0", "t=1");
        assert!(shown.contains(&format!("{name}: {value}")), "{response:?}");
    }
    let state = state(&response);
    // The next unit of the key is there 600 ms later, the next of the address after 1 s.
    assert_eq!((state["key"].0, state["ip"].0), (99, 9), "{response:?}");
    assert!(state["key"].1 <= 1 && state["ip"].1 <= 1, "{response:?}");
    for name in [
        "Retry-After",
        "X-RateLimit-Limit",
        "X-RateLimit-Remaining",
        "X-RateLimit-Reset",
    ] {
        assert_eq!(header(&response, name), None, "{name}");
    }

    let response = get(&client(2), closed, "/api", "bob").await;
    let legacy = [
        "X-RateLimit-Limit",
        "X-RateLimit-Remaining",
        "X-RateLimit-Reset",
    ];
    assert_eq!(
        legacy.map(|name| number(&response, name)),
        [Some(10), Some(9), Some(1)]
    );

    // Without a key the address is the caller.
    let anonymous = client(3).get(open.url("/api")).send().await.unwrap();
    assert_eq!(anonymous.status(), 200);
    assert!(anonymous.headers().contains_key("RateLimit"));
}

/// 10 a second in any window, wherever it is laid: 30 take at least 2 s.
async fn one_address(service: &Service) {
    let client = client(4);
    let begin = Instant::now();
    let mut admitted = 0;
    while admitted < 30 {
        let response = get(&client, service, "/api", "cat").await;
        if response.status() == 200 {
            admitted += 1;
            continue;
        }
        assert_eq!(response.status(), 429);
        assert_eq!(state(&response)["ip"].0, 0, "{response:?}");
        assert_eq!(number(&response, "Retry-After"), Some(1));
        assert!(begin.elapsed() < PATIENCE, "{admitted} in {PATIENCE:?}");
        sleep(Duration::from_millis(5));
    }
    let elapsed = begin.elapsed();
    assert!(elapsed >= Duration::from_secs(2), "30 in {elapsed:?}");
}

/// Sixteen addresses at once use one key. Each may have 10 a second, the key 100 and one more every 600 ms.
async fn many_addresses(service: &Service) -> (u64, u64) {
    const ADDRESSES: u8 = 16;
    const EACH: u64 = 40;
    let begin = Instant::now();
    let mut tasks = Vec::new();
    for host in 0..ADDRESSES {
        let url = service.url("/api");
        tasks.push(tokio::spawn(async move {
            let client = client(100 + host);
            let (mut admitted, mut last) = (0, None);
            for _ in 0..EACH {
                let response = client
                    .get(&url)
                    .header("X-Api-Key", "dan")
                    .send()
                    .await
                    .unwrap();
                match response.status().as_u16() {
                    200 => admitted += 1,
                    429 => last = Some(response),
                    other => panic!("{other}"),
                }
            }
            (client, admitted, last.expect("40 are too many"))
        }));
    }
    let mut admitted = 0;
    let mut some = None;
    for task in tasks {
        let (client, of_one, denied) = task.await.unwrap();
        let seconds = begin.elapsed().as_secs();
        assert!(
            of_one <= 10 * (seconds + 1),
            "{of_one} from one address in {seconds} s"
        );
        assert!(state(&denied).values().any(|(r, _)| *r == 0), "{denied:?}");
        admitted += of_one;
        some = Some((client, denied));
    }
    let most = 100 + begin.elapsed().as_millis() as u64 / 600;
    assert!(
        (100..=most).contains(&admitted),
        "{admitted} admitted, {most} at most"
    );

    // Nobody else asks now, so whoever waits as told is admitted.
    let (client, denied) = some.unwrap();
    let wait = number(&denied, "Retry-After").unwrap();
    assert!(wait >= 1);
    tokio::time::sleep(Duration::from_secs(wait)).await;
    assert_eq!(get(&client, service, "/api", "dan").await.status(), 200);
    (admitted, u64::from(ADDRESSES) * EACH)
}

/// 10,000 tokens an hour, which is one every 360 ms.
async fn tokens(service: &Service) {
    let client = client(5);
    let begin = Instant::now();
    let chat = async |estimate: u64, used: u64| {
        let url = service.url(&format!("/chat?estimate={estimate}&used={used}"));
        client
            .post(url)
            .header("X-Api-Key", "eve")
            .send()
            .await
            .unwrap()
    };
    // Used less than reserved, more, as much.
    for (estimate, used, least) in [
        (500, 200, 9_800),
        (500, 800, 9_000),
        (1_000, 1_000, 8_000),
        (300, 0, 8_000),
    ] {
        let response = chat(estimate, used).await;
        assert_eq!(response.status(), 200);
        let body: HashMap<String, u64> = response.json().await.unwrap();
        let most = least + begin.elapsed().as_millis() as u64 / 360 + 1;
        assert!(
            (least..=most).contains(&body["remaining"]),
            "{body:?}, {least} to {most}"
        );
    }
    let debt = chat(100, 20_000).await;
    assert_eq!(
        debt.json::<HashMap<String, u64>>().await.unwrap()["remaining"],
        0
    );
    let denied = chat(1, 1).await;
    assert_eq!(denied.status(), 429);
    assert!(number(&denied, "Retry-After").unwrap() > 60, "{denied:?}");
    let never = chat(10_001, 1).await;
    assert_eq!(
        (never.status().as_u16(), number(&never, "Retry-After")),
        (429, None)
    );
}

/// 1,000 an hour, leased by 50: of 1,200 requests 1,000 pass, and the server is asked 21 times.
async fn lease(service: &Service, server: &Server) -> String {
    let mut tasks = Vec::new();
    for host in 0..8 {
        let url = service.url("/hot");
        tasks.push(tokio::spawn(async move {
            let client = client(200 + host);
            let mut admitted = 0;
            for _ in 0..150 {
                let response = client.get(&url).send().await.unwrap();
                match response.status().as_u16() {
                    200 => admitted += 1,
                    429 => assert!(number(&response, "Retry-After").unwrap() >= 1),
                    other => panic!("{other}"),
                }
            }
            admitted
        }));
    }
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    assert_eq!(admitted, 1_000);
    let stat = server
        .info_field("cmdstat_rl.slidinglog")
        .unwrap_or_else(|| server.info_field("cmdstat_RL.SLIDINGLOG").unwrap());
    let calls = stat.split(',').next().unwrap().replace("calls=", "");
    assert_eq!(calls, "21", "{stat}");
    calls
}

async fn without_redis(open: &Service, closed: &Service) {
    let client = client(6);
    // The fastest of some, since anything may wait on a busy machine: clients' own defaults are from 5 s to for ever.
    let mut fastest = PATIENCE;
    for _ in 0..5 {
        let begin = Instant::now();
        let passed = get(&client, open, "/api", "fay").await;
        assert_eq!(
            (passed.status().as_u16(), header(&passed, "RateLimit")),
            (200, None)
        );
        fastest = fastest.min(begin.elapsed());
    }
    assert!(fastest < Duration::from_secs(4), "{fastest:?}");
    let refused = get(&client, closed, "/api", "fay").await;
    assert_eq!(refused.status(), 503);
    let chat = client
        .post(open.url("/chat?estimate=1&used=1"))
        .send()
        .await
        .unwrap();
    assert_eq!(chat.status(), 503, "tokens are never free");
}

async fn back_again(open: &Service, closed: &Service) {
    let client = client(7);
    for service in [open, closed] {
        let begin = Instant::now();
        while header(&get(&client, service, "/api", "gus").await, "RateLimit").is_none() {
            assert!(begin.elapsed() < PATIENCE, "still without Redis");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
