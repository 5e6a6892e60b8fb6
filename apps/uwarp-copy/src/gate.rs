//! A place where the sending side of a pair waits, connected, for leave to begin. So a measurement begins when both
//! processes and the memory are ready, however long they took.

use anyhow::{Context as _, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uwarp_app::signals;

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often they look.
const LOOK: Duration = Duration::from_millis(2);

/// Two files: by the first the sending side says that it is ready, by the second it gets leave.
pub struct Gate {
    ready: PathBuf,
    leave: PathBuf,
}

impl Gate {
    /// In a directory that both sides can use.
    pub fn new(directory: impl AsRef<Path>) -> Self {
        let directory = directory.as_ref();
        Self { ready: directory.join("ready"), leave: directory.join("leave") }
    }

    /// The file that the sending side creates.
    pub fn ready(&self) -> &Path {
        &self.ready
    }

    /// Says that this side is ready, and waits for leave.
    ///
    /// # Errors
    /// The file cannot be created, the user interrupts, or nobody gives leave.
    pub fn wait(&self) -> anyhow::Result<()> {
        create(&self.ready)?;
        let start = Instant::now();
        while !self.leave.exists() {
            signals::check_interrupted()?;
            if start.elapsed() > PATIENCE {
                bail!("nobody gives leave to begin");
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until the sending side is ready, does what comes first, and gives leave. Without leave if `runs` says that
    /// a side has ended.
    ///
    /// # Errors
    /// Those of `first` and `runs`, or a file cannot be created or removed.
    pub fn open(
        &self,
        runs: &mut dyn FnMut() -> anyhow::Result<bool>,
        first: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        while !self.ready.exists() {
            if !runs()? {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        first()?;
        create(&self.leave)
    }

    /// Removes the files, for the next round.
    ///
    /// # Errors
    /// One of them cannot be removed.
    pub fn close(&self) -> anyhow::Result<()> {
        for file in [&self.ready, &self.leave] {
            match std::fs::remove_file(file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", file.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn create(file: &Path) -> anyhow::Result<()> {
    File::create(file).map(drop).with_context(|| format!("cannot create {}", file.display()))
}
