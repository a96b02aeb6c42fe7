//! Throughput and the server's CPU time per call: one connection, random keys of 100,000, 1 or 64
//! calls on the way. Every case is measured once a round, so that all meet the same disturbances.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cases::{Case, Group, Scripts, all, key};
use crate::host::{Host, Plan, words};
use crate::resp::encode;

pub const KEYS: u64 = 100_000;
pub const DEPTHS: [usize; 2] = [1, 64];
const CALLS: [usize; 2] = [6_000, 64_000];
/// Scripts are slow.
const CALLS_OF_LUA: [usize; 2] = [3_000, 19_200];

pub struct Speed {
    pub name: String,
    pub group: Group,
    /// For each depth.
    pub per_second: [Rounds; 2],
    pub cpu_us: [Rounds; 2],
}

/// A figure of each round.
#[derive(Default)]
pub struct Rounds(Vec<f64>);

impl Rounds {
    pub fn add(&mut self, figure: f64) {
        self.0.push(figure);
        self.0.sort_by(f64::total_cmp);
    }

    pub fn middle(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub fn least(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    pub fn most(&self) -> f64 {
        self.0.last().copied().unwrap_or(f64::NAN)
    }
}

pub fn measure(binary: &Path, modules: &[PathBuf], peer: bool, rounds: usize) -> Vec<Speed> {
    let host = Host::start(&Plan {
        binary,
        modules,
        under: &[],
        options: &[],
    });
    let scripts = Scripts::load(&mut host.client());
    let mut cases = all(&scripts, peer);
    cases.retain(|case| case.timed);
    let mut speeds: Vec<Speed> = cases
        .iter()
        .map(|case| Speed {
            name: case.name.clone(),
            group: case.group,
            per_second: <[Rounds; 2]>::default(),
            cpu_us: <[Rounds; 2]>::default(),
        })
        .collect();
    for round in 1..=rounds {
        eprintln!("  round {round} of {rounds}");
        for (case, speed) in cases.iter().zip(&mut speeds) {
            one(&host, case, speed, round as u64);
        }
    }
    speeds
}

fn one(host: &Host, case: &Case, speed: &mut Speed, round: u64) {
    let mut client = host.client();
    words(&mut client, &["FLUSHALL"]);
    // Every key is there, and full where calls are to be denied.
    let first = |number: u64| match &case.setup {
        Some(setup) => setup(&key(number)),
        None => (case.call)(&key(number), number),
    };
    let fill: Vec<_> = (0..KEYS).map(first).collect();
    for reply in client.pipeline(&fill).expect("the server answers") {
        assert!(reply.error().is_none(), "{}: {reply:?}", case.name);
    }
    drop(fill);
    case.check(&mut client, &key(7), KEYS + 1);
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15 ^ round);
    let lua = matches!(case.group, Group::UsualLua | Group::ExactLua);
    for (place, depth) in DEPTHS.into_iter().enumerate() {
        let calls = if lua { CALLS_OF_LUA } else { CALLS }[place];
        let batches: Vec<Vec<u8>> = (0..calls / depth)
            .map(|_| {
                (0..depth)
                    .flat_map(|_| {
                        let i = random.next();
                        encode(&(case.call)(&key(i % KEYS), i % 1_000_000_000))
                    })
                    .collect()
            })
            .collect();
        let lines = lines_of_a_reply(host, &encode(&(case.call)(&key(3), 1_000_000_001)));
        let mut pipe = Pipe::new(host);
        let cpu = || host.info("used_cpu_user") + host.info("used_cpu_sys");
        let cpu_before = cpu();
        let begin = Instant::now();
        for batch in &batches {
            pipe.exchange(batch, depth * lines);
        }
        let seconds = begin.elapsed().as_secs_f64();
        let cpu_seconds = cpu() - cpu_before;
        speed.per_second[place].add(calls as f64 / seconds);
        speed.cpu_us[place].add(cpu_seconds * 1e6 / calls as f64);
    }
    case.check(&mut client, &key(11), 1_000_000_002);
}

/// Lines end where `\r\n` stands; no reply measured here has any within a text.
pub fn lines_of_a_reply(host: &Host, call: &[u8]) -> usize {
    let mut stream = TcpStream::connect(host.addr()).expect("the server lets clients in");
    let end = encode(&["ECHO", "end"]);
    stream.write_all(call).expect("the server reads");
    stream.write_all(&end).expect("the server reads");
    let mut got = Vec::new();
    while !got.ends_with(b"$3\r\nend\r\n") {
        let mut part = [0; 512];
        let length = stream.read(&mut part).expect("the server answers");
        got.extend_from_slice(&part[..length]);
    }
    count_lines(&got) - 2
}

pub fn count_lines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// A connection that looks at replies only to tell where they end.
struct Pipe {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Pipe {
    fn new(host: &Host) -> Pipe {
        let stream = TcpStream::connect(host.addr()).expect("the server lets clients in");
        stream.set_nodelay(true).expect("a TCP connection");
        Pipe {
            stream,
            buffer: vec![0; 1 << 16],
        }
    }

    fn exchange(&mut self, batch: &[u8], lines: usize) {
        self.stream.write_all(batch).expect("the server reads");
        let mut left = lines;
        while left > 0 {
            let length = self
                .stream
                .read(&mut self.buffer)
                .expect("the server answers");
            assert!(length > 0, "the server has hung up");
            left = left
                .checked_sub(count_lines(black_box(&self.buffer[..length])))
                .expect("no more replies than calls");
        }
    }
}

/// Marsaglia's xorshift64: the same keys on every run.
pub struct Xorshift(pub u64);

impl Xorshift {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
