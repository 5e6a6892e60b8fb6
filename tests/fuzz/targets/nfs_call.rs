//! Fuzz target: RPC calls to the server of a directory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::nfs_call(data));
