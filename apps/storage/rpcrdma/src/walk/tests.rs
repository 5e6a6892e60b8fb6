//! Walks over messages of an invented procedure, whole and reduced, compared with the list of fields that they were
//! built from.

use super::*;
use crate::header::parse_call;
use crate::rpc::CallHeader;
use crate::xdr::{put_opaque, put_padding, put_u32, put_u64};
use proptest::prelude::*;

/// What arguments or results are made of.
#[derive(Clone, Debug)]
enum Field {
    Word(u32),
    Double(u64),
    Plain(Vec<u8>),
    /// Eligible opaque data, and whether it is reduced where possible.
    Opaque(Vec<u8>, bool),
    /// Eligible optional data, of a known length.
    Optional(Option<Vec<u8>>, bool),
}

fn walk_over(fields: &[Field], walk: &mut Walk<'_>) -> Result<(), WalkError> {
    for field in fields {
        match field {
            Field::Word(word) => assert_eq!(walk.u32()?, *word),
            Field::Double(double) => assert_eq!(walk.u64()?, *double),
            Field::Plain(octets) => assert_eq!(walk.opaque(100)?, octets),
            Field::Opaque(..) => {
                walk.eligible_opaque(100)?;
            }
            Field::Optional(data, _) => {
                if walk.boolean()? {
                    walk.eligible_data(data.as_ref().map_or(0, Vec::len) as u32)?;
                }
            }
        }
    }
    Ok(())
}

/// The whole message, the reduced one, the removed items with their positions, and the parts.
#[derive(Debug, Default)]
struct Made {
    whole: Vec<u8>,
    reduced: Vec<u8>,
    taken: Vec<(u32, Vec<u8>)>,
    parts: Vec<Part>,
}

const BASE: usize = 40;

fn make(fields: &[Field]) -> Made {
    let mut made = Made::default();
    let mut octets = Vec::new();
    for field in fields {
        let mut out = Vec::new();
        let item = match field {
            Field::Word(word) => {
                put_u32(&mut out, *word);
                None
            }
            Field::Double(double) => {
                put_u64(&mut out, *double);
                None
            }
            Field::Plain(plain) => {
                put_opaque(&mut out, plain);
                None
            }
            Field::Opaque(data, reduce) => {
                put_u32(&mut out, data.len() as u32);
                Some((data, *reduce))
            }
            Field::Optional(data, reduce) => {
                put_u32(&mut out, u32::from(data.is_some()));
                data.as_ref().map(|data| (data, *reduce))
            }
        };
        made.whole.extend(&out);
        made.reduced.extend(&out);
        octets.extend(&out);
        let Some((data, reduce)) = item else { continue };
        let position = (BASE + made.whole.len()) as u32;
        for (stream, there) in [(&mut made.whole, true), (&mut made.reduced, !reduce || data.is_empty())] {
            if there {
                stream.extend(data);
                put_padding(stream, data.len());
            }
        }
        if reduce && !data.is_empty() {
            made.taken.push((position, data.clone()));
        }
        if !octets.is_empty() {
            made.parts.push(Part::Octets(std::mem::take(&mut octets)));
        }
        made.parts.push(Part::Item(data.clone()));
    }
    if !octets.is_empty() {
        made.parts.push(Part::Octets(octets));
    }
    made
}

fn any_field() -> impl Strategy<Value = Field> {
    let data = || prop::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        any::<u32>().prop_map(Field::Word),
        any::<u64>().prop_map(Field::Double),
        data().prop_map(Field::Plain),
        (data(), any::<bool>()).prop_map(|(data, reduce)| Field::Opaque(data, reduce)),
        (prop::option::of(data()), any::<bool>()).prop_map(|(data, reduce)| Field::Optional(data, reduce)),
    ]
}

fn reads(made: &Made, padded: bool) -> Vec<(u32, u64)> {
    let length = |data: &Vec<u8>| data.len() + if padded { padding(data.len()) } else { 0 };
    made.taken.iter().map(|(position, data)| (*position, length(data) as u64)).collect()
}

