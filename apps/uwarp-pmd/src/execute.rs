//! Carries out one command.

use crate::commands::{FORMS, Verb};
use crate::grammar::{Value, quoted, read};
use crate::reply::Reply;
use crate::session::Session;
use crate::show;
use anyhow::{anyhow, bail, ensure};
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};
use uwarp_app::signals;
use uwarp_engine::ports::decorated::{FaultRates, Rates};

/// How often somebody who waits looks again.
const GLANCE: Duration = Duration::from_millis(2);
/// Columns of the help.
const COLUMNS: usize = 79;
/// How long `wait` waits unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether the console goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    On,
    /// It ends.
    Quit,
}

/// Carries out the command of these words, of which there is one at least. `answer` gets each result.
///
/// # Errors
/// The command is none, or it fails. [`Interrupted`]: Ctrl-C has ended it.
pub fn execute(session: &mut Session, words: &[String], answer: &mut dyn FnMut(&Reply)) -> anyhow::Result<Flow> {
    let (verb, values) = read(FORMS, words, session.ports.len()).map_err(|error| anyhow!(error))?;
    match verb {
        Verb::Quit => return Ok(Flow::Quit),
        Verb::ShowStatistics | Verb::ShowExtended | Verb::ShowRates | Verb::ShowDrops | Verb::ShowFaults => {
            repeat(session, verb, &values, answer)?
        }
        _ => answer(&once(session, verb, &values)?),
    }
    Ok(Flow::On)
}

/// Ctrl-C has ended a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Waits until a time has come, or until `is_done` says so. Returns whether that did.
fn wait(until: Instant, mut is_done: impl FnMut() -> bool) -> anyhow::Result<bool> {
    loop {
        if signals::take() {
            return Err(Interrupted.into());
        }
        if is_done() {
            return Ok(true);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        std::thread::sleep(left.min(GLANCE));
    }
}

/// A point in time so far from now; in a year, if it is further.
fn from_now(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + Duration::from_secs(365 * 86_400))
}

fn pair<'a>(values: &'a [Value], name: &str) -> Option<&'a Value> {
    values.iter().find_map(|value| match value {
        Value::Pairs(pairs) => pairs.iter().find(|(own, _)| *own == name).map(|(_, value)| value),
        _ => None,
    })
}

fn time(value: Option<&Value>) -> Option<Duration> {
    value.and_then(|value| match value {
        Value::Time(time) => Some(*time),
        _ => None,
    })
}

fn ports(values: &[Value]) -> Option<&[usize]> {
    values.iter().find_map(|value| match value {
        Value::Ports(ports) => Some(ports.as_slice()),
        _ => None,
    })
}

fn number(values: &[Value]) -> u64 {
    values
        .iter()
        .find_map(|value| match value {
            Value::Count(count) => Some(*count),
            _ => None,
        })
        .unwrap_or(1)
}

/// The last word of a form's own.
fn word(values: &[Value]) -> &'static str {
    let mut words = values.iter().filter_map(|value| match value {
        Value::Word(word) => Some(*word),
        _ => None,
    });
    words.next_back().unwrap_or_default()
}

/// Shows something once, or again and again.
fn repeat(session: &mut Session, verb: Verb, values: &[Value], answer: &mut dyn FnMut(&Reply)) -> anyhow::Result<()> {
    let every = time(pair(values, "every"));
    let count = match (pair(values, "count"), every) {
        (Some(Value::Count(_)), None) => bail!("'count' needs 'every': show ... every 1s count 5"),
        (Some(Value::Count(count)), _) => *count,
        (_, None) => 1,
        (_, Some(_)) => u64::MAX,
    };
    let every = every.unwrap_or_default();
    ensure!(count == 1 || every >= GLANCE, "'every' is shorter than {GLANCE:?}: choose a longer time, such as 1s");
    let all = ports(values).unwrap_or_default();
    let mut next = Instant::now();
    for turn in 0..count {
        if turn > 0 || !every.is_zero() {
            // Rates are of the time that has passed, so the first one comes after it.
            next = next.checked_add(every).unwrap_or_else(|| from_now(every));
            wait(next, || false)?;
        }
        let reply = match verb {
            Verb::ShowStatistics => show::statistics(session, all),
            Verb::ShowExtended => show::extended(session, all),
            Verb::ShowDrops => show::drops(session)?,
            Verb::ShowFaults => show::faults(session)?,
            _ => show::rates(session),
        };
        answer(&reply);
    }
    Ok(())
}

