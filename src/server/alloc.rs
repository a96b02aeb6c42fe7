//! Rust's heap on the server's, so that `used_memory`, `maxmemory` and MEMORY see all of it.
//! Where there is no server, as in benches, it is the system's.

use std::alloc::{GlobalAlloc, Layout, System};

use super::raw;

pub struct ServerAlloc;

// Unit tests count on a heap of their own, and Miri on its own.
#[cfg(not(any(test, miri)))]
#[global_allocator]
static ALLOCATOR: ServerAlloc = ServerAlloc;

/// The largest alignment that every server's allocator gives; some put a length before the block.
const SERVER_ALIGN: usize = 8;

// SAFETY: either allocator keeps the contract of `GlobalAlloc`, and a process never mixes them:
// the pointers are set when the server loads the module, before the module allocates anything.
unsafe impl GlobalAlloc for ServerAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the statics are written once, before the first call of the module's code.
        match unsafe { raw::RedisModule_Alloc } {
            // SAFETY: the server's `malloc`.
            Some(alloc) if layout.align() <= SERVER_ALIGN => unsafe { alloc(layout.size()).cast() },
            // Nothing here is aligned to more. A foreign allocation that were would fail, not corrupt.
            Some(_) => std::ptr::null_mut(),
            // SAFETY: the caller's contract.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        match unsafe { raw::RedisModule_Free } {
            // SAFETY: `block` came from the server's `malloc`.
            Some(free) => unsafe { free(block.cast()) },
            // SAFETY: the caller's contract.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        match unsafe { raw::RedisModule_Realloc } {
            // SAFETY: `block` came from the server's `malloc`.
            Some(realloc) => unsafe { realloc(block.cast(), size).cast() },
            // SAFETY: the caller's contract.
            None => unsafe { System.realloc(block, layout, size) },
        }
    }
}
