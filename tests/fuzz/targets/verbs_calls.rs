//! Fuzz target: the exports of libibverbs and librdmacm, whatever a program passes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::verbs_calls(data));
