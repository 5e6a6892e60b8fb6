//! The variants for x86-64: with AVX-512 and carry-less multiplication of 512 bits (Intel since Ice Lake, AMD since
//! Zen 4), and with AVX2 and carry-less multiplication of 128 bits (everything since 2013 or so).
//!
//! All moves are ordinary stores, so that they become visible in order; non-temporal ones would not.

mod copy;
mod crc;
mod sum;

use std::is_x86_feature_detected as has;

use super::set::Kernels;

static AVX512: Kernels = Kernels {
    name: "avx512-vpclmulqdq",
    crc32c: crc::avx512::crc32c,
    one_pass: true,
    crc32c_sum: crc::avx512::crc32c_sum,
    copy_in: copy::avx512,
    copy_out: copy::avx512,
    copy_out_crc32c: crc::avx512::copy_crc32c,
    sum: sum::avx512,
};

static AVX2: Kernels = Kernels {
    name: "avx2-pclmulqdq",
    crc32c: crc::avx2::crc32c,
    one_pass: false,
    crc32c_sum: crc::avx2::crc32c_sum,
    copy_in: copy::avx2,
    copy_out: copy::avx2,
    copy_out_crc32c: crc::avx2::copy_crc32c,
    sum: sum::avx2,
};

/// Best first.
pub(super) fn available() -> Vec<&'static Kernels> {
    let avx2 = has!("avx2") && has!("pclmulqdq") && has!("sse4.2");
    let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512vbmi2") && has!("vpclmulqdq");
    let mut all = Vec::new();
    if avx2 && avx512 {
        all.push(&AVX512);
    }
    if avx2 {
        all.push(&AVX2);
    }
    all
}
