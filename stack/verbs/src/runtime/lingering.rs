//! What outlives its owner for a while: dropped queue pairs whose connections have not ended.

use std::time::Duration;

/// The least number for which they are looked through.
const FEW: usize = 16;
/// The time for which a destroyed queue pair waits for its peer is halved so often at most.
const MOST_HALVINGS: u32 = 6;

/// A list of what is to go later. Each addition costs the same on average, however many there are.
#[derive(Debug)]
pub(crate) struct LingeringList<T> {
    list: Vec<T>,
    /// The number at which an addition looks through all of them: twice as many as the last look left.
    look_at: usize,
    /// How often the patience with a peer is halved.
    halvings: u32,
}

impl<T> Default for LingeringList<T> {
    fn default() -> Self {
        Self { list: Vec::new(), look_at: FEW, halvings: 0 }
    }
}

impl<T> LingeringList<T> {
    /// Adds one. Returns whether so many have come since the last look that [`LingeringList::remove_gone`] is due.
    pub(crate) fn add(&mut self, one: T) -> bool {
        self.list.push(one);
        self.list.len() >= self.look_at
    }

    /// Removes those that are gone, and hands them to `gone`.
    pub(crate) fn remove_gone(&mut self, mut is_gone: impl FnMut(&mut T) -> bool, mut gone: impl FnMut(T)) {
        let mut index = 0;
        while let Some(one) = self.list.get_mut(index) {
            if is_gone(one) {
                gone(self.list.swap_remove(index));
            } else {
                index += 1;
            }
        }
        self.look_at = (2 * self.list.len()).max(FEW);
    }

    /// How long to wait for the next peer to close. Each that does not in its time halves that for the next, and each
    /// that does doubles it again, up to `whole`: peers that never close hold a server up for a moment only.
    pub(crate) fn patience(&self, whole: Duration) -> Duration {
        whole / (1 << self.halvings)
    }

    /// A peer has closed in time, or has not.
    pub(crate) fn waited_for(&mut self, has_closed: bool) {
        self.halvings =
            if has_closed { self.halvings.saturating_sub(1) } else { (self.halvings + 1).min(MOST_HALVINGS) };
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_peers_that_never_close_take_less_than_four_of_them_might() {
        let mut list = LingeringList::<()>::default();
        let whole = Duration::from_secs(5);
        let mut waited = Duration::ZERO;
        for _ in 0..100 {
            waited += list.patience(whole);
            list.waited_for(false);
        }
        assert!(waited < 4 * whole, "{waited:?}");
        for _ in 0..MOST_HALVINGS {
            assert!(list.patience(whole) < whole);
            list.waited_for(true);
        }
        assert_eq!(list.patience(whole), whole);
        list.waited_for(true);
        assert_eq!(list.patience(whole), whole);
    }

    #[test]
    fn ten_thousand_that_stay_are_looked_at_about_twice_each() {
        let mut list = LingeringList::default();
        let mut looks = 0;
        for number in 0..10_000 {
            if list.add(number) {
                list.remove_gone(
                    |_| {
                        looks += 1;
                        false
                    },
                    |_| panic!("nobody is gone"),
                );
            }
        }
        assert!(looks <= 20_000, "{looks} looks");
        let mut gone = 0;
        list.remove_gone(|number| *number % 2 == 0, |_| gone += 1);
        assert_eq!((gone, list.list.len()), (5_000, 5_000));
    }
}
