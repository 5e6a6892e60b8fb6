//! The application's answer to a connection request.

use uwarp_iwarp::startup::{AcceptError, Parameters, ReadLimits};

use crate::api::command::{AcceptParameters, ConnectFailure, RequestId, StartupOptions};
use crate::api::common::Common;
use crate::connection::phase::Phase;
use crate::connection::running::Limit;
use crate::connection::slab::Handle;
use crate::connection::startup::read_limits;
use crate::connection::{Connection, Connections, Opening};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::net::Net;
use crate::rdma::Rdma;

impl<B: Buffer> Connections<B> {
    /// Accepts a connection request with a queue pair.
    pub(crate) fn accept(&mut self, net: &Net, rdma: &mut Rdma, common: &Common, parameters: AcceptParameters) {
        let number = parameters.queue_pair;
        if let Err(reason) = self.try_accept(net, rdma, common, &parameters) {
            rdma.connect_failed(number, reason);
        }
    }

    fn try_accept(
        &mut self,
        net: &Net,
        rdma: &mut Rdma,
        common: &Common,
        AcceptParameters { request, queue_pair: number, options }: &AcceptParameters,
    ) -> Result<(), ConnectFailure> {
        let queue_pair = rdma.idle(*number)?;
        let handle = Handle::from_bits(request.handle);
        let (index, connection) = self.table.disturb_handle(handle).ok_or(ConnectFailure::RequestGone)?;
        let accepted = accept_on(connection, &mut self.opening, common, options);
        connection.schedule(&mut self.ready);
        let (parameters, limit) = accepted?;
        connection.queue_pair = Some(*number);
        connection.begin_running(queue_pair, parameters, options.features, limit);
        connection.be_patient(net, common);
        queue_pair.bind(index);
        Ok(())
    }

    /// Rejects a connection request.
    pub(crate) fn reject<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        request: RequestId,
        private_data: &[u8],
    ) {
        // It may have ended by itself, or was answered before.
        let Some((index, connection)) = self.table.disturb_handle(Handle::from_bits(request.handle)) else { return };
        let Phase::Requested(responding) = &mut connection.phase else { return };
        match responding.machine.reject(&ReadLimits::default(), private_data) {
            Ok(reply) => {
                self.opening.leave_listener(connection);
                connection.startup_frame = Some(reply);
                if !connection.resume_stream() {
                    connection.finish_tcp(common.now);
                }
                connection.schedule(&mut self.ready);
            }
            Err(_) => {
                connection.abort(link, common);
                self.end(index);
            }
        }
    }
}

/// Sends the Reply of acceptance. Gives what was agreed on, and the time limit of what follows.
fn accept_on(
    connection: &mut Connection,
    opening: &mut Opening,
    common: &Common,
    options: &StartupOptions,
) -> Result<(Parameters, Limit), ConnectFailure> {
    let limits = read_limits(&common.config.iwarp, options);
    let Phase::Requested(responding) = &mut connection.phase else { return Err(ConnectFailure::RequestGone) };
    responding.machine.set_ready_to_receive(options.ready_to_receive);
    responding.machine.set_markers(options.markers);
    let (reply, parameters) = match responding.machine.accept(&limits, &options.private_data) {
        Ok(accepted) => accepted,
        Err(AcceptError::PeerIrdTooSmall) => {
            // The Reply tells the peer how many we wanted (RFC 6581 §9.1).
            let reply =
                responding.machine.reject(&limits, &options.private_data).map_err(|_| ConnectFailure::Startup)?;
            opening.leave_listener(connection);
            connection.startup_frame = Some(reply);
            if !connection.resume_stream() {
                connection.finish_tcp(common.now);
            }
            return Err(ConnectFailure::ReadLimits);
        }
        Err(_) => return Err(ConnectFailure::Startup),
    };
    opening.leave_listener(connection);
    connection.startup_frame = Some(reply);
    // A client-server initiator may be silent without limit; a peer-to-peer one owes its ready-to-receive
    // indication.
    let limit = match parameters.expects_ready_to_receive {
        true => Limit::FirstFpdu(common.now + common.config.iwarp.startup_timeout),
        false => Limit::None,
    };
    Ok((parameters, limit))
}
