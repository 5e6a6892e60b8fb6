//! The server: reads the client's text, then writes it back.

use crate::advert::Advert;
use crate::options::{Options, SHAPE};
use crate::text;
use anyhow::{Context as _, bail};
use std::time::Duration;
use uwarp::{AcceptOptions, Access, ConnectRequest, Context, ListenOptions, MemoryRegion, SendRequest};
use uwarp_app::channel::{Channel, Event, part};
use uwarp_app::{output, signals};

/// Identifiers of the server's own requests do not matter: one is under way at a time.
const WORK: u64 = 1;

/// Serves one client after the other, or with `once` the first one only.
///
/// # Errors
/// The engine failed; with `once`, also what the one client's connection failed with.
pub fn run(context: &Context, options: &Options, once: bool) -> anyhow::Result<()> {
    let mut listener = context.listen(options.port, ListenOptions::default())?;
    loop {
        if signals::interrupted() {
            return Ok(());
        }
        let Some(request) = listener.next(Duration::from_millis(100))? else {
            continue;
        };
        let peer = request.peer();
        let result = serve(context, request, options);
        if once {
            return result;
        }
        if let Err(error) = result {
            output::complain(format_args!("uwarp-ping: client {peer}: {error:#}"));
        }
    }
}

fn serve(context: &Context, request: ConnectRequest, options: &Options) -> anyhow::Result<()> {
    let domain = context.allocate_domain();
    let buffer = domain.register(vec![0; text::SIZE_MAX + 1], Access::LOCAL_WRITE)?;
    let mut channel = Channel::new(context, &domain, SHAPE)?;
    let accept_options = AcceptOptions { markers: options.markers, ..AcceptOptions::default() };
    request.accept(&mut channel.queue_pair().control, accept_options)?;
    let mut rounds = 0;
    while (options.rounds == 0 || rounds < options.rounds) && !signals::interrupted() {
        let Some(source) = advert(&mut channel)? else {
            break;
        };
        let size = checked(source.size, &buffer)?;
        let entry = buffer.sge(..size)?;
        channel.queue_pair().send.post(&[SendRequest::read(WORK, &[entry], source.stag, source.offset).signalled()])?;
        wait_work(&mut channel).context("reading the client's text")?;
        let content = buffer.to_vec(0, size)?;
        if options.verify && content != text::of_round(rounds, size) {
            bail!("the client's text of round {rounds} is not what rping sends");
        }
        if options.verbose {
            output::print(format!("server ping data: {}", text::printable(&content)));
        }
        // The contents of the server's messages are ignored; rping repeats the last advertisement.
        channel.send(&source.to_octets())?;
        let sink = advert(&mut channel)?.context("the client left in the middle of a round")?;
        let entry = buffer.sge(..checked(sink.size, &buffer)?)?;
        channel.queue_pair().send.post(&[SendRequest::write(WORK, &[entry], sink.stag, sink.offset).signalled()])?;
        wait_work(&mut channel).context("writing to the client")?;
        channel.send(&sink.to_octets())?;
        rounds += 1;
    }
    part(context, channel.queue_pair())?;
    output::print(format!("{rounds} rounds"));
    Ok(())
}

fn checked(size: u32, buffer: &MemoryRegion) -> anyhow::Result<usize> {
    let size = size as usize;
    if !(1..=buffer.len()).contains(&size) {
        bail!("the client advertises {size} octets: it must be 1 to {}", buffer.len());
    }
    Ok(size)
}

/// The client's next advertisement; `None` when it has closed the connection.
fn advert(channel: &mut Channel) -> anyhow::Result<Option<Advert>> {
    loop {
        match channel.next(Duration::from_millis(100))? {
            Some(Event::Message(octets)) => {
                return Advert::from_octets(&octets)
                    .map(Some)
                    .context("the client sent a message that is not part of rping's protocol");
            }
            Some(Event::Done(_) | Event::Immediate(_)) => {}
            Some(Event::Closed) => return Ok(None),
            None if signals::interrupted() => return Ok(None),
            None => {}
        }
    }
}

fn wait_work(channel: &mut Channel) -> anyhow::Result<()> {
    loop {
        match channel.next(Duration::from_millis(100))? {
            Some(Event::Done(_)) => return Ok(()),
            Some(Event::Message(_) | Event::Immediate(_)) => bail!("the client sent an unexpected message"),
            Some(Event::Closed) => bail!("the connection is over: {}", channel.why_closed()),
            None if signals::interrupted() => bail!("interrupted"),
            None => {}
        }
    }
}
