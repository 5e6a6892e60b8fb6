//! ARP for IPv4 over Ethernet (RFC 826; announcements and probes: RFC 5227).

#[cfg(test)]
mod tests;

use core::net::Ipv4Addr;

use smoltcp::wire::{ArpOperation as SmoltcpOperation, ArpPacket as SmoltcpPacket, ArpRepr};

use crate::WireError;
use crate::ethernet::{self, EtherType, EthernetAddress, EthernetHeader};

/// Octets of an ARP packet behind the Ethernet header.
pub const PACKET_LEN: usize = 28;
/// Octets of an untagged frame with an ARP packet.
pub const FRAME_LEN: usize = ethernet::HEADER_LEN + PACKET_LEN;

/// The operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArpOperation {
    /// Who has the target address?
    Request,
    /// The sender has the sender address.
    Reply,
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: ArpOperation,
    /// Hardware address of the sender.
    pub sender_mac: EthernetAddress,
    /// IPv4 address of the sender; `0.0.0.0` in a probe.
    pub sender_address: Ipv4Addr,
    /// Hardware address of the target; meaningless in a request.
    pub target_mac: EthernetAddress,
    /// IPv4 address of the target.
    pub target_address: Ipv4Addr,
}

impl ArpPacket {
    /// Asks for the hardware address of `target_address`.
    pub const fn request(sender_mac: EthernetAddress, sender_address: Ipv4Addr, target_address: Ipv4Addr) -> ArpPacket {
        ArpPacket {
            operation: ArpOperation::Request,
            sender_mac,
            sender_address,
            target_mac: EthernetAddress([0; 6]),
            target_address,
        }
    }

    /// Announces the sender's own addresses to all (a gratuitous ARP as in RFC 5227).
    pub const fn announcement(sender_mac: EthernetAddress, sender_address: Ipv4Addr) -> ArpPacket {
        ArpPacket::request(sender_mac, sender_address, sender_address)
    }

    /// The answer to this request by the holder of its target address.
    pub const fn reply(&self, mac: EthernetAddress) -> ArpPacket {
        ArpPacket {
            operation: ArpOperation::Reply,
            sender_mac: mac,
            sender_address: self.target_address,
            target_mac: self.sender_mac,
            target_address: self.sender_address,
        }
    }

    /// Whether this is an announcement: sender and target address are the same, in a request or a reply.
    pub fn is_gratuitous(&self) -> bool {
        self.sender_address == self.target_address
    }

    /// Whether this is a probe for a duplicate address, from which nothing may be learnt.
    pub fn is_probe(&self) -> bool {
        self.sender_address.is_unspecified()
    }

    /// Destination of the frame: broadcast for a request, the target for a reply.
    pub fn destination(&self) -> EthernetAddress {
        match self.operation {
            ArpOperation::Request => EthernetAddress::BROADCAST,
            ArpOperation::Reply => self.target_mac,
        }
    }

    /// Reads a packet behind its Ethernet header; padding may follow.
    ///
    /// # Errors
    /// [`WireError::Truncated`]; [`WireError::Arp`] if it is not a request or reply for IPv4 over Ethernet.
    pub fn parse(octets: &[u8]) -> Result<ArpPacket, WireError> {
        if octets.len() < PACKET_LEN {
            return Err(WireError::Truncated);
        }
        let packet = SmoltcpPacket::new_checked(octets).map_err(|_| WireError::Truncated)?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_hardware_addr,
            target_protocol_addr,
        } = ArpRepr::parse(&packet).map_err(|_| WireError::Arp)?
        else {
            return Err(WireError::Arp);
        };
        let operation = match operation {
            SmoltcpOperation::Request => ArpOperation::Request,
            SmoltcpOperation::Reply => ArpOperation::Reply,
            SmoltcpOperation::Unknown(_) => return Err(WireError::Arp),
        };
        Ok(ArpPacket {
            operation,
            sender_mac: source_hardware_addr,
            sender_address: source_protocol_addr,
            target_mac: target_hardware_addr,
            target_address: target_protocol_addr,
        })
    }

    /// Writes the packet and returns its length.
    ///
    /// # Errors
    /// [`WireError::NoRoom`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let out = out.get_mut(..PACKET_LEN).ok_or(WireError::NoRoom)?;
        let representation = ArpRepr::EthernetIpv4 {
            operation: match self.operation {
                ArpOperation::Request => SmoltcpOperation::Request,
                ArpOperation::Reply => SmoltcpOperation::Reply,
            },
            source_hardware_addr: self.sender_mac,
            source_protocol_addr: self.sender_address,
            target_hardware_addr: self.target_mac,
            target_protocol_addr: self.target_address,
        };
        representation.emit(&mut SmoltcpPacket::new_unchecked(out));
        Ok(PACKET_LEN)
    }

    /// Writes an untagged Ethernet frame with the packet and returns its length. Padding to the minimum of
    /// a medium is left to the device.
    ///
    /// # Errors
    /// [`WireError::NoRoom`].
    pub fn emit_frame(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let out = out.get_mut(..FRAME_LEN).ok_or(WireError::NoRoom)?;
        let header = EthernetHeader {
            destination: self.destination(),
            source: self.sender_mac,
            vlan: None,
            ether_type: EtherType::ARP,
        };
        let at = header.emit(out);
        self.emit(&mut out[at..])?;
        Ok(FRAME_LEN)
    }
}
