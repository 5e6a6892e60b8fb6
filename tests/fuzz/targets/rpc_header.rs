//! Fuzz target: a message of RPC-over-RDMA, both roles.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::rpc_header(data));