proptest! {
    #[test]
    fn reduced_arguments_are_the_whole_ones(fields in prop::collection::vec(any_field(), 0..12), padded: bool) {
        let made = make(&fields);
        let chunks = reads(&made, padded);
        let mut whole = Walk::new(&made.whole, BASE, Removed::Nothing);
        walk_over(&fields, &mut whole)?;
        let items = whole.finish()?;
        prop_assert_eq!(&split(&made.whole, &items, |_| unreachable!())?, &made.parts);
        prop_assert_eq!(parts_len(&made.parts), made.whole.len());

        let mut walk = Walk::new(&made.reduced, BASE, Removed::Reads(&chunks));
        walk_over(&fields, &mut walk)?;
        let found = walk.finish()?;
        let positions = |items: &[Item]| items.iter().map(|item| (item.position, item.length)).collect::<Vec<_>>();
        prop_assert_eq!(positions(&found), positions(&items), "positions are those of the unreduced message");
        let parts = split(&made.reduced, &found, |chunk| {
            let mut data = made.taken[chunk].1.clone();
            if padded {
                put_padding(&mut data, made.taken[chunk].1.len());
            }
            data
        })?;
        prop_assert_eq!(parts, made.parts);
    }

    #[test]
    fn reduced_results_are_the_whole_ones(mut fields in prop::collection::vec(any_field(), 0..12), spare in 0_usize..3) {
        // A result that has a chunk is placed there, so an unreduced one has an empty chunk. Those beyond the list are
        // not reduced.
        let mut returned = Vec::new();
        for field in &mut fields {
            match field {
                Field::Opaque(data, reduce) | Field::Optional(Some(data), reduce) => returned.push(match (data.len(), *reduce) {
                    (_, false) => Returned::Empty,
                    (length, true) => Returned::Filled(length as u64),
                }),
                _ => {}
            }
        }
        returned.extend(vec![Returned::Filled(0); spare]);
        let made = make(&fields);
        let mut walk = Walk::new(&made.reduced, BASE, Removed::Writes(&returned));
        walk_over(&fields, &mut walk)?;
        let items = walk.finish()?;
        let mut taken = made.taken.iter();
        let parts = split(&made.reduced, &items, |chunk| {
            assert!(matches!(returned[chunk], Returned::Filled(1..)));
            taken.next().unwrap().1.clone()
        })?;
        prop_assert_eq!(parts, made.parts);
    }

    #[test]
    fn a_chunk_elsewhere_is_found_out(
        fields in prop::collection::vec(any_field(), 1..8),
        word in any::<prop::sample::Index>(),
        length in 1_u64..9,
    ) {
        let made = make(&fields);
        let mut walk = Walk::new(&made.whole, BASE, Removed::Nothing);
        walk_over(&fields, &mut walk)?;
        let eligible: Vec<u64> = walk.finish()?.iter().map(|item| item.position).collect();
        // Nothing at this position may be removed.
        let position = BASE + 4 * word.index(made.whole.len() / 4 + 1);
        prop_assume!(!eligible.contains(&(position as u64)));
        let chunks = [(position as u32, length)];
        let mut walk = Walk::new(&made.whole, BASE, Removed::Reads(&chunks));
        let verdict = walk_over(&fields, &mut walk).and_then(|()| walk.finish().map(drop));
        prop_assert_eq!(verdict, Err(WalkError::Ineligible));
    }
}

fn opaque(data: &[u8], reduce: bool) -> Field {
    Field::Opaque(data.to_vec(), reduce)
}

#[test]
fn a_chunk_of_another_length_or_beyond_the_end_is_garbage() {
    let fields = [opaque(b"hello", true)];
    let made = make(&fields);
    let verdict = |chunks: &[(u32, u64)]| {
        let mut walk = Walk::new(&made.reduced, BASE, Removed::Reads(chunks));
        walk_over(&fields, &mut walk).and_then(|()| walk.finish().map(drop))
    };
    assert_eq!(verdict(&[(44, 5)]), Ok(()));
    assert_eq!(verdict(&[(44, 8)]), Ok(()), "with its padding");
    for length in [0, 4, 6, 9] {
        assert_eq!(verdict(&[(44, length)]), Err(WalkError::Garbage), "{length}");
    }
    assert_eq!(verdict(&[(44, 5), (52, 4)]), Err(WalkError::Ineligible), "at the very end");
    assert_eq!(verdict(&[(44, 5), (56, 4)]), Err(WalkError::Garbage), "behind the end");
}

#[test]
fn results_have_to_use_the_chunks_that_wait_for_them() {
    let fields = [opaque(b"four", true), Field::Word(1), opaque(b"", true), opaque(b"eleven more", true)];
    let made = make(&fields);
    let verdict = |octets: &[u8], chunks: &[Returned]| {
        let mut walk = Walk::new(octets, BASE, Removed::Writes(chunks));
        walk_over(&fields, &mut walk).and_then(|()| walk.finish().map(drop))
    };
    use Returned::{Empty, Filled};
    assert_eq!(verdict(&made.reduced, &[Filled(4), Filled(0), Filled(11)]), Ok(()));
    assert_eq!(verdict(&made.whole, &[]), Ok(()));
    assert_eq!(verdict(&made.whole, &[Empty, Empty, Empty, Filled(0)]), Ok(()), "an unused one");
    assert_eq!(verdict(&made.whole, &[Filled(0)]), Err(WalkError::NotReduced));
    assert_eq!(
        verdict(&made.reduced, &[Filled(8), Filled(0), Filled(11)]),
        Err(WalkError::Garbage),
        "more than the item"
    );
    assert_eq!(verdict(&made.reduced, &[Filled(4), Filled(0), Filled(12)]), Err(WalkError::Garbage), "with padding");
    assert_eq!(
        verdict(&made.reduced, &[Filled(4), Filled(0), Filled(11), Filled(1)]),
        Err(WalkError::Ineligible),
        "a result that there is none of"
    );
}

#[test]
fn the_vector_of_a_write_has_its_data_where_nfs_has_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/test-vectors.json");
    let list: Vec<serde_json::Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let vector = list.iter().find(|entry| entry["name"] == "rpc-msg-read-write").unwrap();
    let hex = vector["hex"].as_str().unwrap();
    let octets: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    let (header, at) = parse_call(&octets).unwrap();
    let (call, length) = CallHeader::parse(&octets[at..]).unwrap();
    let chunks: Vec<_> = header
        .chunks()
        .unwrap()
        .read_chunks()
        .iter()
        .map(|chunk| (chunk.position, crate::header::chunk_length(&chunk.segments)))
        .collect();
    assert_eq!(chunks, [(96, 0x2000)]);
    let mut walk = Walk::new(&octets[at + length..], length, Removed::Reads(&chunks));
    crate::binding::Binding::arguments(&crate::nfs3::Nfs3, call.version, call.procedure, &mut walk).unwrap();
    let items = walk.finish().unwrap();
    assert_eq!(items, [Item { at: 56, position: 96, length: 0x2000, chunk: Some(0) }]);
}
