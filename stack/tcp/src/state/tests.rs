use std::fmt::Write;

use super::*;

/// The whole diagram as text. A change here is a change of RFC 9293's diagram and needs an argument.
#[test]
fn the_table_is_the_diagram() {
    let mut table = String::new();
    for from in State::ALL {
        for (_, event, to) in TRANSITIONS.iter().filter(|(state, _, _)| *state == from) {
            writeln!(table, "{from} {event:?} {to}").unwrap();
        }
    }
    println!("{table}");
    assert_eq!(table, include_str!("table.txt"));
}

#[test]
fn no_event_leads_two_ways() {
    for (index, (from, event, _)) in TRANSITIONS.iter().enumerate() {
        assert!(!TRANSITIONS[..index].iter().any(|(other, on, _)| other == from && on == event), "{from} {event:?}");
        assert_eq!(from.after(*event), Some(TRANSITIONS[index].2));
    }
    assert!(StateEvent::Close.eq(&StateEvent::Close) && State::Closed.after(StateEvent::Close).is_none());
}
