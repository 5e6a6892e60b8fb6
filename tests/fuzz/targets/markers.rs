//! Fuzz target: FPDUs on a stream with markers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::markers(data));
