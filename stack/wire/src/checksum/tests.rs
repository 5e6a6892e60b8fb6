use proptest::prelude::*;

use super::*;

/// The definition, word by word (RFC 1071 §1).
fn by_definition(octets: &[u8]) -> u16 {
    let mut total: u32 = 0;
    for pair in octets.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

proptest! {
    #[test]
    fn the_sum_is_that_of_the_definition(octets in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(fold(sum(&octets)), by_definition(&octets));
    }

    #[test]
    fn a_wide_sum_folds_as_its_octets_do(total in prop_oneof![any::<u64>(), (0..=u64::MAX / 0xffff).prop_map(|n| n * 0xffff)]) {
        prop_assert_eq!(fold_wide(total), by_definition(&total.to_be_bytes()));
    }

    #[test]
    fn pieces_join_at_any_octet(
        octets in prop::collection::vec(any::<u8>(), 0..200),
        cuts in prop::collection::vec(0usize..200, 0..5),
    ) {
        let mut cuts = cuts;
        cuts.retain(|cut| *cut <= octets.len());
        cuts.push(0);
        cuts.push(octets.len());
        cuts.sort_unstable();
        let mut partial = 0;
        for pair in cuts.windows(2) {
            partial = append(partial, pair[0], sum(&octets[pair[0]..pair[1]]));
        }
        prop_assert_eq!(fold(partial), by_definition(&octets));
    }

    #[test]
    fn the_pseudo_header_is_summed_as_its_octets(
        source in any::<u128>(), destination in any::<u128>(), v4 in any::<bool>(), length in 0u16..,
    ) {
        let (source, destination) = if v4 {
            (IpAddress::from_ipv4_bits(source as u32), IpAddress::from_ipv4_bits(destination as u32))
        } else {
            (IpAddress::from_bits(source), IpAddress::from_bits(destination))
        };
        let mut octets = Vec::new();
        for address in [source, destination] {
            match address.to_ip_addr() {
                core::net::IpAddr::V4(address) => octets.extend(address.octets()),
                core::net::IpAddr::V6(address) => octets.extend(address.octets()),
            }
        }
        octets.extend([0, 6]);
        octets.extend(length.to_be_bytes());
        let partial = pseudo_header(source, destination, 6, usize::from(length));
        prop_assert_eq!(fold(partial), by_definition(&octets));
    }
}

#[test]
fn the_largest_sums_do_not_overflow() {
    let octets = vec![0xff; 1 << 20];
    assert_eq!(fold(sum(&octets)), 0xffff);
    assert_eq!(fold(combine(u32::MAX, u32::MAX)), 0xffff);
    assert_eq!(fold(u32::MAX), 0xffff);
    assert_eq!(fold(append(u32::MAX, 1, u32::MAX)), 0xffff);
    assert_eq!(sum(&[0; 64]), 0);
}

#[test]
fn the_example_of_rfc_1071() {
    assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    assert_eq!(finish(0xddf2), 0x220d);
}
