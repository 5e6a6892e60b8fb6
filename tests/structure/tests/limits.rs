//! The tables of docs/limits.md, with each value as the code has it. `UWARP_TABLES=write cargo nextest run -p
//! uwarp-structure-tests --test limits` writes them anew.

use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, Member};
use uwarp_structure_tests::is_test;

/// A limit: its name, its value, up to how much it can be set, by what, and what happens beyond it.
struct Row(&'static str, Value, Option<Place>, &'static str, &'static str);

/// Where a value is, and in what it counts.
enum Value {
    Count(Place),
    Octets(Place),
    Time(Place),
}

/// A value in a source, named from the tree's root.
#[derive(Clone, Copy)]
enum Place {
    /// An expression of the source's constants.
    Constants(&'static str, &'static str),
    /// A field where a struct of this name is made.
    Field(&'static str, &'static str, &'static str),
    /// The last value of a tuple that begins with this text, unless it is a comparison: of a list of settings, the most
    /// that each may be.
    Setting(&'static str, &'static str),
    /// The end of a range that is asked whether it contains a field of this name.
    Range(&'static str, &'static str),
}
use Place::{Constants, Field, Range, Setting};
use Value::{Count, Octets, Time};

const OPTIONS: &str = "stack/verbs/src/config/options.rs";
const CONFIG: &str = "stack/verbs/src/config/mod.rs";
const WORK: &str = "stack/engine/src/api/work.rs";
const DEVICE: &str = "stack/verbs-abi/src/verbs/attributes.rs";
const CONTEXT: &str = "stack/verbs-abi/src/verbs/context.rs";
const PORTS: &str = "apps/uwarp-switch/src/core/ports.rs";

/// A default of the table `[limits]`.
const fn limit(field: &'static str) -> Place {
    Field(OPTIONS, "Limits", field)
}

/// The most that a setting of the table `[limits]` may be.
const fn most(name: &'static str) -> Option<Place> {
    Some(Setting(CONFIG, name))
}

/// The tables, each below its heading.
fn tables() -> Vec<(&'static str, Vec<Row>)> {
    let fails = "The call fails with ENOMEM, and its error names the setting";
    let depth = "Creating the queue fails";
    vec![
        (
            "A program",
            vec![
                Row("queue pairs", Count(limit("queue_pairs")), most("queue-pairs"), "`limits.queue-pairs`", fails),
                Row(
                    "queue pairs under `uwarp-run --roce`, even if the setting is larger",
                    Count(Constants(CONTEXT, "1 << NUMBER_BITS")),
                    None,
                    "fixed",
                    fails,
                ),
                Row(
                    "completion queues",
                    Count(limit("completion_queues")),
                    most("completion-queues"),
                    "`limits.completion-queues`",
                    fails,
                ),
                Row(
                    "elements of all completion queues",
                    Count(limit("completion_entries")),
                    most("completion-entries"),
                    "`limits.completion-entries`",
                    fails,
                ),
                Row(
                    "memory regions and windows; a program of libibverbs may have a quarter of them as windows",
                    Count(limit("regions")),
                    Some(Constants("stack/memory/src/table.rs", "MAX_SLOTS")),
                    "`limits.regions`",
                    "The call fails; its error says how many are in use",
                ),
                Row(
                    "registered memory",
                    Octets(limit("registered_octets")),
                    None,
                    "`limits.registered-octets`",
                    "Registration fails; its error has the limit",
                ),
                Row(
                    "engines, each with a queue of the device",
                    Count(Field(OPTIONS, "EngineOptions", "count")),
                    Some(Range(CONFIG, "count")),
                    "`engine.count`",
                    "The configuration is refused. A program on a switch has one",
                ),
            ],
        ),
        (
            "A queue pair and its messages",
            vec![
                Row(
                    "depth of a work queue",
                    Count(limit("queue_depth")),
                    most("queue-depth"),
                    "`limits.queue-depth`",
                    depth,
                ),
                Row(
                    "depth of a completion queue",
                    Count(limit("completion_depth")),
                    most("completion-depth"),
                    "`limits.completion-depth`",
                    depth,
                ),
                Row(
                    "entries of a sent message",
                    Count(Constants(WORK, "MAX_SEND_ENTRIES")),
                    None,
                    "fixed",
                    "Posting fails. libibverbs allows as many for receives",
                ),
                Row(
                    "entries of a receive",
                    Count(Constants(WORK, "MAX_RECEIVE_ENTRIES")),
                    None,
                    "fixed",
                    "Posting fails",
                ),
                Row("inline data", Octets(Constants(WORK, "MAX_INLINE")), None, "fixed", "Posting fails"),
                Row(
                    "a message of a program of libibverbs",
                    Octets(Field(DEVICE, "ibv_port_attr", "max_msg_sz")),
                    None,
                    "fixed",
                    "Not promised. A program of the crate may send 2^32 − 1 octets",
                ),
                Row(
                    "Reads and atomics under way to a peer, in libibverbs",
                    Count(Constants(CONTEXT, "MOST_READS")),
                    None,
                    "fixed",
                    "Further ones wait in the send queue",
                ),
                Row(
                    "private data of a connection",
                    Octets(Constants("stack/verbs/src/rdma/connection.rs", "MAX_PRIVATE_DATA")),
                    None,
                    "fixed",
                    "The call fails with EINVAL",
                ),
                Row(
                    "time that a message waits for a receive, in libibverbs (none in the crate)",
                    Time(Constants("stack/verbs-abi/src/process.rs", "RECEIVE_WAIT")),
                    None,
                    "`limits.receive-wait`",
                    "The connection ends with a Terminate",
                ),
                Row(
                    "MTU",
                    Octets(Constants(CONFIG, "default_mtu")),
                    Some(Constants(CONFIG, "MTU_MAX")),
                    "`mtu`",
                    "The configuration is refused",
                ),
            ],
        ),
        (
            "Memory and the network, for each engine",
            vec![
                Row(
                    "memory that DPDK takes for the process, in MiB",
                    Count(Field("stack/dpdk/src/eal.rs", "EalConfig", "memory_mib")),
                    None,
                    "`eal.memory-mib`",
                    "Opening fails if buffers and queues do not fit",
                ),
                Row(
                    "buffers for received packets",
                    Count(Field(OPTIONS, "Buffers", "receive")),
                    None,
                    "`buffers.receive`",
                    "Frames are dropped, and TCP sends them again",
                ),
                Row(
                    "buffers for sent packets, held until acknowledged",
                    Count(Field(OPTIONS, "Buffers", "transmit")),
                    None,
                    "`buffers.transmit`",
                    "Connections wait for their [share](../SECURITY.md#what-one-peer-can-still-do-to-others)",
                ),
                Row(
                    "connections that wait in a listener",
                    Count(limit("backlog")),
                    most("backlog"),
                    "`limits.backlog`",
                    "The SYN is dropped and counted: `backlog-full`",
                ),
                Row(
                    "hosts in the neighbour table",
                    Count(limit("neighbours")),
                    most("neighbours"),
                    "`limits.neighbours`",
                    "The oldest goes",
                ),
                Row(
                    "incomplete FPDUs",
                    Octets(limit("gather_octets")),
                    most("gather-octets"),
                    "`limits.gather-octets`",
                    "The stream ends that has waited longest",
                ),
                Row(
                    "incomplete IP packets",
                    Octets(limit("reassembly_octets")),
                    most("reassembly-octets"),
                    "`limits.reassembly-octets`",
                    "The oldest goes",
                ),
            ],
        ),
        (
            "A switch",
            vec![
                Row(
                    "clients",
                    Count(Constants("apps/uwarp-switch/src/core/places.rs", "MAX_CLIENTS")),
                    None,
                    "fixed",
                    "One more is refused",
                ),
                Row(
                    "a client's own ports, with few clients, so connections to one port of a peer",
                    Count(Constants(PORTS, "MOST_BLOCK")),
                    None,
                    "fixed",
                    "Connecting fails with EADDRNOTAVAIL",
                ),
                Row(
                    "the same for a client that comes when there are 53 others or more",
                    Count(Constants(PORTS, "LEAST_BLOCK")),
                    None,
                    "fixed",
                    "the same",
                ),
                Row(
                    "ports on which a client listens, or that it binds",
                    Count(Constants(PORTS, "MAX_RESERVED")),
                    None,
                    "fixed",
                    "Listening fails with EADDRNOTAVAIL",
                ),
                Row(
                    "network namespaces, the switch's own among them",
                    Count(Constants("apps/uwarp-switch/src/core/networks.rs", "MAX_NETWORKS")),
                    None,
                    "fixed",
                    "A program of one more is refused",
                ),
                Row(
                    "addresses of all networks together",
                    Count(Constants("apps/uwarp-switch/src/core/networks.rs", "MAX_ADDRESSES")),
                    None,
                    "fixed",
                    "The log names those of the host that are left out; a program that would bring more is refused",
                ),
                Row(
                    "a client's connections whose peers hear of its death at once",
                    Count(Constants("apps/uwarp-switch/src/core/flows.rs", "MAX_FLOWS")),
                    None,
                    "fixed",
                    "A further peer may notice only by its keep-alive",
                ),
                Row(
                    "pairs of clients that have memory between them",
                    Count(Constants("apps/uwarp-switch/src/daemon/control.rs", "MAX_CABLES")),
                    None,
                    "fixed",
                    "The frames of further pairs go by the switch",
                ),
                Row(
                    "memory between two clients that talk to each other, one direction",
                    Octets(Constants("stack/ring/src/cable/lane.rs", "OCTETS")),
                    None,
                    "fixed",
                    "Frames wait in the sender",
                ),
            ],
        ),
    ]
}

/// Looks for a place in a source.
struct Search<'ast> {
    place: Place,
    /// The type whose `impl` is looked at.
    owner: String,
    found: Vec<&'ast Expr>,
}

impl<'ast> Visit<'ast> for Search<'ast> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let syn::Type::Path(path) = &*item.self_ty {
            self.owner = path.path.segments.last().expect("a name").ident.to_string();
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_expr_struct(&mut self, item: &'ast syn::ExprStruct) {
        if let Field(_, owner, name) = self.place {
            let made = item.path.segments.last().expect("a name").ident.to_string();
            let is_it = owner == if made == "Self" { &self.owner } else { &made };
            let is_field = |member: &Member| matches!(member, Member::Named(ident) if ident == name);
            let fields = item.fields.iter().filter(|field| is_it && is_field(&field.member));
            self.found.extend(fields.map(|field| &field.expr));
        }
        visit::visit_expr_struct(self, item);
    }

    fn visit_expr_tuple(&mut self, item: &'ast syn::ExprTuple) {
        let is_comparison =
            |value: &&Expr| matches!(value, Expr::Binary(binary) if matches!(binary.op, syn::BinOp::Ne(_)));
        if let (Setting(_, name), Some(Expr::Lit(first))) = (self.place, item.elems.first())
            && matches!(&first.lit, Lit::Str(text) if text.value() == name)
        {
            self.found.extend(item.elems.last().filter(|value| !is_comparison(value)));
        }
        visit::visit_expr_tuple(self, item);
    }

    fn visit_expr_method_call(&mut self, item: &'ast syn::ExprMethodCall) {
        if let (Range(_, name), Expr::Paren(paren)) = (self.place, &*item.receiver)
            && let (Expr::Range(range), Some(Expr::Reference(asked))) = (&*paren.expr, item.args.first())
            && matches!(&*asked.expr, Expr::Field(field) if matches!(&field.member, Member::Named(it) if it == name))
        {
            self.found.extend(range.end.as_deref());
        }
        visit::visit_expr_method_call(self, item);
    }
}

