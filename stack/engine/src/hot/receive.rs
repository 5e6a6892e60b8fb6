//! The usual segment, from the frame to memory: in order, of a stream in full operation, with nothing to repair.

use std::collections::VecDeque;
use std::ops::Range;

use uwarp_iwarp::SendKind;
use uwarp_iwarp::framing::{CRC_LEN, LENGTH_LEN, fpdu_len};
use uwarp_memory::{Access, OpenRegion, Turn, kernels};
use uwarp_tcp::{Events, Instant};
use uwarp_wire::ddp::{Header, QueueNumber, TAGGED_HEADER_LEN, TaggedHeader, UNTAGGED_HEADER_LEN, UntaggedHeader};
use uwarp_wire::fixed::{PLAIN, TAGGED, V4, V6};
use uwarp_wire::mpa::crc_from_octets;
use uwarp_wire::rdmap::{Control, Opcode};

use crate::api::counters::Counters;
use crate::api::work::{CompletionFlags, Status};
use crate::connection::phase::Phase;
use crate::connection::running::Running;
use crate::connection::wheel::Wheel;
use crate::connection::{Connection, Connections};
use crate::hot::segment::Predicted;
use crate::hot::transmit::arm;
use crate::link::port::Buffer;
use crate::link::template::Layout;
use crate::rdma::lanes::Lanes;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::{Moment, Rdma};

