//! How a server is run: as a child of the test. Which server that is, and which module it loads.
//!
//! For the tests in containers `containers/lib.rs` stands here instead, with the same four names.

use std::path::{Path, PathBuf};
pub use std::process::Child;
use std::process::Command;
use std::sync::Once;
use std::time::SystemTime;
use std::{env, fs, io};

use super::server::on_path;
use super::{note, root};

/// Runs a server in its current folder; the end of its life is the caller's.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    command.spawn()
}

pub fn find_server() -> PathBuf {
    if let Some(path) = env::var_os("REDIS_SERVER").filter(|path| !path.is_empty()) {
        // Made absolute because the server runs in a folder of its own.
        return on_path(Path::new(&path))
            .unwrap_or_else(|| panic!("REDIS_SERVER is {}, which is not there", path.display()));
    }
    ["redis-server", "valkey-server"].iter().find_map(|name| on_path(Path::new(name))).unwrap_or_else(|| {
        panic!("no redis-server and no valkey-server on PATH: run scripts/setup.sh, or name one in REDIS_SERVER")
    })
}

/// The release build, because that is what users load.
pub fn find_module() -> PathBuf {
    if let Some(path) = env::var_os("RL_MODULE").filter(|path| !path.is_empty()) {
        return Path::new(&path).canonicalize().unwrap_or_else(|e| {
            panic!("RL_MODULE is {}, which cannot be used: {e}", path.display())
        });
    }
    let target = root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into()));
    let name = format!(
        "{}redis_rl{}",
        env::consts::DLL_PREFIX,
        env::consts::DLL_SUFFIX
    );
    let module = target.join("release").join(name);
    assert!(
        module.is_file(),
        "{} is not there: run `make build` first, or name a module in RL_MODULE",
        module.display()
    );
    warn_if_stale(&module, &root().join("src"));
    module
}

/// `cargo test` does not rebuild the release module; say so when it is older than the code under test.
fn warn_if_stale(module: &Path, src: &Path) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let built = modified(module);
        if let Some(newer) = files(src).into_iter().find(|file| modified(file) > built) {
            note(&format!(
                "warning: {} is newer than the module under test: run `make build`",
                newer.display()
            ));
        }
    });
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}
