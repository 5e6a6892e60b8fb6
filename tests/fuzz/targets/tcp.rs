//! Fuzz target: one TCP connection, any segments and calls.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::tcp(data));
