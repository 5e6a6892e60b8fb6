//! What outlives its owner for a while: dropped queue pairs whose connections have not ended.

/// The least number for which they are looked through.
const FEW: usize = 16;

/// A list of what is to go later. Each addition costs the same on average, however many there are.
#[derive(Debug)]
pub(crate) struct LingeringList<T> {
    list: Vec<T>,
    /// The number at which an addition looks through all of them: twice as many as the last look left.
    look_at: usize,
}

impl<T> Default for LingeringList<T> {
    fn default() -> Self {
        Self { list: Vec::new(), look_at: FEW }
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

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
