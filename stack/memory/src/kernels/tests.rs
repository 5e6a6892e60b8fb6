//! Each set of variants against the portable one.

use super::*;

const LONGEST: usize = 3000;

fn others() -> Vec<&'static Kernels> {
    let mut all = available();
    all.pop();
    all
}

fn random_octets(length: usize, seed: u64) -> Vec<u8> {
    let mut octets = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut octets);
    octets
}

fn fold_sum(partial: u32) -> u32 {
    let partial = (partial & 0xffff) + (partial >> 16);
    (partial & 0xffff) + (partial >> 16)
}

/// RFC 3720 B.4.
#[test]
fn crc32c_of_the_published_vectors() {
    let rising: Vec<u8> = (0..32).collect();
    let falling: Vec<u8> = (0..32).rev().collect();
    for (octets, crc) in [
        (&[0u8; 32][..], 0x8a91_36aau32),
        (&[0xff; 32], 0x62a8_ab43),
        (&rising, 0x46dd_794e),
        (&falling, 0x113f_db5c),
        (b"123456789", 0xe306_9283),
        (b"", 0),
    ] {
        for kernels in available() {
            // SAFETY: a slice is valid for its length.
            let register = unsafe { (kernels.crc32c)(CRC32C_START, octets.as_ptr(), octets.len()) };
            assert_eq!(!register, crc, "{} of {octets:?}", kernels.name);
        }
        assert_eq!(crc32c(octets), crc);
    }
}

#[test]
fn crc32c_agrees_at_every_length() {
    let octets = random_octets(LONGEST + 64, 1);
    let mut random = fastrand::Rng::with_seed(2);
    for length in 0..=LONGEST {
        let start = random.usize(..64);
        let octets = &octets[start..start + length];
        let register = if length % 2 == 0 { CRC32C_START } else { random.u32(..) };
        // SAFETY: a slice is valid for its length.
        let expected = unsafe { portable::crc32c(register, octets.as_ptr(), length) };
        for kernels in others() {
            // SAFETY: a slice is valid for its length.
            let found = unsafe { (kernels.crc32c)(register, octets.as_ptr(), length) };
            assert_eq!(found, expected, "{} of {length} octets", kernels.name);
        }
    }
}

#[test]
fn crc32c_of_pieces_is_that_of_the_whole() {
    let octets = random_octets(LONGEST, 3);
    for cut in [0, 1, 3, 4, 7, 63, 64, 65, 100, 255, 256, 257, 1460, LONGEST] {
        let register = crc32c_update(CRC32C_START, &octets[..cut]);
        assert_eq!(!crc32c_update(register, &octets[cut..]), crc32c(&octets), "cut at {cut}");
    }
}

/// Copies are exact, stay within their range, and the CRC of the fused pass is that of the copy.
#[test]
fn copies_agree_at_every_length() {
    const GUARD: u8 = 0xa5;
    let octets = random_octets(LONGEST + 64, 4);
    let mut random = fastrand::Rng::with_seed(5);
    let mut out = vec![GUARD; LONGEST + 192];
    for length in 0..=LONGEST {
        let start = random.usize(..64);
        let source = &octets[start..start + length];
        let place = 64 + random.usize(..64);
        let register = random.u32(..);
        // SAFETY: a slice is valid for its length.
        let expected = unsafe { portable::crc32c(register, source.as_ptr(), length) };
        for kernels in available() {
            for way in 0..3 {
                // SAFETY: both ranges are within their vectors.
                unsafe {
                    let target = out.as_mut_ptr().add(place);
                    match way {
                        0 => (kernels.copy_in)(target, source.as_ptr(), length),
                        1 => (kernels.copy_out)(target, source.as_ptr(), length),
                        _ => {
                            let found = (kernels.copy_out_crc32c)(register, target, source.as_ptr(), length);
                            assert_eq!(found, expected, "{} of {length} octets", kernels.name);
                        }
                    }
                }
                assert_eq!(&out[place..place + length], source, "{} way {way}", kernels.name);
                out[place..place + length].fill(GUARD);
                assert!(
                    out.iter().all(|&octet| octet == GUARD),
                    "{} way {way} of {length} octets wrote outside",
                    kernels.name
                );
            }
        }
    }
}

#[test]
fn sums_agree_at_every_length() {
    let mut octets = random_octets(LONGEST + 64, 6);
    // Carries everywhere.
    octets[500..1500].fill(0xff);
    let mut random = fastrand::Rng::with_seed(7);
    for length in 0..=LONGEST {
        let start = random.usize(..64);
        let octets = &octets[start..start + length];
        // SAFETY: a slice is valid for its length.
        let expected = fold_sum(unsafe { portable::sum(octets.as_ptr(), length) });
        for kernels in others() {
            // SAFETY: a slice is valid for its length.
            let found = unsafe { (kernels.sum)(octets.as_ptr(), length) };
            assert_eq!(fold_sum(found), expected, "{} of {length} octets", kernels.name);
        }
    }
}

#[test]
fn one_pass_gives_what_two_give() {
    let mut octets = random_octets(LONGEST + 64, 8);
    octets[500..1500].fill(0xff);
    let mut random = fastrand::Rng::with_seed(9);
    for length in 0..=LONGEST {
        let start = random.usize(..64);
        // Of this very length, for a tool that watches the ends of allocations.
        let octets = octets[start..start + length].to_vec();
        let register = random.u32(..);
        // SAFETY: a slice is valid for its length.
        let (crc, sum) = unsafe { portable::crc32c_sum(register, octets.as_ptr(), length) };
        for kernels in others() {
            // SAFETY: a slice is valid for its length.
            let found = unsafe { (kernels.crc32c_sum)(register, octets.as_ptr(), length) };
            assert_eq!((found.0, fold_sum(found.1)), (crc, fold_sum(sum)), "{} of {length} octets", kernels.name);
        }
    }
}

