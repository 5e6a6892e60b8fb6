//! A client of a switch whose peer writes whatever it likes into the memory of their cable.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rustix::io::pwrite;
use uwarp_engine::port::{Batch, Buffer, Port, TransmitChecksums};
use uwarp_engine::ports::SwitchedPort;
use uwarp_engine::ports::cable::{CableNews, SwitchedOptions};
use uwarp_ring::Notifier;
use uwarp_ring::cable::{Cable, CableEnd, LANE_OCTETS, LONGEST_FRAME, Owner, OwnerTable, Owners, Plug};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Path, TcpChecksum, prepend_tcp};
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SWITCH_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xff];
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Ports of the client, of the hostile peer, and of an honest one: their numbers are 0, 1 and 2.
const PORTS: [u16; 3] = [100, 200, 300];
/// Octets of a lane before its records.
const WORDS: usize = 4096;

/// Takes the input apart.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn octet(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u64 {
        self.take(8).iter().fold(0, |word, octet| word << 8 | u64::from(*octet))
    }

    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

fn segment(source: u16, destination: u16, flags: TcpFlags) -> Vec<u8> {
    let mut header = TcpHeader::new(flags);
    (header.source_port, header.destination_port) = (source, destination);
    let path = Path::new(EthernetAddress(OWN_MAC), EthernetAddress(SWITCH_MAC), HOST.into(), HOST.into());
    let mut frame = [0; 128];
    let checksum = TcpChecksum::Full { payload_sum: 0 };
    let length = prepend_tcp(&mut frame, &path, &header, 0, 0, checksum).expect("there is room");
    frame[128 - length..].to_vec()
}

/// Whether an engine may take it for the peer's: the peer's port, the shared address, no SYN, and the addresses that
/// the switch would have written.
fn is_the_peers(frame: &[u8]) -> bool {
    frame.len() >= 54
        && frame[..6] == OWN_MAC
        && frame[6..12] == SWITCH_MAC
        && frame[12..15] == [8, 0, 0x45]
        && frame[26..30] == HOST.octets()
        && frame[34..36] == PORTS[1].to_be_bytes()
        && frame[47] & TcpFlags::SYN.bits() as u8 == 0
}

fn taken(end: &mut CableEnd) -> Vec<Vec<u8>> {
    let (mut frames, mut room) = (Vec::new(), vec![0; LONGEST_FRAME]);
    while let Some(arrival) = end.receiver.receive(&mut room) {
        frames.push(room[..arrival.length].to_vec());
    }
    end.receiver.release();
    frames
}

/// What `data` says is done by the peer, in between the client receives and sends. Nothing that is not the peer's is
/// received, and an honest peer gets what it is sent.
pub fn cable(data: &[u8]) {
    let mut input = Input(data);
    let directory = tempfile::tempdir().expect("a directory");
    let pair = || Cable::pair(directory.path()).expect("memory and pipes");
    let connected = || {
        let (near, far) = pair();
        (near.connect().expect("it can be mapped"), far.connect().expect("it can be mapped"))
    };
    let table = OwnerTable::new().expect("memory");
    for (number, port) in PORTS.into_iter().enumerate() {
        table.set(0, port, Owner::One(number as u16));
    }
    let (switch, mut at_switch) = connected();
    let (news, heard) = crossbeam::channel::unbounded();
    let mut port = SwitchedPort::new(SwitchedOptions {
        switch,
        owners: Owners::map(&table).expect("it can be mapped"),
        number: 0,
        network: 0,
        mac: OWN_MAC,
        switch_mac: SWITCH_MAC,
        addresses: vec![(IpAddr::V4(HOST), 0)],
        mtu: 1500,
        receive_buffers: 64,
        transmit_buffers: 64,
        news: heard,
        told: Arc::new(Notifier::new().expect("a descriptor")),
    })
    .expect("descriptors");
    let (near, far) = pair();
    let (side, [memory, rings, hears]) = far.into_parts();
    let scribbled = memory.try_clone().expect("a descriptor");
    let mut peer = Plug::from_parts(side, [memory, rings, hears]).connect().expect("it can be mapped");
    let (honest, mut at_honest) = connected();
    peer.receiver.attend();
    at_honest.receiver.attend();
    for (number, end) in [(1, near.connect().expect("it can be mapped")), (2, honest)] {
        news.send(CableNews::Plugged { peer: number, end }).expect("the port is there");
    }
    assert_eq!(port.rx_burst(&mut Batch::new()), 0);
    let mut wanted = 0;
    while !input.0.is_empty() {
        match input.octet() % 8 {
            0 => {
                // Any word anywhere: positions, states and headers.
                let (at, word) = (input.word() as usize % (2 * (WORDS + LANE_OCTETS) / 8) * 8, input.word());
                pwrite(&scribbled, &word.to_ne_bytes(), at as u64).expect("the memory is there");
            }
            1 => {
                // The next headers of both lanes, and the words in front of them.
                let (lane, near, word) = (input.octet() % 2, input.octet(), input.word());
                let at = usize::from(lane) * (WORDS + LANE_OCTETS);
                let at =
                    at + if near < 128 { usize::from(near % 16) * 8 } else { WORDS + usize::from(near - 128) * 64 };
                pwrite(&scribbled, &word.to_ne_bytes(), at as u64).expect("the memory is there");
            }
            2 => {
                let length = usize::from(input.octet());
                peer.sender.send(input.take(length), true);
            }
            3 => {
                let mut frame = segment(PORTS[1], PORTS[0], TcpFlags::ACK);
                let (at, octet) = (usize::from(input.octet()) % frame.len(), input.octet());
                frame[at] ^= octet;
                peer.sender.send(&frame, octet & 1 == 0);
            }
            4 => {
                let frame = segment(PORTS[0], PORTS[usize::from(input.octet() % 3)], TcpFlags::ACK);
                wanted += usize::from(frame[36..38] == PORTS[2].to_be_bytes());
                let mut buffer = port.alloc().expect("nobody keeps one");
                buffer.set_range(buffer.start(), frame.len());
                let start = buffer.start();
                buffer.storage_mut().expect("it is ours")[start..start + frame.len()].copy_from_slice(&frame);
                buffer.set_transmit_checksums(TransmitChecksums::default());
                assert_eq!(port.tx_burst(&mut VecDeque::from([buffer])), 1);
                // It may be full of what the peer does not take: nobody else waits for that.
                drop(taken(&mut peer));
            }
            5 => {
                port.enable_wakeups();
                port.disable_wakeups();
            }
            _ => {
                let mut batch = Batch::new();
                port.rx_burst(&mut batch);
                for frame in &batch {
                    assert!(frame.data().is_empty() || is_the_peers(frame.data()), "{:?}", frame.data());
                }
            }
        }
    }
    assert_eq!(taken(&mut at_honest).len(), wanted);
    drop(taken(&mut at_switch));
}
