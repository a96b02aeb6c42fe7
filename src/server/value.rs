//! How a limiter's state lies in memory.
//!
//! The server keeps one pointer per key. Its lowest three bits, which alignment leaves free, say
//! what it points to:
//!
//! ```text
//! 0 … 4   32 bytes that `limit::narrow` packed, of the algorithm with that number
//! 7       a boxed `State`: what is too large for 32 bytes
//! ```
//!
//! So the type of a limiter is known before its memory is touched, and most limiters take the
//! smallest block that holds them.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use super::stats;
use crate::limit::narrow::Words;
use crate::limit::sliding_log::Older;
use crate::limit::{Algorithm, Limiter, State};

const TAG_BITS: usize = 0b111;
const BOXED: usize = 7;

/// The server's pointer to a state. It is owned by the key, or by whoever took it out of one.
#[derive(Clone, Copy)]
pub struct Value(NonNull<c_void>);

/// A state in its place.
pub enum Place<'a> {
    Narrow(Algorithm, &'a mut Words),
    Boxed(&'a mut State),
}

/// The state of one algorithm, as found in a key.
pub enum Found<'a, L> {
    /// A pointer, since a charge that no longer fits frees the words while it has this.
    Narrow(NonNull<Words>, L),
    Boxed(&'a mut L),
}

impl Value {
    pub fn new(state: State) -> Self {
        stats::made(state.algorithm());
        match state.pack() {
            Some(words) => Self::tagged(
                Box::into_raw(Box::new(words)).cast(),
                state.algorithm() as usize,
            ),
            None => Self::tagged(Box::into_raw(Box::new(state)).cast(), BOXED),
        }
    }

    fn tagged(block: *mut c_void, tag: usize) -> Self {
        let pointer = block.map_addr(|address| address | tag);
        // SAFETY: a box is never null.
        Self(unsafe { NonNull::new_unchecked(pointer) })
    }

    /// # Safety
    /// `pointer` is a [`Value::pointer`].
    pub const unsafe fn from_pointer(pointer: NonNull<c_void>) -> Self {
        Self(pointer)
    }

    pub const fn pointer(self) -> NonNull<c_void> {
        self.0
    }

    fn tag(self) -> usize {
        self.0.as_ptr().addr() & TAG_BITS
    }

    /// The block itself.
    fn block(self) -> *mut c_void {
        self.0.as_ptr().map_addr(|address| address & !TAG_BITS)
    }

    /// The algorithm, if the state lies in 32 bytes.
    fn narrow(self) -> Option<Algorithm> {
        u8::try_from(self.tag())
            .ok()
            .and_then(Algorithm::from_number)
    }

    /// The state in its place.
    ///
    /// # Safety
    /// The value is alive, and nobody else reads or writes it during `'a`.
    pub unsafe fn place<'a>(self) -> Place<'a> {
        match self.narrow() {
            Some(algorithm) => {
                // SAFETY: by its tag the block was made by `new` from words.
                let words = unsafe { &mut *self.block().cast::<Words>() };
                Place::Narrow(algorithm, words)
            }
            // SAFETY: by its tag the block was made by `new` from a state.
            None => Place::Boxed(unsafe { &mut *self.block().cast::<State>() }),
        }
    }

    /// The state as one of algorithm `L`, or which other one it is of.
    ///
    /// # Safety
    /// As for [`Value::place`].
    #[inline]
    pub unsafe fn find<'a, L: Limiter>(self) -> Result<Found<'a, L>, Algorithm> {
        if self.tag() == L::ALGORITHM as usize {
            // SAFETY: by its tag the block was made by `new` from words of this algorithm.
            let (words, state) = unsafe {
                let words = NonNull::new_unchecked(self.block().cast::<Words>());
                (words, L::unpack(words.as_ref()))
            };
            return Ok(Found::Narrow(words, state));
        }
        // SAFETY: the caller's promise.
        match unsafe { self.place() } {
            Place::Narrow(other, _) => Err(other),
            Place::Boxed(state) => {
                let algorithm = state.algorithm();
                L::of(state).map(Found::Boxed).ok_or(algorithm)
            }
        }
    }

    /// Looks at the state.
    ///
    /// # Safety
    /// The value is alive, and nobody writes it meanwhile.
    pub unsafe fn look<R>(self, look: impl FnOnce(&State) -> R) -> R {
        match self.narrow() {
            // SAFETY: by its tag the block was made by `new` from words.
            Some(algorithm) => look(&algorithm.unpack(unsafe { &*self.block().cast::<Words>() })),
            // SAFETY: by its tag the block was made by `new` from a state.
            None => look(unsafe { &*self.block().cast::<State>() }),
        }
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// The value is alive and owned by the caller; it is not used again.
    pub unsafe fn free(self) {
        // SAFETY: the caller's promise.
        match unsafe { self.place() } {
            Place::Narrow(algorithm, words) => {
                stats::freed(algorithm);
                // SAFETY: by its tag the block was made by `new` from words.
                drop(unsafe { Box::from_raw(words) });
            }
            Place::Boxed(state) => {
                stats::freed(state.algorithm());
                // SAFETY: by its tag the block was made by `new` from a state.
                drop(unsafe { Box::from_raw(state) });
            }
        }
    }

    /// Bytes held, where `block_bytes` tells the size of an allocation.
    ///
    /// # Safety
    /// As for [`Value::look`].
    pub unsafe fn memory_bytes(self, block_bytes: impl Fn(*mut c_void) -> usize) -> usize {
        let own = block_bytes(self.block());
        let older_bytes = |older: &Older| {
            let list = block_bytes(ptr::from_ref(older).cast_mut().cast());
            older
                .buffers()
                .map(|buffer| block_bytes(buffer.as_ptr().cast_mut().cast()))
                .fold(
                    list.saturating_add(older.index_bytes()),
                    usize::saturating_add,
                )
        };
        let log_bytes = |state: &State| match state {
            State::SlidingLog(log) => log.older().map_or(0, older_bytes),
            _ => 0,
        };
        // SAFETY: the caller's promise.
        own.saturating_add(unsafe { self.look(log_bytes) })
    }

    /// The value with each of its blocks moved to where `mover` says; it answers null for a block
    /// that stays. A log's list of blocks stays: its buffer cannot be got at.
    ///
    /// # Safety
    /// As for [`Value::place`]; `mover` copies the block and frees the old one, and the value is
    /// replaced by the one returned.
    pub unsafe fn moved(self, mover: impl Fn(*mut c_void) -> *mut c_void) -> Self {
        // SAFETY: the caller's promise.
        if let Place::Boxed(State::SlidingLog(log)) = unsafe { self.place() }
            && let Some(mut older) = log.older_mut().take()
        {
            for buffer in older.buffers_mut() {
                let mut taken = std::mem::ManuallyDrop::new(std::mem::take(buffer));
                let (start, length, capacity) = (taken.as_mut_ptr(), taken.len(), taken.capacity());
                let start =
                    NonNull::new(mover(start.cast())).map_or(start, |moved| moved.as_ptr().cast());
                // SAFETY: the parts of the vector taken, at its block's new place.
                *buffer = unsafe { Vec::from_raw_parts(start, length, capacity) };
            }
            let list = Box::into_raw(older);
            let moved = NonNull::new(mover(list.cast()));
            // SAFETY: the box given up, at its block's new place.
            *log.older_mut() =
                Some(unsafe { Box::from_raw(moved.map_or(list, |moved| moved.as_ptr().cast())) });
        }
        match NonNull::new(mover(self.block())) {
            Some(block) => Self::tagged(block.as_ptr(), self.tag()),
            None => self,
        }
    }
}
