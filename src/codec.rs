//! A limiter's state as bytes, and back: the one form for RDB, AOF, DUMP, COPY across servers and
//! DEBUG DIGEST.
//!
//! ```text
//! version 1:  algorithm 1 byte, limit, window_us, [burst,] updated_us, then
//!   fixed            used
//!   slidinglog       number of entries, entries (see limit::sliding_log), the first from time 0
//!   slidingcounter   cur, prev
//!   token, gcra      spent, in units of 1/window: low 64 bits, high 64 bits
//! ```
//!
//! Numbers are varints. Equal states have equal bytes, and bytes that decode are those their state
//! encodes to: whatever is short, long, out of range or not in its shortest form is refused.

use crate::limit::bucket::Bucket;
use crate::limit::sliding_counter::{Counts, MAX_COUNT};
use crate::limit::sliding_log::{MAX_ENTRIES, read_entry, write_entry};
use crate::limit::{
    Algorithm, Fixed, MAX_DRAIN_US, MAX_NOW_US, MAX_UNITS, Named, Policy, SlidingCounter,
    SlidingLog, State, wide,
};
use crate::varint;

/// The version written. A newer module reads every older one.
pub const VERSION: u32 = 1;

/// The most units a limiter can hold that is not a bucket: its limit, and the largest debt.
const MAX_USED: u64 = 2 * MAX_UNITS;

/// Why bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Written by a newer module.
    NewerVersion(u32),
    /// Not the encoding of any state.
    Damaged,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NewerVersion(version) => write!(
                f,
                "rate limiter of encoding version {version}: this module reads versions up to {VERSION}, load a newer one"
            ),
            Self::Damaged => f.write_str("damaged rate limiter: its bytes encode no state"),
        }
    }
}

#[must_use]
pub fn encode(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    match state {
        State::Fixed(Fixed {
            policy,
            updated_us,
            used,
        }) => {
            header(&mut bytes, state, *policy, *updated_us, false);
            varint::push(&mut bytes, *used);
        }
        State::SlidingLog(log) => {
            header(&mut bytes, state, log.policy, log.updated_us, false);
            varint::push(&mut bytes, log.len());
            let mut before_us = 0;
            for entry in log.entries() {
                let mut code = [0; 2 * varint::MAX_BYTES];
                bytes.extend_from_slice(write_entry(&mut code, entry, before_us));
                before_us = entry.at_us;
            }
        }
        State::SlidingCounter(SlidingCounter {
            policy,
            updated_us,
            counts,
        }) => {
            header(&mut bytes, state, *policy, *updated_us, false);
            varint::push(&mut bytes, counts.cur);
            varint::push(&mut bytes, counts.prev);
        }
        State::Token(bucket) => bucket_body(&mut bytes, state, bucket),
        State::Gcra(bucket) => bucket_body(&mut bytes, state, bucket),
    }
    bytes
}

fn header(bytes: &mut Vec<u8>, state: &State, policy: Policy, updated_us: u64, with_burst: bool) {
    bytes.push(state.algorithm() as u8);
    varint::push(bytes, policy.limit());
    varint::push(bytes, policy.window_us());
    if with_burst {
        varint::push(bytes, policy.burst());
    }
    varint::push(bytes, updated_us);
}

fn bucket_body<const A: u8>(bytes: &mut Vec<u8>, state: &State, bucket: &Bucket<A>) {
    header(bytes, state, bucket.policy, bucket.updated_us, true);
    for half in bucket.halves() {
        varint::push(bytes, half);
    }
}

/// # Errors
/// A [`Refusal`] for bytes that [`encode`] did not make, or that a newer version did.
pub fn decode(version: u32, mut bytes: &[u8]) -> Result<State, Refusal> {
    let state = match version {
        0 => None,
        VERSION => read_state(&mut bytes),
        _ => return Err(Refusal::NewerVersion(version)),
    };
    match state {
        Some(state) if bytes.is_empty() => Ok(state),
        _ => Err(Refusal::Damaged),
    }
}

