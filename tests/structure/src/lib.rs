//! Counts of the sources: files that import each other in a circle; in `stack/` also sizes of files, fields of structs,
//! rooms of the engine that import those above them, and functions of it that take most of its state, or many
//! parameters.

#![forbid(unsafe_code)]

mod imports;
mod rooms;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::Item;

/// Most lines of a file of the engine.
pub const ENGINE_LINES: usize = 500;
/// Most lines of another file of `stack/`.
pub const LINES: usize = 700;
/// Most fields of a struct.
pub const FIELDS: usize = 16;

/// What is over its limit, by its name: `lines FILE`, `fields FILE STRUCT`, `circle ROOT`, `parts ROOM`, `upward FILE
/// ROOM`, `parameters CRATE`.
pub type Counts = BTreeMap<String, usize>;

/// A source file of a crate.
struct Source {
    /// Its modules from the crate's root on.
    path: Vec<String>,
    /// Where it lies.
    file: PathBuf,
    text: String,
    items: Vec<Item>,
}

/// Whether an item is compiled for tests only.
pub fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}

/// Reads a file and those of its modules, tests left out.
fn read(file: PathBuf, path: Vec<String>, out: &mut Vec<Source>) {
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let items = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())).items;
    let is_root = path.is_empty() || file.ends_with("mod.rs");
    let folder = if is_root { file.parent().expect("a folder").to_owned() } else { file.with_extension("") };
    let mut children = Vec::new();
    for item in &items {
        if let Item::Mod(module) = item
            && module.content.is_none()
            && !is_test(&module.attrs)
        {
            let name = module.ident.to_string();
            let flat = folder.join(&name).with_extension("rs");
            let child = if flat.exists() { flat } else { folder.join(&name).join("mod.rs") };
            children.push((child, path.iter().cloned().chain([name]).collect()));
        }
    }
    out.push(Source { path, file, text, items });
    for (file, path) in children {
        read(file, path, out);
    }
}

/// Structs of configuration and counters are lists by nature.
fn is_list(name: &str) -> bool {
    ["Config", "Counters", "Stats", "Info", "Capabilities"].iter().any(|end| name.ends_with(end))
}

fn fields(items: &[Item], found: &mut Vec<(String, usize)>) {
    for item in items {
        match item {
            Item::Struct(item) if !is_test(&item.attrs) => found.push((item.ident.to_string(), item.fields.len())),
            Item::Mod(module) if !is_test(&module.attrs) => {
                fields(module.content.as_ref().map_or(&[], |(_, items)| items), found);
            }
            _ => {}
        }
    }
}

/// Finds the Rust files below a folder.
///
/// # Panics
/// If a folder cannot be read.
pub fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Counts the files on circles of imports in a crate with this root file, in which all sources are.
fn count_circles(root: &Path, file: &Path, sources: &[Source], counts: &mut Counts) {
    let circle = imports::in_circles(sources);
    if circle > 0 {
        let file = file.strip_prefix(root).expect("below the root").display();
        counts.insert(format!("circle {file}"), circle);
    }
}

/// Counts what is over a limit in the crates of `root/stack` and `root/apps`.
///
/// # Panics
/// If a source cannot be read or is no Rust.
pub fn count(root: &Path) -> Counts {
    let mut counts = Counts::new();
    let crates = std::fs::read_dir(root.join("stack")).expect("stack/");
    for folder in crates.map(|entry| entry.expect("an entry").path()) {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let mut sources = Vec::new();
        let file = folder.join("src/lib.rs");
        read(file.clone(), Vec::new(), &mut sources);
        count_circles(root, &file, &sources, &mut counts);
        for source in &sources {
            let file = source.file.strip_prefix(root).expect("below the root").display();
            let lines = source.text.lines().count();
            if lines > if name == "engine" { ENGINE_LINES } else { LINES } {
                counts.insert(format!("lines {file}"), lines);
            }
            let mut structs = Vec::new();
            fields(&source.items, &mut structs);
            for (name, fields) in structs.into_iter().filter(|(name, fields)| *fields > FIELDS && !is_list(name)) {
                counts.insert(format!("fields {file} {name}"), fields);
            }
        }
        if name == "engine" {
            let wide = rooms::too_wide(&sources).into_iter();
            counts.extend(wide.map(|(room, count)| (format!("parts stack/engine/src/{room}"), count)));
            counts.insert("parameters stack/engine".to_owned(), rooms::too_long(&sources));
            let page = std::fs::read_to_string(root.join("docs/internals/rooms.md")).expect("the page of rooms");
            let upward = rooms::upward(&sources, &rooms::order(&page)).into_iter();
            counts.extend(upward.map(|(name, count)| (format!("upward stack/engine/src/{name}"), count)));
        }
    }
    let mut apps = Vec::new();
    sources(&root.join("apps"), &mut apps);
    let is_root = |file: &&PathBuf| {
        ["lib.rs", "main.rs"].iter().any(|name| file.ends_with(name)) && !file.iter().any(|part| part == "tests")
    };
    for file in apps.iter().filter(is_root) {
        let mut sources = Vec::new();
        read(file.clone(), Vec::new(), &mut sources);
        count_circles(root, file, &sources, &mut counts);
    }
    counts
}