impl<B: Buffer> Connections<B> {
    /// Takes frames of the connection that the last frame belonged to: the first one if it is a predicted segment, and
    /// those behind it that are alike. Gives how many; if none, the general code has to take the first frame. Writes,
    /// Sends, Reads and their responses that are whole in a frame are taken here. If the last frame has others, `end`
    /// says what is left of it for the general code.
    #[inline(never)]
    pub(crate) fn receive_hot<'f>(
        &mut self,
        rdma: &mut Rdma,
        counters: &mut Counters,
        moment: Moment<'_>,
        frames: &'f [B],
        end: &mut End<'f>,
    ) -> usize {
        let Some(index) = self.guess else { return 0 };
        let connection = self.table.get(index);
        let template = connection.and_then(|connection| connection.next_hop.template.as_ref());
        let Some(template) = template else { return 0 };
        if template.layout() == Layout::Ipv4 {
            return self.receive_behind::<PLAIN, V4>(rdma, counters, moment, index, frames, end);
        }
        let layout = template.layout();
        self.receive_layout(rdma, counters, moment, layout, frames, end)
    }

    /// The same for the other layouts.
    #[inline(never)]
    fn receive_layout<'f>(
        &mut self,
        rdma: &mut Rdma,
        counters: &mut Counters,
        moment: Moment<'_>,
        layout: Layout,
        frames: &'f [B],
        end: &mut End<'f>,
    ) -> usize {
        let Some(index) = self.guess else { return 0 };
        match layout {
            Layout::Ipv4 => self.receive_behind::<PLAIN, V4>(rdma, counters, moment, index, frames, end),
            Layout::Ipv4Tagged => self.receive_behind::<TAGGED, V4>(rdma, counters, moment, index, frames, end),
            Layout::Ipv6 => self.receive_behind::<PLAIN, V6>(rdma, counters, moment, index, frames, end),
            Layout::Ipv6Tagged => self.receive_behind::<TAGGED, V6>(rdma, counters, moment, index, frames, end),
        }
    }

    /// The same behind `LINK` octets of the link's header and `IP` of IP's.
    #[inline(always)]
    fn receive_behind<'f, const LINK: usize, const IP: usize>(
        &mut self,
        rdma: &mut Rdma,
        counters: &mut Counters,
        moment: Moment<'_>,
        index: u32,
        frames: &'f [B],
        end: &mut End<'f>,
    ) -> usize {
        let Some(first) = frames.first() else { return 0 };
        let Some((connection, known_usual)) = self.table.get_with_mark(index) else { return 0 };
        let Connection { phase: Phase::Running(running), next_hop, gather, .. } = &*connection else {
            return 0;
        };
        let Some(template) = &next_hop.template else { return 0 };
        let frame = first.data();
        let Some(predicted) = Predicted::of::<B, LINK, IP>(first, frame, template) else { return 0 };
        if running.receives_long || !gather.is_empty() {
            return 0;
        }
        // Only for the most frequent layout as a part of this function.
        let events = if LINK == PLAIN && IP == V4 {
            if !(*known_usual || connection.tcp.is_undisturbed()) {
                return 0;
            }
            connection.tcp.on_usual_segment(moment.now, &predicted.segment)
        } else {
            connection.tcp.on_usual_segment_apart(moment.now, &predicted.segment)
        };
        let Some(events) = events else { return 0 };
        if events.contains(Events::OCTETS_ACKED) {
            connection.acknowledged(&mut self.records);
        }
        let mut taken = 1;
        if predicted.payload.len() > connection.tcp.effective_mss() as usize {
            // What the peer's device has not cut may hold many FPDUs of a Write.
            taken = self.follow::<LINK, IP>(rdma, counters, moment, predicted, frames, (end, 0));
        } else {
            let mut train = Train::new(moment.turn, connection, rdma, counters);
            match train.take::<false>(frame, predicted.payload.clone(), None) {
                End::All => {
                    settle(connection, known_usual, (&mut self.wheel, &mut self.ready), rdma, moment.now);
                    if frames.len() > 1 {
                        taken = self.follow::<LINK, IP>(rdma, counters, moment, predicted, frames, (end, 1));
                    }
                }
                other => *end = other,
            }
        }
        counters.hot_received += taken as u64;
        counters.frames_received += taken as u64;
        taken
    }

    /// Takes the payload of the first segment, `predicted`, if that was not taken (`taken` is 0), and the segments that
    /// are like it. Gives how many frames were taken then.
    #[inline(never)]
    fn follow<'f, const LINK: usize, const IP: usize>(
        &mut self,
        rdma: &mut Rdma,
        counters: &mut Counters,
        moment: Moment<'_>,
        mut predicted: Predicted,
        frames: &'f [B],
        (end, mut taken): (&mut End<'f>, usize),
    ) -> usize {
        let marked = self.guess.and_then(|index| self.table.get_with_mark(index));
        let Some((connection, known_usual)) = marked else {
            counters.cannot_be("the connection whose segment was taken is gone");
            return taken.max(1);
        };
        let first = frames[0].data();
        let mut train = Train::new(moment.turn, connection, rdma, counters);
        while let Some(next) = frames.get(taken)
            && let End::All = end
        {
            let frame = next.data();
            let mut crc = None;
            if taken > 0 {
                let fpdu = train.write.as_ref().and_then(LongWrite::covered_fpdu);
                let Some(intact) = predicted.becomes::<B, LINK, IP>(first, next, frame, fpdu) else { break };
                if !train.connection.tcp.on_alike_segment(moment.now, &predicted.segment) {
                    break;
                }
                crc = intact.crc;
            }
            *end = train.take::<true>(frame, predicted.payload.clone(), crc);
            taken += 1;
        }
        if let End::All = end {
            settle(connection, known_usual, (&mut self.wheel, &mut self.ready), rdma, moment.now);
        }
        taken
    }
}

/// Finds what a connection has to do behind segments that were taken whole. `known_usual`: its mark.
#[inline(always)]
fn settle(
    connection: &mut Connection,
    known_usual: &bool,
    (wheel, ready): (&mut Wheel, &mut VecDeque<u32>),
    rdma: &mut Rdma,
    now: Instant,
) {
    if !connection.quiet {
        connection.look_for_quiet(&mut rdma.queue_pairs);
    }
    // The segments leave a usual connection so. All that it can want to send is an acknowledgment.
    let wants_transmit =
        if *known_usual { connection.tcp.wants_acknowledgment() } else { connection.tcp.wants_transmit() };
    debug_assert_eq!(wants_transmit, connection.tcp.wants_transmit());
    if !connection.quiet || wants_transmit {
        // It is served later in this turn, which also arms its timer.
        return connection.schedule(ready);
    }
    // Before, the entry fired no later than any timer that ran, unless the connection is still to be served. So
    // nothing is to be done if it fires before all that the segments can have started.
    if !*known_usual && !wheel.fires_by(connection.index, connection.tcp.soonest_timer(now)) {
        arm(wheel, connection);
    }
    let is_in_time = |at: Instant| wheel.is_armed_for(connection.index, at);
    debug_assert!(connection.scheduled || connection.next_deadline().is_none_or(is_in_time));
}

