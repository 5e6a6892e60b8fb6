//! Where commands come from: a terminal with a line editor, or a file.

use crate::commands::FORMS;
use crate::execute::{Flow, Interrupted, execute};
use crate::grammar::{LINE_MAX, continuations, split};
use crate::reply::Output;
use crate::session::Session;
use crate::show;
use anyhow::{Context as _, anyhow};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _, stdin};
use std::path::{Path, PathBuf};
use uwarp_app::output::print;
use uwarp_app::{signals, usage};

const PROMPT: &str = "uwarp-pmd> ";
/// Lines that the history keeps.
const HISTORY: usize = 1000;

/// Carries out one line, and prints what comes of it.
fn carry_out(session: &mut Session, output: Output, line: &str) -> anyhow::Result<Flow> {
    let words = split(line).map_err(|error| anyhow!(error))?;
    if words.is_empty() {
        return Ok(Flow::On);
    }
    let command = words.join(" ");
    execute(session, &words, &mut |reply| output.answer(&command, reply))
}

/// Carries out the commands of a file, `-` for standard input, up to the first that fails.
///
/// # Errors
/// The file cannot be read, or a command fails: which line it is, and why.
pub fn run_file(session: &mut Session, output: Output, file: &Path) -> anyhow::Result<()> {
    let is_input = file == Path::new("-");
    let name = if is_input { "standard input".to_owned() } else { file.display().to_string() };
    let mut input: Box<dyn BufRead> = match is_input {
        true => Box::new(stdin().lock()),
        false => {
            let opened = File::open(file).map_err(|error| usage(format!("{name} cannot be read: {error}")))?;
            Box::new(BufReader::new(opened))
        }
    };
    for number in 1.. {
        let mut line = Vec::new();
        // One octet more than a line and its end may have.
        let limit = LINE_MAX as u64 + 2;
        let mut read = || input.by_ref().take(limit).read_until(b'\n', &mut line);
        // Nothing else would end the wait for somebody who writes no line.
        let length = if is_input { signals::at_once(read) } else { read() };
        if length.with_context(|| format!("{name} cannot be read"))? == 0 {
            return Ok(());
        }
        let result = match std::str::from_utf8(&line) {
            _ if signals::take() => Err(Interrupted.into()),
            Ok(text) => carry_out(session, output, text.trim_end_matches(['\n', '\r'])),
            Err(_) => Err(anyhow!("the line is not UTF-8")),
        };
        match result {
            Ok(Flow::On) => {}
            Ok(Flow::Quit) => return Ok(()),
            Err(error) => {
                let command = String::from_utf8_lossy(&line);
                output.fail(crate::grammar::quoted(command.trim_end()).trim_matches('\''), Some(number), &error);
                return Err(anyhow!("{name}, line {number}: {error:#}"));
            }
        }
    }
    Ok(())
}

/// Completes words by the forms of the commands.
struct Words {
    ports: usize,
    files: FilenameCompleter,
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, context: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let start = line[..at].rfind(char::is_whitespace).map_or(0, |space| space + 1);
        let Ok(before) = split(&line[..start]) else { return Ok((at, Vec::new())) };
        let (words, file) = continuations(FORMS, &before, &line[start..at], self.ports);
        if file {
            return self.files.complete(line, at, context);
        }
        let pair = |word: String| Pair { replacement: format!("{word} "), display: word };
        Ok((start, words.into_iter().map(pair).collect()))
    }
}

impl Helper for Words {}
impl Hinter for Words {
    type Hint = String;
}
impl Highlighter for Words {}
impl Validator for Words {}

/// The file that keeps what was typed, in the user's folder for such things.
fn history_file() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/state")))?;
    let own = state.join("uwarp");
    std::fs::create_dir_all(&own).ok()?;
    Some(own.join("pmd-history"))
}

/// Reads commands from the terminal until Ctrl-D or `quit`.
///
/// # Errors
/// The terminal cannot be read.
pub fn run_terminal(session: &mut Session, output: Output) -> anyhow::Result<()> {
    let config = Config::builder().completion_type(CompletionType::List).max_history_size(HISTORY)?.build();
    let mut editor: Editor<Words, DefaultHistory> = Editor::with_config(config)?;
    editor.set_helper(Some(Words { ports: session.ports.len(), files: FilenameCompleter::new() }));
    let history = history_file();
    if let Some(file) = &history {
        // There is none the first time.
        let _ = editor.load_history(file);
    }
    if let Ok(modes) = tcgetattr(stdin()) {
        // A signal that ends the console finds the terminal as the editor has it.
        signals::before_exit(move || {
            let _ = tcsetattr(stdin(), OptionalActions::Now, &modes);
        });
    }
    if !output.json {
        print(format_args!("{} ports; 'help' explains the commands, Tab completes them", session.ports.len()));
    }
    loop {
        // One that came too late for the last command.
        signals::take();
        match signals::at_once(|| editor.readline(PROMPT)) {
            Ok(line) => {
                if line.len() <= LINE_MAX && !line.trim().is_empty() {
                    let _ = editor.add_history_entry(&line);
                    // It is a comfort, not a promise.
                    let _ = history.as_ref().map(|file| editor.append_history(file));
                }
                match carry_out(session, output, &line) {
                    Ok(Flow::On) => {}
                    Ok(Flow::Quit) => return Ok(()),
                    Err(error) if error.is::<Interrupted>() && !output.json => print("interrupted"),
                    Err(error) => output.fail(line.trim(), None, &error),
                }
            }
            Err(ReadlineError::Interrupted) => interrupt(session, output)?,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error).context("the terminal cannot be read"),
        }
    }
}

/// Ctrl-C at the prompt ends the forwarding.
fn interrupt(session: &mut Session, output: Output) -> anyhow::Result<()> {
    if session.is_running() {
        session.stop()?;
        output.answer("stop", &show::forwarded(session));
    } else if !output.json {
        print("nothing runs; 'quit' or Ctrl-D ends the console");
    }
    Ok(())
}
