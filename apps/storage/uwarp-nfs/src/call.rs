//! A call, from either transport.

use crate::stream::StreamCall;
use std::net::SocketAddr;
use uwarp_rpcrdma::rpc::OwnedAuth;
use uwarp_rpcrdma::walk::Part;

/// A call.
#[derive(Debug)]
pub struct Call {
    /// The sender. Over RDMA the port is 0, because a client that reconnects uses another one.
    pub client: SocketAddr,
    /// Its number.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: OwnedAuth,
    /// The arguments; those of NFS as its binding splits them.
    pub arguments: Vec<Part>,
    /// Memory for the data of a READ.
    pub room: Vec<u8>,
}

impl Call {
    /// A call that arrived over TCP from this client.
    pub fn of_stream(call: StreamCall, client: SocketAddr) -> Self {
        let StreamCall { xid, program, version, procedure, credential, arguments } = call;
        Self { client, xid, program, version, procedure, credential, arguments, room: Vec::new() }
    }
}
