//! The manual pages and the completions of a tool, which packages have beside it. They come from the definitions that
//! `--help` shows.

use clap::Command;
use clap_complete::Shell;
use std::ffi::OsStr;
use std::fs::create_dir_all;
use std::io;
use std::path::{Path, PathBuf};

/// With this flag and a directory, and nothing else, a tool writes its documents there. Only packages are made so.
const FLAG: &str = "--write-documents";

/// Where shells look for completions below a `share` directory.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/site-functions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// The directory, if this process was started to write its documents.
pub(crate) fn wanted() -> Option<PathBuf> {
    let mut words = std::env::args_os().skip(1);
    let (flag, folder) = (words.next()?, words.next()?);
    (flag == OsStr::new(FLAG) && words.next().is_none()).then(|| folder.into())
}

/// Writes the pages and completions of a tool below a `share` directory.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn write(command: &Command, share: &Path) -> io::Result<()> {
    let pages = share.join("man/man1");
    create_dir_all(&pages)?;
    clap_mangen::generate_to(command.clone(), pages)?;
    for (shell, place) in COMPLETIONS {
        let folder = share.join(place);
        create_dir_all(&folder)?;
        clap_complete::generate_to(shell, &mut command.clone(), command.get_name(), folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_has_a_page_for_each_subcommand_and_completions_for_each_shell() {
        let command = Command::new("tool").version("1.2 (abc)").about("Does it.").subcommands([
            Command::new("serve").about("Serve it").arg(clap::arg!(--port <NUMBER> "Port to listen on")),
            Command::new("side").hide(true),
        ]);
        let share = tempfile::tempdir().unwrap();
        write(&command, share.path()).unwrap();
        let read = |file: &str| std::fs::read_to_string(share.path().join(file)).unwrap();
        let page = read("man/man1/tool.1");
        assert!(page.contains("Does it.") && page.contains("1.2 (abc)"), "{page}");
        assert!(read("man/man1/tool-serve.1").contains("Port to listen on"));
        assert!(!share.path().join("man/man1/tool-side.1").exists());
        for file in
            ["bash-completion/completions/tool.bash", "zsh/site-functions/_tool", "fish/vendor_completions.d/tool.fish"]
        {
            let text = read(file);
            assert!(text.contains("port") && text.contains("serve"), "{file}: {text}");
        }
    }
}
