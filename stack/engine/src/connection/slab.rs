//! Indexed stores: connections with generation-checked handles, and buffers that TCP knows by number.

use std::ops::{Deref, DerefMut};

use uwarp_memory::kernels::prefetch;
use uwarp_tcp::BufferToken;

use crate::api::counters::Faults;

/// Names one entry of a [`Slab`]. It never becomes valid again once the entry is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Handle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Handle {
    /// The handle as one number, for commands.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_bits(bits: u64) -> Handle {
        Handle { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// A value that is out of its table for a while. It has to go back, or to leave its table for good ([`Lent::leave`]):
/// dropped otherwise, it would be lost, which a debug build does not let pass.
#[derive(Debug)]
#[must_use = "it has to go back into its table"]
pub(crate) struct Lent<T> {
    index: u32,
    value: Box<T>,
    unreturned: Unreturned,
}

/// Panics when it is dropped, in a debug build.
#[derive(Debug)]
struct Unreturned;

impl Drop for Unreturned {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "a value was not put back into its table");
    }
}

impl<T> Lent<T> {
    /// What was at `index` of its table.
    #[inline]
    pub(crate) fn new(index: u32, value: Box<T>) -> Lent<T> {
        Lent { index, value, unreturned: Unreturned }
    }

    /// Where it was.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Takes it away from its table.
    #[inline]
    pub(crate) fn leave(self) -> Box<T> {
        let Lent { value, unreturned, .. } = self;
        std::mem::forget(unreturned);
        value
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Lent<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    /// See [`Slab::get_with_mark`].
    known_usual: bool,
    value: Option<Box<T>>,
}

/// A store with stable indexes and generation-checked handles.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> (Handle, &mut T) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, known_usual: false, value: None });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        (Handle { index, generation: entry.generation }, entry.value.insert(Box::new(value)))
    }

    /// Takes a value out, for any change: it is no longer known to be usual. Its index stays reserved.
    #[inline]
    pub(crate) fn take(&mut self, index: u32) -> Option<Lent<T>> {
        let entry = self.entries.get_mut(index as usize)?;
        entry.known_usual = false;
        Some(Lent::new(index, entry.value.take()?))
    }

    /// Returns a value that [`Slab::take`] gave.
    #[inline]
    pub(crate) fn put(&mut self, lent: Lent<T>) {
        let entry = &mut self.entries[lent.index as usize];
        entry.value = Some(lent.leave());
    }

    /// Frees the index of a value that [`Slab::take`] gave.
    pub(crate) fn release(&mut self, lent: Lent<T>) {
        let index = lent.index;
        drop(lent.leave());
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index);
    }

    /// The entry at `index`, of any generation, for any change: it is no longer known to be usual.
    #[inline]
    pub(crate) fn disturb(&mut self, index: u32) -> Option<&mut T> {
        let entry = self.entries.get_mut(index as usize)?;
        entry.known_usual = false;
        entry.value.as_deref_mut()
    }

    /// The entry at `index`, of any generation, and the mark that it is known to be usual. A short way that finds it
    /// usual and leaves it so sets the mark. Each function here that lets other code change the entry removes it.
    #[inline]
    pub(crate) fn get_with_mark(&mut self, index: u32) -> Option<(&mut T, &mut bool)> {
        let entry = self.entries.get_mut(index as usize)?;
        Some((entry.value.as_deref_mut()?, &mut entry.known_usual))
    }

    /// Removes the mark of an entry, see [`Slab::get_with_mark`].
    pub(crate) fn forget_usual(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.known_usual = false;
        }
    }

    /// Prefetches the place that says where an entry is.
    #[inline]
    pub(crate) fn prefetch_place(&self, index: u32) {
        if let Some(entry) = self.entries.get(index as usize) {
            prefetch(entry);
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_deref()
    }

    /// The index behind a handle, if its entry still exists.
    pub(crate) fn resolve(&self, handle: Handle) -> Option<u32> {
        let entry = self.entries.get(handle.index as usize)?;
        (entry.generation == handle.generation && entry.value.is_some()).then_some(handle.index)
    }

    /// As [`Slab::disturb`], the entry behind a handle, if it still exists, and its index.
    pub(crate) fn disturb_handle(&mut self, handle: Handle) -> Option<(u32, &mut T)> {
        let index = self.resolve(handle)?;
        Some((index, self.disturb(index)?))
    }

    /// The handle of an entry, even while its value is taken out.
    pub(crate) fn reserved_handle(&self, index: u32) -> Handle {
        Handle { index, generation: self.entries[index as usize].generation }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index as u32, entry.value.as_deref()?)))
    }

    /// As [`Slab::disturb`], every entry with its index.
    pub(crate) fn disturb_all(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(index, entry)| {
            entry.known_usual = false;
            Some((index as u32, entry.value.as_deref_mut()?))
        })
    }

    pub(crate) fn indexes(&self) -> Vec<u32> {
        self.iter().map(|(index, _)| index).collect()
    }
}

