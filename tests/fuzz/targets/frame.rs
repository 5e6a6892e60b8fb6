//! Fuzz target: one received Ethernet frame, up to RDMAP.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::frame(data));
