//! Confines a process to the files that it needs, before it processes anything from the network (Landlock,
//! `landlock(7)`).
//!
//! Linux confines a thread and the threads that it starts later. Existing threads stay unconfined, and share the memory
//! of the others. So [`Confinement::apply`] must come first, before DPDK, the engines and the signal handler have
//! threads, and it permits what DPDK reads when it starts. After that, no other file can be opened and no program
//! executed. Open files remain usable.

use anyhow::{Context as _, bail};
use clap::Args;
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, make_bitflags,
};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use uwarp::{Config, DeviceConfig, monitor};

/// The access rights to confine, as far as the kernel knows them.
const HANDLED: ABI = ABI::V5;

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate});
const DEVICE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});
const SOCKETS: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeSock | RemoveFile | ReadDir});
/// Rights on directories, which do not include the files in them.
const EMPTY_DIRECTORIES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeDir | RemoveDir});

/// Whether a tool confines itself.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfineFlags {
    /// Leave this process able to open all files of its user. By default Landlock lets it open only what it needs
    /// (Linux 5.19 or later; on older kernels this is left out and logged)
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
    /// The files that a context with this configuration needs: to start DPDK, to recreate its device's sockets when a
    /// peer returns, to capture, and to create and remove its monitor socket. Creates the directory of monitor sockets.
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
        if let Some(folder) = uwarp_dpdk::plugin_directory() {
            confinement.add(folder, READ);
        }
        // The names of threads.
        confinement.add("/proc/self/task", make_bitflags!(AccessFs::{ReadFile | WriteFile}));
        for path in ["/dev/null", "/dev/net/tun", "/dev/vfio"] {
            confinement.add(path, DEVICE);
        }
        if let Some(DeviceConfig::Pci { .. }) = config.device {
            confinement.add("/sys/devices", READ | WRITE);
        }
        // DPDK creates and removes a directory there.
        let user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        for path in user.into_iter().chain([PathBuf::from("/run"), std::env::temp_dir()]) {
            confinement.add(path, EMPTY_DIRECTORIES);
        }
        match &config.monitor.socket {
            _ if !config.monitor.enabled => {}
            Some(path) => confinement.add(directory_of(path), SOCKETS),
            None => {
                let directory = monitor::runtime_directory();
                // The monitor checks that it exists and is ours.
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

    /// Permits creating and removing a device's socket in its directory, and any other file there.
    pub fn socket(mut self, path: &Path) -> Self {
        self.add(directory_of(path), SOCKETS);
        self
    }

    /// Permits reading a file, or everything in a directory.
    pub fn reads(mut self, path: &Path) -> Self {
        self.add(path, READ);
        self
    }

    /// Permits reading and writing an existing file, or reading and changing everything in a directory.
    pub fn writes(mut self, path: &Path) -> Self {
        self.add(path, AccessFs::from_all(HANDLED) & !(AccessFs::Execute | AccessFs::IoctlDev));
        self
    }

    /// Permits creating a file, or replacing it by another one, in its directory.
    pub fn creates(mut self, path: &Path) -> Self {
        let access = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate | MakeReg | RemoveFile});
        self.add(directory_of(path), access);
        self
    }

    fn add(&mut self, path: impl Into<PathBuf>, access: BitFlags<AccessFs>) {
        self.rules.push(Rule { path: path.into(), access });
    }

    /// Confines this process irrevocably. It must have only one thread. Returns whether its files are confined; if not,
    /// the reason is logged at level info.
    ///
    /// # Errors
    /// Another thread is already running, or the kernel refuses.
    pub fn apply(self) -> anyhow::Result<bool> {
        rustix::thread::set_no_new_privs(true).context("the process cannot renounce new privileges (no_new_privs)")?;
        if let Some(reason) = self.free {
            tracing::info!("files are not confined: {reason}");
            return Ok(false);
        }
        let threads = std::fs::read_dir("/proc/self/task").context("/proc/self/task cannot be read")?.count();
        if threads != 1 {
            bail!("{threads} threads are already running and would stay unconfined: see --unconfined");
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
        // Without this right, which came with Linux 5.19, no file could be moved between two directories.
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::Refer);
        let Ok(ruleset) = ruleset else { return Ok(RulesetStatus::NotEnforced) };
        let restricted = |error: RulesetError| anyhow::Error::new(error).context("the process cannot be confined");
        let mut ruleset = ruleset
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(HANDLED))
            .and_then(Ruleset::create)
            .map_err(restricted)?;
        for Rule { path, access } in self.rules {
            // A path that does not exist cannot be opened later either.
            let Ok(opened) = PathFd::new(&path) else { continue };
            let is_directory =
                rustix::fs::fstat(&opened).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
            // The kernel refuses rights on a file that only directories have.
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
