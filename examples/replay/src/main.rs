//! Replays an access log under several policies, and tells what each would have denied.
//!
//! ```sh
//! replay access.log 'GCRA 60 60000 BURST 20' 'FIXED 600 3600000'
//! ```
//!
//! The time of each line is the `now` of its calls, so yesterday's log is judged as it would have been yesterday, as
//! fast as the server answers. Callers are told apart by address. The keys are removed at the end.

mod chart;
mod log;

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use redis::Connection;

/// Lines sent at once: enough to hide the round trip, few enough for small buffers.
const BATCH: usize = 500;

#[derive(Parser)]
#[command(about = "What would these policies have denied?")]
struct Options {
    /// An access log in the common or combined format
    log: PathBuf,
    /// As in the commands: ALGORITHM limit window-in-ms [BURST b] [COST n]
    #[arg(required = true)]
    policies: Vec<String>,
    /// Added to every time, to lay windows on another grid: 259200000 begins weeks on Monday
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    shift_ms: i64,
    /// Draws a chart
    #[arg(long, value_name = "SVG")]
    chart: Option<PathBuf>,
    #[arg(long, env = "REDIS_URL", default_value = "redis://127.0.0.1:6379")]
    redis: String,
}

/// What became of the calls under one policy.
#[derive(Default)]
pub struct Outcome {
    pub policy: String,
    pub calls: u64,
    pub denied: u64,
    by_caller: HashMap<String, u64>,
    /// Calls and denied ones by minute.
    pub by_minute: BTreeMap<i64, (u64, u64)>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut redis = redis::Client::open(options.redis.as_str())?.get_connection()?;
    let file = File::open(&options.log)?;
    // Drawn on a terminal only.
    let bar = ProgressBar::new(file.metadata()?.len()).with_style(ProgressStyle::with_template(
        "{wide_bar} {bytes}/{total_bytes}, {eta} to go",
    )?);
    let mut outcomes: Vec<Outcome> = options
        .policies
        .iter()
        .map(|policy| Outcome {
            policy: policy.clone(),
            ..Outcome::default()
        })
        .collect();

    let (mut lines, mut skipped) = (0_u64, 0_u64);
    let mut batch = Vec::with_capacity(BATCH);
    for line in BufReader::new(bar.wrap_read(file)).split(b'\n') {
        lines += 1;
        match log::parse(&String::from_utf8_lossy(&line?)) {
            Some(hit) => batch.push(hit),
            None => skipped += 1,
        }
        if batch.len() == BATCH {
            send(&mut redis, &mut batch, &mut outcomes, options.shift_ms)?;
        }
    }
    send(&mut redis, &mut batch, &mut outcomes, options.shift_ms)?;
    bar.finish_and_clear();

    println!("{lines} lines, {skipped} not understood");
    for outcome in &outcomes {
        report(outcome);
        forget(&mut redis, outcome)?;
    }
    if let Some(path) = &options.chart {
        chart::draw(path, &outcomes)?;
    }
    Ok(())
}

fn key(policy: &str, address: &str) -> String {
    format!("replay:{}:{policy}:{address}", std::process::id())
}

/// One call for each line and policy, in one round trip.
fn send(
    redis: &mut Connection,
    batch: &mut Vec<log::Hit>,
    outcomes: &mut [Outcome],
    shift_ms: i64,
) -> Result<(), Box<dyn Error>> {
    let mut pipe = redis::pipe();
    for hit in batch.iter() {
        for outcome in outcomes.iter() {
            let mut words = outcome.policy.split_whitespace();
            pipe.cmd(&format!("RL.{}", words.next().unwrap_or_default()));
            pipe.arg(key(&outcome.policy, &hit.address));
            pipe.arg(words.by_ref().take(2).collect::<Vec<_>>());
            pipe.arg(hit.at_ms + shift_ms)
                .arg(words.collect::<Vec<_>>());
        }
    }
    let replies: Vec<[i64; 5]> = if batch.is_empty() {
        Vec::new()
    } else {
        pipe.query(redis)?
    };
    for (hit, replies) in batch.drain(..).zip(replies.chunks(outcomes.len())) {
        for (outcome, [allowed, ..]) in outcomes.iter_mut().zip(replies) {
            let denied = u64::from(*allowed == 0);
            outcome.calls += 1;
            outcome.denied += denied;
            *outcome.by_caller.entry(hit.address.clone()).or_default() += denied;
            let minute = outcome.by_minute.entry(hit.at_ms / 60_000).or_default();
            *minute = (minute.0 + 1, minute.1 + denied);
        }
    }
    Ok(())
}

fn report(outcome: &Outcome) {
    let Outcome {
        policy,
        calls,
        denied,
        by_caller,
        ..
    } = outcome;
    let mut worst: Vec<_> = by_caller
        .iter()
        .filter(|(_, denied)| **denied > 0)
        .collect();
    worst.sort_by_key(|(address, denied)| (u64::MAX - **denied, address.as_str()));
    let share = 100.0 * *denied as f64 / (*calls).max(1) as f64;
    println!(
        "\n{policy}\n  {denied} of {calls} denied ({share:.1} %), {} of {} callers",
        worst.len(),
        by_caller.len()
    );
    for (address, denied) in worst.into_iter().take(3) {
        println!("  {denied:>6}  {address}");
    }
}

fn forget(redis: &mut Connection, outcome: &Outcome) -> redis::RedisResult<()> {
    let keys: Vec<String> = outcome
        .by_caller
        .keys()
        .map(|address| key(&outcome.policy, address))
        .collect();
    keys.chunks(BATCH)
        .try_for_each(|some| redis::cmd("UNLINK").arg(some).exec(redis))
}
