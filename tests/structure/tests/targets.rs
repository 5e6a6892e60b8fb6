//! What `test = false` and `doctest = false` leave out of the build has no tests.

use std::path::Path;

use uwarp_structure_tests::sources;

/// Whether a code block of the documentation is compiled: all are but those marked as something else.
fn has_doctest(text: &str) -> bool {
    let fences = text.lines().map(str::trim_start).filter_map(|line| {
        let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
        comment.trim_start().strip_prefix("```")
    });
    // Every other one ends a block.
    fences.step_by(2).any(|kind| kind.is_empty() || kind.starts_with("rust") || kind.starts_with("no_run"))
}

#[test]
fn no_crate_that_is_built_without_tests_has_any() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workspace = std::fs::read_to_string(root.join("Cargo.toml")).expect("the workspace's manifest");
    let members = workspace.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).expect("members").0;
    let mut looked_at = 0;
    for member in members.split('"').skip(1).step_by(2) {
        let folder = root.join(member);
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("a member's manifest");
        // The fuzz targets are programs of a folder of their own; the library beside them has tests.
        if member == "tests/fuzz" || !manifest.lines().any(|line| line == "test = false") {
            continue;
        }
        looked_at += 1;
        let mut files = Vec::new();
        sources(&folder.join("src"), &mut files);
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a source");
            let tests = ["#[test]", "#[cfg(test)]", "proptest!"].iter().any(|mark| text.contains(mark));
            assert!(!tests && !has_doctest(&text), "{}: its Cargo.toml says test = false", file.display());
        }
    }
    assert!(looked_at >= 8, "{looked_at} manifests say test = false");
}

#[test]
fn a_doctest_is_told_from_other_blocks() {
    assert!(has_doctest("/// Text\n/// ```\n/// f();\n/// ```\n"));
    assert!(has_doctest("//! ```text\n//! a\n//! ```\n//! ```no_run\n//! f();\n//! ```\n"));
    assert!(!has_doctest("//! ```text\n//! a\n//! ```\nfn f() {}\n"));
}

/// The first item behind an attribute that leaves it out of release builds, if other crates can use it.
fn public_in_debug_builds(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim_start);
    while let Some(line) = lines.next() {
        if !(line.starts_with("#[cfg(") && line.contains("debug_assertions")) {
            continue;
        }
        let item = lines.find(|line| !line.starts_with("#[") && !line.starts_with("//"));
        if item.is_some_and(|item| item.starts_with("pub ")) {
            return item;
        }
    }
    None
}

#[test]
fn what_a_library_offers_is_in_release_builds_too() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for member in std::fs::read_dir(root.join("stack")).expect("the stack") {
        let mut files = Vec::new();
        sources(&member.expect("an entry").path().join("src"), &mut files);
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a source");
            let item = public_in_debug_builds(&text);
            assert!(item.is_none(), "{}: {}", file.display(), item.unwrap_or_default());
        }
    }
}

#[test]
fn an_item_of_debug_builds_is_told_from_others() {
    let attribute = "#[cfg(any(test, debug_assertions))]\n";
    assert!(public_in_debug_builds(&format!("{attribute}#[doc(hidden)]\npub fn check() {{}}\n")).is_some());
    assert!(public_in_debug_builds(&format!("{attribute}pub(crate) fn check() {{}}\n")).is_none());
    assert!(public_in_debug_builds("#[cfg_attr(debug_assertions, track_caller)]\npub fn check() {}\n").is_none());
}
