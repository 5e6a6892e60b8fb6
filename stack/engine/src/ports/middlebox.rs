//! A middlebox: it cuts TCP segments at other places and joins consecutive ones, as devices with large receive offload,
//! proxies and segmenting guests do.
//!
//! It changes nothing of TCP: octets keep their sequence numbers, a FIN stays behind its octets and a CWR in front of
//! them (RFC 3168 §6.1.2), the urgent pointer points to the same octet, a PSH moves to the end of the joined segment
//! (RFC 9293 §3.9.1), options stay, checksums are right. Segments are joined only if their fields agree, except those
//! that number packets or mean nothing: IPv4's identification and DF, the low bits of IPv6's flow label, TCP's reserved
//! bits, an urgent pointer without URG. Everything that is not an intact TCP segment passes unchanged, and so does a
//! frame that the device will cut, or that has a VLAN tag.
//!
//! Received segments are cut and joined. Sent ones are only cut: a sent frame is one part, no longer than the MTU, and
//! it is full already if there is more to send. The stack's own segments are atomic packets (RFC 6864 §4), so their
//! pieces need no identification of their own.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use uwarp_wire::checksum;
use uwarp_wire::tcp::TcpFlags;

pub use crate::api::faults::Recutting;

use crate::link::port::{Buffer, ChecksumStatus};

const ETHERNET: usize = 14;
/// The longest IP packet.
const LONGEST: usize = 65_535;
/// Segments of at most this many octets may be cut into single octets.
const TINY: usize = 8;
/// Most cuts of one segment: those that are chosen, and those without which a piece would not fit into its buffer.
const CUTS: usize = TINY - 1 + 32;
/// Flags of segments that may be joined.
const PLAIN: TcpFlags = TcpFlags::ACK.with(TcpFlags::PSH).with(TcpFlags::FIN);
/// Flags of segments that may be cut.
const DIVISIBLE: TcpFlags = PLAIN.with(TcpFlags::URG).with(TcpFlags::ECE).with(TcpFlags::CWR);

/// Where headers and payload are in the first buffer of a frame.
#[derive(Debug, Clone, Copy)]
struct Place {
    ipv6: bool,
    tcp: usize,
    payload: usize,
}

impl Place {
    /// Parses a contiguous frame. Also returns where it ends: the medium may have padded it.
    fn read(frame: &[u8]) -> Option<(Place, usize)> {
        let ip = frame.get(ETHERNET..)?;
        let (ipv6, tcp, end) = match frame.get(12..14)? {
            [0x08, 0x00]
                if ip.len() >= 20
                    && ip[0] >> 4 == 4
                    && ip[0] & 15 >= 5
                    && ip[9] == 6
                    && u16_at(ip, 6) & 0x3fff == 0 =>
            {
                (false, usize::from(ip[0] & 15) * 4, usize::from(u16_at(ip, 2)))
            }
            [0x86, 0xdd] if ip.len() >= 40 && ip[0] >> 4 == 6 && ip[6] == 6 => {
                (true, 40, 40 + usize::from(u16_at(ip, 4)))
            }
            _ => return None,
        };
        let offset = usize::from(*ip.get(tcp + 12)? >> 4) * 4;
        let inside = offset >= 20 && tcp + offset <= end && end <= ip.len();
        inside.then_some((Place { ipv6, tcp: ETHERNET + tcp, payload: ETHERNET + tcp + offset }, ETHERNET + end))
    }

    /// The partial sum of the pseudo-header in front of `length` octets.
    fn pseudo_header(self, frame: &[u8], length: usize) -> u32 {
        let addresses = if self.ipv6 { ETHERNET + 8..ETHERNET + 40 } else { ETHERNET + 12..ETHERNET + 20 };
        let rest = [0, 6, (length >> 8) as u8, length as u8];
        checksum::combine(checksum::sum(&frame[addresses]), checksum::sum(&rest))
    }