/// Carries out what gives one answer.
fn once(session: &mut Session, verb: Verb, values: &[Value]) -> anyhow::Result<Reply> {
    let all = ports(values).unwrap_or_default();
    Ok(match verb {
        Verb::ShowInfo => show::info(session, all),
        Verb::ShowMemory => show::memory(session),
        Verb::ShowForwarding => show::forwarding(session),
        Verb::SetMode | Verb::SetBurst | Verb::SetLength | Verb::SetCount | Verb::SetTopology => {
            set(session, verb, values)
        }
        Verb::SetFault => set_fault(session, all, values)?,
        Verb::ClearFault => {
            for &port in all {
                session.set_faults(port, None)?;
            }
            Reply::said("", json!({ "ports": all }))
        }
        Verb::Clear => clear(session, all, word(values))?,
        Verb::StopPort => {
            session.close(all)?;
            Reply::said("", json!({ "ports": all }))
        }
        Verb::StartPort => {
            session.reopen(all)?;
            Reply::said("", json!({ "ports": all }))
        }
        Verb::Start | Verb::StartSending => {
            session.start(if verb == Verb::Start { 0 } else { number(values) })?;
            show::forwarding(session)
        }
        Verb::Stop => {
            session.stop()?;
            show::forwarded(session)
        }
        Verb::StartCapture => start_capture(session, values)?,
        Verb::StopCapture => stop_capture(session)?,
        Verb::WaitLink | Verb::WaitCount => wait_for(session, verb, values)?,
        Verb::Sleep => {
            let long = values.iter().find_map(|value| time(Some(value))).unwrap_or_default();
            wait(from_now(long), || false)?;
            Reply::default()
        }
        Verb::Help => help(values, session.ports.len())?,
        _ => Reply::default(),
    })
}

fn set(session: &mut Session, verb: Verb, values: &[Value]) -> Reply {
    let settings = &mut session.settings;
    match verb {
        Verb::SetMode => settings.mode = word(values),
        Verb::SetTopology => settings.topology = word(values),
        // The grammar bounds them.
        Verb::SetBurst => settings.burst = number(values) as usize,
        Verb::SetLength => settings.length = number(values) as usize,
        _ => settings.count = number(values),
    }
    let text = if session.is_running() { "from the next 'start' on" } else { "" };
    let settings = &session.settings;
    Reply::said(
        text,
        json!({
            "mode": settings.mode, "topology": settings.topology, "burst": settings.burst, "txpkts": settings.length,
            "txcount": settings.count,
        }),
    )
}

fn set_fault(session: &mut Session, ports: &[usize], values: &[Value]) -> anyhow::Result<Reply> {
    let share = |name: &str| match pair(values, name) {
        Some(Value::Share(percent)) => percent / 100.0,
        _ => 0.0,
    };
    let both = Rates {
        loss: share("loss"),
        duplication: share("duplicate"),
        reordering: share("reorder"),
        corruption: share("corrupt"),
        marking: share("mark"),
    };
    let mut rates = FaultRates::default();
    match pair(values, "direction") {
        Some(Value::Word("receive")) => rates.receive = both,
        Some(Value::Word("both")) => (rates.transmit, rates.receive) = (both, both),
        _ => rates.transmit = both,
    }
    (rates.recutting.cutting, rates.recutting.joining) = (share("recut"), share("recut"));
    if let Some(Value::Count(seed)) = pair(values, "seed") {
        rates.seed = *seed;
    }
    let nothing = FaultRates { seed: rates.seed, ..FaultRates::default() };
    ensure!(rates != nothing, "no fault is named: write one, such as 'loss 1%', or 'off'");
    for &port in ports {
        session.port(port)?;
    }
    for &port in ports {
        session.set_faults(port, Some(rates))?;
    }
    show::faults(session)
}

fn clear(session: &mut Session, ports: &[usize], what: &str) -> anyhow::Result<Reply> {
    for &number in ports {
        let open = session.port(number)?;
        if what == "stats" { open.clear() } else { open.clear_extended() }
    }
    Ok(Reply::said("", json!({ "ports": ports })))
}

/// Says which port's frames are in which file.
fn files(done: &str, files: &[(usize, std::path::PathBuf)]) -> Reply {
    let text: Vec<String> =
        files.iter().map(|(port, file)| format!("port {port}: {done} {}", file.display())).collect();
    let value: Vec<_> = files.iter().map(|(port, file)| json!({ "port": port, "file": file })).collect();
    Reply::said(text.join("\n"), value.into())
}

fn start_capture(session: &mut Session, values: &[Value]) -> anyhow::Result<Reply> {
    let name = values.iter().find_map(|value| match value {
        Value::Text(name) => Some(name.as_str()),
        _ => None,
    });
    let name = name.filter(|name| Path::new(name).file_name().is_some());
    let Some(name) = name else { bail!("a capture needs the name of a file: capture start all.pcapng") };
    let all: Vec<usize> = (0..session.ports.len()).collect();
    let started = session.start_capture(Path::new(name), ports(values).unwrap_or(&all))?;
    Ok(files("to", &started))
}

