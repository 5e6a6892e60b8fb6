//! Powers of x modulo the polynomial of CRC32C. A register times such a power is the register after zeros.

/// x^`exponent`; the highest bit is x^0.
pub(super) const fn power(exponent: u32) -> u64 {
    times_power(0x8000_0000, exponent)
}

/// `value` times x^`exponent`.
pub(super) const fn times_power(value: u64, exponent: u32) -> u64 {
    let mut value = value as u32;
    let mut step = 0;
    while step < exponent {
        let carry = value & 1;
        value >>= 1;
        if carry != 0 {
            value ^= 0x82f6_3b78;
        }
        step += 1;
    }
    value as u64
}
