//! The variants for aarch64: with the CRC instructions and carry-less multiplication of Armv8-A (every server's
//! processor, Apple's, and small boards since 2016 or so).
//!
//! All moves are ordinary stores. The processor may make them visible in any order, so whoever needs an order says so
//! (`shared_bytes::store`).

mod copy;
mod crc;

use std::arch::is_aarch64_feature_detected as has;

use super::portable;
use super::set::Kernels;

static CRC: Kernels = Kernels {
    name: "armv8-crc-pmull",
    crc32c: crc::crc32c,
    one_pass: false,
    crc32c_sum: crc::crc32c_sum,
    copy_in: copy::copy,
    copy_out: copy::copy,
    copy_out_crc32c: crc::copy_crc32c,
    // The compiler makes vectors of that.
    sum: portable::sum,
};

/// Best first.
pub(super) fn available() -> Option<&'static Kernels> {
    (has!("crc") && has!("pmull")).then_some(&CRC)
}
