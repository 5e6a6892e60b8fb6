//! The rooms of the engine: which may import which, how many of their functions may touch most of its state, and how
//! many have many parameters.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;
use syn::{FnArg, ImplItem, Item, Signature};

use crate::{Source, imports, is_test};

/// The parts of the engine's state, one for each room.
const PARTS: [&str; 6] = ["Link", "Net", "Connections", "Rdma", "Streams", "Control"];
/// The whole state: all parts.
const WHOLE: &str = "Core";
/// Most parts that a function takes.
const MOST: usize = 3;
/// Most parameters of a function, `self` included.
const PARAMETERS: usize = 5;

/// The names of types within a type.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl Visit<'_> for Names {
    fn visit_path_segment(&mut self, segment: &syn::PathSegment) {
        self.0.insert(segment.ident.to_string());
        syn::visit::visit_path_segment(self, segment);
    }
}

/// Whether a function, whose `self` is of type `own`, takes more parts than it should.
fn takes_too_much(signature: &Signature, own: Option<&syn::Type>) -> bool {
    let mut names = Names::default();
    for input in &signature.inputs {
        match (input, own) {
            (FnArg::Receiver(_), Some(own)) => names.visit_type(own),
            (FnArg::Receiver(_), None) => {}
            (FnArg::Typed(input), _) => names.visit_type(&input.ty),
        }
    }
    names.0.contains(WHOLE) || PARTS.iter().filter(|part| names.0.contains(**part)).count() > MOST
}

fn count(items: &[Item]) -> usize {
    let one = |item: &Item| match item {
        Item::Fn(item) if !is_test(&item.attrs) => usize::from(takes_too_much(&item.sig, None)),
        Item::Impl(item) if !is_test(&item.attrs) => {
            let methods = item.items.iter().filter_map(|inner| match inner {
                ImplItem::Fn(method) => Some(&method.sig),
                _ => None,
            });
            methods.filter(|method| takes_too_much(method, Some(&item.self_ty))).count()
        }
        Item::Mod(item) if !is_test(&item.attrs) => item.content.as_ref().map_or(0, |(_, items)| count(items)),
        _ => 0,
    };
    items.iter().map(one).sum()
}

/// For each room of the engine, the functions that take more than three parts. `turn`, which puts the steps of the
/// rooms in order, and `engine`, the interface, have all of them.
pub fn too_wide(sources: &[Source]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for source in sources {
        let Some(room) = source.path.first().filter(|room| !["turn", "engine"].contains(&room.as_str())) else {
            continue;
        };
        *counts.entry(room.clone()).or_default() += count(&source.items);
    }
    counts.retain(|_, count| *count > 0);
    counts
}

/// Functions with more parameters than [`PARAMETERS`], `self` included.
#[derive(Default)]
struct Long(usize);

impl Visit<'_> for Long {
    fn visit_item(&mut self, item: &Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_signature(&mut self, signature: &Signature) {
        self.0 += usize::from(signature.inputs.len() > PARAMETERS);
    }
}

/// How many functions have more parameters than [`PARAMETERS`], `self` included.
pub fn too_long(sources: &[Source]) -> usize {
    let mut long = Long::default();
    sources.iter().flat_map(|source| &source.items).for_each(|item| long.visit_item(item));
    long.0
}

/// The rooms in the order of the table of docs/internals/rooms.md, whose text is `page`: the lowest first.
pub fn order(page: &str) -> Vec<String> {
    page.lines().filter_map(|line| Some(line.strip_prefix("| ")?.split_once("/ |")?.0.to_owned())).collect()
}

/// Files of rooms that import what is above them, by both names: a room above theirs, or what stands above all rooms.
/// The topmost room is one with that.
pub fn upward(sources: &[Source], order: &[String]) -> BTreeMap<String, usize> {
    let top = order.len().saturating_sub(1);
    let level = |room: &str| order.iter().position(|name| name == room).unwrap_or(top);
    let mut counts = BTreeMap::new();
    for (source, targets) in sources.iter().zip(imports::edges(sources, true)) {
        let Some(own) = source.path.first() else { continue };
        for room in targets.into_iter().filter_map(|target| sources[target].path.first()) {
            if level(room) > level(own) {
                *counts.entry(format!("{} {room}", source.path.join("/"))).or_default() += 1;
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_four_parts_or_of_the_whole_are_counted() {
        let text = "
            impl<P: Port> Core<P> { fn a(&mut self) {} fn b(now: Instant) {} }
            impl Net { fn c(&mut self, l: &mut Link<P>, o: &mut Connections<B>) {} }
            impl Net { fn d(&mut self, l: &mut Link<P>, o: &mut Connections<B>, r: &Rdma) {} }
            fn e(core: &mut Core<P>) {}
            mod inner { fn f(l: &Link<P>, n: &Net, r: &Rdma, s: &Streams) {} }
            #[cfg(test)] mod tests { fn g(core: &mut Core<P>) {} }";
        assert_eq!(count(&syn::parse_file(text).expect("Rust").items), 4);
    }

    #[test]
    fn functions_of_six_parameters_are_counted() {
        let text = "
            impl A { fn a(&self, b: u8, c: u8, d: u8, e: u8, f: u8) {} fn b(&self, b: u8, c: u8, d: u8, e: u8) {} }
            mod inner { fn f((a, b): (u8, u8), c: u8, d: u8, e: u8, f: u8, g: u8) {} }
            #[cfg(test)] mod tests { fn f(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8) {} }";
        let mut long = Long::default();
        syn::parse_file(text).expect("Rust").items.iter().for_each(|item| long.visit_item(item));
        assert_eq!(long.0, 2);
    }

    #[test]
    fn imports_of_rooms_above_are_found() {
        let source = |path: &str, text: &str| Source {
            path: path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            file: "".into(),
            text: text.to_owned(),
            items: syn::parse_file(text).expect("Rust").items,
        };
        let sources = [
            source("", "mod core; mod low; mod middle; mod high;"),
            source("core", "use crate::low::A;"),
            source("low", "mod file; pub struct A;"),
            source("low/file", "pub use crate::middle::B; fn f(core: &crate::core::C) {}"),
            source("middle", "use crate::low::A; pub struct B;"),
            source("high", "use crate::{core::C, middle::B};"),
        ];
        let order = order("| low/ | it |\n| middle/ | it |\n| high/ | it |\n");
        let expected = [("low/file core".to_owned(), 1), ("low/file middle".to_owned(), 1)];
        assert_eq!(upward(&sources, &order), expected.into());
    }
}