fn read_state(bytes: &mut &[u8]) -> Option<State> {
    let (&number, rest) = bytes.split_first()?;
    *bytes = rest;
    let algorithm = Algorithm::from_number(number)?;
    let limit = varint::read(bytes)?;
    let window_us = varint::read(bytes)?;
    let burst = if algorithm.has_burst() {
        varint::read(bytes)?
    } else {
        limit
    };
    let policy = Policy::new(limit, window_us, burst)?;
    let updated_us = in_range(varint::read(bytes)?, 0, MAX_NOW_US)?;
    match algorithm {
        Algorithm::Fixed => {
            let used = in_range(varint::read(bytes)?, 1, MAX_USED)?;
            Some(
                Fixed {
                    policy,
                    updated_us,
                    used,
                }
                .into(),
            )
        }
        Algorithm::SlidingLog => read_log(bytes, policy, updated_us),
        Algorithm::SlidingCounter => {
            let cur = in_range(varint::read(bytes)?, 0, MAX_COUNT)?;
            let prev = in_range(varint::read(bytes)?, 0, MAX_COUNT)?;
            let counts = Counts { cur, prev };
            (cur > 0 || prev > 0).then(|| {
                SlidingCounter {
                    policy,
                    updated_us,
                    counts,
                }
                .into()
            })
        }
        Algorithm::Token => read_bucket::<{ Algorithm::Token as u8 }>(bytes, policy, updated_us),
        Algorithm::Gcra => read_bucket::<{ Algorithm::Gcra as u8 }>(bytes, policy, updated_us),
    }
}

fn read_log(bytes: &mut &[u8], policy: Policy, updated_us: u64) -> Option<State> {
    let count = in_range(varint::read(bytes)?, 1, MAX_ENTRIES)?;
    let mut entries = Vec::new();
    let mut before_us = None;
    let mut used = 0_u64;
    for _ in 0..count {
        let code = *bytes;
        let entry = read_entry(bytes, before_us.unwrap_or(0))?;
        let mut buffer = [0; 2 * varint::MAX_BYTES];
        if !code.starts_with(write_entry(&mut buffer, entry, before_us.unwrap_or(0))) {
            return None;
        }
        used = used.checked_add(entry.units)?;
        if before_us.is_some_and(|before_us| before_us >= entry.at_us) || entry.units == 0 {
            return None;
        }
        before_us = Some(entry.at_us);
        entries.push(entry);
    }
    in_range(used, 1, MAX_USED)?;
    in_range(before_us?, 0, updated_us)?;
    SlidingLog::from_entries(policy, updated_us, entries).map(State::from)
}

fn read_bucket<const A: u8>(bytes: &mut &[u8], policy: Policy, updated_us: u64) -> Option<State>
where
    Bucket<A>: Named,
{
    let low = varint::read(bytes)?;
    let high = varint::read(bytes)?;
    let spent = wide(high) << 64 | wide(low);
    let full = wide(policy.burst()) * wide(policy.window_us());
    let debt = spent.saturating_sub(full);
    let bounded = debt <= wide(MAX_UNITS) * wide(policy.window_us())
        && debt <= wide(MAX_DRAIN_US) * wide(policy.limit());
    (spent > 0 && bounded).then(|| Bucket::<A>::new(policy, updated_us, spent).into())
}

fn in_range(value: u64, low: u64, high: u64) -> Option<u64> {
    (low..=high).contains(&value).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::sliding_log::Entry;

    #[test]
    fn entries_keep_their_layout_free_form() {
        let policy = Policy::new(10, 1000, 10).unwrap();
        // Miri takes a thousand times as long.
        let last = if cfg!(miri) { 500 } else { 5000 };
        let entries = (1..last).map(|i| Entry {
            at_us: i * 7,
            units: i % 3 + 1,
        });
        let log = State::from(SlidingLog::from_entries(policy, last * 7, entries).unwrap());
        assert_eq!(decode(VERSION, &encode(&log)), Ok(log));
    }
}
