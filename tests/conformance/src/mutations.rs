//! Mutations: rules of the documents that are broken on purpose, to see that the tests of a row really test it.
//!
//! For each, `mutations.toml` has an expression of the source and one that breaks the rule. The tree is copied, every
//! place gets a switch, and the copy is built once, as far as the chosen tests need it. Then the tests of a row run
//! with its rule broken, and at least one must fail. The tree itself has no switches.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::{Matrix, filter};

/// The packages whose tests are run: those that need no device, so that a run takes a second.
const PACKAGES: [&str; 8] = [
    "uwarp-wire",
    "uwarp-iwarp",
    "uwarp-tcp",
    "uwarp-memory",
    "uwarp-engine",
    "uwarp",
    "uwarp-rpcrdma",
    "uwarp-sim-tests",
];
/// Which rule is broken, by its place in the file from 1.
const VARIABLE: &str = "UWARP_MUTATION";
/// Debug setting of the copy's build, in place of `line-tables-only`.
const DEBUG: &str = "line-directives-only";
/// A rule and how it is broken.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// The row of the matrix.
    pub row: String,
    /// The violation, in a few words.
    pub breaks: String,
    /// The file, from the top of the tree.
    pub file: String,
    /// The text before the rule.
    #[serde(default)]
    pub before: String,
    /// An expression.
    pub rule: String,
    /// The expression that breaks the rule.
    pub broken: String,
    /// The text after the rule.
    #[serde(default)]
    pub after: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    mutation: Vec<Mutation>,
}

/// Reads `mutations.toml` of a folder.
///
/// # Errors
/// The first fault, in one sentence.
pub fn read(folder: &Path) -> Result<Vec<Mutation>, String> {
    let path = folder.join("mutations.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let file: File = toml::from_str(&text).map_err(|error| format!("mutations.toml: {error}"))?;
    Ok(file.mutation)
}

/// The tests that show a row and can be run here.
pub fn tests<'a>(matrix: &'a Matrix, row: &str) -> Vec<&'a str> {
    let runs_here = |test: &&str| {
        let binary = test.split(' ').next().unwrap_or_default();
        PACKAGES.contains(&binary.split("::").next().unwrap_or_default())
    };
    matrix.shown.get(row).into_iter().flatten().map(String::as_str).filter(runs_here).collect()
}

/// An expression, valid in any crate, for whether this rule is the broken one.
pub fn switch(number: usize) -> String {
    format!(
        "{{ static IT_IS: std::sync::OnceLock<bool> = std::sync::OnceLock::new(); \
         *IT_IS.get_or_init(|| std::env::var({VARIABLE:?}).is_ok_and(|number| number == \"{number}\")) }}"
    )
}

/// The text of a file with a switch in each of its places.
///
/// # Errors
/// A place that does not exist exactly once, or a row without a test that can be run.
pub fn with_switches(file: &str, text: &str, mutations: &[Mutation]) -> Result<String, String> {
    let mut places = Vec::new();
    for (index, mutation) in mutations.iter().enumerate().filter(|(_, mutation)| mutation.file == file) {
        let Mutation { row, before, rule, broken, after, .. } = mutation;
        let found: Vec<usize> = text.match_indices(&format!("{before}{rule}{after}")).map(|(at, _)| at).collect();
        let [at] = found[..] else {
            return Err(format!("mutations.toml: the rule of {row} stands {} times in {file}: {rule}", found.len()));
        };
        let text = format!("(if {} {{ {broken} }} else {{ {rule} }})", switch(index + 1));
        places.push((at + before.len(), rule.len(), text));
    }
    // Several mutations of one expression: the second encloses the first.
    places.sort_by_key(|(at, ..)| *at);
    let mut out = String::with_capacity(text.len() + 200 * places.len());
    let mut from = 0;
    let mut places = places.into_iter().peekable();
    while let Some((at, len, mut switch)) = places.next() {
        if at < from {
            return Err(format!("mutations.toml: two rules overlap in {file}"));
        }
        while let Some((_, _, other)) = places.next_if(|(next, next_len, _)| (*next, *next_len) == (at, len)) {
            let original = &text[at..at + len];
            switch = switch.replacen(&format!("else {{ {original} }}"), &format!("else {{ {other} }}"), 1);
        }
        out.push_str(&text[from..at]);
        out.push_str(&switch);
        from = at + len;
    }
    out.push_str(&text[from..]);
    Ok(out)
}

