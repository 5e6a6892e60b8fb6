//! Segments that nftables drops: at random on a router, or everything that the kernel sends.

use std::process::{Command, Stdio};
use std::thread;

use uwarp_netns::Namespace;

/// A table of nftables in a namespace, which drops; removed on drop.
pub struct Drops<'a>(Option<&'a Namespace>);

impl<'a> Drops<'a> {
    const TABLE: [&'static str; 2] = ["inet", "uwarp"];

    fn new(namespace: Option<&'a Namespace>, hook: &str, rule: &str) -> Self {
        let drops = Drops(namespace);
        let table = Self::TABLE.join(" ");
        drops.nft(&format!("add table {table}"));
        drops.nft(&format!("add chain {table} drops {{ type filter hook {hook} priority 0; }}"));
        drops.nft(&format!("add rule {table} drops meta l4proto tcp {rule} counter drop"));
        drops
    }

    /// Drops `permille` of every 1000 forwarded segments.
    pub fn in_forwarding(router: &'a Namespace, permille: u32) -> Self {
        Drops::new(Some(router), "forward", &format!("numgen random mod 1000 < {permille}"))
    }

    /// Drops everything that the kernel of this process's namespace would answer to a SYN.
    pub fn answers_to_a_syn() -> Drops<'static> {
        Drops::new(None, "output", "tcp flags & (syn | ack) == syn | ack")
    }

    /// Of all that it says.
    pub fn of_the_kernel() -> Drops<'static> {
        Drops::new(None, "output", "")
    }

    fn nft(&self, command: &str) -> String {
        let mut program = self.0.map_or_else(|| Command::new("nft"), |namespace| namespace.command("nft"));
        let output =
            program.arg(command).stdin(Stdio::null()).output().expect("nft is there (apt-get install nftables)");
        assert!(output.status.success(), "nft {command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Segments dropped.
    pub fn count(&self) -> u64 {
        let text = self.nft(&format!("list table {}", Self::TABLE.join(" ")));
        let (_, behind) = text.split_once("counter packets ").expect("a counter");
        behind.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    }
}

impl Drop for Drops<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.nft(&format!("delete table {}", Self::TABLE.join(" ")));
        }
    }
}
