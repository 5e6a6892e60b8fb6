//! What the tools say of themselves fits a terminal of 80 columns: no line is longer, and none was broken by hand.

use std::process::{Command, Stdio};

use uwarp_interop_tests::tools::tool;

const COLUMNS: usize = 80;
const TOOLS: [&str; 11] = [
    "uwarp-copy",
    "uwarp-info",
    "uwarp-log",
    "uwarp-nfs",
    "uwarp-perf",
    "uwarp-ping",
    "uwarp-pmd",
    "uwarp-rpc",
    "uwarp-run",
    "uwarp-stat",
    "uwarp-switch",
];

fn help(name: &str, subcommand: Option<&str>) -> String {
    let mut command = Command::new(tool(name));
    command.args(subcommand).arg("--help").env("COLUMNS", COLUMNS.to_string()).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{name} {subcommand:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The lines below a heading, up to the next one.
fn section<'a>(text: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    text.lines().skip_while(move |line| *line != heading).skip(1).take_while(|line| line.starts_with(' '))
}

/// The first line that has room for the first word of the next, and that next line: somebody broke it by hand. Commands
/// and lists are not paragraphs.
fn broken_by_hand(text: &str) -> Option<(&str, &str)> {
    let mut heading = "";
    let lines: Vec<&str> = text.lines().collect();
    lines.windows(2).find_map(|pair| {
        let [line, next] = *pair else { return None };
        if indent(line) == 0 && line.ends_with(':') {
            heading = line;
        }
        let is_prose = |line: &str| {
            let words = line.trim_start();
            let is_of_another_kind = words.is_empty()
                || words.ends_with(':')
                || ["-", "[", "uwarp-", "Usage"].iter().any(|start| words.starts_with(start))
                || matches!(heading, "Examples:" | "Ports:") && indent(line) > 2
                || heading == "Commands:";
            !is_of_another_kind
        };
        let word = next.split_whitespace().next()?;
        let fits = line.chars().count() + 1 + word.chars().count() <= COLUMNS;
        (is_prose(line) && is_prose(next) && indent(line) == indent(next) && fits).then_some((line, next))
    })
}

#[test]
fn help_fits_80_columns_and_no_paragraph_is_broken_by_hand() {
    for name in TOOLS {
        let whole = help(name, None);
        let subcommands: Vec<&str> = section(&whole, "Commands:")
            .filter(|line| indent(line) == 2)
            .filter_map(|line| line.split_whitespace().next())
            .filter(|word| *word != "help")
            .collect();
        let texts = subcommands.iter().map(|subcommand| help(name, Some(subcommand)));
        for text in std::iter::once(whole.clone()).chain(texts) {
            for line in text.lines() {
                assert!(line.chars().count() <= COLUMNS, "{name}: {line}");
            }
            assert_eq!(broken_by_hand(&text), None, "{name}");
        }
    }
}

#[test]
fn a_paragraph_that_is_broken_by_hand_is_found() {
    let wrapped = "Options:\n      --size <SIZE>\n          Octets of a message that is as long as it takes to fill the whole of\n          this line\n";
    assert_eq!(broken_by_hand(wrapped), None);
    let broken = "Options:\n      --size <SIZE>\n          Octets of a\n          message\n";
    assert_eq!(broken_by_hand(broken), Some(("          Octets of a", "          message")));
}

#[test]
fn every_tool_has_the_same_flags_and_subcommands() {
    for name in ["uwarp-copy", "uwarp-log", "uwarp-perf", "uwarp-ping", "uwarp-rpc"] {
        let whole = help(name, None);
        assert!(section(&whole, "Commands:").any(|line| line.trim_start().starts_with("serve ")), "{name}");
        let text = help(name, Some("serve"));
        for flag in ["--port <PORT>", "--cpus <CPU,...>", "--device <KIND>", "--config <FILE>"] {
            assert!(text.contains(flag), "{name} serve: {flag}");
        }
    }
    for (name, subcommand) in [
        ("uwarp-copy", "put"),
        ("uwarp-copy", "get"),
        ("uwarp-perf", "run"),
        ("uwarp-ping", "run"),
        ("uwarp-rpc", "run"),
    ] {
        let text = help(name, Some(subcommand));
        for flag in ["--server <ADDRESS>", "--port <PORT>", "--cpus <CPU,...>"] {
            assert!(text.contains(flag), "{name} {subcommand}: {flag}");
        }
    }
    for (name, subcommand) in [
        ("uwarp-log", "pair"),
        ("uwarp-log", "bench"),
        ("uwarp-perf", "run"),
        ("uwarp-ping", "run"),
        ("uwarp-rpc", "run"),
    ] {
        assert!(help(name, Some(subcommand)).contains("--iterations <"), "{name} {subcommand}");
    }
}
