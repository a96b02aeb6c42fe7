//! Any bytes as a stored state: what decodes encodes to the same bytes, and every command can work with it.

#![no_main]

#[path = "../../tests/support/core.rs"]
mod pure;

use libfuzzer_sys::fuzz_target;
use pure::{Key, policy};
use redis_rl::codec::{self, Refusal};
use redis_rl::limit::{Call, MAX_DRAIN_US, MAX_NOW_US, MAX_UNITS, MAX_WINDOW_US, Mode, Policy};

fuzz_target!(|bytes: &[u8]| {
    for version in [0, codec::VERSION + 1, u32::MAX] {
        let refused = codec::decode(version, bytes);
        let newer = version > codec::VERSION;
        assert_eq!(
            refused,
            Err(if newer {
                Refusal::NewerVersion(version)
            } else {
                Refusal::Damaged
            })
        );
    }
    let Ok(state) = codec::decode(codec::VERSION, bytes) else {
        return;
    };
    assert_eq!(codec::encode(&state), bytes);
    let key = Key {
        state: Some(state.clone()),
        // Counts that no call makes may take more room than those a call makes.
        unchecked: true,
    };
    let seen = state.inspect(0);
    let (own, updated_us) = (seen.policy, seen.updated_us);
    let policies = [
        own,
        policy(1, 1, 1),
        policy(MAX_UNITS, MAX_WINDOW_US, MAX_UNITS),
    ];
    for now_us in [0, updated_us + own.window_us() / 2, MAX_NOW_US] {
        let now_us = now_us.min(MAX_NOW_US);
        for policy in policies {
            for (mode, cost) in [
                (Mode::Peek, 1),
                (Mode::Charge, 0),
                (Mode::Charge, policy.burst()),
                (Mode::Partial, MAX_UNITS),
                (Mode::Force, 7),
                (Mode::Force, MAX_UNITS),
            ] {
                let call = Call {
                    policy,
                    now_us,
                    cost,
                    mode,
                };
                let mut key = key.clone();
                if let Ok(reply) = key.call(state.algorithm(), &call) {
                    in_range(&policy, &call, reply);
                    forms(&key);
                }
            }
        }
        for units in [1, MAX_UNITS] {
            let mut key = key.clone();
            let left = key.refund(units, now_us);
            forms(&key);
            assert!(left.is_some_and(|left| left <= own.burst()));
        }
        let seen = state.inspect(now_us);
        assert!(seen.remaining <= own.burst() && seen.updated_us == updated_us);
    }
});

fn in_range(policy: &Policy, call: &Call, [allowed, limit, remaining, retry, reset]: [i64; 5]) {
    let burst = i64::try_from(policy.burst()).expect("below 2^53");
    // A bucket's spent units drain at the old rate, of up to a debt and a bucket more.
    let longest_ms =
        i64::try_from(2 * MAX_DRAIN_US / 1000 + 2 * MAX_WINDOW_US / 1000).expect("years");
    let right = limit == burst
        && (0..=burst).contains(&remaining)
        && (-1..=longest_ms).contains(&retry)
        && (0..=longest_ms).contains(&reset)
        && (allowed > 0) == (retry == 0)
        && allowed >= 0;
    assert!(
        right,
        "{call:?}: {:?}",
        [allowed, limit, remaining, retry, reset]
    );
}

/// A state is the same in 32 bytes, if it fits, and in the bytes that are stored.
fn forms(key: &Key) {
    let Some(state) = &key.state else { return };
    if let Some(words) = state.pack() {
        assert_eq!(&state.algorithm().unpack(&words), state);
    }
    assert_eq!(
        codec::decode(codec::VERSION, &codec::encode(state)).as_ref(),
        Ok(state)
    );
}
