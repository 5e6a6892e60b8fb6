//! Calls over RPC-over-RDMA, with both ends in one thread: the null call, and READ of NFS version 3, whose data travels
//! by RDMA Write.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use uwarp::{Context, ListenOptions};
use uwarp_rpcrdma::binding::Binding;
use uwarp_rpcrdma::nfs3::{Nfs3, PORT, PROGRAM};
use uwarp_rpcrdma::requester::{Call, Requester, RequesterOptions};
use uwarp_rpcrdma::responder::{Answer, Responder, ResponderOptions};
use uwarp_rpcrdma::rpc::Status;
use uwarp_rpcrdma::walk::Part;
use uwarp_rpcrdma::xdr::{put_opaque, put_u32, put_u64};

/// Longest wait for a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// READ of NFS version 3 (RFC 1813 §3.3.6).
const READ: u32 = 6;

/// A requester and a responder.
pub struct Pair {
    requester: Requester,
    responder: Responder,
    /// Octets of a READ.
    size: u32,
    /// Memory for its data.
    room: Vec<u8>,
}

impl Pair {
    /// Connects both ends.
    pub fn connect(here: &Context, there: &Context, size: u32) -> anyhow::Result<Self> {
        let mut listener = there.listen(PORT, ListenOptions::default())?;
        let bindings: Arc<[Arc<dyn Binding>]> = Arc::new([Arc::new(Nfs3)]);
        let requester = Requester::start_connect(
            here,
            there.socket_address(PORT),
            bindings.to_vec(),
            // More credits than a null call needs would cost work at its start only.
            RequesterOptions { credits: 4, ..RequesterOptions::default() },
        )?;
        let request = listener.next(PATIENCE)?.context("no connection request arrived")?;
        let options = ResponderOptions { credits: 4, ..ResponderOptions::default() };
        let responder = Responder::accept(there, request, bindings, options, Arc::default())?;
        Ok(Self { requester, responder, size, room: vec![0; size as usize] })
    }

    /// Makes a call and waits for its end; returns its results.
    fn call(&mut self, call: Call) -> anyhow::Result<Vec<Part>> {
        self.requester.start(call)?;
        // Each side is turned when it has something to send and when something arrives, as if both polled all the time.
        let mut finished = self.requester.poll();
        loop {
            if let Some(request) = self.responder.poll()? {
                let answer = match request.procedure {
                    READ => Answer::success(self.data()),
                    _ => Answer::success(Vec::new()),
                };
                self.responder.answer(request.token, answer);
                continue;
            }
            if let Some(finished) = finished.take().or_else(|| self.requester.poll()) {
                let reply = finished.outcome?;
                ensure!(reply.status == Status::Success, "a call ended with {:?}", reply.status);
                return Ok(reply.results);
            }
        }
    }

    /// The results of a READ (RFC 1813 §3.3.6), in the memory of an earlier one.
    fn data(&mut self) -> Vec<Part> {
        let data = self.responder.reclaim().unwrap_or_else(|| vec![7; self.size as usize]);
        let mut octets = Vec::new();
        // Success, no attributes, the count, no end of file, and the length of the data.
        for word in [0, 0, self.size, 0, self.size] {
            put_u32(&mut octets, word);
        }
        vec![Part::Octets(octets), Part::Item(data)]
    }

    /// A call without arguments and results.
    pub fn null(&mut self) -> anyhow::Result<()> {
        let results = self.call(Call { program: PROGRAM, version: 3, ..Call::default() })?;
        ensure!(results.is_empty(), "a null call has results");
        Ok(())
    }

    /// A READ, into the memory of the previous one.
    pub fn read(&mut self) -> anyhow::Result<()> {
        let mut octets = Vec::new();
        put_opaque(&mut octets, &[3; 32]);
        put_u64(&mut octets, 0);
        put_u32(&mut octets, self.size);
        let call = Call {
            program: PROGRAM,
            version: 3,
            procedure: READ,
            arguments: vec![Part::Octets(octets)],
            rooms: vec![std::mem::take(&mut self.room)],
            ..Call::default()
        };
        let data = self.call(call)?.into_iter().find_map(|part| match part {
            Part::Item(data) => Some(data),
            Part::Octets(_) => None,
        });
        self.room = data.context("a READ has data")?;
        ensure!(self.room.len() == self.size as usize, "a READ of another length");
        Ok(())
    }
}