/// A source, to look for constants in.
struct Source {
    name: &'static str,
    file: syn::File,
}

impl Source {
    fn read(name: &'static str) -> Self {
        let text = std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name, file: syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}")) }
    }

    /// What a constant is, or what a function without parameters gives.
    fn constant(&self, name: &str) -> &Expr {
        struct Constant<'a, 'ast>(&'a str, Option<&'ast Expr>);
        impl<'ast> Visit<'ast> for Constant<'_, 'ast> {
            fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
                if item.ident == self.0 {
                    self.1 = Some(&item.expr);
                }
            }
            fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
                if item.ident == self.0 {
                    self.1 = Some(&item.expr);
                }
            }
            fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
                if let (true, [syn::Stmt::Expr(expr, None)]) = (item.sig.ident == self.0, &item.block.stmts[..]) {
                    self.1 = Some(expr);
                }
            }
        }
        let mut search = Constant(name, None);
        search.visit_file(&self.file);
        search.1.unwrap_or_else(|| panic!("{} has no constant {name}", self.name))
    }

    /// The value of an expression; of a `Duration`, in milliseconds.
    fn evaluate(&self, expr: &Expr) -> u128 {
        match expr {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(value) => value.base10_parse().expect("a number"),
                _ => panic!("{}: no number", self.name),
            },
            Expr::Paren(paren) => self.evaluate(&paren.expr),
            Expr::Cast(cast) => self.evaluate(&cast.expr),
            Expr::Binary(binary) => {
                let (left, right) = (self.evaluate(&binary.left), self.evaluate(&binary.right));
                match binary.op {
                    BinOp::Add(_) => left + right,
                    BinOp::Sub(_) => left - right,
                    BinOp::Mul(_) => left * right,
                    BinOp::Shl(_) => left << right,
                    _ => panic!("{}: an operator that this test does not know", self.name),
                }
            }
            Expr::Call(call) => match (&*call.func, call.args.first()) {
                (Expr::Path(path), Some(argument))
                    if path.path.segments.last().expect("a name").ident == "from_secs" =>
                {
                    self.evaluate(argument) * 1000
                }
                _ => panic!("{}: a call that this test does not know", self.name),
            },
            Expr::Path(path) => {
                self.evaluate(self.constant(&path.path.segments.last().expect("a name").ident.to_string()))
            }
            _ => panic!("{}: an expression that this test does not know", self.name),
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn value(place: Place) -> u128 {
    let (Constants(name, _) | Field(name, ..) | Setting(name, _) | Range(name, _)) = place;
    let source = Source::read(name);
    if let Constants(_, expression) = place {
        return source.evaluate(&syn::parse_str(expression).expect("an expression"));
    }
    let mut search = Search { place, owner: String::new(), found: Vec::new() };
    search.visit_file(&source.file);
    assert_eq!(search.found.len(), 1, "{name} has not one value of this kind: {}", describe(place));
    source.evaluate(search.found[0])
}

fn describe(place: Place) -> String {
    match place {
        Field(_, owner, field) => format!("{owner}.{field}"),
        Constants(_, name) | Setting(_, name) | Range(_, name) => name.to_owned(),
    }
}

/// A number with commas between thousands.
fn commas(number: u128) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(",")
}

