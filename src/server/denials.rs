//! Which keys were denied since their last allowed call, so that `rl.denied` is sent once.
//!
//! A denial writes nothing into a key, so it is remembered here: one hash per slot of a table of
//! fixed size. A key whose slot another one took may be announced again.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;

use super::api::{Context, Text};

const SLOTS: usize = 1 << 14;

static DENIED: [AtomicU64; SLOTS] = [const { AtomicU64::new(EMPTY) }; SLOTS];
const EMPTY: u64 = 0;

/// How many slots are taken: while none is, an allowed call need not look.
static TAKEN: AtomicU64 = AtomicU64::new(0);

fn slot(context: Context, key: Text) -> (u64, &'static AtomicU64) {
    static SEED: OnceLock<RandomState> = OnceLock::new();
    let hash = SEED
        .get_or_init(RandomState::default)
        .hash_one((context.database(), key.bytes()))
        | 1;
    let index = usize::try_from(hash >> 32).unwrap_or(0) % SLOTS;
    // The index is below the length; the first slot stands for one that were not.
    (hash, DENIED.get(index).unwrap_or(&DENIED[0]))
}

pub fn denied(context: Context, key: Text) {
    let (hash, slot) = slot(context, key);
    let before = slot.swap(hash, Ordering::Relaxed);
    if before == EMPTY {
        TAKEN.fetch_add(1, Ordering::Relaxed);
    }
    if before != hash {
        context.notify(c"rl.denied", key);
    }
}

#[inline]
pub fn allowed(context: Context, key: Text) {
    if TAKEN.load(Ordering::Relaxed) == 0 {
        return;
    }
    let (hash, slot) = slot(context, key);
    if slot.load(Ordering::Relaxed) == hash {
        slot.store(EMPTY, Ordering::Relaxed);
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}
