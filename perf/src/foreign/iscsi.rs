//! `iscsi-perf` of libiscsi-bin beside tgt's target: iSER on uwarp's libraries, and iSCSI over the kernel's TCP.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::perftest::DropIn;
use super::{End, Place};
use crate::kernel::SERVER_ADDRESS;

/// The initiator.
pub const PROGRAM: &str = "iscsi-perf";
/// Its package.
pub const PACKAGE: &str = "libiscsi-bin";
/// The target.
pub const TARGET: &str = "tgtd";
/// Its package.
pub const TARGET_PACKAGE: &str = "tgt";

/// Octets of each disk. It stays in the page cache, so that the transport is the limit.
const DISK: usize = 64 << 20;
/// Octets of a block.
const BLOCK: u64 = 512;
/// A run takes so many parts: in one part its start would weigh too much.
const PARTS: u32 = 10;
/// Most seconds of a run, which ends before [`PATIENCE`](super::PATIENCE) does.
const LONGEST: u128 = 30;
/// Clock ticks of /proc/PID/stat: Linux' USER_HZ, which is fixed on x86-64.
const TICKS_PER_SECOND: f64 = 100.0;
/// The initiator's name. Over iSER tgt wants to know it.
const INITIATOR: &str = "iqn.2026-01.example:bench";

/// How the disk is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// iSER over uwarp's private device.
    Iser,
    /// iSCSI over the kernel's TCP on the loopback interface of the target's namespace.
    KernelTcp,
}

/// What is read.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Octets of a read.
    pub size: u64,
    /// Reads under way.
    pub depth: u32,
    /// In random order.
    pub random: bool,
}

/// What one run found.
#[derive(Debug)]
pub struct Outcome {
    /// Reads per second, in thousands.
    pub kiops: f64,
    /// Payload.
    pub gbit_per_s: f64,
    /// Microseconds of CPU time that the initiator took for each MiB, its start included.
    pub client_cpu: f64,
    /// The same of the target.
    pub server_cpu: f64,
}

/// Reads from a new target.
///
/// # Errors
/// A program fails, or prints something unknown.
pub fn read(
    place: &Place<'_>,
    drop_in: &DropIn,
    transport: Transport,
    load: Load,
    duration: Duration,
) -> anyhow::Result<Outcome> {
    let folder = tempfile::tempdir_in(place.folder)?;
    let control = folder.path().join("tgt").display().to_string();
    let with_control = |end: End| end.with("TGT_IPC_SOCKET", control.clone());
    let words = [TARGET, "-f", "--control-port", "7", "--iscsi", "portal=127.0.0.1:3260"];
    let (driver, address, daemon) = match transport {
        Transport::Iser => ("iser", SERVER_ADDRESS, drop_in.adapt(End::new(&words), 0)),
        Transport::KernelTcp => ("iscsi", "127.0.0.1", End::new(&words)),
    };
    drop_in.remove_socket()?;
    let mut target = with_control(daemon).start(place.namespaces, 0, place.cpus.0, folder.path())?;
    let admin = |words: &[&str]| {
        let words = [&["tgtadm", "--control-port", "7"], words].concat();
        with_control(End::new(&words)).start(place.namespaces, 0, place.cpus.0, folder.path())?.wait()
    };
    target.wait_until("answered tgtadm", |_| admin(&["--op", "show", "--mode", "sys"]).is_ok())?;
    let disk = folder.path().join("disk");
    fill(&disk)?;
    let disk_name = disk.display().to_string();
    let name = format!("iqn.2026-01.example:{driver}");
    for words in [
        &["new", "--mode", "target", "--targetname", &name][..],
        &["new", "--mode", "logicalunit", "--lun", "1", "--backing-store", &disk_name],
        &["bind", "--mode", "target", "--initiator-address", "ALL"],
        &["bind", "--mode", "target", "--initiator-name", INITIATOR],
    ] {
        admin(&[&["--lld", driver, "--tid", "1", "--op"], words].concat())?;
    }
    // `iscsi-perf` counts in whole seconds.
    let seconds = (duration * PARTS).as_millis().div_ceil(1000).clamp(1, LONGEST);
    let (time, depth, blocks) = (seconds.to_string(), load.depth.to_string(), (load.size / BLOCK).to_string());
    let disk = format!("{driver}://{address}/{name}/1");
    let order: &[&str] = if load.random { &["-r"] } else { &[] };
    let words =
        [&[PROGRAM, "-i", INITIATOR, "-t", &time, "-m", &depth, "-b", &blocks], order, &[disk.as_str()]].concat();
    // Over any RDMA library, libiscsi 1.19 takes new memory to be zero, and its cache of blocks has some that are too
    // small.
    let initiator = End::new(&words).with("MALLOC_PERTURB_", "255").with("LIBISCSI_CACHE_ALLOCATIONS", "0");
    let (end, initiator) = match transport {
        Transport::Iser => (1, drop_in.adapt(initiator, 1)),
        Transport::KernelTcp => (0, initiator),
    };
    let times = || anyhow::Ok((ticks("self", Whose::Children)?, ticks(&target.child.id().to_string(), Whose::Own)?));
    let before = times()?;
    let printed = initiator.start(place.namespaces, end, place.cpus.1, folder.path())?.wait()?;
    let after = times()?;
    let iops = parse(&printed).with_context(|| format!("{PROGRAM} printed no result: {}", printed.trim()))?;
    ensure!(iops > 0.0, "{PROGRAM} has read nothing");
    let octets = iops * load.size as f64;
    let mib = octets * seconds as f64 / f64::from(1 << 20);
    let each = |ticks: u64| ticks as f64 * 1e6 / TICKS_PER_SECOND / mib;
    Ok(Outcome {
        kiops: iops / 1e3,
        gbit_per_s: octets * 8e-9,
        client_cpu: each(after.0 - before.0),
        server_cpu: each(after.1 - before.1),
    })
}

