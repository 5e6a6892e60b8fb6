//! Segments of a connection for TCP.

use uwarp_tcp::Received;
use uwarp_wire::frame::TcpFrame;
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use crate::api::common::Common;
use crate::api::stats::DropReason;
use crate::connection::{Connection, Connections};
use crate::link::port::Buffer;
use crate::link::receive::Origin;

impl<B: Buffer> Connections<B> {
    /// Gives TCP a segment, whose frame takes so many buffers: one that was joined by LRO or GRO takes several.
    #[inline]
    pub(crate) fn take_segment(
        &self,
        common: &mut Common,
        connection: &mut Connection,
        frame: &TcpFrame,
        (origin, buffers): (Origin, usize),
    ) -> Received {
        let token = self.held.next_token();
        let (mut header, mut payload_len) = (&frame.header, frame.payload_len as u32);
        let bare;
        let waits = connection.awaits_receive();
        if !self.held.fits(origin, buffers, connection.tcp.out_of_order_buffers(), waits)
            && (waits && payload_len > 0 || connection.tcp.is_ahead(header))
        {
            // No more may be held: data behind a gap counts as lost, but its acknowledgment is processed.
            bare = TcpHeader { flags: header.flags.without(TcpFlags::FIN), ..*header };
            (header, payload_len) = (&bare, 0);
            common.counters.count_drop(DropReason::OutOfOrderBudget);
        }
        let received = connection.tcp.on_segment(common.now, header, payload_len, frame.ecn, token);
        if let Some(reason) = received.drop {
            common.counters.count_drop(drop_reason(reason));
        }
        received
    }
}

/// The engine's counter for a reason of TCP's.
pub(crate) fn drop_reason(reason: uwarp_tcp::DropReason) -> DropReason {
    use uwarp_tcp::DropReason as Tcp;
    match reason {
        Tcp::Duplicate => DropReason::Duplicate,
        Tcp::OutsideWindow => DropReason::OutOfWindow,
        Tcp::OldTimestamp | Tcp::NoTimestamp => DropReason::OldTimestamp,
        Tcp::ResetChallenged | Tcp::SynChallenged => DropReason::Challenged,
        Tcp::AckInvalid => DropReason::BadAcknowledgment,
        Tcp::OutOfOrderBudget => DropReason::OutOfOrderBudget,
        Tcp::DataAfterFin => DropReason::StreamEnded,
        Tcp::Closed | Tcp::ResetInvalid | Tcp::SynInTimeWait | Tcp::NoAck | Tcp::Unexpected => DropReason::BadState,
    }
}
