//! Fuzz target: MPA start-up, both roles.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::mpa_startup(data));
