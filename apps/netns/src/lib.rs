//! Network namespaces and their interfaces, for tools and tests that need the kernel's network without touching the
//! machine's own. This needs the right to create network namespaces, and iproute2. Mount namespaces are supported, too.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Interface indexes of the two ends of every veth pair created here.
///
/// DPDK's af_packet driver names its fanout group by process number XOR interface index, and a namespace has one set of
/// groups. With neighbouring indexes, two processes with neighbouring numbers would collide. With these, only two
/// processes whose numbers differ by 16384 do.
const INDEXES: [u32; 2] = [16, 16 + (1 << 14)];

/// Environment variable that names the process that runs again inside a namespace.
const INSIDE: &str = "UWARP_NAMESPACE";

/// A named network namespace. Dropping the value removes the name; the namespace ends with its last process.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates one. Its name consists of `purpose`, this process's number, and a count.
    ///
    /// # Errors
    /// The system refuses (it requires root), or there is no `ip`.
    pub fn new(purpose: &str) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("uwarp-{purpose}-{}-{count}", std::process::id());
        ip(["netns", "add", &name])?;
        Ok(Self { name })
    }

    /// The name for `ip netns` and DPDK's devices.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `ip` inside.
    ///
    /// # Errors
    /// See [`run`].
    pub fn ip(&self, arguments: &[&str]) -> io::Result<()> {
        ip(["-n", &self.name].iter().chain(arguments))
    }

    /// Runs `work` on a thread inside and returns its result. Sockets opened there stay there.
    ///
    /// # Errors
    /// The thread may not enter.
    ///
    /// # Panics
    /// If `work` does.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let file = std::fs::File::open(format!("/var/run/netns/{}", self.name))?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let network = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(file.as_fd(), network)?;
                Ok(work())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(["netns", "delete", &self.name]) {
            eprintln!("{error}");
        }
    }
}

/// One end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The interface's name, at most 15 characters.
    pub interface: &'a str,
    /// Its namespace; `None` is this process's.
    pub namespace: Option<&'a Namespace>,
    /// The kernel's addresses on it, with their prefix lengths. Without any, the kernel sends nothing there, and the
    /// end is free for a packet socket.
    pub addresses: &'a [&'a str],
}

impl<'a> End<'a> {
    /// An end on which the kernel is silent.
    pub fn silent(interface: &'a str) -> Self {
        Self { interface, namespace: None, addresses: &[] }
    }

    /// An end with addresses of the kernel.
    pub fn kernel(interface: &'a str, addresses: &'a [&'a str]) -> Self {
        Self { interface, namespace: None, addresses }
    }

    /// The same end in a namespace.
    pub fn of(self, namespace: &'a Namespace) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    fn ip(&self, arguments: &[&str]) -> io::Result<()> {
        match self.namespace {
            Some(namespace) => namespace.ip(arguments),
            None => ip(arguments),
        }
    }

    /// Gives the existing interface its addresses, or silences the kernel there, and brings it up.
    ///
    /// With addresses, the kernel must complete its own checksums and cut its own segments: no device behind the link
    /// would.
    ///
    /// # Errors
    /// See [`run`].
    pub fn bring_up(&self) -> io::Result<()> {
        if self.addresses.is_empty() {
            let path = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", self.interface);
            // A kernel without IPv6 has no such file.
            let silence = || if std::fs::exists(&path)? { std::fs::write(&path, "1") } else { Ok(()) };
            match self.namespace {
                Some(namespace) => namespace.inside(silence)??,
                None => silence()?,
            }
        } else {
            self.ip(&["link", "set", "lo", "up"])?;
        }
        for address in self.addresses {
            let more: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
            self.ip(&[&["addr", "add", address, "dev", self.interface], more].concat())?;
        }
        self.ip(&["link", "set", self.interface, "up"])
    }

    /// Disables the offloads of a veth end, which has no device for them.
    fn without_offloads(&self) -> io::Result<()> {
        let mut command = match self.namespace {
            Some(namespace) => namespace.command("ethtool"),
            None => Command::new("ethtool"),
        };
        run(command.args(["-K", self.interface, "tx", "off", "tso", "off", "gso", "off", "gro", "off"]))
    }
}

/// Creates a veth pair and brings both ends up.
///
/// # Errors
/// The kernel does not support it, the user may not, or a name is taken.
pub fn veth(mtu: u16, ends: [End<'_>; 2]) -> io::Result<()> {
    let mtu = mtu.to_string();
    let [first, second] = INDEXES.map(|index| index.to_string());
    let half = |end: &End<'_>, index: &str| {
        let mut words = vec![end.interface.to_owned(), "index".into(), index.into(), "mtu".into(), mtu.clone()];
        words.extend(end.namespace.into_iter().flat_map(|namespace| ["netns".to_owned(), namespace.name.clone()]));
        words
    };
    let mut words: Vec<String> = ["link", "add", "name"].map(str::to_owned).into();
    words.extend(half(&ends[0], &first));
    words.extend(["type", "veth", "peer", "name"].map(str::to_owned));
    words.extend(half(&ends[1], &second));
    ip(words)?;
    for end in &ends {
        if !end.addresses.is_empty() {
            end.without_offloads()?;
        }
        end.bring_up()?;
    }
    Ok(())
}

/// Creates a switch (the kernel's bridge, `switch0`) in this process's namespace, and for each of `interfaces` a veth
/// pair whose other end is a port of the switch. The kernel is silent on all ends.
///
/// # Errors
/// See [`run`]; there can be 15 interfaces.
pub fn switch(mtu: u16, interfaces: &[&str]) -> io::Result<()> {
    if interfaces.len() > 15 {
        return Err(io::Error::other(format!("{} interfaces: a switch has at most 15 ports", interfaces.len())));
    }
    let mtu = mtu.to_string();
    ip(["link", "add", "name", "switch0", "type", "bridge"])?;
    End::silent("switch0").bring_up()?;
    for (number, interface) in interfaces.iter().enumerate() {
        // As for `INDEXES`: with this many interfaces, processes collide if their numbers differ by a multiple of 4096.
        let index = (16 + ((number + 1) << 12)).to_string();
        let port = format!("port{number}");
        ip(["link", "add", "name", interface, "index", &index, "mtu", &mtu]
            .iter()
            .chain(&["type", "veth", "peer", "name", &port, "mtu", &mtu]))?;
        ip(["link", "set", &port, "master", "switch0"])?;
        End::silent(&port).bring_up()?;
        End::silent(interface).bring_up()?;
    }
    Ok(())
}

/// How many queues a tap interface has. Its later openers cannot change that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queues {
    /// As qemu opens it.
    One,
    /// As DPDK's driver opens it; no other opener can.
    Several,
}