/// Copies changed files only, so that an unchanged file is not built again, and removes deleted ones.
fn copy(from: &Path, to: &Path, below: &Path, mutations: &[Mutation]) -> Result<(), String> {
    let say = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(to).map_err(|error| say(to, error))?;
    for entry in std::fs::read_dir(to).map_err(|error| say(to, error))? {
        let entry = entry.map_err(|error| say(to, error))?;
        let (path, source) = (entry.path(), from.join(entry.file_name()));
        let is_kept = source.is_dir() == path.is_dir() && source.exists() && entry.file_name() != "target";
        if !is_kept {
            let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.map_err(|error| say(&path, error))?;
        }
    }
    for entry in std::fs::read_dir(from).map_err(|error| say(from, error))? {
        let entry = entry.map_err(|error| say(from, error))?;
        let (path, name) = (entry.path(), entry.file_name());
        let below = below.join(&name);
        if name == "target" || name == ".git" {
            continue;
        }
        let target = to.join(&name);
        if path.is_dir() {
            copy(&path, &target, &below, mutations)?;
            continue;
        }
        let mut octets = std::fs::read(&path).map_err(|error| say(&path, error))?;
        let file = below.to_string_lossy();
        if mutations.iter().any(|mutation| mutation.file == file) {
            let text = String::from_utf8(octets).map_err(|_| format!("{file} is no text"))?;
            octets = with_switches(&file, &text, mutations)?.into_bytes();
        }
        if std::fs::read(&target).ok().as_deref() != Some(&octets[..]) {
            std::fs::write(&target, &octets).map_err(|error| say(&target, error))?;
        }
    }
    Ok(())
}

/// A copy of the tree with all switches.
struct Copy {
    tree: PathBuf,
    target: PathBuf,
    /// Cargo's arguments for the programs with the tests of all chosen rules; the first run builds them.
    programs: BTreeSet<String>,
}

/// How a run of tests ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    AllPassed,
    SomeFailed,
}

/// Cargo's arguments for the programs that hold these tests, and few others.
pub fn programs<'a>(tests: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let binaries = tests.into_iter().filter_map(|test| test.split_whitespace().next());
    let arguments = binaries.map(|binary| match binary.split_once("::") {
        Some((package, program)) => [format!("--package={package}"), format!("--test={program}")],
        None => [format!("--package={binary}"), "--lib".to_owned()],
    });
    arguments.flatten().collect()
}

impl Copy {
    fn make(workspace: &Path, target: &Path, mutations: &[Mutation], tests: &BTreeSet<&str>) -> Result<Copy, String> {
        let tree = target.join("mutations");
        self::copy(workspace, &tree, Path::new(""), mutations)?;
        Ok(Copy { tree, target: target.to_owned(), programs: programs(tests.iter().copied()) })
    }

    fn nextest(&self) -> Command {
        let mut command = Command::new("cargo");
        command
            .args(["nextest", "run", "--profile", "mutations"])
            .args(&self.programs)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            // A separate profile: by it, cargo distinguishes the crates of the copy from those of the tree, which have
            // the same paths in their workspaces. External crates have their own profile in `Cargo.toml`, and are not
            // built again.
            .env("CARGO_PROFILE_DEV_DEBUG", DEBUG)
            .env("CARGO_PROFILE_TEST_DEBUG", DEBUG)
            .env_remove("NEXTEST_PROFILE")
            .env_remove(VARIABLE);
        command
    }

