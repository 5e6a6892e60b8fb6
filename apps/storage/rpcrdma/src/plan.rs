//! How a requester sends a call: which items are reduced, and which chunks are needed (RFC 8166 §3.5, §4.3).

use crate::binding::Greatest;
use crate::header::{HEADER_MIN, READ_SEGMENT_LEN, SEGMENT_LEN};
use crate::rpc::Protection;
use crate::walk::{Part, parts_len};
use crate::xdr::padded;

/// A call before it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Octets of the RPC header.
    pub header: usize,
    /// The arguments.
    pub arguments: &'a [Part],
    /// Whether anything in them may be reduced.
    pub protection: Protection,
    /// Octets of the buffer for each eligible result, in order; 0 requests the result inline (§4.3.2.3).
    pub rooms: &'a [usize],
    /// The greatest results, by the program's binding.
    pub greatest: &'a Greatest,
    /// Octets of the longest RPC header of a reply.
    pub reply_header: usize,
}

/// The limits of the connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Inline threshold of calls, in octets.
    pub send: usize,
    /// Inline threshold of replies, in octets.
    pub receive: usize,
    /// The most octets of a segment; a larger buffer has several.
    pub segment: u32,
}

/// How a call is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Eligible arguments are Read chunks.
    pub reads: bool,
    /// The Payload stream is a Position Zero Read chunk of this many octets (a Long Call).
    pub long_call: Option<usize>,
    /// Eligible results have Write chunks.
    pub writes: bool,
    /// There is a Reply chunk of this many octets.
    pub reply: Option<usize>,
}

/// A call that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There are buffers for more results than the procedure has eligible ones.
    #[error("buffers for {rooms} results, but the procedure has only {results}")]
    Rooms {
        /// Memory that was given.
        rooms: usize,
        /// Eligible results of the procedure.
        results: usize,
    },
    /// A result may be longer than a buffer that it could be placed in (RFC 8166 §4.3.2.2: also one further behind).
    #[error("a result of up to {greatest} octets may be placed in a buffer of {room}")]
    RoomTooSmall {
        /// The memory.
        room: usize,
        /// The result.
        greatest: u32,
    },
    /// An item or a message exceeds 32-bit lengths and positions.
    #[error("longer than 2^32 - 1 octets")]
    TooLong,
    /// The chunk lists alone are longer than a message may be.
    #[error(
        "a header of {length} octets is longer than the inline threshold of {limit}: use fewer items, or longer segments"
    )]
    Header {
        /// Octets of the header.
        length: usize,
        /// The limit.
        limit: usize,
    },
}

/// How many segments memory of this size is cut into: at least one.
pub fn segments(octets: usize, most: u32) -> usize {
    octets.div_ceil(most.max(1) as usize).max(1)
}

/// Octets of this buffer's Write chunk in a Write list; it is empty if there is no buffer.
fn write_len(room: usize, most: u32) -> usize {
    8 + if room == 0 { 0 } else { SEGMENT_LEN * segments(room, most) }
}

/// Octets of this buffer's Reply chunk in a header.
fn reply_len(room: usize, most: u32) -> usize {
    4 + SEGMENT_LEN * segments(room, most)
}

impl Plan {
    /// Decides how to send a call: everything inline if it fits; else eligible items in chunks; else the remainder in a
    /// chunk, too.
    ///
    /// # Errors
    /// [`PlanError`]: this connection cannot carry the call.
    pub fn new(shape: &Shape<'_>, limits: &Limits) -> Result<Self, PlanError> {
        let (writes, reply) = Self::reply(shape, limits)?;
        let lists = if writes { shape.rooms.iter().map(|&room| write_len(room, limits.segment)).sum() } else { 0 }
            + reply.map_or(0, |room| reply_len(room, limits.segment));
        let whole = shape.header.saturating_add(parts_len(shape.arguments));
        if u32::try_from(whole).is_err() {
            return Err(PlanError::TooLong);
        }
        let transport = HEADER_MIN + lists;
        let inline = Self { reads: false, long_call: None, writes, reply };
        if transport + whole <= limits.send {
            return Ok(inline);
        }
        let items = shape.arguments.iter().filter_map(|part| match part {
            Part::Item(data) if !data.is_empty() => Some(data.len()),
            _ => None,
        });
        let (mut reads_len, mut reduced) = (0, whole);
        if shape.protection == Protection::None {
            for item in items {
                reads_len += READ_SEGMENT_LEN * segments(item, limits.segment);
                reduced -= padded(item);
            }
        }
        let reads = reads_len > 0;
        if transport + reads_len + reduced <= limits.send {
            return Ok(Self { reads, ..inline });
        }
        let length = transport + reads_len + READ_SEGMENT_LEN * segments(reduced, limits.segment);
        if length > limits.send {
            return Err(PlanError::Header { length, limit: limits.send });
        }
        Ok(Self { reads, long_call: Some(reduced), ..inline })
    }

