//! What a switch knows of its uplink and of the hosts behind it.

use std::collections::HashMap;

use arrayvec::ArrayVec;
use uwarp_wire::address::IpAddress;

use super::flows::{End, Flows, Severed};
use super::replies::Reply;
use super::{ClientId, MAX_CLIENTS, Places};

/// A frame to a client whose peer is gone: see [`leave`](super::Switch::leave).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Who gets it.
    pub to: ClientId,
    /// The frame.
    pub frame: Vec<u8>,
}

/// Most neighbours that a client awaits an answer about. One more replaces its oldest question.
const QUESTIONS: usize = 8;

/// The uplink.
#[derive(Debug)]
pub(super) struct Uplink {
    pub(super) mac: [u8; 6],
    pub(super) is_up: bool,
    /// The neighbours that each client has asked for, the latest last.
    questions: [ArrayVec<IpAddress, QUESTIONS>; MAX_CLIENTS],
    /// Whom each client has asked for a connection last, by the port that it has asked from.
    pub(super) asked: HashMap<(ClientId, u16), End>,
    /// Connections with other hosts, and where these are reached.
    pub(super) flows: Flows<[u8; 6]>,
}

impl Uplink {
    /// One that passes frames, and has this hardware address.
    pub(super) fn new(mac: [u8; 6]) -> Uplink {
        let questions = [const { ArrayVec::new_const() }; MAX_CLIENTS];
        Uplink { mac, is_up: true, questions, asked: HashMap::new(), flows: Flows::default() }
    }

    pub(super) fn asks(&mut self, client: ClientId, target: IpAddress) {
        let Some(questions) = self.questions.get_mut(client.place()) else { return };
        if !questions.contains(&target) {
            if questions.is_full() {
                questions.remove(0);
            }
            questions.push(target);
        }
    }

    /// The clients that have asked for a neighbour. They get one answer.
    pub(super) fn take_askers(&mut self, target: IpAddress) -> Places {
        let mut askers = Places::default();
        for client in ClientId::all() {
            let questions = &mut self.questions[client.place()];
            if let Some(index) = questions.iter().position(|asked| *asked == target) {
                questions.remove(index);
                askers.insert(client);
            }
        }
        askers
    }

    /// A client is gone: other hosts are asked about their connections with it.
    pub(super) fn leave(
        &mut self,
        client: ClientId,
        is_gone: impl Fn(&End) -> bool,
        reply: &mut Reply,
        probes: &mut Vec<Probe>,
    ) {
        self.questions[client.place()].clear();
        self.asked.retain(|(asking, _), _| *asking != client);
        for Severed { gone, left, kept } in self.flows.take_gone(is_gone) {
            if self.is_up && reply.probe(self.mac, kept, gone, left) {
                probes.push(Probe { to: ClientId::UPLINK, frame: reply.octets().to_vec() });
            }
        }
    }
}
