//! Forwarding without devices, for counting instructions.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use uwarp_engine::port::{BURST, Batch, Buffer, Port};
use uwarp_engine::ports::{LoopOptions, LoopPort};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Path, TcpChecksum, prepend_tcp};
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use crate::core::{ClientId, NetworkId, Switch};
use crate::forward::Forwarder;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const MAC: [u8; 6] = [2, 0x55, 0, 0, 0, 0xff];

/// A turn of the switch. Never inlined: what is counted is what happens inside of it, by its name.
#[inline(never)]
fn forward_turn(forwarder: &mut Forwarder<LoopPort>) -> usize {
    forwarder.turn()
}

/// Sends so many frames with `size` octets of payload, rounded up to whole bursts, through a switch with two clients.
/// Gives how many arrived, or `None` if the switch cannot be made.
pub fn forward(frames: u64, size: u32) -> Option<u64> {
    let mut forwarder = Forwarder::new(Switch::new(MAC, 9000, &[HOST]).ok()?);
    let mut ends = Vec::new();
    for place in 0..2 {
        let options = LoopOptions { mtu: 9000, buffers: 4 * BURST, queue: 2 * BURST, checksums: false };
        let (near, far) = LoopPort::pair(options);
        let client = ClientId::new(place)?;
        let ports = forwarder.switch_mut().enter(client, NetworkId::OWN, mac(place))?;
        forwarder.attach(client, near);
        ends.push((far, *ports.start()));
    }
    let (mut there, to) = ends.pop()?;
    let (mut here, from) = ends.pop()?;
    let mut header = TcpHeader::new(TcpFlags::ACK);
    (header.source_port, header.destination_port) = (from, to);
    let path = Path::new(EthernetAddress(mac(0)), EthernetAddress(MAC), HOST.into(), HOST.into());
    let (mut outgoing, mut arrived) = (VecDeque::new(), 0);
    while arrived < frames {
        for _ in 0..BURST {
            let mut frame = here.alloc()?;
            let start = frame.start();
            let room = frame.storage_mut()?.get_mut(..start)?;
            let length = prepend_tcp(room, &path, &header, 0, size as usize, TcpChecksum::PseudoHeaderOnly).ok()?;
            frame.set_range(start - length, length + size as usize);
            outgoing.push_back(frame);
        }
        here.tx_burst(&mut outgoing);
        forward_turn(&mut forwarder);
        let mut batch = Batch::new();
        arrived += there.rx_burst(&mut batch) as u64;
        if batch.is_empty() {
            return None;
        }
    }
    Some(arrived)
}

fn mac(place: usize) -> [u8; 6] {
    [2, 0x55, 0, 0, 0, place as u8]
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_frame_arrives() {
        assert_eq!(super::forward(100, 1000), Some(128));
    }
}
