//! The mailbox: gives each command to the rooms that it concerns.

use std::time::Duration;

use uwarp_tcp::Instant;

use crate::api::command::{AsyncEvent, Command};
use crate::api::{Farewell, Shutdown};
use crate::connection::listener::{Listener, Requests};
use crate::core::Core;
use crate::link::port::Port;

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
            self.end_connections();
        }
        // There may be more, for the next turn.
        self.control.doorbells.ring_mailbox();
    }

    /// Executes a command. Whoever sent it may not wait for the answer any more, or may have lost the race against the
    /// end of what the command is about.
    #[cold]
    fn run_command(&mut self, command: Command) {
        let Core { connections, link, net, rdma, control, common, .. } = self;
        match command {
            Command::AddCompletionQueue { queue, lane, notifier } => rdma.lanes.add(queue, lane, notifier),
            Command::ReplaceLane { queue, lane } => rdma.lanes.replace(&mut common.counters, queue, lane),
            Command::RemoveCompletionQueue { queue } => rdma.lanes.remove(queue),
            Command::CreateQueuePair(setup) => rdma.create_queue_pair(&mut common.counters, *setup),
            Command::DestroyQueuePair { queue_pair, done } => {
                connections.destroy_queue_pair(link, rdma, common, queue_pair);
                // Its number may be another's next.
                rdma.lanes.forget(queue_pair);
                if let Some(done) = done {
                    let _ = done.send(());
                }
            }
            Command::AbandonQueuePair { queue_pair, reply } => {
                let (abandoned, flow) = connections.abandon_queue_pair(link, rdma, common, queue_pair);
                // What the answer would hold counts in the domain, where others may need to be alone.
                let abandoned = abandoned.filter(|_| flow.is_none());
                control.farewells.push(Farewell { reply, abandoned, flow, last_frame: None });
            }
            Command::Connect(parameters) => self.connect(*parameters),
            Command::Accept(parameters) => connections.accept(net, rdma, common, *parameters),
            Command::Reject { request, private_data } => connections.reject(link, common, request, &private_data),
            Command::BeginDatagrams { queue_pair, number, key, done } => {
                rdma.begin_datagrams(&mut common.counters, queue_pair, number, key);
                let _ = done.send(());
            }
            Command::Disconnect { queue_pair } => {
                if rdma.queue_pair(queue_pair).is_some_and(|queue_pair| queue_pair.is_of_datagrams()) {
                    // There is nobody to take leave of.
                    connections.abort_queue_pair(link, rdma, common, queue_pair);
                } else if let Some(index) = rdma.queue_pair(queue_pair).and_then(|queue_pair| queue_pair.connection) {
                    connections.disconnect(link, rdma, common, index);
                }
            }
            Command::Abort { queue_pair } => connections.abort_queue_pair(link, rdma, common, queue_pair),
            Command::GiveUpPeer { queue_pair } => connections.give_up_peer(link, rdma, common, queue_pair),
            Command::SetAccess { queue_pair, access, done } => {
                if let Some(queue_pair) = rdma.queue_pair(queue_pair) {
                    queue_pair.set_access(access);
                }
                let _ = done.send(());
            }
            Command::SetRules { queue_pair, rules, done } => {
                rdma.set_rules(connections, common, queue_pair, rules);
                let _ = done.send(());
            }
            Command::Listen { listener, address, port, backlog, requests, watch, reply } => {
                let requests = Requests::Rdma { requests, watch };
                let listener = Listener::new(listener, address, backlog, requests, common.config.secret);
                let _ = reply.send(connections.opening.listen(net, &common.config.limits, port, listener));
            }
            Command::ListenStreams { listener, port, backlog, waiting, options, incoming, reply } => {
                let requests = Requests::Streams { incoming, options, waiting };
                let listener = Listener::new(listener, None, backlog, requests, common.config.secret);
                let _ = reply.send(connections.opening.listen(net, &common.config.limits, port, listener));
            }
            Command::ConnectStream(parameters) => connections.connect_stream(link, net, common, *parameters),
            Command::ConvertStream(parameters) => {
                if let Some((index, octets)) = connections.convert(rdma, common, *parameters) {
                    self.on_early_octets(index, &octets);
                }
            }
            Command::SetNagle { stream, nagle } => connections.set_stream_nagle(&stream, nagle),
            Command::SendUrgent { handle, octets, reply } => {
                connections.send_stream_urgent(handle, octets);
                let _ = reply.send(());
            }
            Command::StreamInfo { handle, reply } => {
                let _ = reply.send(connections.stream_info(handle));
            }
            Command::StopListening { listener } => connections.stop_listening(link, common, listener),
            Command::Stats { reply } => {
                let _ = reply.send(Box::new(self.snapshot()));
            }
            Command::TcpInfo { queue_pair, reply } => {
                let _ = reply.send(rdma.tcp_info(connections, queue_pair));
            }
            Command::SetAddresses { addresses, others, station } => {
                let all = addresses.iter().map(|own| own.address).chain(others.iter().copied());
                net.neighbours.fix(all.map(Into::into), station);
                // Those that cannot be are left out by whoever gives them.
                let _ = net.addresses.replace(addresses, &others);
            }
            Command::SetFaults { faults } => link.port.set_faults(faults),
            Command::StartCapture { path, reply } => {
                let _ = reply.send(link.port.start_capture(&path));
            }
            Command::StopCapture => link.port.stop_capture(),
            Command::Fail { cause } => self.fail(&cause),
            Command::Shutdown { linger, done } => {
                // A failure ends everything at once, and an earlier shutdown reports for all.
                if control.shutdown.is_none() {
                    control.shutdown = Some(Shutdown::new(common.now, linger, Some(done)));
                    connections.opening.is_closed = true;
                    connections.disconnect_all(link, rdma, common);
                }
            }
        }
    }

    /// Ends everything at once after a failure.
    pub(crate) fn fail(&mut self, cause: &str) {
        self.control.events.send(AsyncEvent::DeviceFatal { cause: cause.to_owned() });
        self.control.shutdown = Some(Shutdown::new(self.common.now, Duration::ZERO, None));
        self.rdma.fail(&mut self.common.counters);
        self.connections.fail_all();
        self.link.drop_waiting();
        self.quiet_until = Instant::ZERO;
    }
}
