//! ARCHITECTURE.md and docs/internals/ name files that exist, and every file of the engine's rooms.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the tree")
}

/// ARCHITECTURE.md and the pages behind it.
fn map() -> String {
    let mut pages = vec![root().join("ARCHITECTURE.md")];
    walk(&root().join("docs/internals"), &mut pages);
    pages.iter().map(|page| std::fs::read_to_string(page).expect("a page")).collect()
}

/// Files and folders below `folder`.
fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            walk(&path, out);
        }
        out.push(path);
    }
}

#[test]
fn the_map_names_every_file_of_the_engines_rooms() {
    let map = map();
    let mut missing = Vec::new();
    let rooms = std::fs::read_dir(root().join("stack/engine/src")).expect("the engine");
    for room in rooms.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()) {
        let name = room.file_name().expect("a name").to_string_lossy().into_owned();
        let row = map.lines().find(|line| line.starts_with(&format!("| {name}/ |"))).unwrap_or_default();
        for file in std::fs::read_dir(&room).expect("a room").map(|entry| entry.expect("an entry").path()) {
            let stem = file.file_stem().expect("a name").to_string_lossy().into_owned();
            if file.is_file() && stem != "mod" && !row.contains(&format!("`{stem}`")) {
                missing.push(format!("{name}/{stem}"));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "add to the table of rooms in docs/internals/rooms.md what these files hold: {missing:?}"
    );
}

#[test]
fn every_path_in_the_map_exists() {
    let root = root();
    let mut known = Vec::new();
    for folder in ["stack", "apps", "tests", "perf", "config", "docs", "scripts"] {
        known.push(root.join(folder));
        walk(&root.join(folder), &mut known);
    }
    let map = map();
    let quoted =
        map.lines().filter(|line| !line.starts_with("```")).flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = quoted.filter(|text| {
        !text.contains([' ', ':', '<', '*']) && (text.contains('/') || text.ends_with(".rs") || text.ends_with(".txt"))
    });
    let (mut count, mut missing) = (0, Vec::new());
    for path in paths {
        count += 1;
        if !known.iter().any(|file| file.ends_with(path)) {
            missing.push(path);
        }
    }
    assert!(count > 50, "only {count} paths were found: are they still in backquotes?");
    assert!(missing.is_empty(), "a page names what does not exist: {missing:?}");
}
