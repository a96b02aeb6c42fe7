//! Latency at a steady rate: calls are due at fixed times, and each waits from when it was due, even
//! if it was sent late because another one took long.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::cases::Call;
use crate::host::Host;
use crate::resp::encode;
use crate::throughput::{Xorshift, count_lines, lines_of_a_reply};

/// Sorted.
pub struct Latencies(Vec<f64>);

impl Latencies {
    pub fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0
            .get((share * last as f64).round() as usize)
            .copied()
            .unwrap_or(f64::NAN)
    }
}

const CONNECTIONS: usize = 4;

pub fn measure(
    host: &Host,
    per_second: u64,
    seconds: u64,
    call: impl Fn(u64) -> Call,
) -> Latencies {
    let mut random = Xorshift(0xda3e_39cb_94b9_5bdb);
    let calls: Vec<Vec<u8>> = (0..per_second * seconds)
        .map(|_| encode(&call(random.next())))
        .collect();
    let lines = lines_of_a_reply(host, &calls[0]);
    let begin = Instant::now() + Duration::from_millis(50);
    let due = |i: usize| begin + Duration::from_secs_f64(i as f64 / per_second as f64);
    // Each connection takes every fourth call; one thread sends, one for each connection receives.
    let mut senders: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let stream = TcpStream::connect(host.addr()).expect("the server lets clients in");
            stream.set_nodelay(true).expect("a TCP connection");
            stream
        })
        .collect();
    let receive = |mut stream: TcpStream, first: usize| -> Vec<f64> {
        let mut buffer = vec![0; 1 << 16];
        let (mut seen, mut taken) = (0, Vec::new());
        for i in (first..calls.len()).step_by(CONNECTIONS) {
            while seen < lines {
                let length = stream.read(&mut buffer).expect("the server answers");
                assert!(length > 0, "the server has hung up");
                seen += count_lines(&buffer[..length]);
            }
            seen -= lines;
            taken.push(due(i).elapsed().as_secs_f64() * 1e6);
        }
        taken
    };
    let mut latencies_us: Vec<f64> = thread::scope(|scope| {
        let receivers: Vec<_> = senders
            .iter()
            .enumerate()
            .map(|(first, sender)| {
                let stream = sender.try_clone().expect("a handle can be doubled");
                let receive = &receive;
                scope.spawn(move || receive(stream, first))
            })
            .collect();
        for (i, bytes) in calls.iter().enumerate() {
            let wait = due(i).saturating_duration_since(Instant::now());
            if wait > Duration::from_micros(20) {
                thread::sleep(wait);
            }
            senders[i % CONNECTIONS]
                .write_all(bytes)
                .expect("the server reads");
        }
        receivers
            .into_iter()
            .flat_map(|receiver| receiver.join().expect("a receiver ends well"))
            .collect()
    });
    latencies_us.sort_by(f64::total_cmp);
    Latencies(latencies_us)
}
