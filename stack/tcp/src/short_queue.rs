//! A queue that usually has no element or one, as a connection's lists do when its ends take turns.

use core::ops::{Index, IndexMut};
use std::collections::VecDeque;

/// The first element is stored in place, beside the other fields that a segment touches. All others are on the heap, in
/// memory that is allocated for the first second element and touched only while there is one.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ShortQueue<T> {
    /// Means nothing while `len` is zero.
    front: T,
    #[expect(clippy::box_collection, reason = "three words less in each connection, where it is not needed")]
    rest: Option<Box<VecDeque<T>>>,
    len: u32,
    /// For the owner, who reads it together with the first element; initially zero.
    pub(crate) mark: u32,
}

impl<T: Copy + Default> ShortQueue<T> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        (self.len > 0).then_some(&self.front)
    }

    #[inline]
    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        (self.len > 0).then_some(&mut self.front)
    }

    #[inline]
    pub(crate) fn back(&self) -> Option<&T> {
        self.get(self.len().checked_sub(1)?)
    }

    #[inline]
    pub(crate) fn back_mut(&mut self) -> Option<&mut T> {
        self.get_mut(self.len().checked_sub(1)?)
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(1) {
            None => self.front(),
            Some(_) if index >= self.len() => None,
            Some(behind) => self.rest.as_ref()?.get(behind),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        match index.checked_sub(1) {
            None => self.front_mut(),
            Some(_) if index >= self.len() => None,
            Some(behind) => self.rest.as_mut()?.get_mut(behind),
        }
    }

    #[inline(always)]
    pub(crate) fn push_back(&mut self, element: T) {
        if self.len == 0 {
            self.front = element;
        } else {
            self.rest.get_or_insert_default().push_back(element);
        }
        self.len += 1;
    }

    /// Appends an element to an empty queue.
    #[inline(always)]
    pub(crate) fn begin(&mut self, element: T) {
        debug_assert!(self.len == 0);
        self.front = element;
        self.len = 1;
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let element = *self.front()?;
        self.drop_front();
        Some(element)
    }

    /// Removes the first element, if there is one.
    #[inline(always)]
    pub(crate) fn drop_front(&mut self) {
        self.len = self.len.saturating_sub(1);
        if self.len > 0 {
            self.move_up();
        }
    }

    /// How many elements, from the first on, are so.
    #[inline(always)]
    pub(crate) fn count_first(&self, is_so: impl Fn(&T) -> bool) -> usize {
        if !self.front().is_some_and(&is_so) {
            return 0;
        }
        let (head, tail) = self.others().map_or((&[][..], &[][..]), VecDeque::as_slices);
        match head.iter().position(|element| !is_so(element)) {
            Some(others) => 1 + others,
            None => 1 + head.len() + tail.iter().position(|element| !is_so(element)).unwrap_or(tail.len()),
        }
    }

    /// Removes the first `count` elements.
    #[inline]
    pub(crate) fn drop_first(&mut self, count: usize) {
        if count > 1
            && let Some(rest) = &mut self.rest
        {
            // The last of them takes the first place, until it goes too.
            rest.drain(..(count - 1).min(rest.len()));
        }
        if count > 0 {
            self.len = self.len.saturating_sub(count as u32 - 1);
            self.drop_front();
        }
    }

    /// The second element becomes the first.
    #[inline(never)]
    fn move_up(&mut self) {
        if let Some(rest) = &mut self.rest
            && let Some(next) = rest.pop_front()
        {
            self.front = next;
            if self.len == 1 {
                // An empty list restarts at its first slot, so a list that is never long stays within a few cache
                // lines.
                rest.clear();
            }
        }
    }

    /// Puts an element at `index`, which is not the first place.
    pub(crate) fn insert(&mut self, index: usize, element: T) {
        debug_assert!(index > 0 && index <= self.len());
        self.rest.get_or_insert_default().insert(index - 1, element);
        self.len += 1;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.front().into_iter().chain(self.others().into_iter().flatten())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let any = self.len > 0;
        any.then_some(&mut self.front).into_iter().chain(self.rest.iter_mut().flat_map(|rest| rest.iter_mut()))
    }

    /// Index of the first element for which `before` is false. The elements must be partitioned: true ones first.
    #[inline]
    pub(crate) fn partition_point(&self, before: impl Fn(&T) -> bool) -> usize {
        match self.front() {
            Some(front) if before(front) => 1 + self.others().map_or(0, |rest| rest.partition_point(before)),
            _ => 0,
        }
    }

    /// Index of the last element for which `is_it` is true.
    pub(crate) fn last_position(&self, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        let behind = self.others().and_then(|rest| rest.iter().rposition(&is_it));
        behind.map(|index| index + 1).or_else(|| self.front().filter(|front| is_it(front)).map(|_| 0))
    }

    /// Drops all elements, and frees the memory.
    pub(crate) fn reset(&mut self) {
        *self = ShortQueue::default();
    }

    /// Frees memory that is not in use.
    pub(crate) fn shrink(&mut self) {
        match &mut self.rest {
            Some(rest) if self.len > 1 => rest.shrink_to(8),
            rest => *rest = None,
        }
    }

    /// Octets of heap in use.
    pub(crate) fn heap(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| size_of::<VecDeque<T>>() + rest.capacity() * size_of::<T>())
    }

    /// The elements after the first, if there are any.
    #[inline]
    fn others(&self) -> Option<&VecDeque<T>> {
        if self.len > 1 { self.rest.as_deref() } else { None }
    }
}