fn stop_capture(session: &mut Session) -> anyhow::Result<Reply> {
    let stopped = session.stop_captures()?;
    ensure!(!stopped.is_empty(), "no frames are captured: 'capture start FILE' begins");
    Ok(files("in", &stopped))
}

fn wait_for(session: &mut Session, verb: Verb, values: &[Value]) -> anyhow::Result<Reply> {
    let port = ports(values).and_then(|ports| ports.first()).copied().unwrap_or_default();
    let limit = time(pair(values, "within")).unwrap_or(PATIENCE);
    let (until, start) = (from_now(limit), Instant::now());
    let open = session.port(port)?;
    let value = if verb == Verb::WaitLink {
        ensure!(
            wait(until, || open.port.link_up())?,
            "the link of port {port} is not up after {limit:?}: is its peer there, with the same kind of device?"
        );
        json!({ "port": port, "link": "up", "seconds": start.elapsed().as_secs_f64() })
    } else {
        let (counter, least) = (word(values), number(values));
        let count = |open: &crate::ports::Open| {
            let device = open.tally().device;
            if counter == "rx-packets" { device.rx_packets } else { device.tx_packets }
        };
        let reached = wait(until, || count(open) >= least)?;
        ensure!(reached, "{counter} of port {port} is {} after {limit:?}, and not {least}", count(open));
        json!({ "port": port, counter.replace('-', "_"): count(open), "seconds": start.elapsed().as_secs_f64() })
    };
    Ok(Reply::said("", value))
}

/// All commands, or more on some.
fn help(values: &[Value], ports: usize) -> anyhow::Result<Reply> {
    let words = values.iter().find_map(|value| match value {
        Value::Rest(words) => Some(words.as_slice()),
        _ => None,
    });
    let mut text = String::new();
    let Some(words) = words else {
        for form in FORMS {
            let _ = writeln!(text, "{}\n{}", wrap(&form.to_string(), 0), wrap(form.brief, 4));
        }
        text.push_str("'help COMMAND' says more. Tab completes words. Ctrl-C ends what runs.");
        return Ok(Reply::new(&text, json!(text)));
    };
    for form in FORMS.iter().filter(|form| form.begins_with(words)) {
        let mut explanation = form.brief.to_owned();
        explanation.extend([". ", form.more]);
        let _ =
            writeln!(text, "{}\n{}\n    Example: {}", wrap(&form.to_string(), 0), wrap(&explanation, 4), form.example);
    }
    if text.is_empty() {
        // What reads commands knows what is wrong with this one; if nothing is, its first word is enough.
        let reason = match read(FORMS, words, ports) {
            Err(reason) => reason,
            Ok(_) => return help(&[Value::Rest(words[..words.len() - 1].to_vec())], ports),
        };
        bail!("there is no help on {}: {reason}", quoted(&words.join(" ")));
    }
    let text = text.trim_end();
    Ok(Reply::new(text, json!(text)))
}

/// Breaks a paragraph into lines for a usual terminal, each indented by so many columns; later ones by four at least.
fn wrap(paragraph: &str, indent: usize) -> String {
    let mut lines = vec![" ".repeat(indent)];
    for word in paragraph.split_whitespace() {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > indent && line + word.chars().count() > COLUMNS {
            lines.push(" ".repeat(indent.max(4)));
        }
        if let Some(line) = lines.last_mut() {
            line.extend([word, " "]);
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_a_terminal() {
        let all = help(&[], 2).unwrap().text;
        let more = FORMS.iter().map(|form| {
            let words = form.to_string().split(' ').next().map(str::to_owned);
            help(&[Value::Rest(words.into_iter().collect())], 2).unwrap().text
        });
        for text in more.chain([all.clone()]) {
            let wide = text.lines().find(|line| line.chars().count() > COLUMNS);
            assert_eq!(wide, None, "{text}");
        }
        for form in FORMS {
            assert!(all.contains(form.brief) || all.contains(&form.brief[..20]), "{form}");
        }
    }

    #[test]
    fn help_on_no_command_names_the_nearest() {
        let words = |line: &str| vec![Value::Rest(line.split(' ').map(str::to_owned).collect())];
        let error = help(&words("showw"), 2).unwrap_err().to_string();
        assert!(error.contains("did you mean 'show'"), "{error}");
        // A whole command is explained by its words.
        let text = help(&words("set burst 32"), 2).unwrap().text;
        assert!(text.contains("set burst BURST"), "{text}");
    }
}
