//! Runs a program written for libibverbs and librdmacm on uwarp.
#![forbid(unsafe_code)]

mod program;
mod shown;
mod switch;

use anyhow::{Context as _, anyhow};
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use uwarp::Config;
use uwarp::switch::{CONFIG_VARIABLE, SWITCH_VARIABLE};
use uwarp_app::output::{complain, printable_lines};
use uwarp_app::usage;
use uwarp_verbs_device::{
    DEFAULT_NAME, FILES_VARIABLE, NAME_VARIABLE, NODE, NODES, SHAPE_VARIABLE, Shape, checked_name,
};

use program::Program;
use shown::Way;

/// The libraries that take the place of rdma-core's.
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// Where the loader looks before its own directories, and behind a program's DT_RPATH.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// What the loader loads before all others, whatever a program's paths are.
const PRELOAD: &str = "LD_PRELOAD";

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

    /// The device's name: at most 63 letters, digits, '-' and '_'. Some programs tell devices by the beginning of it
    #[arg(long, value_name = "NAME", env = NAME_VARIABLE, default_value = DEFAULT_NAME, value_parser = parse_name)]
    device_name: String,

    /// Shows the program no files of the device. Else, a device of RoCE is found in /sys/class/infiniband and
    /// /dev/infiniband, too: in namespaces, or by a preloaded library where the system refuses those
    #[arg(long)]
    no_sysfs: bool,

    /// Shows the files of a device of iWARP, too
    #[arg(long, conflicts_with = "no_sysfs")]
    sysfs: bool,

    /// Says how the program gets to see the files
    #[arg(short, long)]
    verbose: bool,

    /// Makes namespaces for another process
    #[arg(long = shown::MAKER, hide = true)]
    is_maker: bool,

    /// The program and its arguments
    #[arg(
        required_unless_present = "is_maker",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

impl Arguments {
    /// The shape of the program's device: that of the options, or of the environment. The library refuses another word
    /// there.
    fn shape(&self) -> Shape {
        let of_environment = || Shape::named(std::env::var(SHAPE_VARIABLE).ok()?.as_str());
        let of_options = [(self.roce, Shape::Roce), (self.iwarp, Shape::Iwarp)];
        let named = of_options.into_iter().find_map(|(is_it, shape)| is_it.then_some(shape));
        named.or_else(of_environment).unwrap_or_default()
    }

    /// Has the program see the files of its device, if that is wanted.
    fn show_files(&self, config: Option<Config>, libraries: &Libraries, command: &mut Command) {
        let shape = self.shape();
        if self.no_sysfs || shape == Shape::Iwarp && !self.sysfs {
            return self.tell("shows no files of the device, since none are asked for");
        }
        let config = config.map_or_else(|| Config::from_environment().map_err(anyhow::Error::from), Ok);
        let obstacle = libraries.obstacle_to_files();
        match config.and_then(|config| shown::show(self.device_name.clone(), shape, config, obstacle)) {
            Ok(way) => {
                self.tell(&way.to_string());
                if let Way::Preloaded { folder, .. } = way {
                    let all = LIBRARIES.into_iter().chain([shown::LIBRARY]);
                    command.env(PRELOAD, libraries.preloaded(all)).env(FILES_VARIABLE, folder);
                }
            }
            Err(error) => complain(format_args!(
                "uwarp-run: a program that looks for {NODES}/{NODE}, as UCX does, will not find it ({}). Start \
                 the container with --device /dev/null:{NODES}/{NODE}, or add --no-sysfs if the program does \
                 without",
                printable_lines(&format!("{error:#}"))
            )),
        }
    }

    /// Says what happens, if the user wants to know.
    fn tell(&self, way: &str) {
        if self.verbose {
            complain(format_args!("uwarp-run: {way}"));
        }
    }
}

fn parse_name(text: &str) -> Result<String, &'static str> {
    checked_name(text).map(str::to_owned).ok_or("choose at most 63 letters, digits, '-' and '_'")
}

fn main() -> ExitCode {
    uwarp_app::run::<Arguments>(|arguments| {
        if arguments.is_maker {
            return shown::serve();
        }
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let own = own.parent().unwrap_or(Path::new("/"));
        let directory = library_directory(arguments.library_dir.clone(), own)?;
        let (name, words) = arguments.program.split_first().ok_or_else(|| usage("name a program"))?;
        let program = program::inspect(name)?;
        let mut command = Command::new(name);
        command.args(words).env(LIBRARY_PATH, in_front(LIBRARY_PATH, &directory)?);
        let libraries = Libraries::new(directory, &program);
        match libraries.obstacle {
            None => _ = command.env(PRELOAD, libraries.preloaded(LIBRARIES)),
            Some(obstacle) if program.has_path => return Err(out_of_reach(name, obstacle)),
            Some(_) => (),
        }
        for (is_it, shape) in [(arguments.roce, "roce"), (arguments.iwarp, "iwarp")] {
            if is_it {
                command.env(SHAPE_VARIABLE, shape);
            }
        }
        if arguments.device_name != DEFAULT_NAME {
            command.env(NAME_VARIABLE, &arguments.device_name);
        }
        let mut on_switch = None;
        if std::env::var_os(CONFIG_VARIABLE).is_none_or(|file| file.is_empty()) {
            let socket = switch::join(own)?;
            on_switch = Some(Config::on_switch(&socket));
            command.env(SWITCH_VARIABLE, socket);
        }
        // Last: another user's switch is named by its user, whom a user namespace would not know.
        arguments.show_files(on_switch, &libraries, &mut command);
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

/// Uwarp's libraries, for one program.
struct Libraries {
    directory: PathBuf,
    /// Why they cannot be preloaded, if they cannot. The program then has to find them by the path.
    obstacle: Option<&'static str>,
}

impl Libraries {
    fn new(directory: PathBuf, program: &Program) -> Libraries {
        let obstacle = if program.is_sanitized {
            Some("AddressSanitizer's library has to come first (link it statically)")
        } else if directory.as_os_str().as_bytes().contains(&b' ') {
            Some("LD_PRELOAD cannot name a directory with a space (move uwarp's libraries)")
        } else {
            None
        };
        Libraries { directory, obstacle }
    }

    /// Why the program cannot be led to files.
    fn obstacle_to_files(&self) -> Option<&'static str> {
        let is_there = self.directory.join(shown::LIBRARY).is_file();
        self.obstacle.or((!is_there).then_some("libuwarp_files.so is not beside the other libraries"))
    }

    /// These libraries, behind what the user preloads.
    fn preloaded<'name>(&self, names: impl IntoIterator<Item = &'name str>) -> OsString {
        let mut list = std::env::var_os(PRELOAD).unwrap_or_default();
        for name in names {
            if !list.is_empty() {
                list.push(":");
            }
            list.push(self.directory.join(name));
        }
        list
    }
}

/// A program that would take other libraries.
fn out_of_reach(name: &OsStr, obstacle: &str) -> anyhow::Error {
    let name = Path::new(name).display();
    usage(format!(
        "{name} would run without RDMA: it looks for libraries in its own DT_RPATH first, and they cannot be \
         preloaded, as {obstacle}. Or link {name} with -Wl,--enable-new-dtags"
    ))
}
