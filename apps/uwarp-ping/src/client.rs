//! The client: advertises its text, then the memory for the answer.

use crate::advert::Advert;
use crate::options::{Options, SHAPE};
use crate::text;
use anyhow::{Context as _, bail};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uwarp::{Access, ConnectOptions, Context, MemoryRegion, PeerToPeer, ReadyToReceiveKinds};
use uwarp_app::channel::{Channel, Event, connect, part};
use uwarp_app::{output, signals};

/// How long a server may be silent, and how long to try to reach it.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// How the connection is made.
pub struct Start {
    /// The server.
    pub server: SocketAddr,
    /// Peer-to-peer start-up with one of these indications.
    pub peer_to_peer: Option<ReadyToReceiveKinds>,
}

/// Pings.
///
/// # Errors
/// No connection, or what came back is wrong.
pub fn run(context: &Context, start: &Start, options: &Options) -> anyhow::Result<()> {
    let domain = context.allocate_domain();
    let source = domain.register(vec![0; options.size], Access::REMOTE_READ)?;
    let sink = domain.register(vec![0; options.size], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let connect_options = ConnectOptions {
        peer_to_peer: start.peer_to_peer.map_or(PeerToPeer::Never, PeerToPeer::Require),
        markers: options.markers,
        ..ConnectOptions::default()
    };
    let (mut channel, _) = connect(
        context,
        start.server,
        &connect_options,
        PATIENCE,
        || Channel::new(context, &domain, SHAPE),
        Channel::queue_pair,
    )?;
    let mut rounds = 0;
    let mut time = Duration::ZERO;
    while (options.rounds == 0 || rounds < options.rounds) && !signals::interrupted() {
        let text = text::of_round(rounds, options.size);
        source.write(0, &text)?;
        sink.fill(0..options.size, 0)?;
        let start = Instant::now();
        channel.send(&advert(&source).to_octets())?;
        wait(&mut channel).context("waiting for the server to read")?;
        channel.send(&advert(&sink).to_octets())?;
        wait(&mut channel).context("waiting for the server to write")?;
        time += start.elapsed();
        let answer = sink.to_vec(0, options.size)?;
        if options.verify && answer != text {
            let wrong = answer.iter().zip(&text).position(|(a, b)| a != b);
            bail!("the answer of round {rounds} is wrong from octet {} on", wrong.unwrap_or(0));
        }
        if options.verbose {
            output::print(format!("ping data: {}", text::printable(&answer)));
        }
        rounds += 1;
    }
    part(context, channel.queue_pair())?;
    if rounds > 0 {
        output::print(format!(
            "{rounds} rounds of {} octets{}, {:.2} µs each",
            options.size,
            if options.verify { ", all right" } else { "" },
            time.as_secs_f64() * 1e6 / rounds as f64
        ));
    }
    Ok(())
}

fn advert(region: &MemoryRegion) -> Advert {
    Advert {
        offset: region.remote_offset(),
        stag: region.stag(),
        // At most the longest text.
        size: region.len() as u32,
    }
}

/// Waits for the server's message, whose contents do not matter.
fn wait(channel: &mut Channel) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        match channel.next(Duration::from_millis(100))? {
            Some(Event::Message(_)) => return Ok(()),
            Some(Event::Done(_) | Event::Immediate(_)) => {}
            Some(Event::Closed) => bail!("the connection is over: {}", channel.why_closed()),
            None if signals::interrupted() => bail!("interrupted"),
            None if start.elapsed() > PATIENCE => {
                bail!("the server has said nothing for {PATIENCE:?}")
            }
            None => {}
        }
    }
}
