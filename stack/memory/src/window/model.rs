//! Windows that are bound, used and invalidated while their owner gives them or their regions back, in every
//! interleaving of two threads with two preemptions. What may be used within a turn is a cell here, of which loom
//! reports accesses at the same time.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::Ordering::Relaxed;

use super::{BindPiece, Window};
use crate::access::{Access, Association, DomainId, Scope, StreamId};
use crate::options::TaggedBase;
use crate::registration::Registration;
use crate::table::RegionTable;
use crate::turn::Turn;

const US: Association = Association { domain: DomainId(1), stream: StreamId(1) };
const WRITE: Access = Access::REMOTE_WRITE;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(2));
    builder.check(model);
}

/// What the owner frees.
struct Owned(UnsafeCell<u32>);

impl Owned {
    fn new() -> Arc<Owned> {
        Arc::new(Owned(UnsafeCell::new(0)))
    }

    fn used(&self) {
        // SAFETY: loom checks that nobody else is here.
        self.0.with_mut(|cell| unsafe { *cell += 1 });
    }
}

fn region_and_window() -> (std::sync::Arc<RegionTable>, Registration, Window) {
    let table = RegionTable::new(2, 1 << 20, 1);
    let scope = Scope::Domain(US.domain);
    let region = table.register(vec![0; 16], Access::LOCAL_WRITE, scope, TaggedBase::Zero).unwrap();
    let window = table.allocate_window(US.domain, 1).unwrap();
    (table, region, window)
}

fn bind(turn: &Turn<'_>, window: u32, region: u32) -> bool {
    let piece = BindPiece { stag: region, offset: 0, length: 8 };
    turn.bind(US, window, 0, WRITE, std::iter::once(piece)).is_ok()
}

fn bound(table: &RegionTable, region: &Registration) -> u32 {
    table.slot(region.stag()).unwrap().bound.load(Relaxed)
}

#[test]
fn a_window_that_goes_while_it_is_bound_is_forgotten_by_its_region_and_used_by_nobody() {
    check(|| {
        let (table, region, mut window) = region_and_window();
        let (stag, target) = (window.next_stag(), region.stag());
        let pieces = Owned::new();
        let engine = {
            let (mut epoch, pieces) = (table.engine(), pieces.clone());
            thread::spawn(move || {
                let turn = epoch.enter();
                if bind(&turn, stag, target) {
                    pieces.used();
                }
            })
        };
        drop(window);
        pieces.used();
        engine.join().unwrap();
        assert_eq!(bound(&table, &region), 0);
    });
}

#[test]
fn nothing_is_placed_through_a_window_into_a_region_that_has_gone() {
    check(|| {
        let (table, region, mut window) = region_and_window();
        let (stag, target) = (window.next_stag(), region.stag());
        let memory = Owned::new();
        let engine = {
            let (mut epoch, memory) = (table.engine(), memory.clone());
            thread::spawn(move || {
                let turn = epoch.enter();
                bind(&turn, stag, target);
                if turn.check(US, stag, 0, 8, WRITE).is_ok() {
                    memory.used();
                }
            })
        };
        drop(region);
        memory.used();
        engine.join().unwrap();
        drop(window);
    });
}

#[test]
fn a_window_that_its_owner_and_a_peer_take_back_at_once_is_forgotten_once() {
    check(|| {
        let (table, region, mut window) = region_and_window();
        let stag = window.next_stag();
        let mut epoch = table.engine();
        assert!(bind(&epoch.enter(), stag, region.stag()));
        let peer = thread::spawn(move || epoch.enter().invalidate(US, stag, false).is_ok());
        drop(window);
        peer.join().unwrap();
        assert_eq!(bound(&table, &region), 0);
    });
}
