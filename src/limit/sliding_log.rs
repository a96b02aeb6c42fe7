//! Sliding log: at most `limit` units in any window of length W, wherever it is laid.
//!
//! An entry (time, units) counts while `t − W < time`. A log may hold a million of them, so they
//! are packed into blocks, and no call walks more than one block:
//!
//! ```text
//! blocks   [ dead ][ dead·dead·|live·live ][ live·live·live ] …        newest
//!                              ^ front                                 (not packed: a charge at
//!           each block knows the time of its last entry and how many    the same time joins it)
//!           units and entries there are from the log's beginning through it
//! entry    varint( Δtime · 4 + 2·(Δtime is in ms) + (units is 1) ), varint(units) if not 1
//! ```
//!
//! Entries are appended at the end and die at the front: `front` moves on, and the dead blocks
//! behind it are freed a few at each charge. Sums are differences of running totals, which may
//! wrap around.

use std::collections::VecDeque;

use super::{Charge, Limiter, Policy, Refunded, View, narrow};
use crate::varint;

/// Beyond this many entries the oldest two become one at the later time.
pub const MAX_ENTRIES: u64 = 1_048_576;
/// A block takes no more entries once it is this long.
const BLOCK_BYTES: usize = 1000;
/// Dead blocks freed by one charge.
const FREED_PER_CHARGE: usize = 4;

#[derive(Clone, Debug)]
pub struct SlidingLog {
    pub(crate) policy: Policy,
    pub(crate) updated_us: u64,
    pub(crate) newest: Entry,
    /// All entries but the newest, if there are any.
    older: Option<Box<Older>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub at_us: u64,
    pub units: u64,
}

/// Packed entries, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Older {
    blocks: VecDeque<Block>,
    /// Before the first packed entry that is not dropped.
    front: Position,
    /// Units that no longer count, of all packed so far. Where this is less than what `front` has
    /// passed, the oldest entry stands for the ones merged into it, too.
    dropped: u64,
}

#[derive(Clone, Debug)]
struct Block {
    bytes: Vec<u8>,
    /// Through the last entry.
    end: Totals,
}

/// What lies before a place in the log.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    /// The time of the entry before it; the next one's is coded as the distance from here.
    at_us: u64,
    units: u64,
    entries: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Position {
    block: usize,
    offset: usize,
    before: Totals,
}

pub struct SlidingLogView<'a> {
    window_us: u64,
    at_us: u64,
    /// Units that count.
    used: u64,
    /// `None`: no entry counts.
    newest_us: Option<u64>,
    older: Option<Counted<'a>>,
}

/// The packed entries that count.
struct Counted<'a> {
    older: &'a Older,
    /// Before the first of them.
    first: Position,
    /// Units before it that no longer count.
    aged: u64,
}

impl Counted<'_> {
    fn units(&self) -> u64 {
        self.older.end().units.wrapping_sub(self.aged)
    }
}

