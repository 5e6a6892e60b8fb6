//! Comments are within 120 columns, where `cargo fmt` leaves them as they are.

use std::path::Path;

use uwarp_structure_tests::sources;

const COLUMNS: usize = 120;

#[test]
fn no_comment_is_wider_than_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in ["stack", "apps", "tests", "perf"] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 500, "{} files", files.len());
    let mut wide = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source");
        let comments = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        for (number, _) in comments.filter(|(_, line)| line.chars().count() > COLUMNS) {
            wide.push(format!("{}:{}", file.strip_prefix(&root).unwrap_or(&file).display(), number + 1));
        }
    }
    assert!(wide.is_empty(), "wider than {COLUMNS} columns:\n{}", wide.join("\n"));
}
