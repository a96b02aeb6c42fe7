//! What the integration tests share: a server of their own ([`Server`]), clusters of them ([`cluster`]), a raw client
//! ([`resp`]), short ways to ask about a limiter ([`live`]), the bytes of DUMP ([`payload`]), the runner for the vector
//! files ([`vectors`]), the scripts ([`lua`]) and the pages with their blocks ([`pages`]). A test file says `mod support;` and takes what it needs.

// Every test file is a crate of its own that compiles all of this and uses some of it.
#![allow(dead_code, unused_imports)]
// Only the crate in containers/ has the feature `containers`.
#![allow(unexpected_cfgs)]

pub mod cluster;
pub mod live;
pub mod lua;
pub mod pages;
pub mod payload;
#[cfg(not(feature = "containers"))]
mod process;
pub mod resp;
mod server;
pub mod vectors;

pub use process::find_module;
#[cfg(feature = "containers")]
use redis_rl_containers as process;
pub use server::{Builder, Server, Shutdown, quiet_port, signal};

use std::io::Write;
use std::path::Path;

/// The top of the repository. The crate of the tests in containers lies below it.
pub fn root() -> &'static Path {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = crate_root.ancestors();
    above
        .find(|dir| dir.join("tests/support").is_dir())
        .expect("the tests are in the repository")
}

/// Prints a line even when the test passes: which server a test ran on is worth knowing, and the test
/// harness keeps back only what goes through `println!` and its kin.
pub fn note(line: &str) {
    // Nobody is there to be told if stderr is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A number from the environment, as a test is told how long to go on.
pub fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).map_or(or, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number"))
    })
}
