//! The cables of a switch's client to other clients, and which of them are polled.
//!
//! A program with few cables polls all of them. With more, one by which nothing has come for some thousand turns is
//! *silent*: its other end rings when it sends. Nothing is spent on the silent ones in a sleep, and in each turn one of
//! them is looked at, so that a frame also comes in while the program never sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::event::{Timespec, epoll};
use uwarp_ring::cable::{CableEnd, LANE_OCTETS, OWNER_NUMBERS};

use super::Line;

/// So many cables are polled in each turn, whether anything comes by them or not.
const FEW: usize = 8;
/// With more, one by which nothing has come for so many turns is silent.
const HUSH_TURNS: u32 = 4096;
/// Silent peers that are found to have rung behind one sleep, at most. Others end the next sleep.
const RINGING: usize = 64;
/// What the descriptors of others than peers are to epoll.
const NO_PEER: u64 = u64::MAX;

/// A cable to another client.
#[derive(Debug)]
pub(super) struct Peer {
    /// The client's number on the switch.
    pub(super) number: u16,
    pub(super) line: Line,
    /// The client has gone: the cable goes when it is empty.
    is_gone: bool,
    is_silent: bool,
    /// Where the receiver was when silent peers were last looked for.
    heard_to: u64,
    /// Where the receiver was when the switch's frames began to wait for the peer's; none: they wait no more.
    awaited_from: Option<u64>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Peers {
    all: Vec<Peer>,
    /// The peer with each number, as its index plus one.
    indexes: Box<[u16]>,
    /// The indexes of the peers that are polled.
    polled: Vec<u16>,
    /// Which of these comes first.
    turn: usize,
    /// The peer that is looked at next if it is silent.
    next_silent: usize,
    /// Turns until silent peers are looked for.
    until_hush: u32,
    /// Waits for all cables.
    epoll: OwnedFd,
}

impl Peers {
    /// None so far. `others` are waited for, too.
    ///
    /// # Errors
    /// No descriptors or no memory left.
    pub(super) fn new(others: [BorrowedFd<'_>; 2]) -> io::Result<Peers> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for descriptor in others {
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(NO_PEER), epoll::EventFlags::IN)?;
        }
        Ok(Peers {
            all: Vec::new(),
            indexes: vec![0; OWNER_NUMBERS].into(),
            polled: Vec::new(),
            turn: 0,
            next_silent: 0,
            until_hush: HUSH_TURNS,
            epoll,
        })
    }

    /// There is a cable to the client with this number.
    pub(super) fn plug(&mut self, number: u16, end: CableEnd) {
        let (bell, data) = (end.receiver.as_fd(), epoll::EventData::new_u64(number.into()));
        if let Err(error) = epoll::add(&self.epoll, bell, data, epoll::EventFlags::IN) {
            // The peer goes on to send by the switch, since nobody attends to this one.
            return tracing::warn!(%error, "a cable to another program cannot be waited for");
        }
        end.receiver.attend();
        let line = Line::new(end);
        self.all.push(Peer { number, line, is_gone: false, is_silent: false, heard_to: 0, awaited_from: None });
        self.index();
    }

    /// The client with this number has gone. What it sent before is still received.
    pub(super) fn unplug(&mut self, number: u16) {
        if let Some(index) = self.all.iter().position(|peer| peer.number == number) {
            self.all[index].is_gone = true;
            self.indexes[usize::from(number)] = 0;
            self.rouse(index);
        }
    }

    /// Removes the cables of clients that have gone, once they are empty.
    #[cold]
    fn remove_gone(&mut self) {
        self.all.retain(|peer| !peer.is_gone || peer.line.end.receiver.is_waiting());
        self.index();
    }

    fn index(&mut self) {
        self.polled.clear();
        for (index, peer) in self.all.iter().enumerate() {
            if !peer.is_gone {
                self.indexes[usize::from(peer.number)] = index as u16 + 1;
            }
            if !peer.is_silent {
                self.polled.push(index as u16);
            }
        }
        self.turn = 0;
    }

    /// The index of the client with a number.
    #[inline]
    pub(super) fn index_of(&self, number: u16) -> Option<usize> {
        usize::from(*self.indexes.get(usize::from(number))?).checked_sub(1)
    }

    /// The peer with an index, until a frame is received or the peers change.
    #[inline]
    pub(super) fn line(&mut self, index: usize) -> &mut Line {
        &mut self.all[index].line
    }