/// Creates tap interfaces in one namespace, which outlive the processes that open them, and a bridge (`bridge0`) among
/// them, on which the kernel is silent.
///
/// # Errors
/// See [`run`].
pub fn taps<'a>(ends: impl IntoIterator<Item = (End<'a>, Queues)>) -> io::Result<()> {
    let mut ends = ends.into_iter().peekable();
    let Some((first, _)) = ends.peek() else { return Ok(()) };
    let bridge = End { interface: "bridge0", addresses: &[], ..*first };
    bridge.ip(&["link", "add", bridge.interface, "type", "bridge"])?;
    bridge.bring_up()?;
    for (end, queues) in ends {
        let several: &[&str] = if queues == Queues::Several { &["multi_queue"] } else { &[] };
        end.ip(&[&["tuntap", "add", end.interface, "mode", "tap"], several].concat())?;
        end.ip(&["link", "set", end.interface, "master", bridge.interface])?;
        end.bring_up()?;
    }
    Ok(())
}

/// Whether this process is the one that `who` started inside a namespace.
pub fn is_inside(who: &str) -> bool {
    std::env::var_os(INSIDE).is_some_and(|inside| inside == who)
}

/// Runs this program again with `arguments` in its own network namespace, which ends with the last process in it,
/// however that ends. [`is_inside`] of `who` is true there. For an ordinary user, it also creates a user namespace.
///
/// # Errors
/// The system refuses, or there is no `unshare` (util-linux).
pub fn again_inside<A: AsRef<OsStr>>(who: &str, arguments: impl IntoIterator<Item = A>) -> io::Result<ExitStatus> {
    again_unshared("--net", who, arguments)
}

fn again_unshared<A: AsRef<OsStr>>(
    what: &str,
    who: &str,
    arguments: impl IntoIterator<Item = A>,
) -> io::Result<ExitStatus> {
    let mut command = Command::new("unshare");
    command.arg(what);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--").arg(std::env::current_exe()?).args(arguments).env(INSIDE, who).status().map_err(|error| {
        io::Error::new(error.kind(), format!("cannot create a namespace with 'unshare' (util-linux): {error}"))
    })
}

/// Runs the body of test `name` in a process of its own inside a fresh network namespace and reports its outcome.
///
/// A namespace is a property of a thread; the separate process keeps the test runner's threads where they are.
///
/// # Panics
/// If the body does, or there can be no namespace.
pub fn test_inside(name: &str, body: impl FnOnce()) {
    test_unshared("--net", name, body);
}

/// The same with its own mount namespace: its mounts are visible there only, and end with the last process.
///
/// # Panics
/// As [`test_inside`].
pub fn test_among_own_mounts(name: &str, body: impl FnOnce()) {
    test_unshared("--mount", name, body);
}

fn test_unshared(what: &str, name: &str, body: impl FnOnce()) {
    if is_inside(name) {
        return body();
    }
    let arguments = [name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"];
    let status = again_unshared(what, name, arguments);
    assert!(status.as_ref().is_ok_and(ExitStatus::success), "{name} failed inside its namespace: {status:?}");
}

/// Runs `ip` with these arguments.
///
/// # Errors
/// See [`run`].
pub fn ip<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> io::Result<()> {
    run(Command::new("ip").args(arguments))
}

/// Runs a command to its end.
///
/// # Errors
/// It cannot be run, or it fails; the text contains the command and its output.
pub fn run(command: &mut Command) -> io::Result<()> {
    let named = |command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
    };
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", named(command))))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{}: {}", named(command), said.trim())))
}