impl Older {
    /// The buffers of the blocks, but those that have no memory yet.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Vec<u8>> {
        let buffers = self.blocks.iter().map(|block| &block.bytes);
        buffers.filter(|buffer| buffer.capacity() > 0)
    }

    /// The same, for a server that moves memory to defragment it.
    pub(crate) fn buffers_mut(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        let buffers = self.blocks.iter_mut().map(|block| &mut block.bytes);
        buffers.filter(|buffer| buffer.capacity() > 0)
    }

    /// Bytes that the list of blocks takes.
    pub(crate) fn index_bytes(&self) -> usize {
        self.blocks.capacity().saturating_mul(size_of::<Block>())
    }

    /// The entries that are not dropped, oldest first.
    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut at = self.front;
        let mut merged = self.front.before.units.wrapping_sub(self.dropped);
        std::iter::from_fn(move || {
            let entry = self.next(&mut at)?;
            Some(Entry {
                units: entry.units.saturating_add(std::mem::take(&mut merged)),
                ..entry
            })
        })
    }

    /// How many those are.
    fn len(&self) -> u64 {
        self.end().entries.wrapping_sub(self.front.before.entries)
    }

    /// Those that count where everything up to `horizon_us` is too old.
    fn counted(&self, horizon_us: Option<u64>) -> Counted<'_> {
        let first = horizon_us.map_or(self.front, |horizon_us| self.seek_time(horizon_us));
        let unmoved = first.before.entries == self.front.before.entries;
        Counted {
            older: self,
            first,
            aged: if unmoved {
                self.dropped
            } else {
                first.before.units
            },
        }
    }

    /// Totals through the last packed entry.
    fn end(&self) -> Totals {
        self.blocks
            .back()
            .map_or(self.front.before, |block| block.end)
    }

    /// The packed entry behind `at`, which moves past it.
    #[inline]
    fn next(&self, at: &mut Position) -> Option<Entry> {
        let mut rest = loop {
            let block = self.blocks.get(at.block)?;
            match block.bytes.get(at.offset..) {
                Some(rest) if !rest.is_empty() => break rest,
                _ => {
                    let next = at.block.saturating_add(1);
                    if next >= self.blocks.len() {
                        return None;
                    }
                    at.block = next;
                    at.offset = 0;
                }
            }
        };
        let length = rest.len();
        let entry = read_entry(&mut rest, at.before.at_us)?;
        at.offset = at.offset.saturating_add(length.saturating_sub(rest.len()));
        at.before = Totals {
            at_us: entry.at_us,
            units: at.before.units.wrapping_add(entry.units),
            entries: at.before.entries.wrapping_add(1),
        };
        Some(entry)
    }

    /// Before the first packed entry from `at` on that `stays` where the walk comes to its end. All
    /// later ones do, too; `ends_before` tells the blocks that end before it.
    #[inline]
    fn seek(
        &self,
        mut at: Position,
        ends_before: impl Fn(&Totals) -> bool,
        stays: impl Fn(&Totals) -> bool,
    ) -> Position {
        let mut behind = at;
        // Most often it is the very next entry.
        if self.next(&mut behind).is_none() || stays(&behind.before) {
            return at;
        }
        let passed =
            |block: &Block| block.end.entries <= at.before.entries || ends_before(&block.end);
        let block = self.blocks.partition_point(passed);
        if let Some(last) = block.checked_sub(1).filter(|last| *last >= at.block) {
            // At the end of the last block passed: `next` steps over it.
            if let Some(passed) = self.blocks.get(last) {
                at = Position {
                    block: last,
                    offset: passed.bytes.len(),
                    before: passed.end,
                };
            }
        }
        loop {
            let mut behind = at;
            if self.next(&mut behind).is_none() || stays(&behind.before) {
                return at;
            }
            at = behind;
        }
    }

    /// Before the first packed entry later than `horizon_us`.
    #[inline]
    fn seek_time(&self, horizon_us: u64) -> Position {
        self.seek(
            self.front,
            |end| end.at_us <= horizon_us,
            |through| through.at_us > horizon_us,
        )
    }

    /// Before the packed entry, from `first` on, that brings the running total to `units` over `base`.
    fn seek_units(&self, first: Position, base: u64, units: u64) -> Position {
        let over_base = |totals: &Totals| totals.units.wrapping_sub(base);
        self.seek(
            first,
            |end| over_base(end) < units,
            |through| over_base(through) >= units,
        )
    }

    /// Drops the entries up to `horizon_us`.
    fn drop_through(&mut self, horizon_us: u64) {
        let Counted { first, aged, .. } = self.counted(Some(horizon_us));
        self.dropped = aged;
        self.front = first;
        for _ in 0..FREED_PER_CHARGE.min(self.front.block) {
            self.blocks.pop_front();
            self.front.block = self.front.block.saturating_sub(1);
        }
        if self.blocks.len() < self.blocks.capacity() / 4 {
            self.blocks.shrink_to(self.blocks.len().saturating_mul(2));
        }
    }

    /// True if all entries are dropped and next to no memory is left to free.
    fn is_over(&self) -> bool {
        self.len() == 0 && self.blocks.len() <= FREED_PER_CHARGE
    }

    fn push(&mut self, entry: Entry) {
        if self.blocks.is_empty() {
            // The first distance of all is 0.
            self.front.before.at_us = entry.at_us;
            self.blocks.reserve_exact(1);
        }
        let end = self.end();
        if self
            .blocks
            .back()
            .is_none_or(|block| block.bytes.len() >= BLOCK_BYTES)
        {
            self.blocks.push_back(Block {
                bytes: Vec::new(),
                end,
            });
        }
        let last = self.blocks.len().saturating_sub(1);
        let Some(block) = self.blocks.back_mut() else {
            return;
        };
        let front = (self.front.block == last).then_some(&mut self.front.offset);
        block.append(entry, front);
    }

    /// Makes one of the oldest two entries. Asked only where there are two.
    fn merge_oldest(&mut self) {
        let mut front = self.front;
        self.next(&mut front);
        // `dropped` stays behind, so the next entry counts for both.
        self.front = front;
    }

    /// Takes `units`, fewer than there are, off the newest entries. The newest that is left is taken
    /// out, and answered.
    fn take_newest(&mut self, units: u64) -> Option<Entry> {
        let there = self.end().units.wrapping_sub(self.dropped);
        let kept = there.saturating_sub(units);
        let cut = self.seek_units(self.front, self.dropped, kept);
        let mut behind = cut;
        let entry = self.next(&mut behind)?;
        // What is kept of the entry at the cut.
        let first = cut.before.entries == self.front.before.entries;
        let kept_before = if first {
            0
        } else {
            cut.before.units.wrapping_sub(self.dropped)
        };
        if first {
            self.dropped = cut.before.units;
        }
        // `next` may have stepped over a block's end: the entry is in `behind.block`.
        let offset = if behind.block == cut.block {
            cut.offset
        } else {
            0
        };
        self.blocks.truncate(behind.block.saturating_add(1));
        if let Some(block) = self.blocks.back_mut() {
            block.bytes.truncate(offset);
            block.end = cut.before;
        }
        Some(Entry {
            at_us: entry.at_us,
            units: kept.saturating_sub(kept_before),
        })
    }
}