/// Segments of a connection, one behind the other, and what they touch.
struct Train<'a> {
    turn: &'a Turn<'a>,
    connection: &'a mut Connection,
    /// None: the general code takes all FPDUs.
    queue_pair: Option<&'a mut QueuePair>,
    lanes: &'a mut Lanes,
    counters: &'a mut Counters,
    /// The Write that the last FPDU was part of, if it goes on.
    write: Option<LongWrite<'a>>,
}

/// A Write of several FPDUs, all of which but the last differ in their offset and payload alone.
struct LongWrite<'a> {
    /// An FPDU's octets before the tagged offset: its length, the control octets and the STag.
    head: [u8; OFFSET_AT],
    region: OpenRegion<'a>,
    /// Octets of an FPDU up to its padding.
    end: usize,
    crc: bool,
}

/// Where the tagged offset is in an FPDU.
const OFFSET_AT: usize = LENGTH_LEN + TAGGED_HEADER_LEN - size_of::<u64>();

impl LongWrite<'_> {
    /// Octets of an FPDU, if it has a CRC.
    #[inline(always)]
    fn covered_fpdu(&self) -> Option<usize> {
        self.crc.then(|| fpdu_len(self.end - LENGTH_LEN))
    }

    /// Places the next FPDU at the head of `octets`; gives its length. `None`: it is not of this Write, its last one,
    /// or at fault, and nothing was placed. `crc`: that of its octets, if it is known.
    #[inline(always)]
    fn take(&self, octets: &[u8], crc: Option<u32>) -> Option<usize> {
        let fpdu = octets.get(..fpdu_len(self.end - LENGTH_LEN))?;
        let (head, rest) = fpdu.split_first_chunk()?;
        if *head != self.head || self.crc && !crc_matches(fpdu, crc) {
            return None;
        }
        let offset = u64::from_be_bytes(*rest.first_chunk()?);
        let payload = fpdu.get(LENGTH_LEN + TAGGED_HEADER_LEN..self.end)?;
        self.region.place(offset, payload).then_some(fpdu.len())
    }
}

/// How far a segment was taken.
pub(crate) enum End<'a> {
    All,
    /// The general code has to take these octets of it.
    Rest(&'a [u8]),
    /// The completion of the FPDU before these octets did not fit.
    Overflowed(&'a [u8]),
}

impl<'a> Train<'a> {
    #[inline(always)]
    fn new(
        turn: &'a Turn<'a>,
        connection: &'a mut Connection,
        rdma: &'a mut Rdma,
        counters: &'a mut Counters,
    ) -> Train<'a> {
        let number = connection.queue_pair.map_or(usize::MAX, |number| number as usize);
        let queue_pair = rdma.queue_pairs.get_mut(number).and_then(Option::as_deref_mut);
        let queue_pair = queue_pair.filter(|_| !turn.has_transparent());
        Train { turn, connection, queue_pair, lanes: &mut rdma.lanes, counters, write: None }
    }

    /// Takes the usual FPDUs at the head of a segment's payload. `LONG`: prepares for more FPDUs of the same Write.
    /// `crc`: that of the payload, if it is one FPDU of the Write and that is known.
    #[inline(always)]
    fn take<'f, const LONG: bool>(&mut self, frame: &'f [u8], payload: Range<usize>, mut crc: Option<u32>) -> End<'f> {
        self.counters.octets_received += frame.len() as u64;
        let Some(mut octets) = frame.get(payload) else {
            self.counters.cannot_be("the payload of a segment is behind its frame");
            return End::All;
        };
        if let Some(queue_pair) = self.queue_pair.as_deref_mut() {
            loop {
                // It is that of all octets: only the first FPDU may have it.
                let crc = crc.take();
                if LONG && let Some(length) = self.write.as_ref().and_then(|write| write.take(octets, crc)) {
                    self.counters.fpdus_received += 1;
                    octets = &octets[length..];
                    continue;
                }
                let Some((fpdu, ulpdu)) = first_fpdu(octets) else { break };
                let is_write = place_write(self.turn, self.connection, queue_pair, fpdu, ulpdu).is_some();
                if LONG {
                    self.write =
                        if is_write { open_write(self.turn, self.connection, queue_pair, ulpdu) } else { None };
                }
                if !is_write && take_other(self.turn, self.connection, queue_pair, self.lanes, fpdu, ulpdu).is_none() {
                    break;
                }
                self.counters.fpdus_received += 1;
                octets = &octets[fpdu.len()..];
                if !is_write && queue_pair.overflowed.is_some() {
                    return End::Overflowed(octets);
                }
            }
        }
        if octets.is_empty() { End::All } else { End::Rest(octets) }
    }
}

