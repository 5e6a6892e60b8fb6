//! The kernel's differences: edits of scripts, each with its reason.
//!
//! ```text
//! == name of the script
//! same
//!
//! == name of another
//!   < A 1+1000 ack 1
//! - +500us > A 1 ack 1001
//! + > A 1 ack 1
//! why Who is right by which section, and why we differ.
//!
//! == name of a third
//! skip Why the kernel cannot be asked.
//! ```
//!
//! An edit reads like a patch: a line with two leading spaces is a line that follows in the script, `-` removes the
//! next such line, `+` inserts one here, and `stop` ends the comparison where the kernel and we diverge. A reason may
//! continue on further lines with leading spaces. Every script is in the file.

use crate::scripts::parse::{Line, Script};

/// The verdict on one script.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Play it unchanged, or with the edits.
    Play(Vec<Edit<'a>>),
    /// Cannot be played.
    Skip(&'a str),
}

/// One step of a patch; the text is a script's line without comment.
#[derive(Debug, PartialEq, Eq)]
pub enum Edit<'a> {
    /// Goes on to the line.
    Find(&'a str),
    /// Takes it out.
    Remove(&'a str),
    /// Puts one in.
    Insert(&'a str),
    /// Leaves out the rest.
    Stop,
}

/// The line at which a player stops.
pub const STOP: &str = "stop";

/// Reads the file: verdicts by title, in order.
///
/// # Errors
/// An entry without a reason, or an invalid line.
pub fn read(text: &str) -> Result<Vec<(&str, Verdict<'_>)>, String> {
    let mut verdicts = Vec::new();
    for entry in text.split("\n== ").skip(1) {
        let mut lines = entry.lines();
        let title = lines.next().unwrap_or("").trim();
        let (mut edits, mut skip, mut same, mut why) = (Vec::new(), None, false, false);
        for line in lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let code = line.get(2..).unwrap_or("").trim();
            match line.split(' ').next().unwrap_or("") {
                "same" => same = true,
                "skip" => skip = Some(line["skip".len()..].trim()),
                "why" => why = true,
                "stop" => edits.push(Edit::Stop),
                "-" => edits.push(Edit::Remove(code)),
                "+" => edits.push(Edit::Insert(code)),
                // The reason continues.
                "" if why || skip.is_some() => {}
                "" => edits.push(Edit::Find(code)),
                _ => return Err(format!("{title}: what is '{line}'?")),
            }
        }
        let verdict = match (skip, same, edits.is_empty()) {
            (Some(reason), false, true) if !reason.is_empty() => Verdict::Skip(reason),
            (None, true, true) => Verdict::Play(edits),
            (None, false, false) if why => Verdict::Play(edits),
            _ => return Err(format!("{title}: one of 'same', 'skip REASON', edits with 'why REASON'")),
        };
        verdicts.push((title, verdict));
    }
    Ok(verdicts)
}

/// The script with the edits applied.
///
/// # Errors
/// An edit names a line that the script does not have there.
pub fn apply<'a>(script: &Script<'a>, edits: &[Edit<'a>]) -> Result<Vec<Line<'a>>, String> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut result = Vec::new();
    let mut rest = script.lines.iter();
    let mut number = 0;
    for edit in edits {
        match edit {
            Edit::Insert(code) => result.push(Line { number, code, citation: None }),
            Edit::Stop => {
                result.push(Line { number, code: STOP, citation: None });
                return Ok(result);
            }
            Edit::Find(code) | Edit::Remove(code) => loop {
                let line = rest.next().ok_or_else(|| format!("the script has no line '{code}' there"))?;
                number = line.number;
                let found = words(line.code) == words(code);
                if !found || matches!(edit, Edit::Find(_)) {
                    result.push(Line { number, code: line.code, citation: line.citation });
                }
                if found {
                    break;
                }
            },
        }
    }
    result.extend(rest.map(|line| Line { number: line.number, code: line.code, citation: line.citation }));
    Ok(result)
}
