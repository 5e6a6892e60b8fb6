//! The application's answer to a connection request.

use crate::api::command::{AcceptParameters, ConnectFailure, RequestId, StartupOptions};
use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::connection::slab::Handle;
use crate::core::Core;
use crate::link::port::Port;
use crate::rdma::running::Limit;
use uwarp_iwarp::startup::{AcceptError, ReadLimits};

impl<P: Port> Core<P> {
    /// Accepts a connection request with a queue pair.
    pub(crate) fn accept(&mut self, parameters: AcceptParameters) {
        let number = parameters.queue_pair;
        if let Err(reason) = self.try_accept(parameters) {
            self.connect_failed(number, reason);
        }
    }

    fn try_accept(&mut self, parameters: AcceptParameters) -> Result<(), ConnectFailure> {
        let AcceptParameters { request, queue_pair: number, options } = parameters;
        self.check_idle(number)?;
        let limits = self.limits(&options);
        let index =
            self.connections.table.resolve(Handle::from_bits(request.handle)).ok_or(ConnectFailure::RequestGone)?;
        let mut connection = self.connections.table.take(index).ok_or(ConnectFailure::RequestGone)?;
        let result = self.accept_on(&mut connection, number, &limits, &options);
        if result.is_ok() {
            self.bind(number, index);
        }
        connection.schedule(&mut self.connections.ready, index);
        self.put_back(index, connection);
        result
    }

    fn accept_on(
        &mut self,
        connection: &mut Connection,
        number: u32,
        limits: &ReadLimits,
        options: &StartupOptions,
    ) -> Result<(), ConnectFailure> {
        let Phase::Requested(responding) = &mut connection.phase else { return Err(ConnectFailure::RequestGone) };
        responding.machine.set_ready_to_receive(options.ready_to_receive);
        responding.machine.set_markers(options.markers);
        let (reply, parameters) = match responding.machine.accept(limits, &options.private_data) {
            Ok(accepted) => accepted,
            Err(AcceptError::PeerIrdTooSmall) => {
                // The Reply tells the peer how many we wanted (RFC 6581 §9.1).
                let reply =
                    responding.machine.reject(limits, &options.private_data).map_err(|_| ConnectFailure::Startup)?;
                self.leave_listener(connection);
                connection.startup_frame = Some(reply);
                if !self.resume_stream(connection) {
                    self.finish_tcp(connection);
                }
                return Err(ConnectFailure::ReadLimits);
            }
            Err(_) => return Err(ConnectFailure::Startup),
        };
        self.leave_listener(connection);
        connection.startup_frame = Some(reply);
        connection.queue_pair = Some(number);
        // A client-server initiator may be silent without limit; a peer-to-peer one owes its ready-to-receive
        // indication.
        let limit = match parameters.expects_ready_to_receive {
            true => Limit::FirstFpdu(self.now + self.config.iwarp.startup_timeout),
            false => Limit::None,
        };
        self.begin_running(connection, number, parameters, options.features, limit);
        Ok(())
    }

    /// Rejects a connection request.
    pub(crate) fn reject(&mut self, request: RequestId, private_data: &[u8]) {
        let Some(index) = self.connections.table.resolve(Handle::from_bits(request.handle)) else { return };
        let Some(mut connection) = self.connections.table.take(index) else { return };
        self.leave_listener(&mut connection);
        if let Phase::Requested(responding) = &mut connection.phase {
            match responding.machine.reject(&ReadLimits::default(), private_data) {
                Ok(reply) => {
                    connection.startup_frame = Some(reply);
                    if !self.resume_stream(&mut connection) {
                        self.finish_tcp(&mut connection);
                    }
                    connection.schedule(&mut self.connections.ready, index);
                }
                Err(_) => self.abort(&mut connection),
            }
        }
        self.put_back(index, connection);
    }
}
