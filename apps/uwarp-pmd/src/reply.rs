//! The answer to a command: a text for people, and a value for programs.

use serde_json::{Value, json};
use uwarp_app::output::{print, printable_lines};

/// An answer.
#[derive(Debug, Default)]
pub struct Reply {
    /// For people. Empty: nothing needs to be said.
    pub text: String,
    /// For programs.
    pub value: Value,
}

impl Reply {
    /// An answer in words, with a value.
    pub fn new(text: impl std::fmt::Display, value: Value) -> Reply {
        Reply { text: text.to_string(), value }
    }

    /// A sentence that says the same as the value.
    pub fn said(text: impl Into<String>, value: Value) -> Reply {
        Reply { text: text.into(), value }
    }
}

/// Where answers go.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// One JSON object a line, instead of text.
    pub json: bool,
}

impl Output {
    /// Prints an answer to a command.
    pub fn answer(self, command: &str, reply: &Reply) {
        if self.json {
            print(json!({ "command": command, "result": reply.value }));
        } else if !reply.text.is_empty() {
            print(&reply.text);
        }
    }

    /// Prints why a command failed: in a script with the number of its line. A script that fails says so in words, too,
    /// as the tool's last message.
    pub fn fail(self, command: &str, line: Option<usize>, error: &anyhow::Error) {
        let reason = format!("{error:#}");
        if self.json {
            let mut value = json!({ "command": command, "error": reason });
            if let Some(line) = line {
                value["line"] = line.into();
            }
            print(value);
        } else if line.is_none() {
            print(format_args!("error: {}", printable_lines(&reason)));
        }
    }
}