    /// Writes lengths and checksums for `payload`, given as its partial sum and its octets.
    fn finish(self, headers: &mut [u8], payload: (u32, usize)) {
        let (sum, octets) = payload;
        let segment = self.payload - self.tcp + octets;
        let pseudo = self.pseudo_header(headers, segment);
        headers[self.tcp + 16..self.tcp + 18].fill(0);
        let header = checksum::sum(&headers[self.tcp..self.payload]);
        let sum = checksum::finish(checksum::combine(pseudo, checksum::combine(header, sum)));
        headers[self.tcp + 16..self.tcp + 18].copy_from_slice(&sum.to_be_bytes());
        if self.ipv6 {
            headers[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&(segment as u16).to_be_bytes());
        } else {
            let total = (self.tcp - ETHERNET + segment) as u16;
            headers[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&total.to_be_bytes());
            headers[ETHERNET + 10..ETHERNET + 12].fill(0);
            let sum = checksum::finish(checksum::sum(&headers[ETHERNET..self.tcp]));
            headers[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
        }
    }

    fn sequence(self, frame: &[u8]) -> u32 {
        u32::from(u16_at(frame, self.tcp + 4)) << 16 | u32::from(u16_at(frame, self.tcp + 6))
    }

    fn flags(self, frame: &[u8]) -> TcpFlags {
        TcpFlags::from_bits(u16_at(frame, self.tcp + 12))
    }
}

fn u16_at(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

fn set_flags(headers: &mut [u8], place: Place, flags: TcpFlags) {
    let word = u16_at(headers, place.tcp + 12) & 0xf000 | flags.bits();
    headers[place.tcp + 12..place.tcp + 14].copy_from_slice(&word.to_be_bytes());
}

/// A joined segment that may still grow.
#[derive(Debug)]
struct Joined<B> {
    head: B,
    place: Place,
    flags: TcpFlags,
    /// The next sequence number.
    next: u32,
    /// Partial sum and octets of the payload so far.
    payload: (u32, usize),
}

/// The middlebox of one direction.
#[derive(Debug)]
pub(super) struct Middlebox<B> {
    options: Recutting,
    random: fastrand::Rng,
    joined: Option<Joined<B>>,
    /// Its output.
    pub(super) passed: VecDeque<B>,
    /// Segments that were cut, and segments that were appended to another one.
    pub(super) counts: [u64; 2],
}

impl<B: Buffer> Middlebox<B> {
    pub(super) fn new(options: Recutting, seed: u64) -> Middlebox<B> {
        let random = fastrand::Rng::with_seed(seed);
        Middlebox { options, random, joined: None, passed: VecDeque::new(), counts: [0; 2] }
    }

    /// Takes a frame. `alloc` gives buffers for pieces, and none when they are short.
    pub(super) fn take(&mut self, frame: B, mut alloc: impl FnMut() -> Option<B>) {
        let Some((place, end)) = intact(&frame) else { return self.put(frame) };
        let flags = place.flags(frame.data());
        let octets = end - place.payload;
        if octets == 0 || !DIVISIBLE.contains(flags) {
            return self.put(frame);
        }
        if octets > 1
            && self.random.f64() < self.options.cutting
            && let Some(mut first) = alloc()
            && let most = room(&mut first, place)
            && most > 0
        {
            let cuts = self.cuts(octets, most);
            let rest = (0..cuts.len()).map(|_| alloc());
            let pieces: Option<ArrayVec<B, { CUTS + 1 }>> = std::iter::once(Some(first)).chain(rest).collect();
            if let Some(pieces) = pieces.filter(|_| !cuts.is_full()) {
                self.counts[0] += 1;
                let ends = cuts.iter().copied().chain([octets]);
                let mut from = 0;
                for (mut piece, to) in pieces.into_iter().zip(ends) {
                    copy_piece(&frame, place, &mut piece, from..to, to == octets);
                    self.join(piece, place, &mut alloc);
                    from = to;
                }
                return;
            }
        }
        if self.options.joining == 0.0 || !PLAIN.contains(flags) {
            return self.put(frame);
        }
        let mut frame = frame;
        if frame.is_shared() {
            let Some(mut copy) = fitting(alloc(), octets, place) else { return self.put(frame) };
            copy_piece(&frame, place, &mut copy, 0..octets, true);
            frame = copy;
        } else {
            frame.set_range(frame.start(), end);
        }
        self.join(frame, place, &mut alloc);
    }

    /// Ends a burst: joined segments continue.
    pub(super) fn flush(&mut self) {
        if let Some(Joined { mut head, place, flags, payload, .. }) = self.joined.take() {
            let (start, length) = (head.start(), head.data().len());
            if let Some(storage) = head.storage_mut() {
                let headers = &mut storage[start..start + length];
                set_flags(headers, place, flags);
                place.finish(&mut headers[..place.payload], payload);
            }
            self.passed.push_back(head);
        }
    }

    fn put(&mut self, frame: B) {
        self.flush();
        self.passed.push_back(frame);
    }

    /// Where to cut: ascending offsets, each above 0 and below `octets`, so that no piece has more than `most` octets.
    fn cuts(&mut self, octets: usize, most: usize) -> ArrayVec<usize, CUTS> {
        let chosen = self.chosen_cuts(octets);
        let (mut cuts, mut from) = (ArrayVec::new(), 0);
        for to in chosen.into_iter().chain([octets]) {
            while to - from > most && !cuts.is_full() {
                from += most;
                cuts.push(from);
            }
            if to < octets && !cuts.is_full() {
                cuts.push(to);
            }
            from = to;
        }
        cuts
    }

    fn chosen_cuts(&mut self, octets: usize) -> ArrayVec<usize, CUTS> {
        if octets <= TINY && self.random.bool() {
            return (1..octets).collect();
        }
        let mut cuts: ArrayVec<usize, CUTS> =
            (0..self.random.usize(1..=4)).map(|_| self.random.usize(1..octets)).collect();
        // The first and the last octet by themselves, more often than by chance.
        if self.random.u32(0..3) == 0 {
            cuts.push(1);
        }
        if self.random.u32(0..3) == 0 {
            cuts.push(octets - 1);
        }
        cuts.sort_unstable();
        let mut last = 0;
        cuts.retain(|cut| std::mem::replace(&mut last, *cut) != *cut);
        cuts
    }

    /// Appends an unshared segment to the joined one, or starts a new one with it, or lets it pass.
    fn join(&mut self, mut frame: B, place: Place, alloc: &mut impl FnMut() -> Option<B>) {
        let octets = frame.data().len() - place.payload;
        let flags = place.flags(frame.data());
        let payload = (checksum::sum(&frame.data()[place.payload..]), octets);
        let is_plain = PLAIN.contains(flags);
        if let Some(joined) = &mut self.joined
            && is_plain
            && joined.goes_on_with(&frame, place)
        {
            let start = frame.start();
            frame.set_range(start + place.payload, octets);
            match joined.head.chain(frame) {
                Ok(()) => {
                    let (sum, before) = joined.payload;
                    joined.payload = (checksum::append(sum, before, payload.0), before + octets);
                    joined.next = joined.next.wrapping_add(octets as u32);
                    joined.flags |= flags;
                    self.counts[1] += 1;
                    if flags.contains(TcpFlags::FIN) {
                        self.flush();
                    }
                    return;
                }
                Err(mut back) => {
                    back.set_range(start, place.payload + octets);
                    frame = back;
                }
            }
        }
        self.flush();
        let begins = is_plain && !flags.contains(TcpFlags::FIN) && self.random.f64() < self.options.joining;
        if begins && frame.is_shared() {
            // The headers of a chain's first buffer are rewritten.
            if let Some(mut copy) = fitting(alloc(), octets, place) {
                copy_piece(&frame, place, &mut copy, 0..octets, true);
                frame = copy;
            }
        }
        if begins && !frame.is_shared() {
            let next = place.sequence(frame.data()).wrapping_add(octets as u32);
            self.joined = Some(Joined { head: frame, place, flags, next, payload });
        } else {
            self.passed.push_back(frame);
        }
    }
}

impl<B: Buffer> Joined<B> {
    /// Whether a segment follows directly and agrees in every field that must agree.
    fn goes_on_with(&self, frame: &B, place: Place) -> bool {
        let (ours, theirs) = (self.head.data(), frame.data());
        let (tcp, end) = (place.tcp, place.payload);
        if self.place.ipv6 != place.ipv6 || self.place.tcp != tcp || self.place.payload != end {
            return false;
        }
        // Addresses and protocols; class and ECN bits; ports; acknowledgment; window; options.
        let ip = if place.ipv6 { ETHERNET + 6..tcp } else { ETHERNET + 8..ETHERNET + 10 };
        let addresses = if place.ipv6 { ip.clone() } else { ETHERNET + 12..tcp };
        let class = ETHERNET..ETHERNET + 2;
        let same =
            [0..ETHERNET, class, ip, addresses, tcp..tcp + 4, tcp + 8..tcp + 12, tcp + 14..tcp + 16, tcp + 20..end]
                .into_iter()
                .all(|range| ours[range.clone()] == theirs[range]);
        let length = self.payload.1 + theirs.len() - ETHERNET;
        same && place.sequence(theirs) == self.next && length <= LONGEST
    }
}

/// Where a TCP segment is in a single buffer, if its checksums are right or the device will fill them in.
fn intact<B: Buffer>(frame: &B) -> Option<(Place, usize)> {
    if frame.segment_count() != 1 {
        return None;
    }
    let octets = frame.data();
    let (place, end) = Place::read(octets)?;
    let (verdict, work) = (frame.received_checksums(), frame.transmit_checksums());
    if work.segment_size > 0 {
        return None;
    }
    let ip = place.ipv6
        || work.ip
        || verdict.ip == ChecksumStatus::Good
        || checksum::fold(checksum::sum(&octets[ETHERNET..place.tcp])) == 0xffff;
    let tcp = match verdict.tcp {
        ChecksumStatus::Good => true,
        ChecksumStatus::Bad => false,
        ChecksumStatus::Unknown if work.tcp => true,
        ChecksumStatus::Unknown => {
            let pseudo = place.pseudo_header(octets, end - place.tcp);
            checksum::fold(checksum::combine(pseudo, checksum::sum(&octets[place.tcp..end]))) == 0xffff
        }
    };
    (ip && tcp).then_some((place, end))
}

/// Cuts a frame that is left to the device to cut into segments of at most `most` octets, whose checksums are complete.
/// Those for which `alloc` gives no buffer are lost, as on a wire.
pub(super) fn cut<B: Buffer>(frame: &B, most: usize, mut alloc: impl FnMut() -> Option<B>, mut put: impl FnMut(B)) {
    let Some((place, end)) = Place::read(frame.data()) else { return };
    let octets = end - place.payload;
    for from in (0..octets).step_by(most.max(1)) {
        let to = octets.min(from + most.max(1));
        let Some(mut piece) = fitting(alloc(), to - from, place) else { return };
        copy_piece(frame, place, &mut piece, from..to, to == octets);
        put(piece);
    }
}

/// Completes the checksum of an IPv4 header that is left to the device.
pub(super) fn complete_ip_checksum(frame: &mut [u8]) {
    if let Some((Place { ipv6: false, tcp, .. }, _)) = Place::read(frame) {
        frame[ETHERNET + 10..ETHERNET + 12].fill(0);
        let sum = checksum::finish(checksum::sum(&frame[ETHERNET..tcp]));
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Octets of payload that a fresh buffer takes behind headers like these.
fn room<B: Buffer>(buffer: &mut B, place: Place) -> usize {
    let start = buffer.start() + place.payload;
    buffer.storage_mut().map_or(0, |storage| storage.len().saturating_sub(start))
}

/// A fresh buffer, if it takes so many octets of payload: what the peer's device has not cut may be longer.
fn fitting<B: Buffer>(buffer: Option<B>, octets: usize, place: Place) -> Option<B> {
    buffer.and_then(|mut buffer| (octets <= room(&mut buffer, place)).then_some(buffer))
}

/// Makes `piece` a segment of its own with the octets `range` of the payload. Its checksums are complete, so the device
/// has nothing to fill in.
fn copy_piece<B: Buffer>(frame: &B, place: Place, piece: &mut B, range: std::ops::Range<usize>, is_last: bool) {
    let octets = frame.data();
    let start = piece.start();
    let length = place.payload + range.len();
    let payload = &octets[place.payload + range.start..place.payload + range.end];
    if let Some(storage) = piece.storage_mut() {
        let (headers, rest) = storage[start..start + length].split_at_mut(place.payload);
        headers.copy_from_slice(&octets[..place.payload]);
        rest.copy_from_slice(payload);
        let sequence = place.sequence(octets).wrapping_add(range.start as u32);
        headers[place.tcp + 4..place.tcp + 8].copy_from_slice(&sequence.to_be_bytes());
        let mut flags = place.flags(octets);
        if !is_last {
            flags = flags.without(TcpFlags::PSH | TcpFlags::FIN);
        }
        if range.start > 0 {
            flags = flags.without(TcpFlags::CWR);
        }
        if flags.contains(TcpFlags::URG) {
            // The pointer counts from the sequence number. Segments behind the urgent data have none.
            let pointer = usize::from(u16_at(octets, place.tcp + 18)).saturating_sub(range.start);
            headers[place.tcp + 18..place.tcp + 20].copy_from_slice(&(pointer as u16).to_be_bytes());
            if pointer == 0 && range.start > 0 {
                flags = flags.without(TcpFlags::URG);
            }
        }
        set_flags(headers, place, flags);
        place.finish(headers, (checksum::sum(payload), payload.len()));
    }
    piece.set_range(start, length);
}

#[cfg(test)]
mod tests;