/// A new disk. Its octets are written, so that reads find them in the page cache.
fn fill(disk: &Path) -> anyhow::Result<()> {
    std::fs::write(disk, vec![7; DISK]).with_context(|| format!("cannot write {}", disk.display()))
}

/// Whose time a process's `stat` tells.
#[derive(Clone, Copy)]
enum Whose {
    /// Its own threads'.
    Own,
    /// That of its children that have ended.
    Children,
}

/// User and system time of a process in clock ticks.
fn ticks(process: &str, whose: Whose) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse_ticks(&text, whose).with_context(|| format!("{path} is of an unknown format"))
}

fn parse_ticks(stat: &str, whose: Whose) -> Option<u64> {
    // The name may contain anything. Behind it, the state is field 3 of proc(5).
    let (_, rest) = stat.rsplit_once(") ")?;
    let first = match whose {
        Whose::Own => 14,
        Whose::Children => 16,
    };
    let mut fields = rest.split(' ').skip(first - 3).map(|field| field.parse::<u64>().ok());
    Some(fields.next()?? + fields.next()??)
}

/// The average of the whole run. Reports on the way have one too, behind other figures.
fn parse(printed: &str) -> Option<f64> {
    let average = printed.split(['\r', '\n']).find_map(|line| line.strip_prefix("iops average "))?;
    average.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_that_of_the_whole_run() {
        let printed = include_str!("../../tests/data/iscsi-perf.txt");
        assert!(printed.contains("iops current"), "the recorded run has reports on its way");
        assert_eq!(parse(printed), Some(5009.0));
        assert_eq!(parse("iscsi_full_connect failed. failed to connect"), None);
    }

    #[test]
    fn the_times_of_a_process_are_found_behind_any_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 9 8 0 0 150 25 30 4 20 0 1 0 99";
        assert_eq!(parse_ticks(stat, Whose::Own), Some(175));
        assert_eq!(parse_ticks(stat, Whose::Children), Some(34));
        assert_eq!(parse_ticks("7 (a", Whose::Own), None);
    }
}