impl<T: Copy + Default> Index<usize> for ShortQueue<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: usize) -> &T {
        self.get(index).expect("an index within the queue")
    }
}

impl<T: Copy + Default> IndexMut<usize> for ShortQueue<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.get_mut(index).expect("an index within the queue")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_what_a_queue_does() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut queue = ShortQueue::<u32>::default();
        let mut model = VecDeque::new();
        for step in 0..100_000u32 {
            match random.u32(0..10) {
                0..4 if model.len() < 12 => {
                    queue.push_back(step);
                    model.push_back(step);
                }
                4 if !model.is_empty() && model.len() < 12 => {
                    let index = random.usize(1..=model.len());
                    let element = if index < model.len() { model[index] } else { step };
                    queue.insert(index, element);
                    model.insert(index, element);
                }
                5 => queue.shrink(),
                6 if random.u32(0..50) == 0 => {
                    queue.reset();
                    model.clear();
                }
                7 => {
                    queue.drop_front();
                    model.pop_front();
                }
                8 => {
                    let count = random.usize(0..=model.len());
                    queue.drop_first(count);
                    model.drain(..count);
                }
                _ => assert_eq!(queue.pop_front(), model.pop_front()),
            }
            assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
            assert_eq!((queue.front(), queue.back()), (model.front(), model.back()));
            assert!(queue.iter().eq(model.iter()));
            let some = random.usize(0..14);
            assert_eq!(queue.get(some), model.get(some));
            assert_eq!(queue.get_mut(some), model.get_mut(some));
            assert_eq!(queue.back_mut(), model.back_mut());
            assert!(queue.iter_mut().eq(model.iter_mut()));
            let even = |element: &u32| element.is_multiple_of(2);
            assert_eq!(queue.count_first(even), model.iter().take_while(|element| even(element)).count());
            assert_eq!(queue.last_position(even), model.iter().rposition(even));
            let bound = step.saturating_sub(random.u32(0..40));
            if model.iter().is_sorted() {
                assert_eq!(
                    queue.partition_point(|element| *element < bound),
                    model.partition_point(|element| *element < bound)
                );
            }
        }
    }

    #[test]
    fn one_element_takes_no_heap() {
        let mut queue = ShortQueue::<u32>::default();
        queue.push_back(1);
        assert_eq!(queue.heap(), 0);
        queue.push_back(2);
        assert!(queue.heap() > 0);
        assert_eq!((queue.pop_front(), queue.front()), (Some(1), Some(&2)));
        queue.shrink();
        assert_eq!((queue.heap(), queue.pop_front(), queue.pop_front()), (0, Some(2), None));
    }
}
