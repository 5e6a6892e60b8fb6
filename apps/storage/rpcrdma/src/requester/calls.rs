//! Calls under way, by XID.

use super::call::CallId;
use super::pending::Pending;

/// Slots at first.
const SLOTS: usize = 16;
/// Ended calls whose memory is kept for reuse.
const SPARE: usize = 32;

/// Calls by the low bits of their XIDs. XIDs are assigned in order, skipping those that would share a slot with a call
/// under way. So a mask finds a call without hashing, and its memory is reused.
pub(super) struct Calls {
    /// A power of two in number, of which at most half are taken.
    slots: Vec<Option<Box<Pending>>>,
    taken: usize,
    #[allow(clippy::vec_box, reason = "they move between here and the slots")]
    spare: Vec<Box<Pending>>,
    /// The number and the XID that were given last.
    serial: u64,
    xid: u32,
}

impl Calls {
    /// None. The first gets an XID behind `xid`.
    pub(super) fn new(xid: u32) -> Self {
        Self { slots: Vec::new(), taken: 0, spare: Vec::new(), serial: 0, xid }
    }

    /// The identifier of the next call, with a free XID.
    pub(super) fn next_id(&mut self) -> CallId {
        self.xid = self.free_xid(self.xid);
        self.serial += 1;
        CallId { serial: self.serial, xid: self.xid }
    }

    /// The identifier of a call that is refused: no other call has it.
    pub(super) fn refused_id(&mut self) -> CallId {
        self.serial += 1;
        CallId { serial: self.serial, xid: self.xid }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.taken
    }

    fn slot(&self, xid: u32) -> usize {
        xid as usize & self.slots.len().wrapping_sub(1)
    }

    /// The next free XID after `last`. It skips XIDs whose slots are taken.
    fn free_xid(&mut self, last: u32) -> u32 {
        if 2 * (self.taken + 1) > self.slots.len() {
            self.grow();
        }
        let mut xid = last.wrapping_add(1);
        // Half of the slots are free.
        while self.slots[self.slot(xid)].is_some() {
            xid = xid.wrapping_add(1);
        }
        xid
    }

    #[cold]
    fn grow(&mut self) {
        let slots = (2 * self.slots.len()).max(SLOTS);
        let calls = std::mem::replace(&mut self.slots, (0..slots).map(|_| None).collect());
        for call in calls.into_iter().flatten() {
            // XIDs that differ in some low bits also differ in more of them.
            let slot = self.slot(call.id.xid);
            self.slots[slot] = Some(call);
        }
    }

    /// An empty call, to be filled.
    pub(super) fn blank(&mut self) -> Box<Pending> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps the memory of an ended call.
    pub(super) fn reuse(&mut self, mut call: Box<Pending>) {
        if self.spare.len() < SPARE {
            call.clear();
            self.spare.push(call);
        }
    }

    /// Adds a call whose XID came from [`next_id`](Self::next_id).
    pub(super) fn insert(&mut self, call: Box<Pending>) {
        let slot = self.slot(call.id.xid);
        self.slots[slot] = Some(call);
        self.taken += 1;
    }

    /// The call with this XID.
    pub(super) fn get_mut(&mut self, xid: u32) -> Option<&mut Pending> {
        let slot = self.slot(xid);
        self.slots.get_mut(slot)?.as_deref_mut().filter(|call| call.id.xid == xid)
    }

    /// Takes out the call with this XID.
    pub(super) fn remove(&mut self, xid: u32) -> Option<Box<Pending>> {
        self.get_mut(xid)?;
        self.taken -= 1;
        let slot = self.slot(xid);
        self.slots[slot].take()
    }

    /// Removes the calls for which `stays` is false.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&mut Pending) -> bool) {
        for slot in &mut self.slots {
            if slot.as_deref_mut().is_some_and(|call| !stays(call)) {
                *slot = None;
                self.taken -= 1;
            }
        }
    }

    /// Takes all out.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Box<Pending>> + use<> {
        self.taken = 0;
        std::mem::take(&mut self.slots).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Compared with a map, beyond the wrap of the numbers.
    #[test]
    fn calls_are_found_by_their_numbers_whichever_stay() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut xid = u32::MAX - 2000;
        let (mut calls, mut model) = (Calls::new(xid), BTreeMap::new());
        for serial in 1..=5000_u64 {
            let last = xid;
            let id = calls.next_id();
            xid = id.xid;
            assert_eq!(id.serial, serial);
            assert!(xid.wrapping_sub(last) <= 2 * model.len() as u32 + 1, "not far from the last one");
            let mut call = calls.blank();
            call.id = id;
            calls.insert(call);
            assert_eq!(model.insert(xid, serial), None);
            // Some stay long, and sometimes there are many.
            let most = if serial % 1000 < 500 { 3 } else { 200 };
            while model.len() > most {
                let at = random.usize(..model.len());
                let (&gone, &serial) = model.iter().nth(at).unwrap();
                model.remove(&gone);
                let call = calls.remove(gone).unwrap();
                assert_eq!(call.id, CallId { serial, xid: gone });
                calls.reuse(call);
                assert!(calls.remove(gone).is_none());
            }
            assert_eq!(calls.len(), model.len());
            for (&xid, &serial) in &model {
                assert_eq!(calls.get_mut(xid).unwrap().id.serial, serial);
            }
            assert!(calls.get_mut(xid.wrapping_add(1)).is_none());
        }
        calls.retain(|call| call.id.serial % 2 == 0);
        model.retain(|_, serial| *serial % 2 == 0);
        assert_eq!(calls.len(), model.len());
        let mut left: Vec<u32> = calls.take_all().map(|call| call.id.xid).collect();
        left.sort_unstable();
        assert!(left.into_iter().eq(model.into_keys()));
        assert_eq!(calls.len(), 0);
        assert!(calls.get_mut(xid).is_none());
    }
}
