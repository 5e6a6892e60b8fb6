//! Memory for reuse: fresh memory costs a page fault per 4 KiB.

/// Buffers, up to a number of octets.
#[derive(Debug)]
pub(crate) struct Pool {
    buffers: Vec<Vec<u8>>,
    octets: usize,
    most: usize,
}

/// How many buffers are searched for one that fits.
const BUFFERS: usize = 64;

impl Pool {
    /// An empty pool that keeps at most this many octets.
    pub(crate) fn new(most: usize) -> Self {
        Self { buffers: Vec::new(), octets: 0, most }
    }

    /// Changes the limit of octets kept.
    pub(crate) fn limit(&mut self, most: usize) {
        self.most = most;
        while self.octets > most
            && let Some(buffer) = self.buffers.pop()
        {
            self.octets -= buffer.capacity();
        }
    }

    /// Memory of exactly this length, with arbitrary contents.
    pub(crate) fn take(&mut self, length: usize) -> Vec<u8> {
        let fits = |buffer: &Vec<u8>| buffer.capacity() >= length && buffer.capacity() / 4 <= length;
        let best = self.buffers.iter().enumerate().filter(|(_, buffer)| fits(buffer));
        let Some((index, _)) = best.min_by_key(|(_, buffer)| buffer.capacity()) else {
            return vec![0; length];
        };
        let mut buffer = self.buffers.swap_remove(index);
        self.octets -= buffer.capacity();
        buffer.resize(length, 0);
        buffer
    }

    /// Takes a buffer for reuse, if there is room for it.
    pub(crate) fn put(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.buffers.len() < BUFFERS && self.octets + buffer.capacity() <= self.most {
            self.octets += buffer.capacity();
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_does_not_pile_up() {
        let mut pool = Pool::new(10_000);
        let buffer = pool.take(4000);
        let address = buffer.as_ptr();
        pool.put(buffer);
        pool.put(vec![0; 8000]);
        assert_eq!(pool.octets, 4000, "no room for more");
        let again = pool.take(3000);
        assert_eq!((again.as_ptr(), again.len(), pool.octets), (address, 3000, 0));
        pool.put(again);
        assert_eq!(pool.take(100).capacity(), 100, "too large for so little");
        pool.limit(3999);
        assert_eq!(pool.octets, 0);
    }
}