impl SlidingLog {
    /// A log of these entries, oldest first, each later than the one before it.
    pub(crate) fn from_entries(
        policy: Policy,
        updated_us: u64,
        entries: impl IntoIterator<Item = Entry>,
    ) -> Option<Self> {
        let mut entries = entries.into_iter();
        let mut log = Self {
            policy,
            updated_us,
            newest: entries.next()?,
            older: None,
        };
        for entry in entries {
            log.append(entry);
        }
        Some(log)
    }

    /// The entries that are not dropped, oldest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let older = self.older.iter().flat_map(|older| older.entries());
        older.chain(std::iter::once(self.newest))
    }

    /// How many those are.
    pub(crate) fn len(&self) -> u64 {
        let older = self.older.as_ref().map_or(0, |older| older.len());
        older.saturating_add(1)
    }

    /// What is held beside the newest entry.
    pub(crate) fn older(&self) -> Option<&Older> {
        self.older.as_deref()
    }

    /// The same, for a server that moves memory to defragment it.
    pub(crate) fn older_mut(&mut self) -> &mut Option<Box<Older>> {
        &mut self.older
    }

    /// Frees what is held beside the newest entry, if nothing lives in it.
    fn forget_older(&mut self) {
        if self.older.as_ref().is_some_and(|older| older.is_over()) {
            self.older = None;
        }
    }

    /// Makes `entry`, later than all others, the newest.
    fn append(&mut self, entry: Entry) {
        let packed = std::mem::replace(&mut self.newest, entry);
        self.older.get_or_insert_default().push(packed);
    }
}

impl Block {
    /// Appends an entry. Where the block would have to grow and a good part of it lies dead before
    /// `front`, that part is given up instead.
    fn append(&mut self, entry: Entry, front: Option<&mut usize>) {
        let mut code = [0; 2 * varint::MAX_BYTES];
        let code = write_entry(&mut code, entry, self.end.at_us);
        let bytes = &mut self.bytes;
        if bytes.capacity().saturating_sub(bytes.len()) < code.len() {
            match front {
                Some(front) if *front > bytes.len() / 4 => {
                    bytes.drain(..std::mem::take(front));
                    bytes.shrink_to(bytes.len().saturating_mul(2));
                }
                _ => {}
            }
            // By little: a log of a few entries stays small, and a full block has hardly any slack.
            let full = BLOCK_BYTES.saturating_sub(bytes.len());
            bytes.reserve_exact((bytes.len() / 8).min(full).max(2 * varint::MAX_BYTES));
        }
        bytes.extend_from_slice(code);
        self.end = Totals {
            at_us: entry.at_us,
            units: self.end.units.wrapping_add(entry.units),
            entries: self.end.entries.wrapping_add(1),
        };
    }
}

/// The code of an entry behind one at `before_us`.
pub(crate) fn write_entry(
    buffer: &mut [u8; 2 * varint::MAX_BYTES],
    entry: Entry,
    before_us: u64,
) -> &[u8] {
    let distance_us = entry.at_us.saturating_sub(before_us);
    let (distance, in_ms) = if distance_us.is_multiple_of(1000) {
        (distance_us / 1000, 1)
    } else {
        (distance_us, 0)
    };
    let one = u64::from(entry.units == 1);
    let mut length = varint::write(buffer, 0, distance << 2 | in_ms << 1 | one);
    if one == 0 {
        length = varint::write(buffer, length, entry.units);
    }
    buffer.get(..length).unwrap_or_default()
}

/// The entry at the beginning of `bytes`, behind one at `before_us`. `None` if there is no whole one.
#[inline]
pub(crate) fn read_entry(bytes: &mut &[u8], before_us: u64) -> Option<Entry> {
    let head = varint::read(bytes)?;
    let distance = head >> 2;
    let distance_us = if head & 2 == 0 {
        distance
    } else {
        distance.checked_mul(1000)?
    };
    let units = if head & 1 == 0 {
        varint::read(bytes)?
    } else {
        1
    };
    Some(Entry {
        at_us: before_us.checked_add(distance_us)?,
        units,
    })
}

