//! `pair`: targets and a writer as processes of their own, over virtio, and a check of the files at the end.

use crate::append::Outcome;
use crate::file;
use crate::secret::challenge;
use anyhow::{Context as _, bail};
use clap::Args;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uwarp_app::outcome::of_child;
use uwarp_app::output::JsonFlag;
use uwarp_app::pair::{self, Folder, Side};
use uwarp_app::side::ends_with_this;
use uwarp_app::units::{parse_count, parse_size};
use uwarp_app::{NetworkFlags, usage};
use uwarp_log::record::{Kind, MAX_PAYLOAD};

/// What a pair does.
#[derive(Args, Debug)]
pub struct PairArguments {
    /// Targets: 1 or 3
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=3))]
    targets: u8,
    /// Records
    #[arg(long, value_name = "NUMBER", value_parser = parse_count, default_value = "1000")]
    iterations: u64,
    /// Octets of each
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "100")]
    size: u64,
    /// Directory for the files [default: a temporary one]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    json: JsonFlag,
}

/// Runs it.
///
/// # Errors
/// An invalid command line; a process that failed (it has reported why); or files without the appended records.
pub fn run(network: &NetworkFlags, arguments: &PairArguments) -> anyhow::Result<()> {
    let PairArguments { targets, iterations: count, size, directory, json } = arguments;
    if *targets == 2 {
        return Err(usage("a log has one target or three: two are lost with the first of them"));
    }
    if *size > MAX_PAYLOAD as u64 {
        return Err(usage(format!("a record has at most {MAX_PAYLOAD} octets")));
    }
    check_network(network)?;
    if !network.cpus.is_empty() {
        return Err(usage("--cpus has no meaning for this pair, whose processes the system places: leave it out"));
    }
    let folder = Folder::new("uwarp-log-")?;
    let place = directory.as_deref().unwrap_or(folder.path());
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let secret = folder.path().join("secret");
    make_secret(&secret).context("cannot make a secret")?;
    let length = |payload: u64| (payload + 64) * count + (4 << 20);
    let mut sides = Vec::new();
    let mut writer = Command::new(&own);
    ends_with_this(&mut writer)
        .args(["append", "--all", "--json", "-", "--secret-file"])
        .arg(&secret)
        .args(network.to_arguments());
    let mut files = Vec::new();
    for number in 0..*targets {
        let (file, socket) = (place.join(format!("{number}.log")), folder.path().join(format!("{number}.sock")));
        let mut target = Command::new(&own);
        ends_with_this(&mut target).arg("serve").arg(&file).args(["--size", &length(*size).to_string()]);
        target.arg("--secret-file").arg(&secret);
        target.args(network.to_arguments()).arg("--socket").arg(&socket).stdin(Stdio::null()).stdout(Stdio::null());
        sides.push(Side::start(&mut target)?);
        writer.arg("--target").arg(&socket);
        files.push(file);
    }
    let mut writer = Side::start(writer.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let mut lines = writer.0.stdin.take().context("the writer has no standard input")?;
    let (count, size) = (*count, *size as usize);
    let feed = std::thread::spawn(move || -> std::io::Result<()> {
        let mut lines = std::io::BufWriter::new(&mut lines);
        (0..count).try_for_each(|number| lines.write_all(&[&payload(number, size)[..], b"\n"].concat()))
    });
    let text = std::io::read_to_string(writer.0.stdout.take().context("the writer has no standard output")?)
        .context("the writer's result cannot be read")?;
    of_child(writer.0.wait().context("cannot wait for the writer")?)?;
    let fed = feed.join().map_err(|_| anyhow::anyhow!("the records were not made"))?;
    fed.context("the writer did not take all records")?;
    let outcome: Outcome = serde_json::from_str(&text).context("the writer's result cannot be read")?;
    drop(sides);
    for file in &files {
        check(file, outcome.last, count, size)?;
    }
    let text = format!(
        "{} records of {size} octets acknowledged in {:.2} s; {} files hold them all",
        outcome.records,
        outcome.seconds,
        files.len()
    );
    json.publish(text, &outcome)
}

/// A file with a random secret, for the processes of this pair.
fn make_secret(path: &Path) -> anyhow::Result<()> {
    let octets: String = challenge()?.iter().map(|octet| format!("{octet:02x}")).collect();
    File::options().write(true).create_new(true).mode(0o600).open(path)?.write_all(octets.as_bytes())?;
    Ok(())
}

/// Refuses flags for what the processes started here decide themselves.
///
/// # Errors
/// A flag that would have no effect, or a device that connects other machines.
pub fn check_network(network: &NetworkFlags) -> anyhow::Result<()> {
    pair::check_flags(network, "'serve' and 'append'")?;
    pair::check_socket_device(network, "'serve' and 'append'")?;
    if network.pcap.is_some() {
        return Err(usage("--pcap is one process's, and several are started here: use 'serve' and 'append'"));
    }
    Ok(())
}

/// The payload of a record: letters that differ from other records.
fn payload(number: u64, size: usize) -> Vec<u8> {
    let text = format!("{number:016x} ");
    text.bytes().cycle().take(size).collect()
}

/// Checks that a file ends with the appended records.
fn check(path: &Path, last: u64, count: u64, size: usize) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let first = last + 1 - count;
    let mut found = 0;
    let (_, walk) = file::walk_file(&file, None, |record| {
        let sequence = record.tail.sequence;
        if record.kind == Kind::Payload && sequence >= first {
            if record.payload != payload(sequence - first, size) {
                bail!("{}: record {sequence} is not what was appended", path.display());
            }
            found += 1;
        }
        Ok(())
    })?;
    if found != count || !walk.has_head || walk.tail.sequence != last {
        bail!("{} holds {found} of {count} records", path.display());
    }
    Ok(())
}