/// Octets in the largest unit that leaves a whole number, from KiB on.
fn octets(number: u128) -> String {
    let unit = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")]
        .into_iter()
        .find(|(shift, _)| number >= 1 << shift && number.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{} octets", commas(number)), |(shift, unit)| format!("{} {unit}", number >> shift))
}

fn rows(rows: &[Row]) -> String {
    let mut text = "| limit | value | at most | set by | beyond it |\n|---|---|---|---|---|\n".to_owned();
    for Row(name, at, most, set_by, beyond) in rows {
        let (place, written): (&Place, fn(u128) -> String) = match at {
            Count(place) => (place, commas),
            Octets(place) => (place, octets),
            Time(place) => (place, |milliseconds| format!("{} s", milliseconds / 1000)),
        };
        let most = most.map_or_else(String::new, |most| written(value(most)));
        text += &format!("| {name} | {} | {most} | {set_by} | {beyond} |\n", written(value(*place)));
    }
    text
}

#[test]
fn the_page_of_limits_has_the_values_of_the_code() {
    let (begin, end) = ("<!-- from the code -->\n", "<!-- to here -->");
    let path = root().join("docs/limits.md");
    let page = std::fs::read_to_string(&path).expect("the page of limits");
    let (head, rest) = page.split_once(begin).expect("where the tables begin");
    let (shown, tail) = rest.split_once(end).expect("where the tables end");
    let parts = tables().into_iter().map(|(heading, list)| format!("\n## {heading}\n\n{}", rows(&list)));
    let tables = parts.collect::<String>() + "\n";
    if std::env::var_os("UWARP_TABLES").is_some_and(|value| value == "write") {
        std::fs::write(&path, format!("{head}{begin}{tables}{end}{tail}")).expect("the page can be written");
    } else {
        assert!(
            shown == tables,
            "docs/limits.md differs; see the head of this file\nis:\n{shown}\nshould be:\n{tables}"
        );
    }
}

#[test]
fn values_are_written_as_people_read_them() {
    assert_eq!([commas(7), commas(1024), commas(1_048_576)], ["7", "1,024", "1,048,576"]);
    assert_eq!([octets(508), octets(512 << 10), octets(1 << 40)], ["508 octets", "512 KiB", "1 TiB"]);
}
