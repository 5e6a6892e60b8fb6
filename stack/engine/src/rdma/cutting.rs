//! FPDUs of a message that is longer than one.

use uwarp_iwarp::framing::{LENGTH_LEN, fpdu_len};
use uwarp_iwarp::{Cut, LONGEST_HEADER};
use uwarp_memory::{Access, AccessError, OpenRegion, Turn, kernels};

use crate::api::work::Sge;
use crate::connection::running::{Outgoing, Source};
use crate::connection::{Connection, Record};
use crate::link::port::{Buffer, Port};
use crate::rdma::fpdu::{Fpdu, SHORT};
use crate::rdma::packing::Sending;
use crate::rdma::queue_pair::QueuePair;

impl<P: Port> Sending<'_, P> {
    /// Builds FPDUs of the message being cut that fill a segment each, and hands them to TCP, up to the last but one:
    /// what [`Sending::pull`] does with them one by one. As many as a frame takes are one record if the device cuts
    /// frames. `limits`: segments and octets that may still be built.
    #[inline]
    pub(super) fn cut_long(&mut self, limit: u16, (budget, space): (&mut u32, &mut usize)) -> Result<(), AccessError> {
        let segment = self.connection.tcp.effective_mss() as usize;
        let start = self.link.payload_start;
        let Some(running) = self.connection.phase.running(&mut self.common.counters) else { return Ok(()) };
        // The general code notices that.
        let Some(outgoing) = &running.outgoing else { return Ok(()) };
        let each = fpdu_len(outgoing.message.next_ulpdu_len(limit) as usize);
        // Where two fit a segment, each record holds several.
        let shares = self.open.as_ref().map_or(each, |open| open.length().min(each)) + each <= segment;
        if !outgoing.message.continues(limit) || shares || running.transmits_markers() {
            return Ok(());
        }
        self.push_open();
        let to_self = self.connection.next_hop.to_self;
        let each_frame = self.link.segments_of_frame(each, &mut self.connection.tcp, to_self);
        let Sending { turn, link, records, common, connection, queue_pair, .. } = self;
        let Connection { phase, tcp, .. } = &mut **connection;
        let Some(running) = phase.running(&mut common.counters) else { return Ok(()) };
        let crc = running.crc;
        let opens = crc && each > 2 * SHORT;
        let mut source = None;
        while *space > 0
            && *budget > 0
            && let Some(outgoing) = &mut running.outgoing
            && outgoing.message.continues(limit)
            && link.has_room()
            && link.has_share(tcp.records())
            && let Some(buffer) = link.alloc()
        {
            let (token, record) = records.place(Record::new(buffer));
            let room = record.buffer.storage_mut().and_then(|storage| storage.get_mut(start..)).unwrap_or_default();
            let (mut built, mut length, mut refused) = (0, 0, None);
            loop {
                if opens && source.is_none() {
                    source = OpenSource::of(turn, outgoing, queue_pair);
                }
                match build_segment(turn, outgoing, queue_pair, &mut room[length..], limit, crc, &mut source) {
                    Ok(octets) if octets > 0 => length += octets,
                    other => {
                        refused = Some(other.map(|_| ()));
                        break;
                    }
                }
                built += 1;
                let goes_on = built < each_frame && length < *space && built < *budget as usize;
                if !goes_on || !outgoing.message.continues(limit) {
                    break;
                }
            }
            if built == 0 {
                records.remove(token);
            } else {
                record.sum = if link.offload_tcp { 0 } else { kernels::checksum_sum(&room[..length]) };
                record.length = length as u16;
                record.segment = each as u16;
                record.buffer.set_range(start, length);
                tcp.push(token, length as u32);
                common.counters.fpdus_sent += built as u64;
                *budget -= built as u32;
                *space = space.saturating_sub(length);
            }
            if let Some(result) = refused {
                return result;
            }
        }
        Ok(())
    }
}

/// Registered memory that the next FPDUs of a message take their payload from.
pub(crate) struct OpenSource<'a> {
    region: OpenRegion<'a>,
    /// Where the next octet is.
    offset: u64,
    /// Octets from there on.
    left: u32,
}

