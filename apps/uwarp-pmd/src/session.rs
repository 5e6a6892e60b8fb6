//! What the console does: ports, forwarding, faults and captures. Every command leads here or to [`crate::show`].

use crate::commands::{MODES, TOPOLOGIES};
use crate::device::{self, Plan};
use crate::forward::{Core, Mode, Running, Station};
use crate::frames::template;
use crate::line::Line;
use crate::ports::{Open, Slot};
use anyhow::{Context as _, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use uwarp_app::signals;
use uwarp_dpdk::Eal;
use uwarp_engine::ports::decorated::FaultRates;

/// What `set` changes, from the next `start` on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// One of [`MODES`].
    pub mode: &'static str,
    /// One of [`TOPOLOGIES`].
    pub topology: &'static str,
    /// Frames of a burst at most.
    pub burst: usize,
    /// Octets of the frames that txonly sends.
    pub length: usize,
    /// How many it sends by each port; 0: without end.
    pub count: u64,
    /// The CPU of the forwarding core, if one is named.
    pub cpu: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { mode: MODES[0], topology: TOPOLOGIES[0], burst: 32, length: 64, count: 0, cpu: None }
    }
}

/// The console's state.
pub struct Session {
    /// The ports.
    pub ports: Vec<Slot>,
    /// What `set` has said.
    pub settings: Settings,
    /// What forwarding runs with, while it does.
    pub running_with: Option<Settings>,
    running: Option<Running>,
    origin: Instant,
    /// DPDK.
    pub eal: Eal,
}

impl Session {
    /// Starts DPDK and opens the ports. Those come last that wait for a peer, which may be here.
    ///
    /// # Errors
    /// Why DPDK or a device cannot work.
    pub fn open(plans: Vec<Plan>, settings: Settings) -> anyhow::Result<Session> {
        let eal = Eal::init(&device::eal(&plans))?;
        let mut order: Vec<usize> = (0..plans.len()).collect();
        order.sort_by_key(|&port| plans[port].waits());
        let mut ports: Vec<Slot> = plans.into_iter().map(|plan| Slot { plan, open: None }).collect();
        for port in order {
            ports[port].open(&eal).with_context(|| format!("port {port}"))?;
        }
        Ok(Session { ports, settings, running_with: None, running: None, origin: Instant::now(), eal })
    }

    /// The open port of this number.
    ///
    /// # Errors
    /// It is stopped.
    pub fn port(&mut self, number: usize) -> anyhow::Result<&mut Open> {
        self.ports[number]
            .open
            .as_mut()
            .with_context(|| format!("port {number} is stopped: 'port start {number}' opens it"))
    }

    /// Whether frames are being forwarded.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Where each port's frames leave.
    pub fn exits(topology: &str, ports: usize) -> Vec<usize> {
        (0..ports)
            .map(|port| match topology {
                "chained" => (port + 1) % ports,
                "paired" if port ^ 1 < ports => port ^ 1,
                _ => port,
            })
            .collect()
    }

    /// Starts to forward. `bursts` are sent by each port first.
    ///
    /// # Errors
    /// It runs already, or a port is stopped or cannot send such frames.
    pub fn start(&mut self, bursts: u64) -> anyhow::Result<()> {
        ensure!(!self.is_running(), "forwarding runs already: 'stop' ends it");
        let settings = self.settings;
        let sends = bursts > 0 || settings.mode == "txonly";
        for number in 0..self.ports.len() {
            let most = self.port(number)?.port.capabilities().max_frame as usize;
            ensure!(
                !sends || settings.length <= most,
                "txpkts is {}, and port {number} sends {most} octets at most: 'set txpkts {most}'",
                settings.length
            );
        }
        let mut stations = Vec::new();
        for number in 0..self.ports.len() {
            let left = match settings.count {
                _ if settings.mode != "txonly" => bursts * settings.burst as u64,
                0 => u64::MAX,
                count => count,
            };
            self.simplify(number)?;
            let open = self.port(number)?;
            let line =
                open.line.take().with_context(|| format!("port {number} has lost its queue: 'port stop {number}'"))?;
            let frame = template(open.port.capabilities().mac, number, settings.length);
            stations.push(Station::new(number, line, Arc::clone(&open.counters), frame, left));
        }
        let mode = match settings.mode {
            "io" => Mode::Io,
            "macswap" => Mode::MacSwap,
            _ => Mode::Discard,
        };
        let exits = Self::exits(settings.topology, stations.len());
        self.resume(Core { mode, stations, exits, burst: settings.burst, cpu: settings.cpu })?;
        self.running_with = Some(settings);
        Ok(())
    }

