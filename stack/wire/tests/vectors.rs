//! Every MPA and FPDU vector of `tests/data/test-vectors.json`: parsed, compared with its fields, and emitted again
//! octet for octet.

use serde_json::Value;
use uwarp_wire::ddp::{Header, QueueNumber, TaggedHeader, UntaggedHeader};
use uwarp_wire::mpa::{self, EnhancedData, FrameKind, MARKER_LEN, StartupFrame};
use uwarp_wire::rdmap::{
    AtomicRequest, AtomicResponse, CommitRegion, CommitRequest, CommitResponse, ImmediateData, Opcode, ReadRequest,
    Terminate,
};
use uwarp_wire::{WireError, mpa::Marker};

struct Vector {
    name: String,
    layer: String,
    fields: Value,
    octets: Vec<u8>,
    ulpdu: Option<Vec<u8>>,
}

fn from_hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2));
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn vectors(layer: &str) -> Vec<Vector> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/test-vectors.json");
    let text = std::fs::read_to_string(path).unwrap();
    let list: Vec<Value> = serde_json::from_str(&text).unwrap();
    list.iter()
        .map(|entry| Vector {
            name: entry["name"].as_str().unwrap().to_owned(),
            layer: entry["layer"].as_str().unwrap().to_owned(),
            fields: entry["fields"].clone(),
            octets: from_hex(entry["hex"].as_str().unwrap()),
            ulpdu: entry.get("ulpdu").map(|it| from_hex(it.as_str().unwrap())),
        })
        .filter(|vector| vector.layer == layer)
        .collect()
}

impl Vector {
    /// A field as a number, whether it is written as one, as `0x…`, or as plain hexadecimal digits.
    fn number(&self, field: &str) -> Option<u64> {
        number(self.fields.get(field)?)
    }

    /// Compares `value` with the vector's field, where the vector has it.
    fn check(&self, field: &str, value: impl Into<u64>) {
        if let Some(expected) = self.number(field) {
            assert_eq!(value.into(), expected, "{}: {field}", self.name);
        }
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => Some(u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).unwrap()),
        _ => None,
    }
}

#[test]
fn mpa_frames() {
    let vectors = vectors("MPA");
    assert_eq!(vectors.len(), 14);
    for vector in &vectors {
        let kind = if vector.name.starts_with("mpa-req") { FrameKind::Request } else { FrameKind::Reply };
        let parsed = StartupFrame::parse(kind, &vector.octets);
        if vector.name == "mpa-req-r1-pd513-BAD" {
            assert_eq!(parsed, Err(WireError::MpaPrivateDataLength));
            continue;
        }
        assert!(!vector.name.ends_with("BAD"), "{}", vector.name);
        let (frame, length) = parsed.unwrap().unwrap();
        assert_eq!(length, vector.octets.len(), "{}", vector.name);
        vector.check("M", frame.markers);
        vector.check("C", frame.crc);
        vector.check("R", frame.reject);
        vector.check("S", frame.enhanced.is_some());
        vector.check("Rev", frame.revision);
        vector.check("PD_Length", (length - mpa::STARTUP_HEADER_LEN) as u64);
        let enhanced = frame.enhanced.unwrap_or_default();
        vector.check("A", enhanced.peer_to_peer);
        vector.check("B", enhanced.ready_by_send);
        vector.check("C_flag", enhanced.ready_by_write);
        vector.check("D", enhanced.ready_by_read);
        vector.check("IRD", enhanced.ird);
        vector.check("ORD", enhanced.ord);
        if frame.enhanced.is_none() {
            assert_eq!(enhanced, EnhancedData::default());
        }
        if let Some(data) = vector.fields.get("private_data") {
            assert_eq!(frame.private_data, from_hex(data.as_str().unwrap()), "{}", vector.name);
        }
        if let Some(data) = vector.fields.get("ulp_data") {
            assert_eq!(frame.private_data, data.as_str().unwrap().as_bytes(), "{}", vector.name);
        }
        let mut out = vec![0xaa; length];
        assert_eq!(frame.emit(&mut out), Ok(length));
        assert_eq!(out, vector.octets, "{}", vector.name);
    }
}