    /// Whether results need Write chunks, and the length of the Reply chunk, if one is needed (RFC 8166 §4.3.3).
    fn reply(shape: &Shape<'_>, limits: &Limits) -> Result<(bool, Option<usize>), PlanError> {
        let (greatest, rooms) = (shape.greatest, shape.rooms);
        if rooms.len() > greatest.items.len() {
            return Err(PlanError::Rooms { rooms: rooms.len(), results: greatest.items.len() });
        }
        for (index, &room) in rooms.iter().enumerate() {
            let longest = greatest.items[index..].iter().copied().max().unwrap_or(0);
            if room > 0 && room < longest as usize {
                return Err(PlanError::RoomTooSmall { room, greatest: longest });
            }
        }
        let whole = shape.reply_header.saturating_add(greatest.whole());
        if HEADER_MIN + whole <= limits.receive {
            return Ok((false, None));
        }
        let reducible = shape.protection == Protection::None && rooms.iter().any(|&room| room > 0);
        if !reducible {
            if u32::try_from(whole).is_err() {
                return Err(PlanError::TooLong);
            }
            return long_reply(false, 0, whole, limits);
        }
        let mut rest = shape.reply_header + greatest.rest;
        for (index, &item) in greatest.items.iter().enumerate() {
            if rooms.get(index).is_none_or(|&room| room == 0) {
                rest = rest.saturating_add(padded(item as usize));
            }
        }
        if u32::try_from(rest).is_err() {
            return Err(PlanError::TooLong);
        }
        let lists: usize = rooms.iter().map(|&room| write_len(room, limits.segment)).sum();
        if HEADER_MIN + lists + rest <= limits.receive {
            return Ok((true, None));
        }
        long_reply(true, lists, rest, limits)
    }
}

