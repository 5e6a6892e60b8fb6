//! Shows what this machine offers to uwarp: drivers, devices, memory, the kernels chosen for this CPU, and what is
//! missing.
#![forbid(unsafe_code)]

mod machine;

use clap::Parser;
use machine::Machine;
use std::path::PathBuf;
use std::process::ExitCode;
use uwarp_app::output;
use uwarp_app::units::format_size;

const EXAMPLES: &str = "\
Examples:
  uwarp-info               what is here, and what is missing for which device
  uwarp-info --json -      the same for scripts
  uwarp-info --defaults    a configuration file with every default";

/// Shows which devices and drivers uwarp can use here, its limits, and what is missing for what.
#[derive(Parser)]
#[command(name = "uwarp-info", version, after_help = EXAMPLES, max_term_width = 110)]
struct Arguments {
    /// Write JSON to this file (- for standard output) instead of the tables
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Print a configuration file with every default; fields that have no value by default are not in it
    #[arg(long, conflicts_with = "json")]
    defaults: bool,
}

fn main() -> ExitCode {
    uwarp_app::run::<Arguments>(|arguments| {
        if arguments.defaults {
            let flags = uwarp_app::NetworkFlags::default();
            let config = flags.resolve(uwarp_app::Role::Server, uwarp::config::EngineMode::Threaded)?;
            output::print(config.to_toml()?);
            return Ok(());
        }
        let machine = Machine::look();
        match arguments.json.as_deref() {
            Some(path) => output::write_json(path, &machine),
            None => {
                show(&machine);
                Ok(())
            }
        }
    })
}

fn show(machine: &Machine) {
    let mut table = output::table(["this machine", ""]);
    table.add_row(["uwarp", &machine.version]);
    table.add_row(["CPUs", &machine.cpus.to_string()]);
    table.add_row(["CRC32C and copy kernel", &machine.crc_kernel]);
    table.add_row([
        "hugepages",
        &machine
            .hugepages
            .iter()
            .map(|pool| format!("{} of {} free, {} each", pool.free, pool.total, format_size(pool.size)))
            .collect::<Vec<_>>()
            .join("; "),
    ]);
    table.add_row(["locked memory", &machine.locked_memory_limit.map_or_else(|| "no limit".to_owned(), format_size)]);
    table.add_row(["DPDK drivers", &wrap(&machine.drivers, 72)]);
    output::print(table);

    let mut table = output::table(["device", "driver", "works", "what is missing"]);
    for device in &machine.devices {
        table.add_row([
            device.kind.as_str(),
            &device.driver,
            if device.missing.is_empty() { "yes" } else { "no" },
            &device.missing.join("\n"),
        ]);
    }
    output::print(table);

    if !machine.nics.is_empty() {
        let mut table = output::table(["PCI network device", "kernel driver", "interface"]);
        for nic in &machine.nics {
            table.add_row([nic.address.as_str(), nic.driver.as_deref().unwrap_or("none"), &nic.interfaces.join(", ")]);
        }
        output::print(table);
    }

    let mut table = output::table(["limit of a context by default", ""]);
    for (name, value) in &machine.limits {
        table.add_row([name.as_str(), &value.to_string()]);
    }
    output::align_numbers(&mut table, 1);
    output::print(table);

    if !machine.processes.is_empty() {
        output::print(format!("running, see uwarp-stat: {}", machine.processes.join(", ")));
    }
}

/// Joins words with spaces into lines of at most `width` characters.
fn wrap(words: &[String], width: usize) -> String {
    let mut text = String::new();
    let mut line = 0;
    for word in words {
        if line > 0 && line + 1 + word.len() > width {
            text.push('\n');
            line = 0;
        } else if line > 0 {
            text.push(' ');
            line += 1;
        }
        text.push_str(word);
        line += word.len();
    }
    text
}