    /// The cables.
    pub(super) fn lines(&mut self) -> impl Iterator<Item = &mut Line> {
        self.all.iter_mut().map(|peer| &mut peer.line)
    }

    /// Takes what has come from the polled peers: a different one's comes first in each turn.
    #[inline]
    pub(super) fn take_turn(&mut self, mut take: impl FnMut(&mut Peer)) {
        if self.polled.len() < self.all.len() {
            self.look_at_silent();
        }
        let polled = self.polled.len();
        let mut is_any_gone = false;
        for step in 0..polled {
            let at = if self.turn + step < polled { self.turn + step } else { self.turn + step - polled };
            let peer = &mut self.all[usize::from(self.polled[at])];
            is_any_gone |= peer.is_gone;
            take(peer);
        }
        self.turn = if self.turn + 1 < polled { self.turn + 1 } else { 0 };
        if is_any_gone {
            self.remove_gone();
        }
        self.until_hush -= 1;
        if self.until_hush == 0 {
            self.hush();
        }
    }

    /// Polls a peer from now on.
    #[cold]
    fn rouse(&mut self, index: usize) {
        let peer = &mut self.all[index];
        if std::mem::take(&mut peer.is_silent) {
            peer.line.end.receiver.disarm();
            peer.heard_to = peer.line.end.receiver.position();
            self.polled.push(index as u16);
        }
    }

    /// Stops polling the peers from which nothing has come since the last time: they ring.
    #[cold]
    fn hush(&mut self) {
        self.until_hush = HUSH_TURNS;
        if self.all.len() <= FEW {
            return;
        }
        for peer in self.all.iter_mut().filter(|peer| !peer.is_silent && !peer.is_gone) {
            let receiver = &mut peer.line.end.receiver;
            let before = std::mem::replace(&mut peer.heard_to, receiver.position());
            if before == peer.heard_to {
                receiver.arm();
                // What came before is not announced.
                peer.is_silent = !receiver.is_waiting();
                if !peer.is_silent {
                    receiver.disarm();
                }
            }
        }
        self.index();
    }

    #[inline]
    fn look_at_silent(&mut self) {
        let index = if self.next_silent < self.all.len() { self.next_silent } else { 0 };
        self.next_silent = index + 1;
        let peer = &self.all[index];
        if peer.is_silent && peer.line.end.receiver.is_waiting() {
            self.rouse(index);
        }
    }

    /// Whether peers have sent something before what waits from the switch now. Each has its turn for the octets of a
    /// cable at most, so that none holds the switch up for ever.
    #[cold]
    pub(super) fn come_first(&mut self) -> bool {
        let mut is_early = false;
        for index in 0..self.all.len() {
            let peer = &mut self.all[index];
            let receiver = &peer.line.end.receiver;
            let from = *peer.awaited_from.get_or_insert(receiver.position());
            if receiver.is_waiting() {
                is_early |= receiver.position().wrapping_sub(from) < LANE_OCTETS as u64;
                self.rouse(index);
            }
        }
        is_early
    }

    /// Nothing waits from the switch.
    pub(super) fn forget_switch(&mut self) {
        self.all.iter_mut().for_each(|peer| peer.awaited_from = None);
    }

    /// Has all cables announce frames by [`AsFd`]. False if one waits already.
    pub(super) fn arm(&self) -> bool {
        // Silent ones are armed.
        let receivers = self.polled.iter().map(|index| &self.all[usize::from(*index)].line.end.receiver);
        receivers.clone().for_each(|receiver| receiver.arm());
        !receivers.into_iter().any(|receiver| receiver.is_waiting())
    }

    /// Ends the announcements of those that are polled, and polls the silent ones that have rung.
    pub(super) fn disarm(&mut self) {
        for index in &self.polled {
            self.all[usize::from(*index)].line.end.receiver.disarm();
        }
        if self.polled.len() < self.all.len() {
            self.hear_silent();
        }
    }

    #[cold]
    fn hear_silent(&mut self) {
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(NO_PEER) };
        let mut events = ArrayVec::from([none; RINGING]);
        let count = epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default())).unwrap_or(0);
        for event in events.into_iter().take(count) {
            let index = self.all.iter().position(|peer| u64::from(peer.number) == event.data.u64());
            if let Some(index) = index {
                self.rouse(index);
            }
        }
    }
}

impl AsFd for Peers {
    /// Readable when a peer has rung, or one of the others is readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