/// The first FPDU of `octets` if it is whole, and its ULPDU.
#[inline(always)]
fn first_fpdu(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let ulpdu_len = usize::from(u16::from_be_bytes(*octets.first_chunk()?));
    let fpdu = octets.get(..fpdu_len(ulpdu_len))?;
    Some((fpdu, fpdu.get(LENGTH_LEN..LENGTH_LEN + ulpdu_len)?))
}

/// Places an FPDU if it is faultless and part of a Write. Otherwise nothing has changed.
#[inline(always)]
fn place_write(
    turn: &Turn<'_>,
    connection: &mut Connection,
    queue_pair: &QueuePair,
    fpdu: &[u8],
    ulpdu: &[u8],
) -> Option<()> {
    let Phase::Running(running) = &mut connection.phase else { return None };
    let header = write_header(running, ulpdu)?;
    // A Write of nothing, whose STag means nothing, is left to the general code.
    let payload = ulpdu.get(TAGGED_HEADER_LEN..).filter(|payload| !payload.is_empty())?;
    running.stream.inspect_write(&header, payload.len()).ok()?;
    if running.crc && !is_intact(fpdu) {
        return None;
    }
    turn.place(queue_pair.peer.writes, header.stag.0, header.offset.0, payload, Access::REMOTE_WRITE).ok()?;
    running.stream.take_write(header.stag, header.last);
    Some(())
}

/// The header of a Write's segment that may be delivered.
#[inline(always)]
fn write_header(running: &Running, ulpdu: &[u8]) -> Option<TaggedHeader> {
    let Ok(Header::Tagged(header)) = Header::parse(ulpdu) else { return None };
    (header.control == Control::new(Opcode::Write) && running.stream.delivers()).then_some(header)
}

/// The Write that a placed FPDU is part of, if it goes on.
#[inline(never)]
fn open_write<'a>(
    turn: &'a Turn<'_>,
    connection: &Connection,
    queue_pair: &QueuePair,
    ulpdu: &[u8],
) -> Option<LongWrite<'a>> {
    let Phase::Running(running) = &connection.phase else { return None };
    let header = write_header(running, ulpdu).filter(|header| !header.last)?;
    let region = turn.open(queue_pair.peer.writes, header.stag.0, Access::REMOTE_WRITE)?;
    let mut head = [0; OFFSET_AT];
    let (length, rest) = head.split_at_mut(LENGTH_LEN);
    length.copy_from_slice(&(ulpdu.len() as u16).to_be_bytes());
    rest.copy_from_slice(ulpdu.get(..OFFSET_AT - LENGTH_LEN)?);
    Some(LongWrite { head, region, end: LENGTH_LEN + ulpdu.len(), crc: running.crc })
}

/// Whether the CRC of an FPDU is right.
#[inline(always)]
fn is_intact(fpdu: &[u8]) -> bool {
    crc_matches(fpdu, None)
}

/// As [`is_intact`]. `known`: the CRC32C of its octets, if already computed.
#[inline(always)]
fn crc_matches(fpdu: &[u8], known: Option<u32>) -> bool {
    let parts = fpdu.split_last_chunk::<CRC_LEN>();
    parts.is_some_and(|(covered, field)| known.unwrap_or_else(|| kernels::crc32c(covered)) == crc_from_octets(*field))
}