/// A page between two that nobody may touch.
struct GuardedPage(memmap2::MmapMut);

impl GuardedPage {
    const PAGE: usize = 4096;

    fn new() -> GuardedPage {
        let mut mapping = memmap2::MmapMut::map_anon(3 * Self::PAGE).expect("there is memory");
        for page in [0, 2] {
            let start = mapping[page * Self::PAGE..].as_mut_ptr().cast();
            // SAFETY: a page of the mapping, of which no reference is left.
            unsafe { rustix::mm::mprotect(start, Self::PAGE, rustix::mm::MprotectFlags::empty()) }
                .expect("the pages are ours");
        }
        GuardedPage(mapping)
    }

    /// Where so many octets begin that end with the page, or begin with it.
    fn place(&mut self, length: usize, at_end: bool) -> *mut u8 {
        let offset = if at_end { Self::PAGE - length } else { 0 };
        // SAFETY: within the mapping.
        unsafe { self.0.as_mut_ptr().add(Self::PAGE + offset) }
    }
}

/// Memory next to a registered region may not be mapped, or be another's.
#[test]
fn no_kernel_touches_an_octet_outside_its_ranges() {
    let (mut source_page, mut target_page) = (GuardedPage::new(), GuardedPage::new());
    for length in 0..=LONGEST {
        for at_end in [false, true] {
            let (source, target) = (source_page.place(length, at_end), target_page.place(length, at_end));
            for kernels in available() {
                // SAFETY: both are valid for that many octets. A kernel that goes beyond is ended by the guards.
                unsafe {
                    (kernels.crc32c)(CRC32C_START, source, length);
                    (kernels.crc32c_sum)(CRC32C_START, source, length);
                    (kernels.sum)(source, length);
                    (kernels.copy_in)(target, source, length);
                    (kernels.copy_out)(target, source, length);
                    (kernels.copy_out_crc32c)(CRC32C_START, target, source, length);
                }
            }
        }
    }
}

/// A sum of 0 means "no octet but zeros" to who computes a UDP checksum.
#[test]
fn sums_are_zero_for_zeros_only() {
    for kernels in available() {
        for length in [0, 1, 2, 63, 64, 200, 1460] {
            let mut octets = vec![0; length];
            // SAFETY: a slice is valid for its length.
            assert_eq!(unsafe { (kernels.sum)(octets.as_ptr(), length) }, 0);
            octets.fill(0xff);
            if length > 0 {
                // SAFETY: a slice is valid for its length.
                assert_ne!(unsafe { (kernels.sum)(octets.as_ptr(), length) }, 0);
            }
        }
    }
    assert_eq!(checksum_sum(&[0x12, 0x34, 0x56]) % 0xffff, 0x1234 + 0x5600);
}

/// The CRC of the fused pass is that of what was stored, however the source changes under it.
#[test]
fn crc32c_is_that_of_the_copy_while_the_source_changes() {
    use std::sync::atomic::AtomicBool;
    const LENGTH: usize = 1460;
    let source: Vec<u8> = random_octets(LENGTH, 8);
    let mut source = crate::RegionBuffer::from(source);
    let start = source.as_mut_slice().as_mut_ptr().expose_provenance();
    let stop = AtomicBool::new(false);
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(9);
            while !stop.load(Relaxed) {
                let target = std::ptr::with_exposed_provenance_mut::<u8>(start + random.usize(..LENGTH));
                // SAFETY: within the buffer, which outlives the scope.
                unsafe { std::sync::atomic::AtomicU8::from_ptr(target) }.store(random.u8(..), Relaxed);
            }
        });
        for kernels in available() {
            let mut out = vec![0; LENGTH];
            for round in 0..20_000 {
                // Long and short ones: they are computed in different ways.
                let length = if round % 2 == 0 { LENGTH - round % 200 } else { round % 500 };
                // SAFETY: both are valid for that many octets.
                let register = unsafe {
                    let source = std::ptr::with_exposed_provenance::<u8>(start);
                    (kernels.copy_out_crc32c)(CRC32C_START, out.as_mut_ptr(), source, length)
                };
                // Not asserted here: a panic would leave the other thread running, and the scope waiting for it.
                if !register != crc32c(&out[..length]) {
                    wrong.push((kernels.name, length));
                }
            }
        }
        stop.store(true, Relaxed);
    });
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn what_is_selected_can_be_forced() {
    // Other tests may run at the same time in this process; they do not mind which variants they get.
    force_portable(true);
    assert_eq!(selected(), "portable");
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    force_portable(false);
    assert_eq!(selected(), available()[0].name);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn a_prefetch_may_be_of_anything_and_changes_nothing() {
    let octets = [7_u8; 200];
    prefetch(&octets[3..]);
    prefetch(&octets[..0]);
    prefetch(&());
    let at = octets.as_ptr().addr();
    prefetch_range(at..at + 200);
    prefetch_range(at..at);
    for address in [0, 1, usize::MAX] {
        prefetch_line(address);
    }
    assert_eq!(octets, [7; 200]);
}
