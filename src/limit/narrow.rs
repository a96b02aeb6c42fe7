//! A state in 32 bytes, for limits and bursts below 2³² and windows below 2⁴⁸ µs (nine years).
//!
//! ```text
//! word 0   limit 32 | x 32          x, y, z   together 59 bits for the algorithm's own use;
//! word 1   window_us 48 | y 16                a bucket keeps its burst in x and the upper
//! word 2   updated_us 53 | z 11               bits of what is spent in y and z
//! word 3   64 bits for the algorithm's own use
//! ```
//!
//! Which algorithm it is, the pointer to the words tells (see the server's `value`).

use super::Policy;

pub type Words = [u64; 4];

const SPARE_BITS: u32 = 59;
const YZ_BITS: u32 = SPARE_BITS - 32;

#[inline]
fn put(policy: Policy, updated_us: u64, x: u64, yz: u64, own: u64) -> Option<Words> {
    let fits = policy.limit() >> 32 == 0
        && x >> 32 == 0
        && policy.window_us() >> 48 == 0
        && yz >> YZ_BITS == 0
        && updated_us >> 53 == 0;
    fits.then_some([
        policy.limit() << 32 | x,
        policy.window_us() << 16 | yz & 0xffff,
        updated_us << 11 | yz >> 16,
        own,
    ])
}

#[inline]
fn yz(words: &Words) -> u64 {
    words[1] & 0xffff | (words[2] & 0x7ff) << 16
}

#[inline]
fn policy(words: &Words, burst: u64) -> Policy {
    // Only `put` makes words, from a policy: its parts are in range.
    Policy {
        limit: words[0] >> 32,
        window_us: words[1] >> 16,
        burst,
    }
}

/// A state of up to 64 and 59 bits beside policy and time; its burst is its limit.
#[inline]
#[must_use]
pub fn pack(policy: Policy, updated_us: u64, own: u64, spare: u64) -> Option<Words> {
    put(policy, updated_us, spare & 0xffff_ffff, spare >> 32, own)
}

/// Policy, time, and the two numbers given to [`pack`].
#[inline]
#[must_use]
pub fn unpack(words: &Words) -> (Policy, u64, u64, u64) {
    let spare = words[0] & 0xffff_ffff | yz(words) << 32;
    (
        policy(words, words[0] >> 32),
        words[2] >> 11,
        words[3],
        spare,
    )
}

/// A bucket: what is spent, low half first. Within the bounds of burst and debt it stays below
/// 2⁸⁸ for a limit below 2³²; 91 bits have room.
#[inline]
#[must_use]
pub fn pack_bucket(policy: Policy, updated_us: u64, spent: [u64; 2]) -> Option<Words> {
    put(policy, updated_us, policy.burst(), spent[1], spent[0])
}

#[inline]
#[must_use]
pub fn unpack_bucket(words: &Words) -> (Policy, u64, [u64; 2]) {
    (
        policy(words, words[0] & 0xffff_ffff),
        words[2] >> 11,
        [words[3], yz(words)],
    )
}
