//! perftest over rdma_cm, on uwarp's libraries.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use uwarp::switch::SWITCH_VARIABLE;

use super::{End, PATIENCE, Place, Ready, listeners};
use crate::kernel::{CLIENT_ADDRESS, SERVER_ADDRESS};

/// Its package.
pub const PACKAGE: &str = "perftest";

/// uwarp's libibverbs and librdmacm, and what is between a server and a client.
pub struct DropIn {
    libraries: PathBuf,
    between: Between,
}

enum Between {
    /// A device of the two: its socket, and the configuration of each end.
    Device(PathBuf, [PathBuf; 2]),
    /// A switch: what `uwarp-run` gives a program.
    Switch(Switch),
}

/// A switch that runs; killed when dropped.
struct Switch {
    process: Child,
    socket: PathBuf,
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl DropIn {
    /// Starts a switch with its socket in `folder`. Its addresses are those of the kernel in both namespaces, because
    /// libfabric uses both.
    ///
    /// # Errors
    /// There is no `uwarp-switch` beside this program, or it does not start.
    pub fn on_switch(libraries: &Path, folder: &Path) -> anyhow::Result<Self> {
        let (program, socket) = (std::env::current_exe()?.with_file_name("uwarp-switch"), folder.join("switch.sock"));
        let mut command = Command::new(&program);
        command.arg("serve").arg("--socket").arg(&socket).stdin(Stdio::null()).stdout(Stdio::null());
        for address in [SERVER_ADDRESS, CLIENT_ADDRESS] {
            command.args(["--address", &format!("{address}/24")]);
        }
        let process = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let switch = Switch { process, socket };
        let start = Instant::now();
        while listeners(&switch.socket).is_none() {
            ensure!(start.elapsed() < PATIENCE, "{} does not serve", program.display());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Ok(Self { libraries: libraries.to_owned(), between: Between::Switch(switch) })
    }

    /// Writes the configuration files of a private device into `folder`. The device is that of `uwarp-perf pair`; its
    /// addresses are those of the kernel in the same namespaces, because libfabric uses both.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn new(libraries: &Path, folder: &Path) -> anyhow::Result<Self> {
        let socket = folder.join("pair.sock");
        let ends = [
            ("server.toml", SERVER_ADDRESS, "kind = \"vhost\""),
            ("client.toml", CLIENT_ADDRESS, "kind = \"virtio-user\"\npacked = true"),
        ];
        let write = |(name, address, device): (&str, &str, &str)| {
            let path = folder.join(name);
            let socket = socket.display();
            let text = format!("address = \"{address}/24\"\n[device]\n{device}\nsocket = \"{socket}\"\n");
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            anyhow::Ok(path)
        };
        let [server, client] = ends.map(write);
        let between = Between::Device(socket, [server?, client?]);
        Ok(Self { libraries: libraries.to_owned(), between })
    }

    /// A program at one end: 0 is the server's.
    pub fn adapt(&self, end: End, side: usize) -> End {
        let end = end.with("LD_LIBRARY_PATH", self.libraries.display().to_string());
        match &self.between {
            Between::Device(_, configurations) => end.with("UWARP_CONFIG", configurations[side].display().to_string()),
            Between::Switch(switch) => end.with(SWITCH_VARIABLE, switch.socket.display().to_string()),
        }
    }

    /// Removes what an earlier server has left of the device.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove_socket(&self) -> std::io::Result<()> {
        match &self.between {
            Between::Device(socket, _) => super::remove(socket),
            Between::Switch(_) => Ok(()),
        }
    }

    /// Runs one of perftest's tools at both ends; what the client printed.
    fn run(&self, place: &Place<'_>, tool: &str, size: u64, count: u64) -> anyhow::Result<String> {
        let (size, count) = (size.to_string(), count.to_string());
        let mut server = vec![tool, "-R", "-F", "-s", &size, "-n", &count];
        if tool.ends_with("_bw") {
            server.push("--report_gbits");
        }
        let client = [&server[..], &[SERVER_ADDRESS]].concat();
        // The device opens when the server begins to listen, and a client takes longer to start than a server to do
        // that.
        let ready = match &self.between {
            Between::Device(socket, _) => Ready::File(socket),
            Between::Switch(switch) => Ready::Listener(&switch.socket),
        };
        place.pair(&self.adapt(End::new(&server), 0), &self.adapt(End::new(&client), 1), ready)
    }

