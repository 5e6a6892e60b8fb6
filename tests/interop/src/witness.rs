//! tshark as a witness that shares no code with the stack.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// tshark's findings in a capture.
#[derive(Debug)]
pub struct Testimony {
    /// FPDUs whose CRC it computed and found valid.
    pub good_crcs: usize,
    /// FPDUs that it dissected, by RDMAP opcode.
    pub opcodes: [usize; 16],
    /// Complaints: malformed packets, bad CRCs, and expert errors and warnings, except argued ones.
    pub complaints: Vec<String>,
}

/// Warnings that are right by an older document: tshark 4.0 knows MPA revision 1 (RFC 5044), but neither revision 2 nor
/// its S bit (RFC 6581).
const ARGUED: &[&str] =
    &["Res field is NOT set to zero as required by RFC 5044", "Rev field is NOT set to one as required by RFC 5044"];

/// One of our ephemeral ports may be assigned to another protocol, which tshark would dissect there if it did not try
/// MPA first.
const MPA_FIRST: &str = "tcp.try_heuristic_first:TRUE";

/// Has tshark read `capture`. `None` behind a middlebox, which cuts what was received before it is captured: tshark
/// expects FPDUs to begin with a segment.
pub fn examine(capture: &Path) -> Option<Testimony> {
    if uwarp_middlebox::is_skipped("captures are not judged: tshark wants FPDUs to begin with a segment") {
        return None;
    }
    let mut testimony = dissected(&tshark(capture, &["-V"]));
    // An expert error or warning of any layer is a complaint, except TCP's about losses, which are not protocol errors.
    let expert = tshark(capture, &["-q", "-z", "expert,warn"]);
    let mut is_warning = false;
    for line in expert.lines().map(str::trim) {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        // The headings are such as `Warns (3)`.
        if ["Errors", "Warns"].contains(&first) {
            is_warning = first == "Warns";
        }
        let is_entry = first.parse::<u32>().is_ok();
        let is_of_a_loss = is_warning && words.next() == Some("Sequence") && words.next() == Some("TCP");
        if is_entry && !ARGUED.iter().any(|argued| line.ends_with(argued)) && !is_of_a_loss {
            testimony.complaints.push(line.to_owned());
            if line.contains("Malformed") {
                testimony.complaints.push(tshark(capture, &["-Y", "_ws.malformed"]));
            }
        }
    }
    Some(testimony)
}

/// What tshark's full text says of FPDUs. A segment that was retransmitted, as on a machine that stalls for a while, is
/// dissected again, but counts once.
fn dissected(text: &str) -> Testimony {
    let mut testimony = Testimony { good_crcs: 0, opcodes: [0; 16], complaints: Vec::new() };
    let mut seen = HashSet::new();
    // Ports and length of the frame's segment, and whether it is a retransmission.
    let (mut segment, mut again) = ("", false);
    for line in text.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix("Transmission Control Protocol, ") {
            (segment, again) = (header, false);
        } else if let Some(number) = line.strip_prefix("Sequence Number (raw): ") {
            let ports = segment.split(", ").filter(|part| part.contains("Port: ") || part.starts_with("Len: "));
            again = !seen.insert((ports.map(str::to_owned).collect::<Vec<_>>(), number.to_owned()));
        } else if again {
        } else if line.contains("CRC check:") {
            if line.ends_with("(Good CRC32)") {
                testimony.good_crcs += 1;
            } else {
                testimony.complaints.push(line.to_owned());
            }
        } else if let Some((bits, _)) = line.split_once(" = OpCode: ") {
            // `.... 0011`: it prints no numbers for opcodes without names. An atomic's own opcode has more bits.
            if let Some(bits) = bits.strip_prefix(".... ").filter(|bits| bits.len() == 4) {
                let number = usize::from_str_radix(bits, 2).expect("tshark prints the opcode's bits");
                testimony.opcodes[number] += 1;
            }
        }
    }
    testimony
}

/// Counts frames of `capture` that match `filter`.
pub fn count(capture: &Path, filter: &str) -> usize {
    count_with(capture, &[], filter)
}

/// The same with more arguments, for what tshark does not dissect by default.
pub fn count_with(capture: &Path, more: &[&str], filter: &str) -> usize {
    lines(&tshark(capture, &[more, &["-Y", filter]].concat()))
}

/// As [`count`], with RPC-over-RDMA of any program dissected.
pub fn count_calls(capture: &Path, filter: &str) -> usize {
    lines(&dissect(capture, &["-o", MPA_FIRST, "-o", "rpc.dissect_unknown_programs:TRUE", "-Y", filter]))
}

fn lines(text: &str) -> usize {
    text.lines().filter(|line| !line.trim().is_empty()).count()
}

fn tshark(capture: &Path, more: &[&str]) -> String {
    // Its heuristic takes any Send with similar octets for RPC-over-RDMA.
    let choices = ["--disable-protocol", "rpcordma", "-o", MPA_FIRST];
    dissect(capture, &[&choices, more].concat())
}

fn dissect(capture: &Path, more: &[&str]) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(capture)
        .args(more)
        .stdin(Stdio::null())
        .output()
        .expect("tshark is installed (apt-get install tshark)");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_was_sent_again_counts_once() {
        let frame = |source: u16, sequence: u32, length: u32| {
            format!(
                "Frame 7: 114 bytes on wire\n\
                 Transmission Control Protocol, Src Port: {source}, Dst Port: 7174, Seq: 1, Ack: 21, Len: {length}\n    \
                 Sequence Number (raw): {sequence}\n\
                 iWARP Marker Protocol data unit Aligned framing\n    CRC check: 0x1 (Good CRC32)\n    \
                 .... 0001 = OpCode: Read Request (0x1)\n"
            )
        };
        let frames = [frame(1, 100, 48), frame(1, 148, 48), frame(1, 100, 48), frame(2, 100, 48), frame(1, 100, 96)];
        let testimony = dissected(&frames.concat());
        assert_eq!((testimony.good_crcs, testimony.opcodes[1], testimony.complaints.len()), (4, 4, 0));
    }
}