impl PartialEq for SlidingLog {
    /// Equal logs hold the same entries, however they are laid out.
    fn eq(&self, other: &Self) -> bool {
        self.policy == other.policy
            && self.updated_us == other.updated_us
            && self.entries().eq(other.entries())
    }
}

impl Eq for SlidingLog {}

impl Limiter for SlidingLog {
    type View<'a> = SlidingLogView<'a>;

    #[inline]
    fn view(state: Option<&Self>, policy: Policy, now_us: u64) -> SlidingLogView<'_> {
        let window_us = policy.window_us();
        let at_us = state.map_or(now_us, |log| log.updated_us.max(now_us));
        let horizon_us = at_us.checked_sub(window_us);
        let counts =
            |log: &&Self| horizon_us.is_none_or(|horizon_us| log.newest.at_us > horizon_us);
        let Some(log) = state.filter(counts) else {
            return SlidingLogView {
                window_us,
                at_us,
                used: 0,
                newest_us: None,
                older: None,
            };
        };
        let older = log.older.as_ref().map(|older| older.counted(horizon_us));
        let packed = older.as_ref().map_or(0, Counted::units);
        SlidingLogView {
            window_us,
            at_us,
            used: packed.saturating_add(log.newest.units),
            newest_us: Some(log.newest.at_us),
            older,
        }
    }

    fn fresh(charge: Charge) -> Self {
        Self {
            policy: charge.policy,
            updated_us: charge.now_us,
            newest: Entry {
                at_us: charge.now_us,
                units: charge.units,
            },
            older: None,
        }
    }

    #[inline]
    fn charge(&mut self, charge: Charge) {
        let at_us = self.updated_us.max(charge.now_us);
        let horizon_us = at_us.checked_sub(charge.policy.window_us());
        self.policy = charge.policy;
        self.updated_us = at_us;
        if let (Some(older), Some(horizon_us)) = (&mut self.older, horizon_us) {
            older.drop_through(horizon_us);
        }
        if self.newest.at_us == at_us {
            self.newest.units = self.newest.units.saturating_add(charge.units);
            return;
        }
        let entry = Entry {
            at_us,
            units: charge.units,
        };
        if horizon_us.is_some_and(|horizon_us| self.newest.at_us <= horizon_us) {
            self.newest = entry;
            self.forget_older();
            return;
        }
        self.append(entry);
        if self.len() > MAX_ENTRIES
            && let Some(older) = &mut self.older
        {
            older.merge_oldest();
        }
    }

    fn refund(&mut self, units: u64, now_us: u64) -> Refunded {
        match Self::view(Some(self), self.policy, now_us).used {
            0 => return Refunded::Unchanged,
            used if units >= used => return Refunded::Emptied,
            _ => {}
        }
        match self.newest.units.checked_sub(units) {
            Some(left) if left > 0 => self.newest.units = left,
            _ => {
                let from_older = units.saturating_sub(self.newest.units);
                let left = self
                    .older
                    .as_mut()
                    .and_then(|older| older.take_newest(from_older));
                self.newest = left.unwrap_or(self.newest);
                self.forget_older();
            }
        }
        Refunded::Changed
    }

    fn policy(&self) -> Policy {
        self.policy
    }

    fn updated_us(&self) -> u64 {
        self.updated_us
    }

    /// Only a log of one entry, which most of them are, is that small.
    #[inline]
    fn pack(&self) -> Option<narrow::Words> {
        match self.older {
            None => narrow::pack(
                self.policy,
                self.updated_us,
                self.newest.units,
                self.newest.at_us,
            ),
            Some(_) => None,
        }
    }

    #[inline]
    fn unpack(words: &narrow::Words) -> Self {
        let (policy, updated_us, units, at_us) = narrow::unpack(words);
        Self {
            policy,
            updated_us,
            newest: Entry { at_us, units },
            older: None,
        }
    }
}

impl View for SlidingLogView<'_> {
    fn used(&self) -> u64 {
        self.used
    }

    fn wait_us(&self, target: u64) -> u64 {
        let Some(newest_us) = self.newest_us else {
            return 0;
        };
        let excess = self.used.saturating_sub(target);
        let last_us = self.older.as_ref().and_then(|counted| {
            if excess > counted.units() {
                return None;
            }
            let older = counted.older;
            let mut at = older.seek_units(counted.first, counted.aged, excess);
            older.next(&mut at).map(|entry| entry.at_us)
        });
        last_us
            .unwrap_or(newest_us)
            .saturating_add(self.window_us)
            .saturating_sub(self.at_us)
    }

    fn reset_us(&self) -> u64 {
        self.newest_us.map_or(0, |newest_us| {
            newest_us
                .saturating_add(self.window_us)
                .saturating_sub(self.at_us)
        })
    }

    fn reset_after_charge_us(&self, _units: u64) -> u64 {
        self.window_us
    }
}
