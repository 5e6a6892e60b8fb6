//! The side that puts and gets.

use crate::gate::Gate;
use crate::link::{Happening, Link};
use crate::protocol::{GREETING, NAME_MAX, Reply, Request, SLOT_SIZE, SLOTS, SlotAddress, Window};
use crate::report::{Copied, Meter};
use crate::store::{Outgoing, Store, check_name};
use anyhow::{Context as _, bail};
use std::collections::HashSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uwarp::{Access, Config, ConnectOptions, Context, SendRequest};
use uwarp_app::channel::{connect, part};
use uwarp_app::output::{self, JsonFlag, Progress};
use uwarp_app::{NetworkFlags, usage};

/// How long to try to reach the server.
const REACH: Duration = Duration::from_secs(15);

/// A file to put: its name on the server, and its contents.
pub type Source = (String, Outgoing);

/// A file to get: its name on the server, and its destination.
pub struct Place {
    name: String,
    store: Store,
    file: String,
}

/// Opens the files of `put`.
///
/// # Errors
/// A file cannot be read or has no name to store it under, or two have the same name.
pub fn open_files(files: &[PathBuf], name: Option<&str>) -> anyhow::Result<Vec<Source>> {
    if name.is_some() && files.len() != 1 {
        return Err(usage("--name goes with one file: put the others one by one"));
    }
    let sources = files
        .iter()
        .map(|path| {
            let there = match name {
                Some(name) => name.to_owned(),
                None => path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .with_context(|| format!("{} has no name to go under", path.display()))?
                    .to_owned(),
            };
            check_name(&there).map_err(|error| usage(error.to_string()))?;
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            Ok((there, Outgoing::new(&path.display().to_string(), file)?))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    check_distinct(sources.iter().map(|(name, _)| name.as_str()))?;
    Ok(sources)
}

/// Refuses two files with the same name: the second would replace the first.
fn check_distinct<'a>(names: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(usage(format!("two files would get the name '{name}': copy them one by one")));
        }
    }
    Ok(())
}

