//! Calls of the C library's exports.

/// Makes the calls that the octets choose. All come back, and the devices close once their objects are gone.
pub fn verbs_calls(data: &[u8]) {
    uwarp_verbs_abi::misuse::run(data);
}
