//! Which file of a crate imports which other.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;
use syn::{Item, UseTree};

use crate::{Source, is_test};

/// Every path that a file names, as far as it begins with `crate`, `self`, `super` or a module of the file.
#[derive(Default)]
struct Paths {
    found: Vec<Vec<String>>,
    /// How many modules within the file surround what is visited.
    depth: usize,
    /// What the file only gives further counts too.
    with_given: bool,
}

impl Paths {
    fn add(&mut self, mut path: Vec<String>) {
        let supers = path.iter().take_while(|name| *name == "super").count();
        if supers > 0 && self.depth > 0 {
            path.drain(..supers.min(self.depth));
            if supers <= self.depth {
                // It leads to the file itself.
                path.insert(0, "self".to_owned());
            }
        }
        self.found.push(path);
    }
}

impl Visit<'_> for Paths {
    fn visit_item(&mut self, item: &Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        if !self.with_given && !matches!(item.vis, syn::Visibility::Inherited) {
            return;
        }
        for (path, _) in leaves(&item.tree, &[]) {
            self.add(path);
        }
    }

    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        self.depth += 1;
        syn::visit::visit_item_mod(self, item);
        self.depth -= 1;
    }

    /// To be visible somewhere is not to use it.
    fn visit_visibility(&mut self, _: &syn::Visibility) {}

    fn visit_path(&mut self, path: &syn::Path) {
        // One name alone is something in scope, if not a variable.
        if path.segments.len() > 1 {
            self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }
}

/// The paths of a `use`, each with the name that it gets.
fn leaves(tree: &UseTree, before: &[String]) -> Vec<(Vec<String>, String)> {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => leaves(&path.tree, &with(&path.ident)),
        UseTree::Name(name) if name.ident == "self" => {
            vec![(before.to_vec(), before.last().cloned().unwrap_or_default())]
        }
        UseTree::Name(name) => vec![(with(&name.ident), name.ident.to_string())],
        UseTree::Rename(rename) => vec![(with(&rename.ident), rename.rename.to_string())],
        UseTree::Glob(_) => vec![(before.to_vec(), String::new())],
        UseTree::Group(group) => group.items.iter().flat_map(|tree| leaves(tree, before)).collect(),
    }
}

/// A crate's files, and what each gives further under a name of its own.
struct Crate {
    files: BTreeMap<Vec<String>, usize>,
    given: BTreeMap<Vec<String>, Vec<String>>,
}

impl Crate {
    fn new(sources: &[Source]) -> Crate {
        let files = sources.iter().enumerate().map(|(number, source)| (source.path.clone(), number)).collect();
        let mut all = Crate { files, given: BTreeMap::new() };
        for source in sources {
            for item in &source.items {
                let Item::Use(item) = item else { continue };
                if matches!(item.vis, syn::Visibility::Inherited) {
                    continue;
                }
                for (path, name) in leaves(&item.tree, &[]) {
                    if let Some(path) = all.absolute(&source.path, &path) {
                        all.given.insert([source.path.as_slice(), &[name]].concat(), path);
                    }
                }
            }
        }
        all
    }

    /// A path from the crate's root on; `None` if it leads out of the crate or stays in the file.
    fn absolute(&self, from: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut base = from.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let child = [from, &[first.to_owned()]].concat();
                self.files.get(&child)?;
            }
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// The file that a path from the root leads to, through what files give further.
    fn file(&self, path: &[String]) -> Option<usize> {
        let mut path = path.to_vec();
        // More steps than any chain of re-exports has.
        for _ in 0..8 {
            let given = (1..=path.len()).rev().find_map(|len| self.given.get(&path[..len]).map(|given| (len, given)));
            let Some((len, given)) = given else { break };
            path = [given.as_slice(), &path[len..]].concat();
        }
        (0..=path.len()).rev().find_map(|len| self.files.get(&path[..len])).copied()
    }
}

/// The files that each file of a crate imports, by their numbers. `with_given`: also those of which it only gives
/// something further.
pub fn edges(sources: &[Source], with_given: bool) -> Vec<BTreeSet<usize>> {
    let all = Crate::new(sources);
    let of = |(number, source): (usize, &Source)| {
        let mut paths = Paths { with_given, ..Paths::default() };
        source.items.iter().for_each(|item| paths.visit_item(item));
        let targets = paths.found.iter().filter_map(|path| all.file(&all.absolute(&source.path, path)?));
        targets.filter(|target| *target != number).collect()
    };
    sources.iter().enumerate().map(of).collect()
}

/// How many files of a crate lie on a circle of imports.
pub fn in_circles(sources: &[Source]) -> usize {
    let edges = edges(sources, false);
    let reaches_itself = |start: &usize| {
        let (mut seen, mut waiting) = (BTreeSet::new(), vec![*start]);
        while let Some(file) = waiting.pop() {
            for next in &edges[file] {
                if next == start {
                    return true;
                }
                if seen.insert(*next) {
                    waiting.push(*next);
                }
            }
        }
        false
    };
    (0..sources.len()).filter(reaches_itself).count()
}
