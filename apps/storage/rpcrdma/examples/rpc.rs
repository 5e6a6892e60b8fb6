//! Remote procedure calls over RDMA: a null call of NFS version 3, both ends in this process.
//!
//! ```text
//! cargo run -p uwarp-rpcrdma --example rpc
//! cargo run -p uwarp-rpcrdma --example rpc -- --device config/virtio-user.toml server
//! cargo run -p uwarp-rpcrdma --example rpc -- --device config/vhost.toml client 10.99.0.1
//! ```

#[path = "../../../../stack/verbs/examples/common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use common::{LIMIT, Outcome};
use uwarp::{Context, Listener};
use uwarp_rpcrdma::binding::Binding;
use uwarp_rpcrdma::nfs3::{self, Nfs3};
use uwarp_rpcrdma::requester::{Call, Requester, RequesterOptions};
use uwarp_rpcrdma::responder::{Answer, Responder, ResponderOptions};
use uwarp_rpcrdma::rpc::Status;

fn server(context: &Context, mut listener: Listener) -> Outcome {
    let request = listener.next(LIMIT)?.ok_or("no client connected in time")?;
    let programs: Arc<[Arc<dyn Binding>]> = Arc::new([Arc::new(Nfs3)]);
    let mut responder = Responder::accept(context, request, programs, ResponderOptions::default(), Arc::default())?;
    // Until the client disconnects.
    while let Ok(Some(call)) = responder.next(LIMIT) {
        let answer = match call.procedure {
            0 => Answer::success(vec![]),
            _ => Answer::failure(Status::ProcedureUnavailable),
        };
        responder.answer(call.token, answer);
    }
    Ok(())
}

fn client(context: &Context, server: SocketAddr) -> Outcome {
    let mut requester = Requester::connect(context, server, vec![Arc::new(Nfs3)], RequesterOptions::default())?;
    let null = Call { program: nfs3::PROGRAM, version: 3, procedure: 0, ..Call::default() };
    let finished = requester.call(null, LIMIT)?;
    println!("the null procedure: {:?}", finished.outcome?.status);
    Ok(())
}

fn main() -> Outcome {
    common::run(common::listen, server, client)
}
