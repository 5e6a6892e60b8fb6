//! `pair`: copies a file between two processes of this machine, alternately by RDMA and through a socket of the
//! kernel's TCP.

use crate::gate::Gate;
use crate::protocol::SLOT_SIZE;
use crate::report::{Copied, Way, table};
use crate::store::{Outgoing, Store};
use anyhow::{Context as _, bail};
use blake3::Hash;
use clap::Args;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use uwarp_app::output::{self, JsonFlag};
use uwarp_app::pair::{self, Folder, choose_cpus};
use uwarp_app::{NetworkFlags, Role, signals};

/// What a pair does.
#[derive(Args)]
pub struct PairArguments {
    /// The file
    file: PathBuf,
    /// Directory for the copies, which are removed [default: the one of the file]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Copies each way, in turn; medians are reported
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: u8,
    #[command(flatten)]
    json: JsonFlag,
}

/// Copies a file each way in turn, checks every copy, and reports the medians.
///
/// # Errors
/// A bad command line, a side that failed (it said why), or a copy that is not the file.
pub fn run(network: &NetworkFlags, arguments: &PairArguments) -> anyhow::Result<()> {
    let cpus = choose_cpus(&network.cpus)?;
    pair::check_flags(network, "'serve' and 'put'")?;
    pair::check_socket_device(network, "'serve' and 'put'")?;
    let file = &arguments.file;
    let name = file.file_name().with_context(|| format!("{} has no name to go under", file.display()))?;
    let parent = file.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let place = arguments.directory.as_deref().unwrap_or(parent);
    let hash = hash_of(file)?;
    let target = tempfile::Builder::new()
        .prefix(".uwarp-copy-pair-")
        .tempdir_in(place)
        .with_context(|| format!("cannot make a directory in {}", place.display()))?;
    let folder = Folder::new("uwarp-copy-")?;
    let copy = target.path().join(name);
    let mut ways = [
        format!("RDMA over {}", network.kind()),
        "limit: hash and write alone".to_owned(),
        "kernel TCP over loopback".to_owned(),
    ]
    .map(|name| Way { name, copies: Vec::new() });
    for _ in 0..arguments.rounds {
        let [rdma, limit, kernel] = &mut ways;
        rdma.copies.push(by_rdma(network, file, target.path(), &folder, cpus)?);
        check(&copy, hash)?;
        limit.copies.push(alone(file, target.path(), cpus)?);
        check(&copy, hash)?;
        kernel.copies.push(by_kernel_tcp(file, target.path(), &folder, cpus)?);
        check(&copy, hash)?;
    }
    let rounds = arguments.rounds;
    let text = format!("{}\nmedians of {rounds}; the BLAKE3 of every copy is the file's, {hash}", table(&ways));
    arguments.json.publish(text, &ways)
}

fn by_rdma(
    network: &NetworkFlags,
    file: &Path,
    target: &Path,
    folder: &Folder,
    cpus: [usize; 2],
) -> anyhow::Result<Copied> {
    // Each side has one CPU for hash, copy and engine: a thread of the engine's own would only take turns with the
    // tool's.
    let engine = network.engine.is_none().then_some(["--engine", "inline"]);
    // Nothing but memory lies between the two, and BLAKE3 checks the file. The kernel's loopback has no checksum.
    let crc = (!network.no_crc).then_some("--no-crc");
    let side = |command: &str, role| -> anyhow::Result<Command> {
        let mut side = pair::side(command, role, cpus, network)?;
        side.args(engine.into_iter().flatten()).args(crc).arg("--socket").arg(&folder.socket);
        Ok(side)
    };
    let (mut server, mut client) = (side("serve", Role::Server)?, side("put", Role::Client)?);
    let gate = Gate::new(folder.path());
    server.arg("--once").arg(target);
    client.args(["--json", "-", "--gate"]).arg(folder.path()).arg(file);
    let copied = run_both(&mut server, &mut client, |runs| gate.open(runs, || warm(file, target)))?;
    gate.close()?;
    Ok(copied)
}

fn alone(file: &Path, target: &Path, cpus: [usize; 2]) -> anyhow::Result<Copied> {
    warm(file, target)?;
    let mut side = pair::side("alone", Role::Server, cpus, &NetworkFlags::default())?;
    pair::run_one(side.arg(file).arg(target))
}

