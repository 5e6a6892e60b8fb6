//! Objects that C holds by pointer.
//!
//! Each has a word in front of the structure that C sees. It says what the object is and that it lives, so that null
//! pointers, objects of another kind and freed ones are refused. The memory of a freed object stays mapped and is used
//! for the next of its kind, so that looking at that word is always allowed.

use crate::errno::{EINVAL, Errno};
use crate::locks::{Lock, Rank};
use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, offset_of};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// What stands behind a pointer that C holds.
pub(crate) trait Object: Sized + 'static {
    /// The structure that C sees.
    type Public: 'static;
    /// The word that marks a living object of this kind; different for each.
    const KIND: u64;
    /// Memory of freed objects of this kind.
    fn pool() -> &'static Pool;
}

/// Addresses of freed objects of one kind.
#[derive(Debug)]
pub(crate) struct Pool(Lock<Vec<usize>>);

impl Pool {
    pub(crate) const fn new() -> Self {
        Pool(Lock::new(Rank::Freed, Vec::new()))
    }
}

/// An object with the structure that C sees of it.
#[repr(C)]
pub(crate) struct Handle<T: Object> {
    kind: AtomicU64,
    public: UnsafeCell<T::Public>,
    inner: UnsafeCell<MaybeUninit<T>>,
}

impl<T: Object> Handle<T> {
    const ALIGNED: () = assert!(offset_of!(Handle<T>, public) == size_of::<u64>());

    /// Makes an object and returns the pointer for C.
    pub(crate) fn create(public: T::Public, inner: T) -> *mut T::Public {
        let () = Self::ALIGNED;
        let free = T::pool().0.lock().pop();
        let handle: *mut Handle<T> = match free {
            Some(address) => std::ptr::with_exposed_provenance_mut(address),
            None => {
                let memory = Box::leak(Box::new(MaybeUninit::<Handle<T>>::uninit())).as_mut_ptr();
                memory.expose_provenance();
                memory
            }
        };
        // SAFETY: memory of this size that nobody else uses: new, or taken out of the list of freed objects.
        unsafe {
            handle.write(Handle {
                kind: AtomicU64::new(T::KIND),
                public: UnsafeCell::new(public),
                inner: UnsafeCell::new(MaybeUninit::new(inner)),
            });
            (&raw mut (*handle).public).cast()
        }
    }

    fn of(public: *mut T::Public) -> *mut Handle<T> {
        public.wrapping_byte_sub(offset_of!(Handle<T>, public)).cast()
    }

    /// The object behind a pointer from C.
    ///
    /// # Errors
    /// EINVAL for null, an object of another kind, and a freed one.
    ///
    /// # Safety
    /// `public` is null or came from this library, and the object is not destroyed while the reference is used (as the
    /// verbs ask of their callers).
    #[inline]
    pub(crate) unsafe fn get<'a>(public: *mut T::Public) -> Result<&'a Handle<T>, Errno> {
        if public.is_null() || !public.is_aligned() {
            return Err(EINVAL);
        }
        let handle = Self::of(public);
        // SAFETY: every object of this library has such a word in front, whose memory is never unmapped.
        if unsafe { (*handle).kind.load(Ordering::Acquire) } != T::KIND {
            return Err(EINVAL);
        }
        // SAFETY: the word says that the object lives and is of this type.
        Ok(unsafe { &*handle })
    }

    /// Ends an object and gives what was inside.
    ///
    /// # Errors
    /// As [`get`](Self::get); one of two calls at the same time gets it.
    ///
    /// # Safety
    /// As [`get`](Self::get), and no reference to the object is used any more.
    pub(crate) unsafe fn destroy(public: *mut T::Public) -> Result<T, Errno> {
        // SAFETY: as the caller promises.
        let handle = unsafe { Self::get(public)? };
        if handle.kind.compare_exchange(T::KIND, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(EINVAL);
        }
        // SAFETY: the word was ours to clear, so nobody else takes it out; it was initialised.
        let inner = unsafe { (*handle.inner.get()).assume_init_read() };
        T::pool().0.lock().push(Self::of(public).expose_provenance());
        Ok(inner)
    }

    /// The structure that C sees, which C may read and write at any time.
    #[inline]
    pub(crate) fn public(&self) -> *mut T::Public {
        self.public.get()
    }
}

impl<T: Object> Deref for Handle<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: initialised as long as the object lives, which `get` has looked at.
        unsafe { (*self.inner.get()).assume_init_ref() }
    }
}

/// Names a type as an object: `object!(Domain: ibv_pd, "pd")`.
macro_rules! object {
    ($type:ty: $public:ty, $kind:literal) => {
        impl $crate::handle::Object for $type {
            type Public = $public;
            const KIND: u64 = {
                // Any odd pattern with the kind's letters; never a pointer or a small number.
                let mut word = 0x7577_6172_7000_0001;
                let letters: &[u8] = $kind;
                let mut index = 0;
                while index < letters.len() {
                    word ^= (letters[index] as u64) << (8 + 8 * index);
                    index += 1;
                }
                word
            };
            fn pool() -> &'static $crate::handle::Pool {
                static POOL: $crate::handle::Pool = $crate::handle::Pool::new();
                &POOL
            }
        }
    };
}
pub(crate) use object;

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(u32);
    struct Text(#[allow(dead_code)] String);
    object!(Number: u64, b"nr");
    object!(Text: u64, b"tx");

    #[test]
    fn null_and_freed_pointers_and_those_of_another_kind_are_refused() {
        let number = Handle::create(7, Number(1));
        let text = Handle::create(8, Text("a".to_owned()));
        // SAFETY: pointers of this library.
        unsafe {
            assert_eq!(Handle::<Number>::get(number).unwrap().0, 1);
            assert_eq!(*Handle::<Number>::get(number).unwrap().public(), 7);
            assert!(Handle::<Number>::get(text).is_err());
            assert!(Handle::<Number>::get(std::ptr::null_mut()).is_err());
            assert_eq!(Handle::<Number>::destroy(number).unwrap().0, 1);
            assert!(Handle::<Number>::get(number).is_err());
            assert!(Handle::<Number>::destroy(number).is_err());
            Handle::<Text>::destroy(text).unwrap();
        }
    }

    #[test]
    fn memory_of_freed_objects_is_used_again() {
        struct Other;
        object!(Other: u64, b"other");
        let first = Handle::create(0, Other);
        // SAFETY: pointers of this library.
        unsafe { Handle::<Other>::destroy(first).unwrap() };
        assert_eq!(Handle::create(0, Other), first);
    }
}
