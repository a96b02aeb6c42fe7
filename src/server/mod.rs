//! The shell around the pure core: everything that knows Redis.
//!
//! | file | what it does |
//! |---|---|
//! | `load` | the door: called when the server loads the module |
//! | `commands` | the table of commands: name, flags, handler, documentation |
//! | `check` | the five algorithms' commands, each parse → open → decide → charge → reply |
//! | `restore` | the internal command of an AOF rewrite |
//! | `keyspace` | a key: what it holds, its expiry, what follows a change of it |
//! | `value` | how a state lies in memory: 32 bytes behind a tagged pointer, or a box |
//! | `data_type` | the type `ratelimit`: RDB, AOF, digest, copy, free, defrag |
//! | `denials` | which keys were denied since their last allowed call |
//! | `docs` | COMMAND DOCS from the argument rows |
//! | `api` | the server's C functions, typed |
//! | `alloc` | Rust's heap on the server's |

mod alloc;
mod api;
mod check;
mod commands;
mod data_type;
mod denials;
mod docs;
mod failure;
mod keyspace;
mod load;
mod restore;
mod value;