/// Removes the markers from an FPDU, checks them, and returns the rest.
fn without_markers(vector: &Vector) -> Vec<u8> {
    let Some(start) = vector.number("stream_offset") else {
        assert!(vector.fields.get("markers").is_none());
        return vector.octets.clone();
    };
    let expected = vector.fields["markers"].as_array().unwrap();
    let length = vector.octets.len() - MARKER_LEN * expected.len();
    assert_eq!(mpa::marked_len(start, length), vector.octets.len(), "{}", vector.name);
    let mut plain = Vec::new();
    let mut rest = vector.octets.as_slice();
    let mut taken = 0;
    let mut count = 0;
    for (place, expected) in mpa::marker_places(start, length).zip(expected) {
        assert_eq!(Some(start + place.at as u64), number(&expected["at"]), "{}", vector.name);
        let pointer = number(&expected["FPDUPTR"]).unwrap();
        assert_eq!(u64::from(place.marker.pointer), pointer, "{}", vector.name);
        let (before, behind) = rest.split_at(place.at - taken);
        let (marker, behind) = behind.split_first_chunk::<MARKER_LEN>().unwrap();
        assert_eq!(Marker::from_octets(*marker), place.marker);
        assert_eq!(place.marker.to_octets(), *marker);
        plain.extend(before);
        taken = place.at + MARKER_LEN;
        rest = behind;
        count += 1;
    }
    plain.extend(rest);
    assert_eq!((count, plain.len()), (expected.len(), length), "{}", vector.name);
    plain
}

/// Builds an FPDU: markers in their places, and the CRC over everything before it.
fn fpdu(ulpdu: &[u8], stream_offset: Option<u64>) -> Vec<u8> {
    let mut plain = (ulpdu.len() as u16).to_be_bytes().to_vec();
    plain.extend(ulpdu);
    plain.resize(plain.len() + mpa::padding_len(ulpdu.len()), 0);
    let length = plain.len() + mpa::CRC_LEN;
    assert_eq!(length, mpa::fpdu_len(ulpdu.len()));
    if let Some(start) = stream_offset {
        for place in mpa::marker_places(start, length) {
            plain.splice(place.at..place.at, place.marker.to_octets());
        }
    }
    plain.extend(mpa::crc_to_octets(crc32c::crc32c(&plain)));
    plain
}

#[test]
fn fpdus() {
    let vectors = vectors("FPDU");
    assert_eq!(vectors.len(), 53);
    for vector in &vectors {
        let plain = without_markers(vector);
        let length = usize::from(u16::from_be_bytes([plain[0], plain[1]]));
        vector.check("ulpdu_length", length as u64);
        vector.check("fpdu_octets", vector.octets.len() as u64);
        assert_eq!(plain.len(), mpa::fpdu_len(length), "{}", vector.name);
        let ulpdu = &plain[2..2 + length];
        if let Some(expected) = &vector.ulpdu {
            assert_eq!(ulpdu, expected, "{}", vector.name);
        }
        vector.check("pad", (plain.len() - 2 - length - mpa::CRC_LEN) as u64);
        let crc = mpa::crc_from_octets(*vector.octets.last_chunk().unwrap());
        vector.check("crc32c", crc);
        let rebuilt = fpdu(ulpdu, vector.number("stream_offset"));
        match vector.name.as_str() {
            // One vector has no CRC in the field, the other a wrong one.
            "write-5-nocrc" => assert_eq!(crc, 0),
            "write-5-badcrc-BAD" => {
                assert_eq!(crc ^ mpa::crc_from_octets(*rebuilt.last_chunk().unwrap()), 1 << 24);
            }
            _ => assert_eq!(rebuilt, vector.octets, "{}", vector.name),
        }
        check_segment(vector, ulpdu);
    }
}

fn check_segment(vector: &Vector, ulpdu: &[u8]) {
    let name = vector.name.as_str();
    let parsed = Header::parse(ulpdu);
    if name == "dv-0-BAD" {
        assert_eq!(parsed, Err(WireError::DdpVersionUntagged));
        return;
    }
    let header = parsed.unwrap();
    vector.check("L", header.last());
    vector.check("T", matches!(header, Header::Tagged(_)));
    vector.check("RV", header.control().version());
    let mut out = [0; 18];
    let length = header.emit(&mut out);
    assert_eq!(out[..length], ulpdu[..length], "{name}");
    match name {
        "rv-2-BAD" => assert_eq!(header.control().parse(), Err(WireError::RdmapVersion)),
        "opcode-e-BAD" => assert_eq!(header.control().parse(), Err(WireError::Opcode)),
        _ => {
            let opcode = header.control().parse().unwrap();
            vector.check("opcode", opcode.code());
            let body = &ulpdu[length..];
            match header {
                Header::Tagged(header) => check_tagged(vector, &header, opcode, body),
                Header::Untagged(header) => check_untagged(vector, &header, opcode, body),
            }
        }
    }
}