/// The destination directory of `get`.
pub fn folder(output: Option<&Path>) -> &Path {
    let output = output.unwrap_or(Path::new("."));
    if output.is_dir() {
        return output;
    }
    output.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// Chooses the destinations of `get`.
///
/// # Errors
/// The directory does not exist, or two files would get the same name.
pub fn choose_places(names: &[String], output: Option<&Path>) -> anyhow::Result<Vec<Place>> {
    let folder = folder(output);
    let output = output.unwrap_or(Path::new("."));
    let into_directory = output.is_dir();
    if !into_directory && names.len() > 1 {
        return Err(usage(format!(
            "--output {} is not a directory, and there are several files to get",
            output.display()
        )));
    }
    let places = names
        .iter()
        .map(|name| {
            if name.is_empty() || name.len() > NAME_MAX {
                return Err(usage(format!("a name has {} octets: 1 to {NAME_MAX} are possible", name.len())));
            }
            // The server checks the whole name; here only its last part counts.
            let file = if into_directory { Path::new(name).file_name() } else { output.file_name() };
            let file =
                file.and_then(|file| file.to_str()).with_context(|| format!("'{name}' is not the name of a file"))?;
            Ok(Place { name: name.clone(), store: Store::open(folder)?, file: file.to_owned() })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    check_distinct(places.iter().map(|place| place.file.as_str()))?;
    Ok(places)
}

/// How the server is reached, and where the results go.
pub struct Client<'a> {
    /// The flags; the CPU of an inline engine is one of them.
    pub network: &'a NetworkFlags,
    /// What they resolve to.
    pub config: Config,
    /// The server.
    pub server: SocketAddr,
    /// File for the results as JSON.
    pub json: &'a JsonFlag,
    /// Where to wait, connected, for leave to begin.
    pub gate: Option<&'a Gate>,
}

impl Client<'_> {
    fn reach(&self) -> anyhow::Result<(Context, Link)> {
        let context = self.network.open(self.config.clone())?;
        let options = ConnectOptions::default().private_data(GREETING);
        let (link, _) = connect(
            &context,
            self.server,
            &options,
            REACH,
            // Nobody reads or writes the client's memory but its own requests.
            || Link::new(&context, Access::LOCAL_WRITE),
            |link| link.channel.queue_pair(),
        )?;
        Ok((context, link))
    }

    /// Prints that a file was copied, unless standard output is for JSON.
    fn report(&self, verb: &str, name: &str, copied: Copied, copies: &mut Vec<Copied>) {
        if !self.json.takes_output() {
            let Copied { octets, seconds, .. } = copied;
            let rate = copied.gbit_per_s();
            output::print(format!("{verb} {name}: {octets} octets in {seconds:.2} s, {rate:.2} Gbit/s, BLAKE3 equal"));
        }
        copies.push(copied);
    }
}

fn leave(context: Context, mut link: Link) -> anyhow::Result<()> {
    part(&context, link.channel.queue_pair())?;
    drop(link);
    context.close()?;
    Ok(())
}

/// Checks that this version can use the server's window.
fn check_window(window: &Window) -> anyhow::Result<()> {
    let Window { slots, slot_size } = window;
    if slots.len() != SLOTS as usize || *slot_size != SLOT_SIZE {
        bail!("the server offers {} slots of {slot_size} octets: it is of another version", slots.len());
    }
    Ok(())
}

/// Copies files to the server.
///
/// # Errors
/// No connection, or the first file that could not be copied.
pub fn put(client: Client<'_>, files: Vec<Source>) -> anyhow::Result<()> {
    let (context, mut link) = client.reach()?;
    if let Some(gate) = client.gate {
        gate.wait()?;
    }
    let mut copies = Vec::new();
    for (name, file) in files {
        let copied = put_one(&mut link, &name, file).with_context(|| format!("'{name}' was not copied"))?;
        client.report("put", &name, copied, &mut copies);
    }
    leave(context, link)?;
    client.json.write(&copies)
}

fn put_one(link: &mut Link, name: &str, mut file: Outgoing) -> anyhow::Result<Copied> {
    let meter = Meter::start();
    let size = file.size();
    link.tell(&Request::Put { name: name.to_owned(), size })?;
    let window = match next(link, true)? {
        Reply::PutReady { window } => window,
        other => return Err(unexpected(other)),
    };
    check_window(&window)?;
    let mut progress = Progress::octets(name, size);
    // Slots that can be filled, and RDMA Writes under way. A slot is free when the server has emptied it, so the Write
    // from it has completed, too.
    let mut free: Vec<u32> = (0..SLOTS).rev().collect();
    let mut taken = 0_u32;
    while file.left() > 0 || (free.len() as u32) < SLOTS || taken > 0 {
        let happening = if file.left() > 0
            && taken < SLOTS
            && let Some(slot) = free.pop()
        {
            let next = file.next(&mut link.slot(slot, 0)?.lend()?);
            let length = match next {
                Ok(length) => length,
                Err(error) => {
                    link.tell(&Request::PutAbort)?;
                    return Err(error);
                }
            };
            let entry = [link.slot(slot, 0)?.sge(..length)?];
            let SlotAddress { stag, offset } = window.slots[slot as usize];
            let write = SendRequest::write(u64::from(slot), &entry, stag, offset).signalled();
            link.channel.queue_pair().send.post(&[write])?;
            taken += 1;
            // Behind the Write on the same queue pair, so it arrives when the contents are in place.
            link.tell(&Request::Written { slot, length: length as u32 })?;
            // What was filled goes out while the next is read and hashed.
            link.poll()?
        } else {
            Some(link.next(true)?)
        };
        match happening {
            None => {}
            Some(Happening::Done(_)) => taken -= 1,
            Some(Happening::Message(Reply::Taken { slot })) => {
                link.slot(slot, 0)?;
                free.push(slot);
                progress.set(size - file.left());
            }
            Some(Happening::Message(other)) => return Err(unexpected(other)),
            Some(Happening::Closed) => bail!("the connection is over: {}", link.channel.why_closed()),
        }
    }
    drop(progress);
    link.tell(&Request::PutEnd { hash: file.hash() })?;
    // The server syncs the file first, which may take minutes. A server that is gone ends the connection.
    match next(link, false)? {
        Reply::Stored { cpu_ns } => Ok(meter.copied(name, size, Some(cpu_ns))),
        other => Err(unexpected(other)),
    }
}

/// The next message. `limited`: see [`Link::next`].
fn next(link: &mut Link, limited: bool) -> anyhow::Result<Reply> {
    loop {
        match link.next(limited)? {
            Happening::Message(reply) => return Ok(reply),
            Happening::Done(_) => {}
            Happening::Closed => bail!("the connection is over: {}", link.channel.why_closed()),
        }
    }
}

fn unexpected(reply: Reply) -> anyhow::Error {
    match reply {
        Reply::Failed { reason } => anyhow::anyhow!("the server says: {}", output::printable(&reason)),
        other => anyhow::anyhow!("the server said {other:?} out of turn"),
    }
}

/// Copies files from the server.
///
/// # Errors
/// No connection, or the first file that could not be copied.
pub fn get(client: Client<'_>, places: Vec<Place>) -> anyhow::Result<()> {
    let (context, mut link) = client.reach()?;
    let mut copies = Vec::new();
    for place in places {
        let copied = get_one(&mut link, &place).with_context(|| format!("'{}' was not copied", place.name))?;
        client.report("got", &place.name, copied, &mut copies);
    }
    leave(context, link)?;
    client.json.write(&copies)
}

fn get_one(link: &mut Link, place: &Place) -> anyhow::Result<Copied> {
    let meter = Meter::start();
    link.tell(&Request::Get { name: place.name.clone() })?;
    let (window, size) = match next(link, true)? {
        Reply::GetReady { window, size } => (window, size),
        other => return Err(unexpected(other)),
    };
    check_window(&window)?;
    let mut incoming = place.store.incoming(&place.file, size)?;
    let mut progress = Progress::octets(&place.name, size);
    // Lengths of the slots with a Read under way.
    let mut lengths = [0_u32; SLOTS as usize];
    loop {
        match link.next(true)? {
            Happening::Message(Reply::Part { slot, length }) => {
                let entry = [link.slot(slot, length)?.sge(..length as usize)?];
                lengths[slot as usize] = length;
                let SlotAddress { stag, offset } = window.slots[slot as usize];
                let read = SendRequest::read(u64::from(slot), &entry, stag, offset).signalled();
                link.channel.queue_pair().send.post(&[read])?;
            }
            Happening::Done(completion) => {
                // Reads complete in the order in which they were posted, which is that of the file.
                let slot = completion.id as u32;
                let length = lengths[slot as usize];
                incoming.append(&link.slot(slot, length)?.lend()?[..length as usize])?;
                link.tell(&Request::Read { slot })?;
                progress.set(incoming.received());
            }
            Happening::Message(Reply::GetEnd { hash }) => {
                drop(progress);
                incoming.finish(&hash)?;
                return Ok(meter.copied(&place.name, size, None));
            }
            Happening::Message(other) => return Err(unexpected(other)),
            Happening::Closed => bail!("the connection is over: {}", link.channel.why_closed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_words_do_not_move_the_cursor() {
        let reason = "'größe' is\n\x1b[2Jnot \u{9b}31m there\x7f".to_owned();
        assert_eq!(
            unexpected(Reply::Failed { reason }).to_string(),
            "the server says: 'größe' is\\n\\u{1b}[2Jnot \\u{9b}31m there\\u{7f}"
        );
    }
}