/// A reply in a Reply chunk. Its header returns all chunks and must still fit (RFC 8166 §4.3.3); otherwise the call
/// would be executed, and its reply could not be sent.
fn long_reply(writes: bool, lists: usize, reply: usize, limits: &Limits) -> Result<(bool, Option<usize>), PlanError> {
    let length = HEADER_MIN + lists + reply_len(reply, limits.segment);
    if length > limits.receive {
        return Err(PlanError::Header { length, limit: limits.receive });
    }
    Ok((writes, Some(reply)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { send: 1024, receive: 1024, segment: u32::MAX };

    fn shape<'a>(arguments: &'a [Part], rooms: &'a [usize], greatest: &'a Greatest) -> Shape<'a> {
        Shape { header: 40, arguments, protection: Protection::None, rooms, greatest, reply_header: 24 }
    }

    fn item(length: usize) -> Part {
        Part::Item(vec![0; length])
    }

    fn octets(length: usize) -> Part {
        Part::Octets(vec![0; length])
    }

    const INLINE: Plan = Plan { reads: false, long_call: None, writes: false, reply: None };

    #[test]
    fn a_call_is_reduced_only_if_it_does_not_fit_and_long_only_if_that_does_not_help() {
        let none = Greatest::of(4);
        let plan = |arguments: &[Part]| Plan::new(&shape(arguments, &[], &none), &LIMITS).unwrap();
        // 28 octets of header, 40 of the call, and the padding of the item.
        assert_eq!(plan(&[octets(4), item(951)]), INLINE);
        assert_eq!(plan(&[octets(4), item(953)]), Plan { reads: true, ..INLINE });
        assert_eq!(plan(&[octets(956)]), INLINE);
        assert_eq!(plan(&[octets(960)]), Plan { long_call: Some(1000), ..INLINE });
        assert_eq!(
            plan(&[octets(960), item(50_000), octets(4)]),
            Plan { reads: true, long_call: Some(1004), ..INLINE },
            "both"
        );
        assert_eq!(plan(&[octets(960), item(0)]), Plan { long_call: Some(1000), ..INLINE }, "nothing to reduce");
    }

    #[test]
    fn results_get_chunks_only_if_they_might_not_fit() {
        let plan = |rooms: &[usize], greatest: &Greatest| Plan::new(&shape(&[], rooms, greatest), &LIMITS);
        // 28, 24 of the reply's header.
        assert_eq!(plan(&[900], &Greatest::with_item(72, 900)), Ok(INLINE));
        assert_eq!(plan(&[904], &Greatest::with_item(72, 901)), Ok(Plan { writes: true, ..INLINE }));
        assert_eq!(plan(&[], &Greatest::with_item(72, 901)), Ok(Plan { reply: Some(1000), ..INLINE }));
        assert_eq!(plan(&[0], &Greatest::with_item(72, 901)), Ok(Plan { reply: Some(1000), ..INLINE }));
        assert_eq!(
            plan(&[5000], &Greatest::with_item(1000, 5000)),
            Ok(Plan { writes: true, reply: Some(1024), ..INLINE }),
            "a chunk for the item, and one for the rest"
        );
        let two = Greatest { rest: 72, items: vec![10, 5000] };
        assert_eq!(plan(&[5000, 0], &two), Ok(Plan { writes: true, reply: Some(24 + 72 + 5000), ..INLINE }));
        assert_eq!(plan(&[10, 5000], &two), Err(PlanError::RoomTooSmall { room: 10, greatest: 5000 }));
        assert_eq!(plan(&[5000, 5000], &two), Ok(Plan { writes: true, ..INLINE }));
        assert_eq!(plan(&[1], &Greatest::of(4)), Err(PlanError::Rooms { rooms: 1, results: 0 }));
    }

    #[test]
    fn wrapped_arguments_and_results_are_never_reduced() {
        let greatest = Greatest::with_item(72, 5000);
        let arguments = [octets(4), item(5000)];
        let wrapped = Shape { protection: Protection::Wrapped, ..shape(&arguments, &[5000], &greatest) };
        let plan = Plan::new(&wrapped, &LIMITS);
        // A long call and a long reply together.
        assert_eq!(plan, Ok(Plan { reads: false, long_call: Some(5044), writes: false, reply: Some(24 + 72 + 5000) }));
    }

    #[test]
    fn a_long_reply_has_a_header_that_fits() {
        let greatest = Greatest::with_item(1000, 5000);
        // Chunks of 50 and 11 segments: 28 octets of header, 8 and 4 of the chunks.
        let limits = |receive| Limits { send: 4096, receive, segment: 100 };
        let header = 28 + 8 + 16 * 50 + 4 + 16 * 11;
        let plan = |receive| Plan::new(&shape(&[], &[5000], &greatest), &limits(receive));
        assert_eq!(plan(header), Ok(Plan { writes: true, reply: Some(1024), ..INLINE }));
        assert_eq!(plan(header - 1), Err(PlanError::Header { length: header, limit: header - 1 }));
        let whole = |receive| Plan::new(&shape(&[], &[], &Greatest::of(5000)), &limits(receive));
        let header = 28 + 4 + 16 * 51;
        assert_eq!(whole(header), Ok(Plan { reply: Some(5024), ..INLINE }));
        assert_eq!(whole(header - 1), Err(PlanError::Header { length: header, limit: header - 1 }));
    }

    #[test]
    fn no_message_is_longer_than_the_threshold() {
        let greatest = Greatest { rest: 700, items: vec![3000, 2000] };
        for threshold in (100..5000).step_by(37) {
            for segment in [u32::MAX, 1000, 64] {
                for item_length in [0, 1, 500, 3000] {
                    let arguments = [octets(100), item(item_length), octets(200)];
                    let limits = Limits { send: threshold, receive: threshold, segment };
                    let shape = shape(&arguments, &[3000, 2000], &greatest);
                    let Ok(plan) = Plan::new(&shape, &limits) else {
                        assert!(threshold < 4000, "with a large threshold everything is possible");
                        continue;
                    };
                    let (items, rooms) =
                        (segments(item_length, segment), segments(3000, segment) + segments(2000, segment));
                    let mut length = 28;
                    length += if plan.reads { 24 * items } else { 0 };
                    length += if plan.writes { 2 * 8 + 16 * rooms } else { 0 };
                    length += plan.reply.map_or(0, |octets| 4 + 16 * segments(octets, segment));
                    let stream = 340 + if plan.reads { 0 } else { item_length.next_multiple_of(4) };
                    length += match plan.long_call {
                        Some(octets) => {
                            assert_eq!(octets, stream);
                            24 * segments(octets, segment)
                        }
                        None => stream,
                    };
                    assert!(length <= threshold, "{plan:?}");
                    let mut header = 28 + if plan.writes { 2 * 8 + 16 * rooms } else { 0 };
                    header += plan.reply.map_or(0, |octets| 4 + 16 * segments(octets, segment));
                    assert!(header <= threshold, "{plan:?}");
                    let back = 28 + 724 + if plan.writes { 2 * 8 + 16 * rooms } else { 5000 };
                    assert!(back <= threshold || plan.reply.is_some(), "{plan:?}");
                }
            }
        }
    }
}
