//! Fuzz target: the control channel of a memif server, from a client of any habits.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::memif_control(data));
