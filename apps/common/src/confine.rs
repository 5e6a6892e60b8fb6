//! Confines a process to the files that it needs, before it takes anything from the network (Landlock, `landlock(7)`).
//!
//! Linux confines a thread and those that it starts later. A thread that runs already stays free, and shares the memory of the
//! others. So [`Confinement::apply`] comes first, before DPDK, the engines and the handler of signals have threads, and it
//! leaves open what DPDK reads at its start. Nothing else of the file system can be opened then, and no program executed.
//! What is open already stays usable.

use anyhow::{Context as _, bail};
use clap::Args;
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, make_bitflags,
};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use uwarp::{Config, DeviceConfig, monitor};

/// What is confined where the kernel can. Older kernels leave out what they do not know.
const HANDLED: ABI = ABI::V5;

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate});
const DEVICE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});
const SOCKETS: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeSock | RemoveFile | ReadDir});
/// Directories that are empty: nothing that is in one can be reached.
const EMPTY_DIRECTORIES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeDir | RemoveDir});

/// Whether a tool confines itself.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfineFlags {
    /// Leave this process able to open all files of its user. Otherwise it can open only what it needs, where the kernel has
    /// Landlock (Linux 5.19 or later; on others this is left out and logged)
    #[arg(long)]
    pub unconfined: bool,
}

/// What a confined process may still open.
#[derive(Debug)]
pub struct Confinement {
    rules: Vec<Rule>,
    /// Why nothing is confined, if so.
    free: Option<&'static str>,
}

#[derive(Debug)]
struct Rule {
    path: PathBuf,
    access: BitFlags<AccessFs>,
}

impl Confinement {
    /// What a context with this configuration needs: to start DPDK, to make its device's sockets again when a peer comes back,
    /// to capture, and to make and remove its monitor socket. Makes the directory of monitor sockets.
    pub fn new(config: &Config, flags: &ConfineFlags) -> Self {
        let free = match () {
            () if flags.unconfined => Some("--unconfined"),
            () if !config.eal.extra.is_empty() => Some("what the arguments of eal.extra need is not known"),
            () => None,
        };
        let mut confinement = Self { rules: Vec::new(), free };
        for path in ["/proc", "/sys", "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/run/netns"] {
            confinement.add(path, READ);
        }
        confinement.add(uwarp_dpdk::plugin_directory(), READ);
        // The names of threads.
        confinement.add("/proc/self/task", make_bitflags!(AccessFs::{ReadFile | WriteFile}));
        for path in ["/dev/null", "/dev/net/tun", "/dev/vfio"] {
            confinement.add(path, DEVICE);
        }
        if let Some(DeviceConfig::Pci { .. }) = config.device {
            confinement.add("/sys/devices", READ | WRITE);
        }
        // DPDK makes a directory there and removes it.
        let user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        for path in user.into_iter().chain([PathBuf::from("/run"), std::env::temp_dir()]) {
            confinement.add(path, EMPTY_DIRECTORIES);
        }
        match &config.monitor.socket {
            _ if !config.monitor.enabled => {}
            Some(path) => confinement.add(directory_of(path), SOCKETS),
            None => {
                let directory = monitor::runtime_directory();
                // Whether it is there and ours, the monitor says.
                let _ = std::fs::DirBuilder::new().mode(0o700).create(&directory);
                confinement.add(directory, SOCKETS);
            }
        }
        if let Some(path) = &config.pcap {
            confinement = confinement.creates(path);
        }
        match &config.device {
            Some(
                DeviceConfig::Memif { socket, .. }
                | DeviceConfig::VirtioUser { socket, .. }
                | DeviceConfig::Vhost { socket, .. },
            ) => confinement.socket(socket),
            _ => confinement,
        }
    }

    /// Leaves a device's socket to be made and removed in its directory, with whatever else is in there.
    pub fn socket(mut self, path: &Path) -> Self {
        self.add(directory_of(path), SOCKETS);
        self
    }

    /// Leaves a file, or everything in a directory, to be read.
    pub fn reads(mut self, path: &Path) -> Self {
        self.add(path, READ);
        self
    }

    /// Leaves a file that is there to be read and written, or everything in a directory to be read and changed.
    pub fn writes(mut self, path: &Path) -> Self {
        self.add(path, AccessFs::from_all(HANDLED) & !(AccessFs::Execute | AccessFs::IoctlDev));
        self
    }

    /// Leaves a file to be made, or replaced by another one, in its directory.
    pub fn creates(mut self, path: &Path) -> Self {
        let access = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate | MakeReg | RemoveFile});
        self.add(directory_of(path), access);
        self
    }

    fn add(&mut self, path: impl Into<PathBuf>, access: BitFlags<AccessFs>) {
        self.rules.push(Rule { path: path.into(), access });
    }

    /// Confines this process, for good. It must have one thread. Whether its files are confined: if not, the reason is in the
    /// log, at level info.
    ///
    /// # Errors
    /// Another thread runs already, or the kernel refuses.
    pub fn apply(self) -> anyhow::Result<bool> {
        rustix::thread::set_no_new_privs(true).context("the process cannot give up new privileges")?;
        if let Some(reason) = self.free {
            tracing::info!("files are not confined: {reason}");
            return Ok(false);
        }
        let threads = std::fs::read_dir("/proc/self/task").context("/proc/self/task cannot be read")?.count();
        if threads != 1 {
            bail!("{threads} threads run before the process is confined, and would stay free: see --unconfined");
        }
        let status = self.restrict()?;
        match status {
            RulesetStatus::FullyEnforced => tracing::debug!("files are confined"),
            RulesetStatus::PartiallyEnforced => tracing::info!("files are confined as far as this kernel can"),
            RulesetStatus::NotEnforced => {
                tracing::info!(
                    "files are not confined: this kernel has no Landlock (Linux 5.19), or it is switched off"
                );
            }
        }
        Ok(status != RulesetStatus::NotEnforced)
    }

    fn restrict(self) -> anyhow::Result<RulesetStatus> {
        // Without this right, which came with Linux 5.19, no file could move between two directories.
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::Refer);
        let Ok(ruleset) = ruleset else { return Ok(RulesetStatus::NotEnforced) };
        let restricted = |error: RulesetError| anyhow::Error::new(error).context("the process cannot be confined");
        let mut ruleset = ruleset
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(HANDLED))
            .and_then(Ruleset::create)
            .map_err(restricted)?;
        for Rule { path, access } in self.rules {
            // What is not there cannot be opened later either.
            let Ok(opened) = PathFd::new(&path) else { continue };
            let is_directory =
                rustix::fs::fstat(&opened).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
            // The kernel takes no rights to a file that only a directory has.
            let access = if is_directory { access } else { access & AccessFs::from_file(HANDLED) };
            if access.is_empty() {
                continue;
            }
            ruleset = ruleset.add_rule(PathBeneath::new(opened, access)).map_err(restricted)?;
        }
        Ok(ruleset.restrict_self().map_err(restricted)?.ruleset)
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}
