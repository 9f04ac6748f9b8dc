//! Pointers between objects of a heap: how many bytes from where the pointer stands its object is. Following
//! one is an addition, wherever the heap is mapped, and needs nothing but the pointer. What it costs is that a
//! pointer that is moved must be told ([`Recoverable::moved`](crate::Recoverable::moved)).
//!
//! Invariant: a link in a heap leads to an object of the same heap.

use std::marker::PhantomData;
use std::ptr;

/// A pointer to objects of type `T`, or none.
#[repr(transparent)]
#[derive(Debug)]
pub struct Link<T> {
    /// 0: none. Nothing points to itself.
    distance: i64,
    to: PhantomData<T>,
}

impl<T> Link<T> {
    /// To nothing.
    pub const NONE: Link<T> = Link { distance: 0, to: PhantomData };

    /// Whether it leads nowhere.
    #[inline(always)]
    pub fn is_none(&self) -> bool {
        self.distance == 0
    }

    /// Where it leads; to where it stands if it leads nowhere.
    #[inline(always)]
    pub fn get(&self) -> *mut T {
        let from = ptr::from_ref(self).addr();
        // The mapping's address was exposed when the heap was opened.
        ptr::with_exposed_provenance_mut(from.wrapping_add_signed(self.distance as isize))
    }

    /// Lets the link at `this` lead to `target`.
    ///
    /// # Safety
    /// The link's bytes can be written, and are declared if they are in a store.
    #[inline(always)]
    pub unsafe fn set(this: *mut Link<T>, target: *const T) {
        let distance = target.addr().wrapping_sub(this.addr()) as i64;
        debug_assert!(distance != 0, "a link does not lead to itself");
        // SAFETY: the caller's word.
        unsafe { this.write(Link { distance, to: PhantomData }) }
    }

    /// The link was moved here from `by` bytes lower.
    ///
    /// # Safety
    /// It is one, and can be written as [`Link::set`] says.
    #[inline(always)]
    pub unsafe fn moved(this: *mut Link<T>, by: isize) {
        // SAFETY: the caller's word.
        unsafe {
            if (*this).distance != 0 {
                (*this).distance = (*this).distance.wrapping_sub(by as i64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_come_back_from_everywhere_and_none_stays_none() {
        // Nobody stores there: only distances are made. The last addresses of a program, and neighbours.
        let places = [8, 16, 1 << 46, (1 << 47) - 8usize];
        for (from, to) in
            places.into_iter().flat_map(|from| places.map(|to| (from, to))).filter(|(f, t)| f != t)
        {
            let distance = to.wrapping_sub(from) as i64;
            let mut link = Link::<u64> { distance, to: PhantomData };
            assert!(!link.is_none());
            assert_eq!(from.wrapping_add_signed(link.distance as isize), to);
            let by = 4096isize;
            // SAFETY: a link of this test's own.
            unsafe { Link::moved(&raw mut link, by) };
            assert_eq!(from.wrapping_add_signed(by + link.distance as isize), to);
        }
        let mut none = Link::<u64>::NONE;
        // SAFETY: as above.
        unsafe { Link::moved(&raw mut none, 4096) };
        assert!(none.is_none());
        let mut both = (Link::<u64>::NONE, 7u64);
        // SAFETY: as above.
        unsafe { Link::set(&raw mut both.0, &raw const both.1) };
        assert!(!both.0.is_none() && both.0.get().addr() == (&raw const both.1).addr());
    }
}
