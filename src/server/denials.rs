//! What is remembered of denials, which write nothing into a key.
//!
//! - Which keys were denied since their last allowed call, so that `rl.denied` is sent once: one
//!   hash per slot of a table of fixed size. A key whose slot another one took may be announced
//!   again.
//! - Which keys are denied most: the Space-Saving algorithm (Metwally, Agrawal and El Abbadi,
//!   *Efficient computation of frequent and top-k elements in data streams*, ICDT 2005), laid out
//!   like a cache: a key's hash chooses one of [`SETS`] sets of [`WAYS`] counters, and each set
//!   runs the algorithm by itself, so a denial looks at eight counters, not at all of them. Counts
//!   are halved every minute so that lately counts most.
//!
//! Neither is replicated or stored.

use std::cmp::Reverse;
use std::ffi::c_int;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use foldhash::fast::RandomState;

use super::api::{self, Context, Text};

const SLOTS: usize = 1 << 14;
const EMPTY: u64 = 0;

static ANNOUNCED: [AtomicU64; SLOTS] = [const { AtomicU64::new(EMPTY) }; SLOTS];
/// How many slots are taken: while none is, an allowed call need not look.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A key's hash, never [`EMPTY`].
#[inline]
fn hash(database: c_int, key: &[u8]) -> u64 {
    static SEED: OnceLock<RandomState> = OnceLock::new();
    let seed = SEED.get_or_init(RandomState::default);
    let mut hasher = seed.build_hasher();
    hasher.write(key);
    hasher.write_i32(database);
    hasher.finish() | 1
}

/// Bits of a hash that choose a place.
#[inline]
fn index(hash: u64) -> usize {
    usize::try_from(hash >> 32).unwrap_or(0)
}

#[inline]
fn slot(hash: u64) -> &'static AtomicU64 {
    // The index is below the length; the first slot stands for one that were not.
    ANNOUNCED.get(index(hash) % SLOTS).unwrap_or(&ANNOUNCED[0])
}

/// A call that asked for units got none.
pub fn denied(context: Context, key: Text) {
    let (database, bytes) = (context.database(), key.bytes());
    let hash = hash(database, bytes);
    top().count(hash, database, bytes);
    let before = slot(hash).swap(hash, Ordering::Relaxed);
    if before == EMPTY {
        TAKEN.fetch_add(1, Ordering::Relaxed);
    }
    if before != hash {
        context.notify(c"rl.denied", key);
    }
}

/// A call was charged.
#[inline]
pub fn allowed(context: Context, key: Text) {
    if TAKEN.load(Ordering::Relaxed) == 0 {
        return;
    }
    let hash = hash(context.database(), key.bytes());
    let slot = slot(hash);
    if slot.load(Ordering::Relaxed) == hash {
        slot.store(EMPTY, Ordering::Relaxed);
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

const SETS: usize = 128;
const WAYS: usize = 8;
/// A longer key is shown up to here. A counter keeps this memory once a long key had it.
const KEY_BYTES: usize = 1024;
const HALVING_US: u64 = 60_000_000;
/// Where denials are less than [`RARE_US`] apart, the clock is looked at once in so many of them;
/// elsewhere at each, so that at most so many are halved for time before them.
const CLOCK_EVERY: u64 = 16;
const RARE_US: u64 = 1_000_000;

/// Counters of the keys denied most among those whose hash chooses this set. One that is free
/// counts 0.
#[derive(Default)]
struct Set {
    hashes: [u64; WAYS],
    counts: [u64; WAYS],
    keys: [(c_int, Vec<u8>); WAYS],
}

impl Set {
    #[inline]
    fn count(&mut self, hash: u64, database: c_int, key: &[u8]) {
        let mut least = 0;
        let mut least_count = u64::MAX;
        for (way, (tracked, count)) in self.hashes.iter().zip(&mut self.counts).enumerate() {
            if *tracked == hash {
                *count = count.saturating_add(1);
                return;
            }
            if *count < least_count {
                (least, least_count) = (way, *count);
            }
        }
        // The newcomer takes the least counter over, with its count: never too low, at most that much too high.
        if let (Some(tracked), Some(count), Some((of, shown))) = (
            self.hashes.get_mut(least),
            self.counts.get_mut(least),
            self.keys.get_mut(least),
        ) {
            *tracked = hash;
            *count = count.saturating_add(1);
            *of = database;
            shown.clear();
            shown.extend_from_slice(key.get(..KEY_BYTES).unwrap_or(key));
        }
    }
}

pub struct Top {
    /// None at first.
    sets: Vec<Set>,
    /// Denials to come before the clock is looked at.
    unlooked: u64,
    looked_at_us: u64,
    /// Whole halving times on the server's clock when counts were last halved.
    halved_at: u64,
}

static TOP: Mutex<Top> = Mutex::new(Top::new());

pub fn top() -> MutexGuard<'static, Top> {
    TOP.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Top {
    const fn new() -> Self {
        Self {
            sets: Vec::new(),
            unlooked: 0,
            looked_at_us: 0,
            halved_at: 0,
        }
    }

    #[inline]
    fn count(&mut self, hash: u64, database: c_int, key: &[u8]) {
        match self.unlooked.checked_sub(1) {
            Some(unlooked) => self.unlooked = unlooked,
            None => self.look(),
        }
        if let Some(set) = self.sets.get_mut(index(hash) % SETS) {
            set.count(hash, database, key);
        }
    }

    #[cold]
    fn look(&mut self) {
        self.sets.resize_with(SETS, Set::default);
        let now_us = api::now_us();
        let rare = now_us.saturating_sub(self.looked_at_us) >= RARE_US;
        self.unlooked = if rare { 0 } else { CLOCK_EVERY };
        self.looked_at_us = now_us;
        self.age(now_us);
    }

    /// Halves the counts for every halving time that went by.
    fn age(&mut self, now_us: u64) {
        let halvings = now_us / HALVING_US;
        let passed = u32::try_from(halvings.saturating_sub(self.halved_at)).unwrap_or(u32::MAX);
        self.halved_at = halvings;
        if passed > 0 {
            for count in self.sets.iter_mut().flat_map(|set| &mut set.counts) {
                *count = count.checked_shr(passed).unwrap_or(0);
            }
        }
    }

    /// The keys of a database that were denied most lately, the first the most.
    pub fn most_denied(&mut self, database: c_int, most: usize) -> Vec<(&[u8], u64)> {
        self.age(api::now_us());
        let counted = self
            .sets
            .iter()
            .flat_map(|set| set.keys.iter().zip(&set.counts));
        let mut rows: Vec<_> = counted
            .filter(|((of, _), count)| *of == database && **count > 0)
            .map(|((_, key), count)| (&**key, *count))
            .collect();
        rows.sort_by_key(|&(key, count)| (Reverse(count), key));
        rows.truncate(most);
        rows
    }

    pub fn reset(&mut self) {
        *self = Self::new();
    }
}
