//! Frames to other engines, and from them.

use uwarp_wire::address::FlowKey;

use crate::api::counters::Counters;
use crate::link::Link;
use crate::link::handoff::{Claim, Handoff};
use crate::link::port::{Buffer, Port};

impl<P: Port> Link<P> {
    /// Claims a flow for this engine, so other engines hand over its packets.
    pub(crate) fn claim(&self, flow: &FlowKey) -> Claim {
        self.handoff.as_ref().map_or(Claim::Granted, |handoff| handoff.claim(flow))
    }

    /// Hands a segment with a verified checksum to the engine that has its flow. False: no other engine has it, so this
    /// engine must handle the segment.
    #[cold]
    pub(crate) fn hand_off(&mut self, counters: &mut Counters, flow: &FlowKey, buffer: &P::Buffer) -> bool {
        let Some(handoff) = self.handoff.as_mut().filter(|handoff| !handoff.second_hand) else { return false };
        let Some(owner) = handoff.owner(flow) else { return false };
        handoff.send(counters, owner, buffer.total_len(), true, buffer.segments());
        true
    }

    /// The same for a frame in memory that concerns a flow: an ICMP error.
    pub(crate) fn hand_off_octets(&mut self, counters: &mut Counters, flow: &FlowKey, octets: &[u8]) -> bool {
        let Some(handoff) = self.handoff.as_mut().filter(|handoff| !handoff.second_hand) else { return false };
        let Some(owner) = handoff.owner(flow) else { return false };
        handoff.send(counters, owner, octets.len(), false, std::iter::once(octets));
        true
    }

    /// Copies a frame to all other engines: ARP and Neighbor Discovery arrive at one queue only.
    pub(crate) fn share(&mut self, counters: &mut Counters, octets: &[u8]) {
        let Some(handoff) = self.handoff.as_mut().filter(|handoff| !handoff.second_hand) else { return };
        let own = handoff.engine;
        for engine in (0..handoff.out.len() as u16).filter(|engine| *engine != own) {
            handoff.send(counters, engine, octets.len(), false, std::iter::once(octets));
        }
    }

    /// Whether the frame in work came from another engine. It is not handed over again, and that engine has sent any
    /// answer.
    pub(crate) fn is_second_hand(&self) -> bool {
        self.handoff.as_ref().is_some_and(|handoff| handoff.second_hand)
    }
}

impl Handoff {
    /// The frames that follow come from other engines. Gives memory for them.
    pub(crate) fn begin_second_hand(&mut self) -> Vec<u8> {
        self.second_hand = true;
        std::mem::take(&mut self.scratch)
    }

    /// Those were all.
    pub(crate) fn end_second_hand(&mut self, scratch: Vec<u8>) {
        self.second_hand = false;
        self.scratch = scratch;
    }
}
