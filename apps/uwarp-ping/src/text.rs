//! The text of each round: its number, then letters that start one further each round, then a zero, as in rping.

/// rping's port.
pub const PORT: u16 = 7174;
/// Shortest text: the prefix, the number of the highest round, and the zero.
pub const SIZE_MIN: usize = 28;
/// Longest text.
pub const SIZE_MAX: usize = 64 * 1024 - 1;

const FIRST: u8 = b'A';
const LAST: u8 = b'z';

/// The text of a round, of `size` octets.
pub fn of_round(round: u64, size: usize) -> Vec<u8> {
    let letters = u64::from(LAST - FIRST) + 1;
    let mut text = format!("rdma-ping-{round}: ").into_bytes();
    // Below the number of letters.
    let mut letter = FIRST + (round % letters) as u8;
    text.truncate(size);
    while text.len() < size {
        text.push(letter);
        letter = if letter == LAST { FIRST } else { letter + 1 };
    }
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

/// The text up to its zero, for printing.
pub fn printable(text: &[u8]) -> String {
    let end = text.iter().position(|&octet| octet == 0).unwrap_or(text.len());
    text[..end].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_shifts_by_one_each_round() {
        assert_eq!(of_round(0, 28), b"rdma-ping-0: ABCDEFGHIJKLMN\0");
        assert_eq!(of_round(1, 28), b"rdma-ping-1: BCDEFGHIJKLMNO\0");
        // The letter after z is A again.
        assert_eq!(of_round(57, 28), b"rdma-ping-57: zABCDEFGHIJKL\0");
        assert_eq!(of_round(58, 28), b"rdma-ping-58: ABCDEFGHIJKLM\0");
        assert_eq!(of_round(3, SIZE_MAX).len(), SIZE_MAX);
        assert_eq!(printable(&of_round(0, 28)), "rdma-ping-0: ABCDEFGHIJKLMN");
    }
}
