//! The sources grow no more tangled: what is over a limit stands in `counts.txt`, where a figure may only fall.

use std::path::Path;

use uwarp_structure_tests::{Counts, count};

#[test]
fn no_file_struct_circle_or_room_grows_beyond_the_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = folder.join("tests/counts.txt");
    let text = std::fs::read_to_string(&table).expect("the table");
    let entry = |line: &str| {
        let (name, count) = line.rsplit_once(' ').unwrap_or_else(|| panic!("'{line}' has no count"));
        (name.to_owned(), count.parse().unwrap_or_else(|_| panic!("'{line}' has no count")))
    };
    let recorded: Counts = text.lines().map(entry).collect();
    let counted = count(&folder.join("../..").canonicalize().expect("the tree"));
    let grown: Vec<String> = counted
        .iter()
        .filter(|(name, count)| recorded.get(*name).is_none_or(|recorded| *count > recorded))
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let gone: Vec<&String> = recorded.keys().filter(|name| !counted.contains_key(*name)).collect();
    assert!(grown.is_empty(), "over the limit and over {}:\n{}", table.display(), grown.join("\n"));
    assert!(gone.is_empty(), "not over its limit any more: delete from {}: {gone:?}", table.display());
}