fn check_tagged(vector: &Vector, header: &TaggedHeader, opcode: Opcode, body: &[u8]) {
    assert!(matches!(opcode, Opcode::Write | Opcode::ReadResponse), "{}", vector.name);
    vector.check("STag", header.stag.0);
    vector.check("TO", header.offset.0);
    vector.check("payload", body.len() as u64);
    let wraps = header.offset.checked_add(body.len() as u64).is_none();
    assert_eq!(wraps, vector.name == "write-to-wrap-BAD");
}

fn check_untagged(vector: &Vector, header: &UntaggedHeader, opcode: Opcode, body: &[u8]) {
    let name = vector.name.as_str();
    vector.check("QN", header.queue.0);
    vector.check("MSN", header.message_sequence_number.0);
    vector.check("MO", header.message_offset);
    if opcode != Opcode::Terminate {
        vector.check("InvSTag", header.invalidate_stag.0);
    }
    let mut out = vec![0; body.len()];
    let expected_queue = match opcode {
        Opcode::ReadRequest => {
            let request = ReadRequest::parse(body).unwrap();
            vector.check("SinkSTag", request.sink_stag.0);
            vector.check("SinkTO", request.sink_offset.0);
            vector.check("RDMARDSZ", request.length);
            vector.check("SrcSTag", request.source_stag.0);
            vector.check("SrcTO", request.source_offset.0);
            out.copy_from_slice(&request.to_octets());
            QueueNumber::READ_REQUEST
        }
        Opcode::Terminate => {
            let terminate = Terminate::parse(body).unwrap();
            vector.check("layer", terminate.layer.code());
            vector.check("etype", terminate.error_type);
            vector.check("ecode", terminate.code);
            vector.check("M", terminate.segment_length.is_some());
            vector.check("D", terminate.ddp_header.is_some());
            vector.check("R", terminate.read_request.is_some());
            vector.check("seglen", terminate.segment_length.unwrap_or_default());
            assert_eq!(terminate.emit(&mut out), body.len(), "{name}");
            QueueNumber::TERMINATE
        }
        Opcode::Immediate | Opcode::ImmediateSolicited => {
            let data = ImmediateData::parse(body).unwrap();
            vector.check("imm", data.0);
            out.copy_from_slice(&data.to_octets());
            QueueNumber::SEND
        }
        Opcode::AtomicRequest => {
            let request = AtomicRequest::parse(body).unwrap();
            vector.check("AOpCode", request.operation);
            vector.check("ReqId", request.request_identifier);
            vector.check("RemoteSTag", request.stag.0);
            vector.check("RemoteTO", request.offset.0);
            vector.check("AddData", request.add_swap_data);
            vector.check("SwapData", request.add_swap_data);
            vector.check("AddMask", request.add_swap_mask);
            vector.check("SwapMask", request.add_swap_mask);
            vector.check("CmpData", request.compare_data);
            vector.check("CmpMask", request.compare_mask);
            out.copy_from_slice(&request.to_octets());
            QueueNumber::READ_REQUEST
        }
        Opcode::AtomicResponse => {
            let response = AtomicResponse::parse(body).unwrap();
            vector.check("OrigReqId", response.request_identifier);
            vector.check("OrigValue", response.original_value);
            out.copy_from_slice(&response.to_octets());
            QueueNumber::ATOMIC_RESPONSE
        }
        Opcode::CommitRequest => {
            let request = CommitRequest::parse(body).unwrap();
            vector.check("ReqId", request.request_identifier);
            let regions: Vec<CommitRegion> = request.regions().collect();
            let expected = vector.fields["regions"].as_array().unwrap();
            assert_eq!(regions.len(), expected.len());
            for (region, expected) in regions.iter().zip(expected) {
                assert_eq!(number(&expected["STag"]), Some(region.stag.0.into()));
                assert_eq!(number(&expected["Length"]), Some(region.length.into()));
                assert_eq!(number(&expected["TO"]), Some(region.offset.0));
            }
            let length = CommitRequest::emit(request.request_identifier, &regions, &mut out);
            assert_eq!(length, body.len());
            QueueNumber::READ_REQUEST
        }
        Opcode::CommitResponse => {
            let response = CommitResponse::parse(body).unwrap();
            vector.check("OrigReqId", response.request_identifier);
            vector.check("Status", response.status);
            out.copy_from_slice(&response.to_octets());
            QueueNumber::ATOMIC_RESPONSE
        }
        _ => {
            vector.check("payload", body.len() as u64);
            out.copy_from_slice(body);
            QueueNumber::SEND
        }
    };
    assert_eq!(out, body, "{name}");
    assert_eq!(header.queue, expected_queue, "{name}");
}
