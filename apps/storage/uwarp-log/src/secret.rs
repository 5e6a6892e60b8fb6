//! Where the log's secret comes from.

use clap::Args;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use uwarp_app::usage;
use uwarp_log::auth::{Challenge, MAX_SECRET, Secret};

/// The secret's file.
#[derive(Args, Clone, Debug, Default)]
pub struct SecretFlag {
    /// File with the log's secret: at least 16 octets, readable by its owner only. Writer and targets prove to each
    /// other that they know it
    #[arg(long, value_name = "FILE", env = "UWARP_LOG_SECRET_FILE")]
    secret_file: Option<PathBuf>,
}

impl SecretFlag {
    /// Reads the secret, if a file is named.
    ///
    /// # Errors
    /// The file cannot be read, other users may read it, or it holds no secret.
    pub fn read(&self) -> anyhow::Result<Secret> {
        let Some(path) = &self.secret_file else { return Ok(Secret::default()) };
        read(path).map_err(|problem| usage(format!("--secret-file {}: {problem}", path.display())))
    }
}

fn read(path: &Path) -> Result<Secret, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        return Err(format!("other users have rights to it (mode {mode:03o}): make it yours alone with chmod 600"));
    }
    if ![0, rustix::process::geteuid().as_raw()].contains(&metadata.uid()) {
        return Err(format!("it belongs to another user (number {}), who knows what is in it", metadata.uid()));
    }
    let mut octets = Vec::new();
    // Leave room for white space at the end.
    file.take(2 * MAX_SECRET as u64).read_to_end(&mut octets).map_err(unreadable)?;
    Secret::new(&octets)
}

/// A fresh challenge.
///
/// # Errors
/// The system provides no random numbers.
pub fn challenge() -> anyhow::Result<Challenge> {
    let mut challenge = Challenge::default();
    getrandom::fill(&mut challenge).map_err(|error| anyhow::anyhow!("the system gives no random numbers: {error}"))?;
    Ok(challenge)
}
