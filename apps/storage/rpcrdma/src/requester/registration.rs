//! How the peer gets access to a call's buffers.

use crate::endpoint::{Endpoint, LOCAL};
use crate::header::Segment;
use uwarp::{Access, Error, FastRegion, MemoryRegion, SendRequest, Sge};

/// The most pieces of a fast region. One more would take more slots in the send queue, whether calls have that many or
/// not.
pub(super) const PIECES: usize = 13;

/// How the buffers of a call are registered: items of the arguments, buffers for results, a Long Call and a Reply
/// chunk. In both ways the peer gets only the rights that it needs, STags are valid on the call's connection only, and
/// no buffer is accessible once the call is [`Finished`](super::Finished).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registration {
    /// Each buffer is a region with rights for the peer and an STag of its own.
    #[default]
    Each,
    /// The buffers are regions for local use only. A work request in front of the call (fast registration) joins them
    /// under a fresh STag: one for all that the responder may read, and one for all that it may write. So a call has at
    /// most two STags, and a reply that invalidates one of them ends the peer's access to a whole direction, even if
    /// the call was cancelled. The buffers' own regions must still be deregistered, which waits for the engines' turns
    /// under way.
    ///
    /// A call with more than 13 buffers, or 2^32 octets or more, in one direction is registered as with
    /// [`Each`](Self::Each). Each concurrent call of a connection takes two more of the context's regions; they are
    /// kept for later calls. The send queue needs room for five requests per credit, which `limits.queue-depth` must
    /// allow. A call that is cancelled or answered before the engine has executed its registration breaks the
    /// connection, which is restored for the other calls.
    Together,
}

/// Whether buffers of these lengths fit into one fast region.
pub(super) fn fits(lengths: impl Iterator<Item = usize>) -> bool {
    let (mut pieces, mut octets) = (0, 0_u64);
    for length in lengths.filter(|&length| length > 0) {
        pieces += 1;
        octets += length as u64;
    }
    pieces <= PIECES && octets <= u64::from(u32::MAX)
}

/// The unused fast regions of a connection.
#[derive(Default)]
pub(super) struct FastRegions(Vec<Joint>);

impl FastRegions {
    /// A fast region for these regions; `None` if there are no regions.
    pub(super) fn take<'a>(
        &mut self,
        endpoint: &Endpoint,
        regions: impl Iterator<Item = &'a MemoryRegion>,
    ) -> Result<Option<Joint>, Error> {
        let mut regions = regions.peekable();
        if regions.peek().is_none() {
            return Ok(None);
        }
        let mut joint = match self.0.pop() {
            Some(joint) => joint,
            None => Joint { region: endpoint.allocate_fast_region()?, pieces: Vec::with_capacity(PIECES) },
        };
        joint.pieces.clear();
        for region in regions {
            joint.pieces.push(region.sge(..)?);
        }
        Ok(Some(joint))
    }

    /// Takes back those of a call whose reply has arrived.
    pub(super) fn give_back(&mut self, joints: Joints) {
        self.0.extend([joints.reads, joints.writes].into_iter().flatten());
    }
}

/// Buffers that are reachable under one STag.
#[derive(Debug)]
pub(super) struct Joint {
    region: FastRegion,
    pieces: Vec<Sge>,
}

impl Joint {
    /// Posts the registration.
    pub(super) fn register(&mut self, endpoint: &mut Endpoint, access: Access) -> Result<(), Error> {
        // Unless the peer has invalidated it. The reply to the call that used it has arrived: a peer that invalidates
        // it later loses the connection.
        let former = self.region.is_valid().then_some(self.region.stag());
        let register = self.region.register(LOCAL, &self.pieces, 0, access)?;
        match former {
            Some(stag) => endpoint.post_local(&[SendRequest::local_invalidate(LOCAL, stag), register]),
            None => endpoint.post_local(&[register]),
        }
    }
}

/// A call's fast regions, by direction.
#[derive(Debug, Default)]
pub(super) struct Joints {
    /// What the peer may read.
    pub(super) reads: Option<Joint>,
    /// What the peer may write.
    pub(super) writes: Option<Joint>,
}

impl Joints {
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_none() && self.writes.is_none()
    }

    /// Whether the peer has invalidated one. The call must have been sent.
    pub(super) fn was_invalidated(&self) -> bool {
        self.reads.iter().chain(&self.writes).any(|joint| !joint.region.is_valid())
    }
}

/// Where the peer finds one region after another.
pub(super) struct Places {
    /// STag of the fast region that contains them, and the tagged offset of the next.
    joint: Option<(u32, u64)>,
    /// Most octets of a segment.
    most: u32,
}

impl Places {
    pub(super) fn new(joint: Option<&Joint>, most: u32) -> Self {
        Self { joint: joint.map(|joint| (joint.region.stag(), joint.region.remote_offset())), most }
    }

    /// The next region as the segments of a chunk.
    pub(super) fn cut(&mut self, region: &MemoryRegion) -> Vec<Segment> {
        let length = region.len();
        let (handle, start) = match &mut self.joint {
            None => (region.stag(), region.remote_offset()),
            Some((handle, next)) => {
                let start = *next;
                *next += length as u64;
                (*handle, start)
            }
        };
        let mut segments = Vec::with_capacity(crate::plan::segments(length, self.most));
        let mut at = 0;
        while at < length {
            // At most `most`.
            let part = (length - at).min(self.most as usize) as u32;
            segments.push(Segment { handle, length: part, offset: start.wrapping_add(at as u64) });
            at += part as usize;
        }
        segments
    }
}