    /// Runs these tests with a rule broken, or with none.
    fn run(&self, tests: &BTreeSet<&str>, broken: Option<usize>) -> Result<(Ended, String), String> {
        let mut command = self.nextest();
        command.args(["--color", "never", "-E", &filter(tests.iter().copied())?]).stdin(Stdio::null());
        if let Some(number) = broken {
            command.env(VARIABLE, number.to_string());
        }
        let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
        // Warnings are about the switches.
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => Ok((Ended::AllPassed, text)),
            // nextest's exit status when tests have failed, and cargo's.
            Some(100) => Ok((Ended::SomeFailed, text)),
            Some(101) => Err(format!("the copy with the switches does not build:\n{text}")),
            code => Err(format!("cargo nextest ended with {code:?}:\n{text}")),
        }
    }
}

/// Which rules are broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A random sample.
    Sample {
        /// Its size; `None` takes all of them.
        count: Option<usize>,
        /// The same seed gives the same sample.
        seed: u64,
    },
    /// Every mutation of these rows.
    Rows(Vec<String>),
}

impl Choice {
    /// The places of the chosen mutations in the list, in its order.
    ///
    /// # Errors
    /// A row without a mutation.
    pub fn of(&self, mutations: &[Mutation]) -> Result<Vec<usize>, String> {
        let mut chosen: Vec<usize> = (0..mutations.len()).collect();
        match self {
            Self::Sample { count, seed } => {
                fastrand::Rng::with_seed(*seed).shuffle(&mut chosen);
                chosen.truncate(count.unwrap_or(mutations.len()));
                chosen.sort_unstable();
            }
            Self::Rows(rows) => {
                let is_broken = |row: &&String| mutations.iter().any(|mutation| mutation.row == **row);
                if let Some(row) = rows.iter().find(|row| !is_broken(row)) {
                    return Err(format!("mutations.toml has no mutation of the row {row:?}"));
                }
                chosen.retain(|&index| rows.contains(&mutations[index].row));
            }
        }
        Ok(chosen)
    }
}

impl std::fmt::Display for Choice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sample { seed, .. } => write!(formatter, "seed {seed}"),
            Self::Rows(rows) => formatter.write_str(&rows.join(", ")),
        }
    }
}

/// Breaks the chosen rules one after the other in a copy of the tree below `target`, cargo's target directory. Gives
/// the report, and whether every one was noticed.
///
/// # Errors
/// The file and the tree do not fit, a chosen row has no mutation, the copy does not build, or the tests of the rows
/// fail with nothing broken.
pub fn run(workspace: &Path, target: &Path, choice: &Choice) -> Result<(String, bool), String> {
    let data = workspace.join("tests/data/conformance");
    let matrix = Matrix::read(&data)?;
    let mutations = read(&data)?;
    if let Some(mutation) = mutations.iter().find(|mutation| tests(&matrix, &mutation.row).is_empty()) {
        return Err(format!("mutations.toml: no test that can be run here shows {}", mutation.row));
    }
    let chosen = choice.of(&mutations)?;
    let all: BTreeSet<&str> = chosen.iter().flat_map(|&index| tests(&matrix, &mutations[index].row)).collect();
    let copy = Copy::make(workspace, target, &mutations, &all)?;
    if let (Ended::SomeFailed, text) = copy.run(&all, None)? {
        return Err(format!("tests fail with no rule broken:\n{text}"));
    }
    let mut report = String::new();
    let mut unnoticed = 0;
    for &index in &chosen {
        let mutation = &mutations[index];
        let row_tests = tests(&matrix, &mutation.row).into_iter().collect();
        let (ended, _) = copy.run(&row_tests, Some(index + 1))?;
        let noticed = ended == Ended::SomeFailed;
        unnoticed += usize::from(!noticed);
        let word = if noticed { "noticed" } else { "NOT NOTICED" };
        eprintln!("{word:<11} {} {}", mutation.row, mutation.breaks);
        if !noticed {
            let _ = writeln!(report, "not noticed: {}: {} ({})", mutation.row, mutation.breaks, mutation.file);
        }
    }
    let _ = writeln!(
        report,
        "{} of {} mutations ({choice}): {} noticed, {unnoticed} not",
        chosen.len(),
        mutations.len(),
        chosen.len() - unnoticed
    );
    Ok((report, unnoticed == 0))
}
