//! The places of a switch, and sets of them.

/// The most clients: each has a block of ports.
pub const MAX_CLIENTS: usize = 256;
/// The places of all clients, and that of the uplink.
pub const PLACES: usize = MAX_CLIENTS + 1;

/// A client's place in the switch, or the uplink's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub(crate) u16);

impl ClientId {
    /// The place of the uplink, which leads to other hosts. It is no client, and owns no port.
    pub const UPLINK: ClientId = ClientId(MAX_CLIENTS as u16);

    /// The client at this place, 0 to [`MAX_CLIENTS`] − 1.
    pub fn new(place: usize) -> Option<ClientId> {
        (place < MAX_CLIENTS).then_some(ClientId(place as u16))
    }

    /// Its place.
    #[inline]
    pub fn place(self) -> usize {
        usize::from(self.0)
    }

    /// Every client's place.
    pub fn all() -> impl Iterator<Item = ClientId> {
        (0..MAX_CLIENTS).filter_map(ClientId::new)
    }
}

/// A set of places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places([u64; PLACES.div_ceil(64)]);

impl Places {
    /// Whether a place is in the set.
    #[inline]
    pub fn contains(&self, id: ClientId) -> bool {
        self.0[id.place() / 64] >> (id.place() % 64) & 1 != 0
    }

    /// Puts a place into the set.
    #[inline]
    pub fn insert(&mut self, id: ClientId) {
        self.0[id.place() / 64] |= 1 << (id.place() % 64);
    }

    /// Takes a place out of the set.
    pub fn remove(&mut self, id: ClientId) {
        self.0[id.place() / 64] &= !(1 << (id.place() % 64));
    }
}

impl IntoIterator for Places {
    type Item = ClientId;
    type IntoIter = PlacesIter;

    #[inline]
    fn into_iter(self) -> PlacesIter {
        PlacesIter { left: self, word: 0 }
    }
}

impl FromIterator<ClientId> for Places {
    fn from_iter<I: IntoIterator<Item = ClientId>>(ids: I) -> Places {
        let mut places = Places::default();
        ids.into_iter().for_each(|id| places.insert(id));
        places
    }
}

/// The places of a set, from the first on.
#[derive(Clone, Debug)]
pub struct PlacesIter {
    left: Places,
    /// The words before this one have none left.
    word: usize,
}

impl Iterator for PlacesIter {
    type Item = ClientId;

    #[inline]
    fn next(&mut self) -> Option<ClientId> {
        loop {
            let word = self.left.0.get_mut(self.word)?;
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                return Some(ClientId((self.word * 64) as u16 + bit as u16));
            }
            self.word += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_places_that_were_put_into_it() {
        let some: Vec<ClientId> = [0, 1, 63, 64, 129, MAX_CLIENTS - 1].into_iter().filter_map(ClientId::new).collect();
        let mut places: Places = some.iter().copied().chain([ClientId::UPLINK]).collect();
        assert!(places.contains(ClientId::UPLINK));
        assert_eq!(places.into_iter().last(), Some(ClientId::UPLINK));
        places.remove(ClientId::UPLINK);
        assert_eq!(places.into_iter().collect::<Vec<_>>(), some);
        assert_eq!(ClientId::all().filter(|id| places.contains(*id)).collect::<Vec<_>>(), some);
        assert_eq!((ClientId::new(MAX_CLIENTS), Places::default().into_iter().next()), (None, None));
    }
}
