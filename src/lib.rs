//! redis-rl: native rate-limit commands for Redis and Valkey.
//!
//! A call goes from [`server`] (the only room that knows Redis, and the only one with `unsafe`)
//! through [`args`] (text to a typed request) to [`limit`] (the algorithms, which know neither
//! Redis nor a clock); [`codec`] turns states to bytes and back. Which algorithms there are, the
//! table in `limit/state.rs` says.

#![deny(unsafe_code)]
#![warn(clippy::pedantic, clippy::undocumented_unsafe_blocks)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::unreachable
    )
)]
#![allow(
    clippy::inline_always,
    reason = "on the way of a charge: results stay in registers, and known rows fold away"
)]
#![allow(clippy::similar_names, reason = "argc and argv, ttl and its bounds")]

pub mod args;
pub mod codec;
pub mod limit;
#[allow(
    unsafe_code,
    reason = "the border to C: every block says why it is sound"
)]
pub mod server;
mod varint;
