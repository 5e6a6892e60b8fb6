//! Runs a program written for libibverbs and librdmacm on uwarp.
#![forbid(unsafe_code)]

mod program;

use anyhow::{Context as _, anyhow};
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use uwarp::switch::{CONFIG_VARIABLE, SWITCH_VARIABLE, default_sockets, find, is_served, own_socket};
use uwarp_app::output::{complain, printable};
use uwarp_app::usage;

use program::Program;

/// The libraries that take the place of rdma-core's.
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// Where the loader looks before its own directories, and behind a program's DT_RPATH.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// What the loader loads before all others, whatever a program's paths are.
const PRELOAD: &str = "LD_PRELOAD";
/// What the libraries' device looks like.
const DEVICE_VARIABLE: &str = "UWARP_DEVICE";
/// A switch that nobody started by hand ends when it has not been needed for so long.
const UNUSED: &str = "10min";

const EXAMPLES: &str = "\
Examples:
  In two terminals:
    uwarp-run rping -s -v -C 3
    uwarp-run rping -c -a 127.0.0.1 -v -C 3
  The same for programs that connect without rdma_cm:
    uwarp-run --roce ib_send_bw
    uwarp-run --roce ib_send_bw 127.0.0.1";

/// Runs a program that uses libibverbs or librdmacm on uwarp, without RDMA hardware and without root. Starts a switch
/// if there is none, whose messages go to a file beside its socket, SOCKET.log; UWARP_SWITCH names another one's
/// socket, and with UWARP_CONFIG the program has a device of its own.
#[derive(Parser)]
#[command(name = "uwarp-run", version, after_help = EXAMPLES, max_term_width = 110)]
struct Arguments {
    /// Directory of libibverbs.so.1 and librdmacm.so.1 [default: the first that has them of
    /// uwarp-run's own directory, verbs/ in it, and ../lib/uwarp beside it]
    #[arg(long, value_name = "PATH")]
    library_dir: Option<PathBuf>,

    /// Shows the program a device of RoCE v2, for programs that connect their queue pairs themselves, by ibv_modify_qp.
    /// The wire stays iWARP's [default: what UWARP_DEVICE says]
    #[arg(long)]
    roce: bool,

    /// Shows the program a device of iWARP, whose connections rdma_cm makes; the default without UWARP_DEVICE
    #[arg(long, conflicts_with = "roce")]
    iwarp: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    uwarp_app::run::<Arguments>(|Arguments { library_dir, roce, iwarp, program }| {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let own = own.parent().unwrap_or(Path::new("/"));
        let libraries = library_directory(library_dir, own)?;
        let (name, arguments) = program.split_first().ok_or_else(|| usage("name a program"))?;
        let program = program::inspect(name)?;
        let mut command = Command::new(name);
        command.args(arguments).env(LIBRARY_PATH, in_front(LIBRARY_PATH, &libraries)?);
        if let Some(preload) = preload(&libraries, &program, name)? {
            command.env(PRELOAD, preload);
        }
        for shape in [(roce, "roce"), (iwarp, "iwarp")].into_iter().filter_map(|(is_it, name)| is_it.then_some(name)) {
            command.env(DEVICE_VARIABLE, shape);
        }
        if std::env::var_os(CONFIG_VARIABLE).is_none_or(|file| file.is_empty()) {
            command.env(SWITCH_VARIABLE, switch(own)?);
        }
        // Returns only if there is no such program.
        Err(anyhow!("{} cannot be run: {}", Path::new(name).display(), command.exec()))
    })
}

/// The directory that has the libraries.
fn library_directory(named: Option<PathBuf>, own: &Path) -> anyhow::Result<PathBuf> {
    let candidates = match named {
        Some(directory) => vec![directory],
        // Where scripts/verbs-lib puts them, and where a package would.
        None => vec![own.to_owned(), own.join("verbs"), own.join("../lib/uwarp")],
    };
    let has_all = |directory: &&PathBuf| LIBRARIES.iter().all(|library| directory.join(library).is_file());
    if let Some(directory) = candidates.iter().find(has_all) {
        // The program may change its directory.
        return std::path::absolute(directory).context("the directory of the libraries");
    }
    let names: Vec<String> = candidates.iter().map(|directory| directory.display().to_string()).collect();
    Err(usage(format!(
        "{} are not in {}: build them with scripts/verbs-lib, or name their directory with --library-dir",
        LIBRARIES.join(" and "),
        names.join(" nor in ")
    )))
}

/// The directory of the libraries, in front of what the user's loader looks through.
fn in_front(variable: &str, libraries: &Path) -> anyhow::Result<OsString> {
    if libraries.as_os_str().as_bytes().iter().any(|octet| matches!(octet, b':' | b';')) {
        return Err(usage(format!(
            "{variable} cannot name {}, because colons and semicolons separate its directories: move the libraries",
            libraries.display()
        )));
    }
    let mut path = libraries.as_os_str().to_owned();
    if let Some(others) = std::env::var_os(variable).filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    Ok(path)
}

