//! The mailbox: executes commands.

use std::net::IpAddr;

use uwarp_wire::address::IpAddress;

use crate::api::command::{Command, ControlError, ListenerId};
use crate::connection::flow::KeyedHash;
use crate::connection::listener::{Listener, Requests};
use crate::connection::shares::Silent;
use crate::core::Core;
use crate::link::port::Port;
use crate::rdma::queue_pair::QueuePair;

/// Most commands executed in one turn.
const COMMANDS_PER_TURN: usize = 64;

impl<P: Port> Core<P> {
    /// Executes the commands in the mailbox.
    #[cold]
    pub(crate) fn run_commands(&mut self) {
        self.needs_attention = true;
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.control.commands.try_recv() else { return };
            self.run_command(command);
        }
        // There may be more, for the next turn.
        self.control.doorbells.ring_mailbox();
    }

    #[cold]
    fn run_command(&mut self, command: Command) {
        match command {
            Command::AddCompletionQueue { queue, lane, notifier } => self.rdma.lanes.add(queue, lane, notifier),
            Command::ReplaceLane { queue, lane } => self.rdma.lanes.replace(queue, lane),
            Command::RemoveCompletionQueue { queue } => self.rdma.lanes.remove(queue),
            Command::CreateQueuePair(setup) => {
                let number = setup.number as usize;
                if let Some(place) = self.rdma.queue_pairs.get_mut(number)
                    && place.is_none()
                {
                    let queue_pair = QueuePair::new(*setup);
                    queue_pair.receive.forget_share(queue_pair.number);
                    *place = Some(Box::new(queue_pair));
                }
            }
            Command::DestroyQueuePair { queue_pair, done } => {
                self.destroy_queue_pair(queue_pair);
                // Its number may be another's next.
                self.rdma.lanes.forget(queue_pair);
                if let Some(done) = done {
                    let _ = done.send(());
                }
            }
            Command::AbandonQueuePair { queue_pair, reply } => {
                let abandoned = self.abandon_queue_pair(queue_pair);
                self.control.farewells.push((reply, abandoned));
            }
            Command::Connect(parameters) => self.connect(*parameters),
            Command::Accept(parameters) => self.accept(*parameters),
            Command::Reject { request, private_data } => self.reject(request, &private_data),
            Command::Disconnect { queue_pair } => self.disconnect(queue_pair),
            Command::Abort { queue_pair } => self.abort_queue_pair(queue_pair),
            Command::Listen { listener, address, port, backlog, requests, watch, reply } => {
                let _ = reply.send(self.listen(listener, address, port, backlog, Requests::Rdma { requests, watch }));
            }
            Command::ListenStreams { listener, port, backlog, waiting, options, incoming, reply } => {
                let requests = Requests::Streams { incoming, options, waiting };
                let _ = reply.send(self.listen(listener, None, port, backlog, requests));
            }
            Command::ConnectStream(parameters) => self.connect_stream(*parameters),
            Command::ConvertStream(parameters) => self.convert_stream(*parameters),
            Command::SetNagle { stream, nagle } => self.set_stream_nagle(&stream, nagle),
            Command::SendUrgent { handle, octets, reply } => {
                self.send_stream_urgent(handle, octets);
                let _ = reply.send(());
            }
            Command::StreamInfo { handle, reply } => {
                let _ = reply.send(self.stream_info(handle));
            }
            Command::StopListening { listener } => self.stop_listening(listener),
            Command::Stats { reply } => {
                let _ = reply.send(Box::new(self.snapshot()));
            }
            Command::TcpInfo { queue_pair, reply } => {
                let _ = reply.send(self.tcp_info(queue_pair));
            }
            Command::SetFaults { faults } => self.link.port.set_faults(faults),
            Command::StartCapture { path, reply } => {
                let _ = reply.send(self.link.port.start_capture(&path));
            }
            Command::StopCapture => self.link.port.stop_capture(),
            Command::Fail { cause } => self.fail(&cause),
            Command::Shutdown { linger, done } => {
                if self.control.shutdown.is_none() {
                    self.begin_shutdown(linger, done);
                }
            }
        }
    }

    fn listen(
        &mut self,
        id: ListenerId,
        address: Option<IpAddr>,
        port: u16,
        backlog: u32,
        requests: Requests,
    ) -> Result<(), ControlError> {
        self.check_listen(port)?;
        if let Some(own) = address
            && !self.net.addresses.may_be_own(own.into())
        {
            return Err(ControlError::NotOwn(own));
        }
        let address = address.map(IpAddress::from);
        let silent = Silent::new(KeyedHash::new(self.config.secret));
        self.connections.opening.listeners.insert(
            port,
            Listener { id, address, backlog: backlog.max(1), pending: 0, half_open: 0, silent, requests },
        );
        Ok(())
    }

    fn check_listen(&self, port: u16) -> Result<(), ControlError> {
        if port == 0 {
            return Err(ControlError::BadPort);
        }
        if self.control.shutdown.is_some() {
            return Err(ControlError::ShuttingDown);
        }
        if self.connections.opening.listeners.contains_key(&port) {
            return Err(ControlError::PortInUse(port));
        }
        if self.connections.opening.listeners.len() >= self.config.limits.listeners as usize {
            return Err(ControlError::Limit("listeners"));
        }
        Ok(())
    }
}
