//! Fuzz target: a client of a switch beside a peer that writes anything into the memory of their cable.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::cable(data));