/// Buffers that TCP holds, by number: out-of-order payload and unacknowledged records.
#[derive(Debug)]
pub(crate) struct BufferStore<B> {
    buffers: Vec<Option<B>>,
    free: Vec<u32>,
    /// The place of a buffer that was discarded and kept.
    spare: Option<u32>,
    /// TCP has named buffers that were not there.
    faults: Faults,
}

impl<B> BufferStore<B> {
    pub(crate) fn with_capacity(capacity: usize) -> BufferStore<B> {
        let (buffers, free) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        BufferStore { buffers, free, spare: None, faults: Faults::default() }
    }

    /// Buffers in the store that TCP holds.
    pub(crate) fn len(&self) -> usize {
        self.buffers.len() - self.free.len() - self.spares()
    }

    /// Buffers that are kept for [`BufferStore::place_kept`]: one at most.
    pub(crate) fn spares(&self) -> usize {
        usize::from(self.spare.is_some())
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults.count()
    }

    /// The number that [`BufferStore::insert`] will return next.
    #[inline]
    pub(crate) fn next_token(&self) -> BufferToken {
        BufferToken(self.free.last().copied().unwrap_or(self.buffers.len() as u32))
    }

    #[inline]
    pub(crate) fn insert(&mut self, buffer: B) -> BufferToken {
        self.place(buffer).0
    }

    /// As [`BufferStore::insert`], with the buffer where it stays.
    #[inline(always)]
    pub(crate) fn place(&mut self, buffer: B) -> (BufferToken, &mut B) {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        (BufferToken(index), self.buffers[index as usize].insert(buffer))
    }

    /// The buffer that was kept, or else a fresh one, where it stays.
    #[inline(always)]
    pub(crate) fn place_kept(&mut self, fresh: impl FnOnce() -> Option<B>) -> Option<(BufferToken, &mut B)> {
        let token = match self.spare.take() {
            Some(index) => BufferToken(index),
            None => self.insert(fresh()?),
        };
        Some((token, self.get_mut(token)?))
    }

    /// One more place; gives its number.
    #[cold]
    fn grow(&mut self) -> u32 {
        self.buffers.push(None);
        // Reserve now, so that returning the buffer never allocates.
        self.free.reserve(self.buffers.len() - self.free.len());
        self.buffers.len() as u32 - 1
    }

    /// Prefetches the place of a buffer.
    #[inline]
    pub(crate) fn prefetch(&self, token: BufferToken) {
        if let Some(place) = self.buffers.get(token.0 as usize) {
            prefetch(place);
        }
    }