impl<'a> OpenSource<'a> {
    /// That of a message's next octet; `None` if it is not in a single region.
    #[inline(never)]
    fn of(turn: &'a Turn<'_>, outgoing: &Outgoing, queue_pair: &QueuePair) -> Option<OpenSource<'a>> {
        let cut = outgoing.message.octets_cut();
        let (piece, region) = match outgoing.source {
            Source::Entries => {
                let piece = queue_pair.send.rest_of_entry(cut)?;
                (piece, turn.open(queue_pair.association, piece.stag, Access::LOCAL_READ)?)
            }
            Source::Response { stag, offset } => {
                let offset = offset.0.wrapping_add(u64::from(cut));
                let piece = Sge { stag: stag.0, length: outgoing.message.length() - cut, offset };
                (piece, turn.open(queue_pair.peer.reads, piece.stag, Access::REMOTE_READ)?)
            }
            _ => return None,
        };
        Some(OpenSource { region, offset: piece.offset, left: piece.length })
    }
}

/// Builds the next FPDU of a message, which continues behind it, with payload from `source` as far as that has it.
/// Gives its octets; none if there is no room.
#[inline(always)]
pub(crate) fn build_segment(
    turn: &Turn<'_>,
    outgoing: &mut Outgoing,
    queue_pair: &mut QueuePair,
    room: &mut [u8],
    limit: u16,
    crc: bool,
    source: &mut Option<OpenSource<'_>>,
) -> Result<usize, AccessError> {
    if room.len() < LENGTH_LEN + LONGEST_HEADER {
        return Ok(0);
    }
    let (mut fpdu, cut) = match outgoing.message.cut_tagged(limit) {
        Some((header, cut)) => (Fpdu::begin_tagged(room, &header, cut.payload_len, crc), cut),
        None => {
            let Some(cut) = outgoing.message.cut_into(limit, &mut room[LENGTH_LEN..]) else { return Ok(0) };
            (Fpdu::begin(room, cut.header_len, cut.payload_len, crc), cut)
        }
    };
    if let Some(open) = source
        && cut.payload_len <= open.left
        && fpdu.gather_all(&open.region, open.offset)
    {
        open.offset = open.offset.wrapping_add(u64::from(cut.payload_len));
        open.left -= cut.payload_len;
        return Ok(fpdu.end());
    }
    *source = None;
    if let Err(refused) = copy_payload(turn, queue_pair, outgoing.source, &cut, &mut fpdu) {
        // The peer is told how much of a response was sent.
        outgoing.message.take_back(&cut);
        return Err(refused);
    }
    Ok(fpdu.end())
}

/// Copies the payload of a segment that was cut from the message with this source.
#[inline(always)]
pub(crate) fn copy_payload(
    turn: &Turn<'_>,
    queue_pair: &mut QueuePair,
    source: Source,
    cut: &Cut,
    fpdu: &mut Fpdu<'_>,
) -> Result<(), AccessError> {
    let association = queue_pair.association;
    match source {
        Source::Nothing | Source::NoPayload | Source::Answer => {}
        Source::CommitRequest(identifier) => {
            queue_pair.send.copy_commit_request(identifier, cut.payload_offset, fpdu.payload())?;
        }
        Source::Inline => queue_pair.send.copy_inline(cut.payload_offset, fpdu.payload())?,
        Source::Entries => match queue_pair.send.piece(cut.payload_offset, cut.payload_len) {
            Some(piece) => fpdu.gather(turn, association, piece)?,
            None => queue_pair
                .send
                .gather(cut.payload_offset, cut.payload_len, |piece| fpdu.gather(turn, association, piece))?,
        },
        Source::Response { stag, offset } => {
            let offset = offset.0.wrapping_add(u64::from(cut.payload_offset));
            let piece = Sge { stag: stag.0, length: cut.payload_len, offset };
            fpdu.gather_with(turn, queue_pair.peer.reads, piece, Access::REMOTE_READ)?;
        }
    }
    Ok(())
}