fn by_kernel_tcp(file: &Path, target: &Path, folder: &Folder, cpus: [usize; 2]) -> anyhow::Result<Copied> {
    let meet = folder.path().join("port");
    warm(file, target)?;
    let side = |which: &str, path: &Path, role| -> anyhow::Result<Command> {
        let mut side = pair::side("kernel-side", role, cpus, &NetworkFlags::default())?;
        side.arg(which).arg(path).arg("--meet").arg(&meet);
        Ok(side)
    };
    let (mut server, mut client) = (side("serve", target, Role::Server)?, side("put", file, Role::Client)?);
    let copied = run_both(&mut server, &mut client, |_| Ok(()))?;
    std::fs::remove_file(&meet).context("cannot remove the file with the server's port")?;
    Ok(copied)
}

fn run_both(
    server: &mut Command,
    client: &mut Command,
    join: impl FnOnce(&mut dyn FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()>,
) -> anyhow::Result<Copied> {
    let mut copies: Vec<Copied> = pair::run(server, client, join)?;
    copies.pop().context("the client has no result")
}

/// Copies the file into the directory and removes the copy, right before the copy that is measured. A virtual machine
/// gives memory that is free for some seconds back to its host, and gets it again page by page: a copy into such memory
/// would measure that, and only on the way whose processes take longer to start.
fn warm(file: &Path, target: &Path) -> anyhow::Result<()> {
    let copy = target.join("warm");
    std::fs::copy(file, &copy).with_context(|| format!("cannot write to {}", target.display()))?;
    std::fs::remove_file(&copy).context("cannot remove the first copy")
}

/// The part of a copy that every receiver with one thread has to do, whatever brings the octets.
#[derive(Args)]
pub struct AloneArguments {
    /// The file
    file: PathBuf,
    /// The directory for its copy
    directory: PathBuf,
}

/// Hashes and writes a file as a receiver does, and prints how long that took: reading it does not count.
///
/// # Errors
/// The file cannot be read or written.
pub fn run_alone(network: &NetworkFlags, arguments: &AloneArguments) -> anyhow::Result<()> {
    network.pin()?;
    let name = arguments.file.file_name().and_then(|name| name.to_str()).context("the file has no name")?;
    let mut file = Outgoing::new(name, File::open(&arguments.file).context("cannot open the file")?)?;
    let mut copy = Store::open(&arguments.directory)?.incoming(name, file.size())?;
    let mut room = vec![0; SLOT_SIZE as usize];
    let mut spent = Duration::ZERO;
    while file.left() > 0 {
        signals::check_interrupted()?;
        let length = file.next(&mut room)?;
        let start = Instant::now();
        copy.append(&room[..length])?;
        spent += start.elapsed();
    }
    let octets = file.size();
    let start = Instant::now();
    copy.finish(&file.hash())?;
    let seconds = (spent + start.elapsed()).as_secs_f64();
    let copied = Copied { name: name.to_owned(), octets, seconds, client_cpu: 0.0, server_cpu: Some(seconds) };
    output::write_json(Path::new("-"), &copied)
}

/// Reads a copy again, compares it with the file, and removes it.
fn check(copy: &Path, hash: Hash) -> anyhow::Result<()> {
    let own = hash_of(copy)?;
    if own != hash {
        bail!("the copy is not the file: its BLAKE3 is {own}, the file's {hash}");
    }
    std::fs::remove_file(copy).context("cannot remove the copy")
}

/// BLAKE3 of a file.
fn hash_of(path: &Path) -> anyhow::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut room = vec![0; 128 << 10];
    while !signals::interrupted() {
        match file.read(&mut room).with_context(|| format!("cannot read {}", path.display()))? {
            0 => return Ok(hasher.finalize()),
            length => hasher.update(&room[..length]),
        };
    }
    bail!("interrupted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_differs_fails_the_pair() {
        let folder = tempfile::tempdir().unwrap();
        let (file, copy) = (folder.path().join("file"), folder.path().join("copy"));
        std::fs::write(&file, b"content").unwrap();
        std::fs::write(&copy, b"contenT").unwrap();
        let hash = hash_of(&file).unwrap();
        assert!(check(&copy, hash).unwrap_err().to_string().starts_with("the copy is not the file"));
        std::fs::copy(&file, &copy).unwrap();
        check(&copy, hash).unwrap();
        assert!(!copy.exists());
    }
}
