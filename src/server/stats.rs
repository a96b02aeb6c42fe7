//! What the module counts, and the INFO section that shows it: `INFO ratelimit`.
//!
//! A call is a check if it was decided; one that only failed is an error. Of an `RL.MULTI` that is
//! denied, only the limiters that deny it count: nothing came of the others. On a replica, and while an AOF is replayed, the charges that arrive count as allowed.

use std::ffi::{CString, c_int};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::api::{Context, OK, api};
use super::raw;
use crate::limit::{Algorithm, Call, Decision, Mode};

/// Counted on the main thread only.
pub struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Not an atomic addition, which would cost more: there is one writer.
    #[inline]
    pub fn add(&self, by: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(by),
            Ordering::Relaxed,
        );
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub struct Stats {
    peeks: Counter,
    allowed: Counter,
    denied: Counter,
    forced: Counter,
    pub errors: Counter,
    units_admitted: Counter,
    units_refused: Counter,
    /// Limiters alive; also counted down where the server frees in the background.
    live: AtomicI64,
}

impl Stats {
    const fn new() -> Self {
        Self {
            peeks: Counter::new(),
            allowed: Counter::new(),
            denied: Counter::new(),
            forced: Counter::new(),
            errors: Counter::new(),
            units_admitted: Counter::new(),
            units_refused: Counter::new(),
            live: AtomicI64::new(0),
        }
    }

    #[inline]
    pub fn decided(&self, call: &Call, decision: &Decision) {
        let admitted = decision.units.map_or(0, NonZeroU64::get);
        if decision.verdict.allowed == 0 && call.mode != Mode::Peek {
            self.denied.add(1);
            self.units_refused.add(call.cost);
            return;
        }
        match call.mode {
            Mode::Peek => return self.peeks.add(1),
            Mode::Force => self.forced.add(1),
            Mode::Partial => self.units_refused.add(call.cost.saturating_sub(admitted)),
            Mode::Charge => {}
        }
        self.allowed.add(1);
        self.units_admitted.add(admitted);
    }

    fn fields(&self) -> [(&'static str, u64); 8] {
        let (peeks, allowed, denied) = (self.peeks.get(), self.allowed.get(), self.denied.get());
        [
            (
                "checks",
                peeks.saturating_add(allowed).saturating_add(denied),
            ),
            ("allowed", allowed),
            ("denied", denied),
            ("forced", self.forced.get()),
            ("errors", self.errors.get()),
            ("units_admitted", self.units_admitted.get()),
            ("units_refused", self.units_refused.get()),
            (
                "live",
                u64::try_from(self.live.load(Ordering::Relaxed)).unwrap_or(0),
            ),
        ]
    }
}

static STATS: [Stats; Algorithm::ALL.len()] = [const { Stats::new() }; Algorithm::ALL.len()];

#[inline]
pub fn of(algorithm: Algorithm) -> &'static Stats {
    // Every algorithm's number is below their count; the first stands for one that were not.
    STATS.get(algorithm as usize).unwrap_or(&STATS[0])
}

pub fn made(algorithm: Algorithm) {
    of(algorithm).live.fetch_add(1, Ordering::Relaxed);
}

pub fn freed(algorithm: Algorithm) {
    of(algorithm).live.fetch_sub(1, Ordering::Relaxed);
}

pub fn register(context: Context) -> Result<(), String> {
    match api!(RedisModule_RegisterInfoFunc(context.0, Some(info))) {
        OK => Ok(()),
        _ => Err("the server refuses the INFO section".to_owned()),
    }
}

unsafe extern "C" fn info(ctx: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    if api!(RedisModule_InfoAddSection(ctx, c"".as_ptr())) != OK {
        return;
    }
    for &algorithm in Algorithm::ALL {
        for (field, value) in of(algorithm).fields() {
            let name = CString::new(format!("{}_{field}", algorithm.name())).unwrap_or_default();
            api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value));
        }
    }
}
