//! Fuzz target: a live queue pair, whatever its peer sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::queue_pair(data));
