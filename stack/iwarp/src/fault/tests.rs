use super::*;

/// The whole table as text: Terminate and local status of each fault.
#[test]
fn fault_table_is_frozen() {
    let text: String = TABLE
        .iter()
        .map(|row| {
            let headers = match row.headers {
                Headers::None => "-",
                Headers::Ddp => "MD",
                Headers::DdpAndReadRequest => "MDR",
            };
            format!("{}/{}/{:02x} {headers} {:?}: {:?}\n", row.layer, row.error_type, row.code, row.fault, row.local)
        })
        .collect();
    assert_eq!(
        text,
        "\
2/0/01 - ConnectionLost: ConnectionLost
2/0/02 - Crc: Flushed
2/0/03 - MarkerMismatch: Flushed
2/0/04 - InvalidStartupFrame: ConnectionLost
2/0/05 - StartupLocalCatastrophic: Fatal
2/0/06 - InsufficientIrd: Flushed
2/0/07 - NoMatchingRtr: Flushed
1/0/00 - SegmentTooShort: Flushed
1/1/00 MD TaggedInvalidStag: Flushed
1/1/01 MD TaggedBounds: Flushed
1/1/02 MD TaggedNotAssociated: Flushed
1/1/03 MD TaggedWrap: Flushed
1/1/04 MD TaggedVersion: Flushed
1/1/00 MD TaggedAccess: Flushed
1/1/00 MD ResponseStag: ReadResponse
1/1/01 MD ResponseBounds: ReadResponse
0/2/06 MD ResponseUnexpected: Flushed
0/2/ff MD ResponseIdentifier: ReadResponse
1/2/01 MD InvalidQueue: Flushed
1/2/02 MD NoBuffer: Flushed
1/2/03 MD InvalidMessageSequenceNumber: Flushed
1/2/04 MD InvalidMessageOffset: Flushed
1/2/05 MD MessageTooLong: ReceiveLength
1/2/06 MD UntaggedVersion: Flushed
0/1/00 MDR ReadInvalidStag: Flushed
0/1/01 MDR ReadBounds: Flushed
0/1/02 MDR ReadAccess: Flushed
0/1/03 MDR ReadNotAssociated: Flushed
0/1/04 MDR ReadWrap: Flushed
0/1/09 MD InvalidateNotAssociated: ReceiveInvalidation
0/2/09 MD InvalidateShared: ReceiveInvalidation
0/2/05 MD RdmapVersion: Flushed
0/2/06 MD UnexpectedOpcode: Flushed
0/2/07 MD Interleaved: Flushed
0/2/07 MD NotOneSegment: Flushed
0/2/ff MD WrongLength: Flushed
0/2/07 MD AtomicMisaligned: Flushed
0/0/00 - LocalCatastrophic: Fatal
0/2/08 - GlobalCatastrophic: Fatal
"
    );
}

#[test]
fn a_fault_reads_as_one_line() {
    assert_eq!(Fault::NoBuffer.to_string(), "NoBuffer (layer 1, type 2, code 0x02)");
}