/// The libraries, behind what the user preloads. `None` if the program has to find them by the path alone.
///
/// # Errors
/// It would not.
fn preload(libraries: &Path, program: &Program, name: &OsStr) -> anyhow::Result<Option<OsString>> {
    let obstacle = if program.is_sanitized {
        "AddressSanitizer's library has to come first (link it statically)"
    } else if libraries.as_os_str().as_bytes().contains(&b' ') {
        "LD_PRELOAD cannot name a directory with a space (move uwarp's libraries)"
    } else {
        let mut list = std::env::var_os(PRELOAD).unwrap_or_default();
        for library in LIBRARIES {
            if !list.is_empty() {
                list.push(":");
            }
            list.push(libraries.join(library));
        }
        return Ok(Some(list));
    };
    if program.has_path {
        let name = Path::new(name).display();
        return Err(usage(format!(
            "{name} would run without RDMA: it looks for libraries in its own DT_RPATH first, and they cannot be \
             preloaded, as {obstacle}. Or link {name} with -Wl,--enable-new-dtags"
        )));
    }
    Ok(None)
}

/// The socket of a switch, which is started if there is none.
fn switch(own: &Path) -> anyhow::Result<PathBuf> {
    let named = std::env::var_os(SWITCH_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let socket = match named {
        Some(path) if is_served(&path) => return Ok(path),
        // The switch is started in another directory.
        Some(path) => std::path::absolute(path).context("the socket of the switch")?,
        None => {
            let found = find();
            let is_found = found.is_some();
            let socket = found.or_else(own_socket).ok_or_else(|| {
                usage(format!("there is no directory for a switch's socket: name a path in {SWITCH_VARIABLE}"))
            })?;
            tell_of_others(&socket);
            if is_found {
                return Ok(socket);
            }
            socket
        }
    };
    start(own, &socket)?;
    Ok(socket)
}

/// Says which switch is used if it is not the user's own, or which others there are: a program's peers may be there.
fn tell_of_others(used: &Path) {
    let own = own_socket();
    if own.as_deref() != Some(used) {
        return complain(format_args!("uwarp-run: uses the switch at {}", used.display()));
    }
    let mut others: Vec<PathBuf> = default_sockets().into_iter().filter(|socket| is_served(socket)).collect();
    others.extend(switches_of_others());
    others.sort();
    others.dedup();
    let others: Vec<String> =
        others.iter().filter(|other| *other != used).map(|other| printable(&other.to_string_lossy())).collect();
    if !others.is_empty() {
        complain(format_args!(
            "uwarp-run: uses the switch at {}, whose programs do not reach those at {}: {SWITCH_VARIABLE} names another \
             one, which has to --allow-uid {}",
            used.display(),
            others.join(", "),
            rustix::process::getuid()
        ));
    }
}

/// The usual sockets at which switches listen in this network namespace, whoever may connect to them.
fn switches_of_others() -> Vec<PathBuf> {
    // The kernel's flag of a socket that listens.
    const LISTENS: &str = "00010000";
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let listening = table.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.nth(3) == Some(LISTENS)).then(|| words.nth(3)).flatten()
    });
    // Everybody may give a socket a name elsewhere.
    listening
        .filter(|path| path.starts_with("/run/") && path.ends_with("/uwarp/switch.sock"))
        .map(PathBuf::from)
        .collect()
}

/// Opens the file of a switch's messages, beside its socket.
fn open_log(socket: &Path) -> anyhow::Result<File> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".log");
    let path = PathBuf::from(path);
    if let Some(directory) = path.parent() {
        // As the switch itself makes it.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.with_context(|| format!("the directory {} cannot be made", directory.display()))?;
    }
    let mut options = File::options();
    options.read(true).append(true).create(true).mode(0o600);
    // In a directory of everybody's, somebody else may have put a link there.
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options.open(&path).with_context(|| format!("the switch's log {} cannot be opened", path.display()))
}

/// Starts a switch, and waits until it serves.
fn start(own: &Path, socket: &Path) -> anyhow::Result<()> {
    let mut log = open_log(socket)?;
    let earlier = log.metadata()?.len();
    // Not a pipe, which would be broken as soon as this process becomes the program.
    let errors = log.try_clone().context("the switch's log cannot be opened twice")?;
    let program = own.join("uwarp-switch");
    let mut child = Command::new(&program)
        .args(["serve", "--exit-when-unused", UNUSED, "--socket"])
        .arg(socket)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        // An interrupt of the program's terminal is not for the switch, which others may use.
        .process_group(0)
        .spawn()
        .with_context(|| format!("the switch {} cannot be started", program.display()))?;
    // The switch prints this line and no more.
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    // Another one may have been started at the same time.
    if !line.is_empty() || is_served(socket) {
        return Ok(());
    }
    let mut reason = String::new();
    log.seek(SeekFrom::Start(earlier))?;
    log.read_to_string(&mut reason)?;
    Err(anyhow!("the switch could not be started: {}", reason.trim()))
}
