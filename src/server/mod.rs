//! The shell around the pure core: everything that knows Redis.
//!
//! | file | what it does |
//! |---|---|
//! | `load` | the door: called when the server loads the module |
//! | `commands` | the table of commands: name, flags, handler, documentation |
//! | `check` | the five algorithms' commands, each parse → open → decide → charge → reply |
//! | `multi` | `RL.MULTI`: several limiters, all charged or none |
//! | `look` | `RL.INSPECT` and `RL.REFUND` |
//! | `throttle` | the names that clients of other limiters speak |
//! | `help` | `RL.TOP` and `RL.HELP` |
//! | `restore` | the internal command of an AOF rewrite |
//! | `keyspace` | a key: what it holds, its expiry, what follows a change of it |
//! | `value` | how a state lies in memory: 32 bytes behind a tagged pointer, or a box |
//! | `data_type` | the type `ratelimit`: RDB, AOF, digest, copy, free, defrag |
//! | `clock` | which time a call counts as |
//! | `config` | `ratelimit.*` |
//! | `stats` | what is counted, and `INFO ratelimit` |
//! | `denials` | which keys were denied since their last allowed call, and which most |
//! | `docs` | COMMAND DOCS from the argument rows |
//! | `api` | the server's C functions, typed |
//! | `alloc` | Rust's heap on the server's |
//! | `fake`, `tests` | a server in memory, and what the shims do on it |

mod alloc;
mod api;
mod check;
mod clock;
mod commands;
mod config;
mod data_type;
mod denials;
mod docs;
mod failure;
#[cfg(test)]
#[allow(
    non_snake_case,
    non_upper_case_globals,
    clippy::unused_self,
    reason = "it looks like C; and who holds a `Fake` is alone"
)]
mod fake;
mod help;
mod keyspace;
mod load;
mod look;
mod multi;
mod restore;
mod stats;
#[cfg(test)]
mod tests;
mod throttle;
mod value;

#[cfg(all(test, miri))]
use fake as raw;
#[cfg(not(all(test, miri)))]
use redis_module::raw;
