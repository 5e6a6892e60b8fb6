//! RPC-over-RDMA version 1 (RFC 8166): remote procedure calls (ONC RPC, RFC 5531) whose messages travel in RDMA Sends,
//! and whose large data items, the *chunks*, travel by RDMA Read and RDMA Write.
//!
//! - [`header`]: the transport header, and how to answer an invalid one.
//! - [`private_data`]: what the peers exchange when they connect (RFC 8797).
//! - [`rpc`]: the headers of ONC RPC messages.
//! - [`xdr`]: the few XDR types that headers consist of.
//! - [`binding`]: a program's eligible data items and reply sizes; [`nfs3`] is the binding of NFS version 3.
//! - [`walk`]: finds the items in arguments and results, whole or reduced.
//! - [`plan`]: which chunks a call needs.
//! - [`credits`]: how many calls may be under way.
//! - `requester` and `responder`: the two roles over `uwarp` (feature `verbs`, on by default).
//!
//! A requester registers the buffers of a call in one of two ways (`requester::Registration`): each with an STag of its
//! own, or all of a direction together under one STag, by a work request. In both ways STags are valid on one
//! connection only. The peer loses access to a call's memory before the result is returned, or when the call is
//! cancelled.
//!
//! A call of NFS, between two contexts in one process:
#![cfg_attr(
    feature = "verbs",
    doc = r#"
```
use std::sync::Arc;
use std::time::Duration;
use uwarp::{Config, Context, ListenOptions};
use uwarp_rpcrdma::binding::Binding;
use uwarp_rpcrdma::nfs3::{self, Nfs3};
use uwarp_rpcrdma::requester::{Call, Requester, RequesterOptions};
use uwarp_rpcrdma::responder::{Answer, Responder, ResponderOptions};
use uwarp_rpcrdma::rpc::Status;

const LIMIT: Duration = Duration::from_secs(10);

let (here, there) =
    Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
let mut listener = there.listen(nfs3::PORT, ListenOptions::default())?;
let address = there.socket_address(nfs3::PORT);

let server = std::thread::spawn(move || -> Result<(), uwarp::Error> {
    let request = listener.next(LIMIT)?.expect("a client comes");
    let programs: Arc<[Arc<dyn Binding>]> = Arc::new([Arc::new(Nfs3)]);
    let mut responder = Responder::accept(&there, request, programs, ResponderOptions::default(), Arc::default())?;
    // Until the client leaves.
    while let Ok(call) = responder.next(LIMIT) {
        let call = call.expect("a call");
        let answer = match call.procedure {
            0 => Answer::success(vec![]),
            _ => Answer::failure(Status::ProcedureUnavailable),
        };
        responder.answer(call.token, answer);
    }
    Ok(())
});

let mut requester = Requester::connect(&here, address, vec![Arc::new(Nfs3)], RequesterOptions::default())?;
let null = Call { program: nfs3::PROGRAM, version: 3, procedure: 0, ..Call::default() };
let finished = requester.call(null, LIMIT)?;
assert_eq!(finished.outcome.expect("a reply").status, Status::Success);
drop(requester);
server.join().unwrap()?;
# Ok::<(), uwarp::Error>(())
```
"#
)]
#![forbid(unsafe_code)]

#[cfg(feature = "verbs")]
mod endpoint;
#[cfg(feature = "verbs")]
mod pool;
#[cfg(feature = "verbs")]
pub mod requester;
#[cfg(feature = "verbs")]
pub mod responder;

pub mod binding;
pub mod credits;
pub mod header;
pub mod nfs3;
pub mod plan;
pub mod private_data;
pub mod rpc;
pub mod walk;
pub mod xdr;