    /// Stops to forward.
    ///
    /// # Errors
    /// Nothing runs.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let core = self.halt()?.context("nothing is forwarded: 'start' begins")?;
        self.running_with = None;
        self.take_back(core);
        Ok(())
    }

    /// Stops the core for a change, if it runs.
    fn halt(&mut self) -> anyhow::Result<Option<Core>> {
        self.running.take().map(Running::stop).transpose().inspect_err(|_| self.running_with = None)
    }

    /// Has it go on.
    fn resume(&mut self, core: Core) -> anyhow::Result<()> {
        match Running::start(&self.eal, core) {
            Ok(running) => {
                self.running = Some(running);
                Ok(())
            }
            Err((error, core)) => {
                self.running_with = None;
                if let Some(core) = core {
                    self.take_back(core);
                }
                Err(error)
            }
        }
    }

    fn take_back(&mut self, core: Core) {
        for station in core.stations {
            if let Some(open) = &mut self.ports[station.port].open {
                open.line = Some(station.line);
            }
        }
    }

    /// Makes a queue plain that needs no decorator any more.
    fn simplify(&mut self, number: usize) -> anyhow::Result<()> {
        let open = self.port(number)?;
        let is_bare = open.faults.is_none() && open.capture.is_none();
        if is_bare && open.line.as_ref().is_some_and(Line::is_idly_decorated) {
            open.line = None;
            open.line = open.port.take_queue(0).map(Line::Plain);
        }
        Ok(())
    }

    /// Changes a port's queue behind its decorator, while the core stands still.
    fn change<T>(&mut self, number: usize, work: impl FnOnce(&mut Line) -> T) -> anyhow::Result<T> {
        self.port(number)?;
        let mut core = self.halt()?;
        let origin = self.origin;
        let changed = |line: Line| {
            let mut line = line.decorated(origin);
            let result = work(&mut line);
            (line, result)
        };
        let result = match &mut core {
            Some(core) => {
                // Every port is in it.
                let mut station = core.stations.remove(number);
                let (line, result) = changed(station.line);
                station.line = line;
                core.stations.insert(number, station);
                result
            }
            None => {
                let open = self.port(number)?;
                let line = open
                    .line
                    .take()
                    .with_context(|| format!("port {number} has lost its queue: 'port stop {number}'"))?;
                let (line, result) = changed(line);
                open.line = Some(line);
                result
            }
        };
        if let Some(core) = core {
            self.resume(core)?;
        }
        Ok(result)
    }

    /// Sets the faults of a port, or ends them.
    ///
    /// # Errors
    /// The port is stopped.
    pub fn set_faults(&mut self, number: usize, rates: Option<FaultRates>) -> anyhow::Result<()> {
        if rates.is_none() && self.port(number)?.faults.is_none() {
            return Ok(());
        }
        self.change(number, |line| line.set_faults(rates))?;
        self.port(number)?.faults = rates;
        Ok(())
    }

    /// The faults of a port so far, by kind.
    ///
    /// # Errors
    /// The port is stopped.
    pub fn fault_counts(&mut self, number: usize) -> anyhow::Result<BTreeMap<String, u64>> {
        match self.port(number)?.faults {
            Some(_) => self.change(number, |line| line.fault_counts()),
            None => Ok(BTreeMap::new()),
        }
    }

    /// Writes the frames of these ports to files; returns their names.
    ///
    /// # Errors
    /// A port is stopped, or a file cannot be written.
    pub fn start_capture(&mut self, file: &Path, ports: &[usize]) -> anyhow::Result<Vec<(usize, PathBuf)>> {
        for &number in ports {
            self.port(number)?;
        }
        let mut files = Vec::new();
        for &number in ports {
            let own = if ports.len() == 1 { file.to_owned() } else { numbered(file, number) };
            self.change(number, |line| line.start_capture(&own))??;
            self.port(number)?.capture = Some(own.clone());
            files.push((number, own));
        }
        Ok(files)
    }

    /// Ends all captures; returns their files.
    ///
    /// # Errors
    /// The forwarding core has failed.
    pub fn stop_captures(&mut self) -> anyhow::Result<Vec<(usize, PathBuf)>> {
        let mut files = Vec::new();
        for number in 0..self.ports.len() {
            let file = self.ports[number].open.as_mut().and_then(|open| open.capture.take());
            if let Some(file) = file {
                self.change(number, Line::stop_capture)?;
                files.push((number, file));
            }
        }
        Ok(files)
    }

    /// Closes ports.
    ///
    /// # Errors
    /// They are being forwarded, or one is closed.
    pub fn close(&mut self, ports: &[usize]) -> anyhow::Result<()> {
        ensure!(!self.is_running(), "frames are forwarded: 'stop' first");
        for &number in ports {
            self.port(number)?;
        }
        for &number in ports {
            self.ports[number].open = None;
        }
        Ok(())
    }

    /// Opens ports. Ctrl-C ends the console meanwhile: opening may wait for a peer.
    ///
    /// # Errors
    /// One is open, or cannot be opened.
    pub fn reopen(&mut self, ports: &[usize]) -> anyhow::Result<()> {
        let mut order: Vec<usize> = ports.iter().copied().filter(|&port| self.ports[port].open.is_none()).collect();
        ensure!(!order.is_empty(), "what is to be started runs already: 'port stop' first");
        order.sort_by_key(|&port| self.ports[port].plan.waits());
        for number in order {
            let opened = signals::at_once(|| self.ports[number].open(&self.eal));
            opened.with_context(|| format!("port {number}"))?;
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Its thread uses the ports.
        if let Ok(Some(core)) = self.halt() {
            self.take_back(core);
        }
    }
}

/// A file's name with a port's number behind it, in front of its extension.
fn numbered(file: &Path, port: usize) -> PathBuf {
    let mut name = file.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{port}"));
    if let Some(extension) = file.extension() {
        name.push(".");
        name.push(extension);
    }
    file.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_as_the_topology_says() {
        assert_eq!(Session::exits("paired", 4), [1, 0, 3, 2]);
        assert_eq!(Session::exits("paired", 3), [1, 0, 2]);
        assert_eq!(Session::exits("paired", 1), [0]);
        assert_eq!(Session::exits("chained", 3), [1, 2, 0]);
        assert_eq!(Session::exits("loop", 2), [0, 1]);
    }

    #[test]
    fn a_file_gets_the_number_of_its_port() {
        assert_eq!(numbered(Path::new("/tmp/a.b.pcapng"), 1), Path::new("/tmp/a.b-1.pcapng"));
        assert_eq!(numbered(Path::new("all"), 0), Path::new("all-0"));
    }
}