    /// The round trip of one of perftest's latency tools.
    ///
    /// # Errors
    /// The program fails, or prints something unknown.
    pub fn latency(&self, place: &Place<'_>, tool: &str, size: u64, count: u64) -> anyhow::Result<RoundTrip> {
        let printed = self.run(place, tool, size, count)?;
        parse_latency(&printed).with_context(|| format!("{tool} printed no result: {}", printed.trim()))
    }

    /// The payload in Gbit/s of one of perftest's bandwidth tools.
    ///
    /// # Errors
    /// The program fails, or prints something unknown.
    pub fn bandwidth(&self, place: &Place<'_>, tool: &str, size: u64, count: u64) -> anyhow::Result<f64> {
        let printed = self.run(place, tool, size, count)?;
        parse_bandwidth(&printed).with_context(|| format!("{tool} printed no result: {}", printed.trim()))
    }
}

/// How much longer a bandwidth tool runs than uwarp's own. It counts from the first Write on: TCP's slow start and the
/// first use of every buffer, some 20 ms, which uwarp's tools leave out as warm-up.
pub const LONGER_BANDWIDTH: u32 = 4;

/// A latency: full round trips in nanoseconds.
#[derive(Debug, PartialEq)]
pub struct RoundTrip {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
}

/// The columns below the line that begins with `#bytes`: their names contain blanks, but each ends with its unit in
/// brackets, or has none and no blank.
fn columns(printed: &str) -> Option<(&str, Vec<f64>)> {
    let mut lines = printed.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let header = lines.next()?;
    let values = lines.next()?.split_whitespace().map(|field| field.parse().ok()).collect::<Option<_>>()?;
    Some((header, values))
}

fn parse_latency(printed: &str) -> Option<RoundTrip> {
    let (header, values) = columns(printed)?;
    // Otherwise this is another version, or a run by time, which has an average only.
    let names =
        ["#iterations", "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "99% percentile", "99.9% percentile"];
    let mut rest = header;
    for name in names {
        rest = rest.split_once(name)?.1;
    }
    // Half a round trip, in microseconds.
    let at = |column: usize| values.get(column).map(|value| value * 2e3);
    Some(RoundTrip { p50: at(4)?, p99: at(7)?, p99_9: at(8)? })
}

fn parse_bandwidth(printed: &str) -> Option<f64> {
    let (header, values) = columns(printed)?;
    header.split_once("BW peak[Gb/sec]")?.1.split_once("BW average[Gb/sec]")?;
    values.get(3).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_twice_the_half_round_trips() {
        let printed = include_str!("../../tests/data/ib_send_lat.txt");
        let found = parse_latency(printed).expect("a result");
        let line = printed.lines().find(|line| line.trim_start().starts_with("64 ")).expect("the result's line");
        // Octets, iterations, shortest, longest, typical, average, deviation, 99 %, 99.9 %.
        let fields: Vec<f64> = line.split_whitespace().map(|field| field.parse().expect("a number")).collect();
        assert_eq!([found.p50, found.p99, found.p99_9], [fields[4], fields[7], fields[8]].map(|half| half * 2e3));
    }

    #[test]
    fn bandwidth_is_the_average_and_not_the_peak() {
        let printed = include_str!("../../tests/data/ib_write_bw.txt");
        let line = printed.lines().find(|line| line.trim_start().starts_with("65536 ")).expect("the result's line");
        // Octets, iterations, peak, average, message rate.
        let average = line.split_whitespace().nth(3).and_then(|field| field.parse().ok());
        assert!(average.is_some());
        assert_eq!(parse_bandwidth(printed), average);
    }

    #[test]
    fn another_unit_or_another_kind_of_run_has_no_result() {
        let megabytes = include_str!("../../tests/data/ib_write_bw.txt").replace("Gb/sec", "MB/sec");
        assert_eq!(parse_bandwidth(&megabytes), None);
        let by_time = " #bytes        #iterations       t_avg[usec]    tps average\n 64            10000         2.34           1000.00\n";
        assert_eq!(parse_latency(by_time), None);
        assert_eq!(parse_latency("Unable to init the socket connection"), None);
    }
}
