//! The tests of `tests/` in containers: each of their servers is one. This file stands there for
//! `tests/support/process.rs`, with the same names.
//!
//! - `RL_IMAGE`: an image with the module in it, as `make test-containers` builds them
//! - `RL_SERVER_IMAGE`: or an image of a server alone, into which the module is mounted (`RL_MODULE`, or
//!   `target/release/libredis_rl.so`), so its libc must not be older than this machine's; `redis:8` if neither is given
//!
//! A container shares this machine's network, its pids and, of its files, the server's own folder: the engine must be on
//! it.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::Duration;
use std::{env, fs, io};

use testcontainers::core::{AccessMode, Mount};
use testcontainers::runners::SyncRunner;
use testcontainers::{Container, ContainerRequest, GenericImage, ImageExt};

/// Where the module is in an image, whoever put it there.
const MODULE: &str = "/usr/local/lib/libredis_rl.so";

pub struct Image {
    pub name: String,
    /// Whether the module is in it.
    pub complete: bool,
}

impl Image {
    /// The one that the tests are about.
    pub fn under_test() -> Image {
        let named = |variable| env::var(variable).ok().filter(|name| !name.is_empty());
        let complete = named("RL_IMAGE");
        Image {
            complete: complete.is_some(),
            name: complete
                .or_else(|| named("RL_SERVER_IMAGE"))
                .unwrap_or_else(|| "redis:8".into()),
        }
    }

    pub fn generic(&self) -> GenericImage {
        let (name, tag) = self.name.rsplit_once(':').unwrap_or((&self.name, "latest"));
        GenericImage::new(name, tag)
    }
}

/// The image is the program.
pub fn find_server() -> PathBuf {
    Image::under_test().name.into()
}

pub fn find_module() -> PathBuf {
    MODULE.into()
}

/// The module for an image without one.
fn built_module() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/libredis_rl.so");
    let module = env::var_os("RL_MODULE").map_or(built, PathBuf::from);
    module
        .canonicalize()
        .unwrap_or_else(|e| panic!("{}: {e}: run `make build` first", module.display()))
}

fn bind(path: &Path, within: &Path) -> Mount {
    Mount::bind_mount(path.display().to_string(), within.display().to_string())
}

/// Runs the image's server in a container, with the arguments and in the folder that the command has.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let image = Image::under_test();
    assert_eq!(
        command.get_program(),
        image.name.as_str(),
        "no other server, and no namespace"
    );
    let dir = command.get_current_dir().expect("a server has a folder");
    let owner = fs::metadata(dir)?;
    // As a child's, its output goes on in the log, and its pid is one of this machine's.
    let script = "echo $$ >pid
        exec \"$(command -v valkey-server || command -v redis-server)\" \"$@\" >>log 2>&1";
    let arguments = command.get_args().map(|arg| arg.to_string_lossy());
    let mut request: ContainerRequest<GenericImage> = image
        .generic()
        .with_entrypoint("sh")
        .with_cmd(
            ["-c", script, "server"]
                .map(Into::into)
                .into_iter()
                .chain(arguments),
        )
        .with_network("host")
        .with_host_config_modifier(|config| config.pid_mode = Some("host".into()))
        .with_mount(bind(dir, dir))
        .with_working_dir(dir.display().to_string())
        // So that the tests can read its files, and remove them.
        .with_user(format!("{}:{}", owner.uid(), owner.gid()));
    if !image.complete {
        let mount = bind(&built_module(), Path::new(MODULE));
        request = request.with_mount(mount.with_access_mode(AccessMode::ReadOnly));
    }
    let container = request.start().map_err(io::Error::other)?;
    Ok(Child {
        container: Some(container),
        pid_file: dir.join("pid"),
    })
}

/// What of [`std::process::Child`] the tests use.
pub struct Child {
    /// `None` once it was killed.
    container: Option<Container<GenericImage>>,
    pid_file: PathBuf,
}

impl Child {
    pub fn id(&self) -> u32 {
        let pid = fs::read_to_string(&self.pid_file).expect("the container runs");
        pid.trim().parse().expect("a pid")
    }

    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let Some(container) = &self.container else {
            return Ok(Some(ExitStatus::from_raw(9)));
        };
        let code = container.exit_code().map_err(io::Error::other)?;
        Ok(code.map(|code| ExitStatus::from_raw(i32::try_from(code).unwrap_or(255) << 8)))
    }

    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Removed by force, which sends SIGKILL at once; stopping a container would ask it first.
    pub fn kill(&mut self) -> io::Result<()> {
        let container = self.container.take();
        container.map_or(Ok(()), |container| container.rm().map_err(io::Error::other))
    }
}