    #[inline]
    pub(crate) fn get(&self, token: BufferToken) -> Option<&B> {
        debug_assert!(self.spare != Some(token.0), "a buffer that is kept is gone");
        self.buffers.get(token.0 as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, token: BufferToken) -> Option<&mut B> {
        debug_assert!(self.spare != Some(token.0), "a buffer that is kept is gone");
        self.buffers.get_mut(token.0 as usize)?.as_mut()
    }

    /// Drops a buffer where it is; returns what `look` saw of it. `None` cannot be, and is counted. If `look` says that
    /// nobody else uses the buffer, and no other is kept, it stays there instead, for [`BufferStore::place_kept`]: that
    /// takes less than the way to the pool and back.
    #[inline(always)]
    pub(crate) fn discard<T>(&mut self, token: BufferToken, look: impl FnOnce(&B) -> (T, bool)) -> Option<T> {
        let place = self.buffers.get_mut(token.0 as usize);
        let (Some(place @ Some(_)), true) = (place, self.spare != Some(token.0)) else {
            self.faults.note("TCP drops a buffer that is gone");
            return None;
        };
        let (seen, is_free) = place.as_ref().map(look)?;
        if is_free && self.spare.is_none() {
            self.spare = Some(token.0);
        } else {
            *place = None;
            self.free.push(token.0);
        }
        Some(seen)
    }

    /// Takes a buffer out. `None` cannot be, and is counted.
    #[inline]
    pub(crate) fn remove(&mut self, token: BufferToken) -> Option<B> {
        let place = self.buffers.get_mut(token.0 as usize).filter(|_| self.spare != Some(token.0));
        let buffer = place.and_then(Option::take);
        match buffer {
            Some(_) => self.free.push(token.0),
            None => self.faults.note("TCP names a buffer that is gone"),
        }
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_dies_with_its_entry() {
        let mut slab = Slab::new();
        let (first, _) = slab.insert("a");
        assert_eq!(slab.resolve(first), Some(first.index));
        let value = slab.take(first.index).expect("it is there");
        assert_eq!(*value, "a");
        slab.release(value);
        let (second, _) = slab.insert("b");
        assert_eq!(first.index, second.index);
        assert_eq!(slab.resolve(first), None);
        assert_eq!(Handle::from_bits(second.to_bits()), second);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn a_mark_lasts_until_somebody_else_may_change_the_entry() {
        let mut slab = Slab::new();
        let index = slab.insert("a").0.index;
        let mark = |slab: &mut Slab<_>| std::mem::replace(slab.get_with_mark(index).expect("it is there").1, true);
        assert!(!mark(&mut slab) && mark(&mut slab));
        assert_eq!(slab.get(index), Some(&"a"));
        assert!(mark(&mut slab));
        slab.disturb(index);
        assert!(!mark(&mut slab));
        let value = slab.take(index).expect("it is there");
        slab.put(value);
        assert!(!mark(&mut slab));
        let value = slab.take(index).expect("it is there");
        slab.release(value);
        assert_eq!(slab.insert("b").0.index, index);
        assert!(!mark(&mut slab));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "not put back")]
    fn a_value_that_is_not_put_back_is_noticed() {
        let mut slab = Slab::new();
        let index = slab.insert("a").0.index;
        drop(slab.take(index));
    }

    #[test]
    fn tokens_are_used_again_and_foretold() {
        let mut store = BufferStore::with_capacity(2);
        let foretold = store.next_token();
        assert_eq!(store.insert(1), foretold);
        let other = store.insert(2);
        assert_eq!(store.remove(foretold), Some(1));
        assert_eq!(store.next_token(), foretold);
        assert_eq!(store.get_mut(other), Some(&mut 2));
        assert_eq!(store.len(), 1);
        assert_eq!(store.discard(other, |value| (*value, false)), Some(2));
        assert_eq!((store.len(), store.next_token(), store.faults()), (0, other, 0));
    }

    #[test]
    fn one_buffer_that_nobody_else_uses_is_kept() {
        let mut store = BufferStore::with_capacity(2);
        let (first, second) = (store.insert(1), store.insert(2));
        assert_eq!(store.discard(first, |value| (*value, true)), Some(1));
        assert_eq!(store.discard(second, |value| (*value, true)), Some(2));
        assert_eq!((store.len(), store.spares(), store.next_token()), (0, 1, second));
        let fresh = || panic!("there is one");
        assert_eq!(store.place_kept(fresh), Some((first, &mut 1)));
        assert_eq!((store.len(), store.spares()), (1, 0));
        assert_eq!(store.place_kept(|| None), None);
        assert_eq!(store.place_kept(|| Some(3)), Some((second, &mut 3)));
        assert_eq!((store.len(), store.remove(first), store.remove(second)), (2, Some(1), Some(3)));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "a buffer that is gone"))]
    fn a_buffer_that_is_kept_is_gone() {
        let mut store = BufferStore::with_capacity(1);
        let token = store.insert(1);
        assert_eq!(store.discard(token, |_| ((), true)), Some(()));
        assert_eq!(store.remove(token), None);
        assert_eq!(store.discard(token, |_| ((), true)), None);
        assert_eq!((store.len(), store.spares(), store.faults()), (0, 1, 2));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "a buffer that is gone"))]
    fn a_buffer_that_goes_twice_is_noticed() {
        let mut store = BufferStore::with_capacity(2);
        let token = store.insert(1);
        assert_eq!(store.remove(token), Some(1));
        assert_eq!(store.remove(token), None);
        assert_eq!(store.discard(token, |_| ((), true)), None);
        assert_eq!((store.len(), store.faults()), (0, 2));
    }
}
