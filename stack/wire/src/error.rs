//! The errors of parsers and emitters.

use core::fmt;

/// The reason why a parser refused its input, or an emitter its arguments. It is small and `Copy`, so dropped packets
/// are counted by reason without any formatting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WireError {
    /// The input ends before the format does.
    Truncated,
    /// The headers lie in more than one segment of a chained buffer. The packet may be valid: copy it into one buffer
    /// and parse it again.
    NotContiguous,
    /// The IP version field does not match the EtherType.
    IpVersion,
    /// A header length field is below the fixed header or beyond the packet.
    HeaderLength,
    /// The IP total length is below the header length or beyond the frame.
    TotalLength,
    /// No host sends from this source address: it is multicast, broadcast or reserved (RFC 1122 §3.2.1.3).
    SourceAddress,
    /// The IPv4 header checksum is wrong.
    HeaderChecksum,
    /// The ICMP checksum is wrong.
    IcmpChecksum,
    /// A TCP option has a length of 0 or 1, or passes the end of the header.
    OptionLength,
    /// A Neighbor Discovery message has an invalid code, target or option (RFC 4861 §7.1).
    Neighbour,
    /// An ARP packet that is not for Ethernet and IPv4, or has an unknown operation.
    Arp,
    /// The output buffer is too short.
    NoRoom,
    /// The two addresses of a path are not both of the IP version in use.
    AddressFamily,
    /// The key of an MPA Request or Reply frame is not the expected one (RFC 5044 §7.1.1).
    MpaKey,
    /// The revision of an MPA Request or Reply frame is above 2 (RFC 5044 §7.1.1, RFC 6581 §6).
    MpaRevision,
    /// The private data of an MPA frame exceeds 512 octets (RFC 5044 §7.1.1).
    MpaPrivateDataLength,
    /// The enhanced flag is set but there are fewer than 4 octets of private data (RFC 6581 §9).
    MpaEnhancedData,
    /// A marker points outside its FPDU, or not to its start (RFC 5044 §4.3).
    MpaMarker,
    /// The DDP version of a tagged segment is not 1 (RFC 5041 §4.2).
    DdpVersionTagged,
    /// The DDP version of an untagged segment is not 1 (RFC 5041 §4.3).
    DdpVersionUntagged,
    /// The RDMAP version is not 1 (RFC 5040 §4.1).
    RdmapVersion,
    /// The RDMAP operation code is not assigned (RFC 5040 §4.3).
    Opcode,
    /// The length of an RDMAP message is not the one that its operation requires.
    MessageLength,
    /// Not an unreliable datagram of RoCE v2, or one whose lengths disagree.
    Datagram,
    /// The CRC of a datagram is wrong.
    InvariantCrc,
}

impl fmt::Display for WireError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            WireError::Truncated => "the input is truncated",
            WireError::NotContiguous => "the headers are split over buffer segments",
            WireError::IpVersion => "wrong IP version",
            WireError::HeaderLength => "bad header length",
            WireError::TotalLength => "bad IP total length",
            WireError::SourceAddress => "the source address cannot belong to a host",
            WireError::HeaderChecksum => "bad IPv4 header checksum",
            WireError::IcmpChecksum => "bad ICMP checksum",
            WireError::OptionLength => "bad TCP option length",
            WireError::Neighbour => "bad Neighbor Discovery message",
            WireError::Arp => "not an ARP packet for IPv4 over Ethernet",
            WireError::NoRoom => "the output buffer is too short",
            WireError::AddressFamily => "addresses of different or unexpected IP versions",
            WireError::MpaKey => "wrong key of an MPA frame",
            WireError::MpaRevision => "unsupported MPA revision",
            WireError::MpaPrivateDataLength => "more than 512 octets of MPA private data",
            WireError::MpaEnhancedData => "enhanced MPA frame without its 4 octets of data",
            WireError::MpaMarker => "MPA marker and ULPDU length disagree",
            WireError::DdpVersionTagged => "unsupported DDP version of a tagged segment",
            WireError::DdpVersionUntagged => "unsupported DDP version of an untagged segment",
            WireError::RdmapVersion => "unsupported RDMAP version",
            WireError::Opcode => "unassigned RDMAP operation code",
            WireError::MessageLength => "wrong length of an RDMAP message",
            WireError::Datagram => "not an unreliable datagram of RoCE v2",
            WireError::InvariantCrc => "bad CRC of a datagram",
        })
    }
}

impl core::error::Error for WireError {}
