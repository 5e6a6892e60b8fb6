//! Whether the loader gives a program uwarp's libraries.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRTAB, FileHeader64, PT_LOAD};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::{Endianness, ReadCache, ReadRef};
use rustix::fs::{Access, StatVfsMountFlags, access, getxattr, statvfs};
use uwarp_app::usage;

/// A kind of processor.
struct Processor {
    /// As an ELF file names it.
    machine: object::elf::Machine,
    /// As people do.
    name: &'static str,
    /// The file name of glibc's loader for it.
    loader: &'static str,
}

/// The one that uwarp's libraries are built for.
#[cfg(target_arch = "x86_64")]
const BUILT_FOR: Processor =
    Processor { machine: object::elf::EM_X86_64, name: "64-bit x86", loader: "ld-linux-x86-64.so.2" };
#[cfg(target_arch = "aarch64")]
const BUILT_FOR: Processor =
    Processor { machine: object::elf::EM_AARCH64, name: "64-bit Arm", loader: "ld-linux-aarch64.so.1" };
/// Interpreters of interpreters that the kernel follows.
const MAX_SCRIPTS: usize = 5;

/// What decides how the loader finds a program's libraries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    /// It has a search path of its own (DT_RPATH), which the loader takes before LD_LIBRARY_PATH.
    pub(crate) has_path: bool,
    /// AddressSanitizer's library has to be the first one, before any preloaded library.
    pub(crate) is_sanitized: bool,
}

/// Looks at a program, or at the interpreter of a script. What cannot be read, or is no ELF file, counts as ordinary.
///
/// # Errors
/// The loader gives it no library of uwarp's, with the reason and what to do.
pub(crate) fn inspect(name: &OsStr) -> anyhow::Result<Program> {
    let Some(path) = find(name).and_then(|path| interpreter(path, MAX_SCRIPTS)) else { return Ok(Program::default()) };
    let refuse = |reason: &str| {
        Err(usage(format!(
            "{} would run without RDMA: {reason}. If it only starts other programs, run it with 'uwarp-run env {0}'",
            path.display()
        )))
    };
    if let Some(privilege) = privilege(&path) {
        return Err(usage(format!(
            "{} would run without RDMA: the loader ignores {LIBRARY_VARIABLES} for a program with {privilege}. \
             Run a copy of it, which has none, or put uwarp-run behind it if it starts the program",
            path.display()
        )));
    }
    let Ok(file) = File::open(&path) else { return Ok(Program::default()) };
    match Elf::read(&ReadCache::new(file)) {
        Some(Elf { is_for_it: false, .. }) => {
            refuse(&format!("uwarp's libraries are for {} programs, and it is none", BUILT_FOR.name))
        }
        Some(Elf { loader: None, .. }) => refuse("it is linked statically. Link it dynamically"),
        Some(Elf { loader: Some(loader), .. })
            if Path::new(&loader).file_name() != Some(OsStr::new(BUILT_FOR.loader)) =>
        {
            refuse(&format!("uwarp's libraries need glibc's loader, and its loader is {}", loader.display()))
        }
        Some(Elf { program, .. }) => Ok(program),
        None => Ok(Program::default()),
    }
}

/// The variables by which a program gets uwarp's libraries.
const LIBRARY_VARIABLES: &str = "LD_PRELOAD and LD_LIBRARY_PATH";

/// The file that would be executed.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let directories = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let is_program = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    std::env::split_paths(&directories).map(|directory| directory.join(name)).find(is_program)
}

/// The program that runs a script; of anything else, itself.
fn interpreter(path: PathBuf, left: usize) -> Option<PathBuf> {
    let mut line = Vec::new();
    // As much as the kernel looks at.
    let read = File::open(&path).and_then(|file| file.take(256).read_to_end(&mut line));
    let Some(words) = read.ok().and_then(|_| line.strip_prefix(b"#!")) else { return Some(path) };
    let words = words.split(|octet| *octet == b'\n').next()?;
    let word = words.split(|octet| matches!(octet, b' ' | b'\t')).find(|word| !word.is_empty())?;
    interpreter(OsStr::from_bytes(word).into(), left.checked_sub(1)?)
}

/// The privileges that a program has and this process does not.
fn privilege(path: &Path) -> Option<&'static str> {
    let is_ignored = rustix::thread::no_new_privs().unwrap_or(false)
        || statvfs(path).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOSUID));
    if is_ignored {
        return None;
    }
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let metadata = path.metadata().ok()?;
    if metadata.mode() & 0o4000 != 0 && metadata.uid() != uid.as_raw() {
        return Some("the set-user-ID bit");
    }
    // Without the right to execute, that bit means something else.
    if metadata.mode() & 0o2010 == 0o2010 && metadata.gid() != gid.as_raw() {
        return Some("the set-group-ID bit");
    }
    let has_capabilities = getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    (has_capabilities && !uid.is_root()).then_some("file capabilities")
}

/// What an ELF file says about its loading.
#[derive(Debug)]
struct Elf {
    /// It is for the processor that uwarp's libraries are built for.
    is_for_it: bool,
    loader: Option<PathBuf>,
    program: Program,
}

impl Elf {
    /// `None` if it is no ELF file, or a broken one.
    fn read<'data>(data: impl ReadRef<'data>) -> Option<Elf> {
        if data.read_bytes_at(0, 4).ok()? != object::elf::ELFMAG {
            return None;
        }
        let other = Elf { is_for_it: false, loader: None, program: Program::default() };
        let Ok(header) = FileHeader64::<Endianness>::parse(data) else { return Some(other) };
        let endian = header.endian().ok()?;
        if header.e_machine(endian) != BUILT_FOR.machine {
            return Some(other);
        }
        let segments = header.program_headers(endian, data).ok()?;
        let loader = segments.iter().find_map(|segment| segment.interpreter(endian, data).ok().flatten());
        let loader = loader.map(|path| OsStr::from_bytes(path).into());
        let entries = segments.iter().find_map(|segment| segment.dynamic(endian, data).ok().flatten()).unwrap_or(&[]);
        let value = |tag| entries.iter().find(|entry| entry.tag(endian) == tag).map(|entry| entry.d_val(endian));
        let names = value(DT_STRTAB).and_then(|address| {
            let segment = segments.iter().find(|segment| {
                let start = segment.p_vaddr(endian);
                segment.p_type(endian) == PT_LOAD
                    && (start..start.saturating_add(segment.p_filesz(endian))).contains(&address)
            })?;
            Some(segment.p_offset(endian) + (address - segment.p_vaddr(endian)))
        });
        let needs = |wanted: &[u8]| {
            entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED).any(|entry| {
                let at = names.and_then(|names| names.checked_add(entry.d_val(endian)));
                at.and_then(|at| data.read_bytes_at(at, wanted.len() as u64).ok()) == Some(wanted)
            })
        };
        let program = Program {
            // A DT_RUNPATH comes behind LD_LIBRARY_PATH, and makes the loader ignore the other.
            has_path: value(DT_RPATH).is_some() && value(DT_RUNPATH).is_none(),
            is_sanitized: needs(b"libasan.so"),
        };
        Some(Elf { is_for_it: true, loader, program })
    }
}
