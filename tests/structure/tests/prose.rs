//! Documents have short sentences, and lines that fit a window.
//!
//! A sentence ends at a full stop, question mark or exclamation mark before a space, at a bold lead-in with a colon,
//! and where its paragraph or list item ends. A word is what stands between spaces and has a letter or digit; what is
//! in backquotes is one word. Headings, tables, blocks of code, comments and the targets of links do not count.

use std::path::{Path, PathBuf};

/// Most words of a sentence.
const WORDS: usize = 30;
/// Most columns of a line that is not of a table.
const COLUMNS: usize = 120;

/// The documents of the tree, of its tools and of docs/.
fn documents(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "findings/README.md",
        "perf/README.md",
        "tests/fuzz/README.md",
    ]
    .map(|name| root.join(name))
    .to_vec();
    for folder in ["docs", "docs/internals"] {
        found.extend(entries(&root.join(folder)).filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    for folder in ["apps", "apps/storage"] {
        found.extend(entries(&root.join(folder)).map(|tool| tool.join("README.md")).filter(|file| file.exists()));
    }
    found
}

/// What is in a folder.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
}

/// The first line's number and the text of each paragraph and list item.
fn paragraphs(document: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (number, line) in document.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            (is_code, is_open) = (!is_code, false);
        } else if is_code || line.is_empty() || line.starts_with(['|', '#']) || line.starts_with("<!--") {
            is_open = false;
        } else {
            let item = list_item(line);
            if !is_open || item.is_some() {
                found.push((number + 1, String::new()));
            }
            is_open = true;
            let (_, text) = found.last_mut().expect("a paragraph");
            text.push_str(item.unwrap_or(line));
            text.push(' ');
        }
    }
    found
}

/// The text of a line that begins an item of a list.
fn list_item(line: &str) -> Option<&str> {
    let numbered = line.trim_start_matches(|character: char| character.is_ascii_digit());
    let number = (numbered.len() < line.len()).then(|| numbered.strip_prefix(". ")).flatten();
    line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")).or(number)
}

/// A paragraph with one word for each piece of code, and without the targets of links.
fn plain(paragraph: &str) -> String {
    let pieces = paragraph.split('`').enumerate();
    let text: String = pieces.map(|(index, piece)| if index % 2 == 0 { piece } else { "code" }).collect();
    let mut links = text.split("](");
    let first = links.next().unwrap_or_default().to_owned();
    links.fold(first, |text, rest| text + rest.split_once(')').map_or(rest, |(_, behind)| behind))
}

/// The sentences of a paragraph, each as its words.
fn sentences(paragraph: &str) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    for word in plain(paragraph).split_whitespace() {
        let is_word = word.contains(char::is_alphanumeric);
        let bare = word.trim_end_matches([')', ']', '"', '*', '_']);
        let is_end = (bare.ends_with(['.', '?', '!']) && !["e.g.", "i.e."].contains(&bare)) || word.ends_with(":**");
        found.last_mut().expect("a sentence").extend(is_word.then(|| word.to_owned()));
        if is_end {
            found.push(Vec::new());
        }
    }
    found
}

/// What is wrong in a document, a line each.
fn faults(name: &str, document: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (line, paragraph) in paragraphs(document) {
        for sentence in sentences(&paragraph).iter().filter(|sentence| sentence.len() > WORDS) {
            let begin = sentence[..8].join(" ");
            found.push(format!("{name}:{line}: {} words, make two sentences: {begin} …", sentence.len()));
        }
    }
    let mut is_code = false;
    for (number, line) in document.lines().enumerate() {
        is_code ^= line.trim_start().starts_with("```");
        let columns = line.chars().count();
        if columns > COLUMNS && !is_code && !line.starts_with(['|', '!']) {
            found.push(format!("{name}:{}: {columns} columns", number + 1));
        }
    }
    found
}

#[test]
fn documents_have_short_sentences_and_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let documents = documents(&root);
    assert!(documents.len() > 20, "{} documents", documents.len());
    let mut found = Vec::new();
    for file in documents {
        let text = std::fs::read_to_string(&file).expect("a document");
        found.extend(faults(&file.strip_prefix(&root).unwrap_or(&file).display().to_string(), &text));
    }
    assert!(found.is_empty(), "over {WORDS} words or {COLUMNS} columns:\n{}", found.join("\n"));
}

#[test]
fn a_long_sentence_is_found_where_it_begins_its_paragraph() {
    let long = "word ".repeat(WORDS) + "end.";
    let document = format!("# A page\n\nShort. {long}\n\n- {long}\n  Short.\n1. {long}");
    let lines: Vec<String> = faults("page", &document).iter().map(|fault| fault[..7].to_owned()).collect();
    assert_eq!(lines, ["page:3:", "page:5:", "page:7:", "page:3:", "page:5:", "page:7:"]);
}

#[test]
fn what_is_no_prose_does_not_count() {
    let fits = "word ".repeat(WORDS - 1);
    let long = "word ".repeat(WORDS + 1);
    let pass = [
        format!("{fits}end. {fits}end?"),
        format!("**{fits}end:** {fits}end."),
        format!("{fits}`a piece of code`, –"),
        format!("{fits}[end](a target.md). ({fits}end.)"),
        format!("| {long} |"),
        format!("## {long}"),
        format!("```\n{long}\n```"),
        format!("- {fits}end\n- {fits}end"),
    ];
    for document in pass {
        let words = faults("page", &document).into_iter().filter(|fault| fault.contains("words"));
        assert_eq!(words.collect::<Vec<_>>(), [""; 0], "{document}");
    }
}
