//! The program in README.md is the one that is compiled as an example.

/// The lines of a text between a line `begin` and the next line `end`.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.lines()
        .skip_while(|line| line.trim() != begin)
        .skip(1)
        .take_while(|line| line.trim() != end)
        .map(str::trim)
        .collect()
}

#[test]
fn the_readme_shows_the_example() {
    let shown = between(include_str!("../../../README.md"), "```rust", "```");
    let compiled = between(include_str!("../examples/readme.rs"), "// README.md", "// README.md");
    assert!(!shown.is_empty());
    assert_eq!(shown, compiled);
}