/// Takes an FPDU if it is faultless and part of a usual Send, or a usual Read or response. Otherwise no state has
/// changed.
#[inline(never)]
fn take_other(
    turn: &Turn<'_>,
    connection: &mut Connection,
    queue_pair: &mut QueuePair,
    lanes: &mut Lanes,
    fpdu: &[u8],
    ulpdu: &[u8],
) -> Option<()> {
    let Phase::Running(running) = &mut connection.phase else { return None };
    if !running.stream.delivers() {
        return None;
    }
    let acknowledged = connection.tcp.octets_acknowledged();
    match Header::parse(ulpdu).ok()? {
        Header::Tagged(header) => {
            let payload = ulpdu.get(TAGGED_HEADER_LEN..)?;
            let is_whole = header.control == Control::new(Opcode::ReadResponse) && header.last && !payload.is_empty();
            let is_usual = is_whole && running.stream.inspect_response(&header, payload.len()) == Ok(false);
            if !is_usual || running.crc && !is_intact(fpdu) {
                return None;
            }
            turn.place(queue_pair.association, header.stag.0, header.offset.0, payload, Access::LOCAL_WRITE).ok()?;
            running.stream.take_response(payload.len() as u32, header.last);
            queue_pair.send.read_done();
            queue_pair.retire(lanes, acknowledged);
        }
        Header::Untagged(header) if header.queue == QueueNumber::SEND => {
            let payload = ulpdu.get(UNTAGGED_HEADER_LEN..)?;
            place_send(turn, running, queue_pair, fpdu, &header, payload)?;
            if header.last {
                let length = header.message_offset + payload.len() as u32;
                let mut completion = queue_pair.receive.complete(queue_pair.number, length, Status::Success)?;
                if header.control == Control::new(Opcode::SendSolicited) {
                    completion.flags = CompletionFlags::SOLICITED;
                }
                // Own work that this segment may have acknowledged completes first.
                queue_pair.retire(lanes, acknowledged);
                queue_pair.complete_receive(lanes, completion);
            }
        }
        Header::Untagged(header) => {
            take_read_request(turn, running, queue_pair, fpdu, ulpdu, &header)?;
            connection.quiet = false;
        }
    }
    Some(())
}

/// Places an FPDU if it is faultless and part of a Send that invalidates nothing. Otherwise at most memory has changed.
#[inline(always)]
fn place_send(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    fpdu: &[u8],
    header: &UntaggedHeader,
    payload: &[u8],
) -> Option<()> {
    let mut usual = [SendKind::Plain, SendKind::Solicited].into_iter();
    let kind = usual.find(|kind| header.control == Control::new(kind.opcode()))?;
    let end = running.stream.inspect_send(header, kind, payload.len()).ok()?;
    let waits_for_commit = !(queue_pair.written.is_empty() && queue_pair.held.is_empty());
    if running.stream.awaits_ready_by_send() || waits_for_commit || running.crc && !is_intact(fpdu) {
        return None;
    }
    let begins = !queue_pair.receive.is_begun();
    if begins && !queue_pair.receive.begin_own(queue_pair.number) {
        return None;
    }
    let association = queue_pair.association;
    let placed = queue_pair.receive.scatter(header.message_offset, payload, |target, part| {
        turn.place(association, target.stag, target.offset, part, Access::LOCAL_WRITE)
    });
    if placed.is_err() {
        if begins {
            queue_pair.receive.put_back();
        }
        return None;
    }
    running.stream.take_send(kind, end, header.last);
    Some(())
}

/// Takes an FPDU if it is faultless and a Read of memory that the peer may read. Otherwise nothing has changed.
#[inline(never)]
fn take_read_request(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &QueuePair,
    fpdu: &[u8],
    ulpdu: &[u8],
    header: &UntaggedHeader,
) -> Option<()> {
    if header.queue != QueueNumber::READ_REQUEST || header.control != Control::new(Opcode::ReadRequest) {
        return None;
    }
    let read = running.stream.inspect_read(header, ulpdu).ok()?;
    if running.crc && !is_intact(fpdu) {
        return None;
    }
    let (stag, offset, length) = (read.request.source_stag.0, read.request.source_offset.0, read.request.length.into());
    turn.check(queue_pair.peer.reads, stag, offset, length, Access::REMOTE_READ).ok()?;
    running.stream.take_read(read);
    Some(())
}
