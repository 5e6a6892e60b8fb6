//! A connection with its window of slots: messages are sent, contents are read or written by RDMA.

use crate::protocol::{MESSAGE_MAX, SLOT_SIZE, SLOTS, SlotAddress, Window};
use anyhow::{Context as _, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::{Duration, Instant};
use uwarp::{Access, Completion, Context, MemoryRegion, PageAdvice, RegionBuffer};
use uwarp_app::channel::{Channel, Event, Shape};
use uwarp_app::signals;

/// How long the other side may be silent in the middle of a file.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often an idle side looks whether the user has interrupted it.
pub const LOOK: Duration = Duration::from_millis(500);
/// How long a file under way may continue after an interrupt.
const GRACE: Duration = Duration::from_secs(5);

/// Messages for every slot in both directions, and a few for the beginning and the end.
const SHAPE: Shape = Shape { message: MESSAGE_MAX, messages: 2 * SLOTS as usize + 8, work: SLOTS as usize };

/// The connection.
pub struct Link {
    /// Messages and work.
    pub channel: Channel,
    /// The slots of this side. Each is a region of its own: one is lent to this thread, for files and hashes, while the
    /// others are in use.
    slots: Vec<MemoryRegion>,
    /// How long the other side may be silent between two files; `None` for no limit.
    pub idle: Option<Duration>,
    /// When the user's interrupt was first seen.
    interrupted: Option<Instant>,
}

/// An event of a link.
pub enum Happening<Message> {
    /// A message arrived.
    Message(Message),
    /// An RDMA Write or Read was done.
    Done(Completion),
    /// The other side has closed the connection.
    Closed,
}

impl Link {
    /// An unconnected link.
    ///
    /// # Errors
    /// The context has no room for it.
    pub fn new(context: &Context, access: Access) -> anyhow::Result<Self> {
        let domain = context.allocate_domain();
        let slot = |_| Ok(domain.register(RegionBuffer::zeroed(SLOT_SIZE as usize, PageAdvice::Normal)?, access)?);
        let slots = (0..SLOTS).map(slot).collect::<anyhow::Result<_>>()?;
        let channel = Channel::new(context, &domain, SHAPE)?;
        Ok(Self { channel, slots, idle: None, interrupted: None })
    }

    /// This side's slots, for the other side.
    pub fn window(&self) -> Window {
        let address = |slot: &MemoryRegion| SlotAddress { stag: slot.stag(), offset: slot.remote_offset() };
        Window { slots: self.slots.iter().map(address).collect(), slot_size: SLOT_SIZE }
    }

    /// A slot, of which `length` octets are used.
    ///
    /// # Errors
    /// There is no such slot, or `length` exceeds it.
    pub fn slot(&mut self, slot: u32, length: u32) -> anyhow::Result<&mut MemoryRegion> {
        match self.slots.get_mut(slot as usize) {
            Some(region) if length <= SLOT_SIZE => Ok(region),
            _ => bail!("the other side names slot {slot} with {length} octets: there is none such"),
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn tell(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        let octets = serde_json::to_vec(message).context("a message cannot be written as JSON")?;
        self.channel.send(&octets)
    }

    /// Waits for the next event: at most [`PATIENCE`] in the middle of a file (`limited`), and [`Link::idle`]
    /// between two files. An interrupt ends the wait between two files at once. In the middle of a file it ends the
    /// wait when the other side pauses, and after [`GRACE`] at the latest.
    ///
    /// # Errors
    /// A time-out, an interrupt, or an unreadable message.
    pub fn next<Message: DeserializeOwned>(&mut self, limited: bool) -> anyhow::Result<Happening<Message>> {
        let start = Instant::now();
        let patience = if limited { Some(PATIENCE) } else { self.idle };
        let look = if limited { Duration::from_millis(100) } else { LOOK };
        loop {
            self.check_interrupt(limited)?;
            match self.channel.next(look)? {
                Some(event) => return happening(event),
                None if signals::interrupted() => bail!("interrupted"),
                None => {}
            }
            if let Some(patience) = patience.filter(|patience| start.elapsed() > *patience) {
                bail!("the other side has said nothing for {patience:?}")
            }
        }
    }

    /// What has happened already in the middle of a file; an inline engine is turned.
    ///
    /// # Errors
    /// The user interrupts, or a message cannot be read.
    pub fn poll<Message: DeserializeOwned>(&mut self) -> anyhow::Result<Option<Happening<Message>>> {
        self.check_interrupt(true)?;
        self.channel.poll()?.map(happening).transpose()
    }

    fn check_interrupt(&mut self, limited: bool) -> anyhow::Result<()> {
        if signals::interrupted() {
            let since = *self.interrupted.get_or_insert_with(Instant::now);
            if !limited || since.elapsed() > GRACE {
                bail!("interrupted");
            }
        }
        Ok(())
    }
}

fn happening<Message: DeserializeOwned>(event: Event) -> anyhow::Result<Happening<Message>> {
    Ok(match event {
        Event::Message(octets) => Happening::Message(
            serde_json::from_slice(&octets).context("the other side sent a message that is none of this version's")?,
        ),
        Event::Immediate(_) => bail!("the other side sent Immediate Data, which nobody asked for"),
        Event::Done(completion) => Happening::Done(completion),
        Event::Closed => Happening::Closed,
    })
}
