//! Strings.

use crate::value::datum::{Datum, Loader};
use crate::value::guard::{Mut, Owned};
use crate::value::layout::Types;
use crate::value::recoverable::{Init, Recoverable, Yes};
use crate::value::tx::Tx;
use crate::vec::PVec;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// A string in a store: what `String` is elsewhere. It reads as a `str`, is looked up by one, and is made of one.
#[derive(Default)]
#[repr(transparent)]
pub struct PString(PVec<u8>);

impl PString {
    /// An empty string.
    pub const fn new() -> PString {
        PString(PVec::new())
    }

    /// Its text.
    #[inline(always)]
    pub fn as_str(&self) -> &str {
        // SAFETY: only text is put into it; a store that somebody else has written is no concern of memory safety
        // here, as for every pointer in it (SECURITY.md).
        unsafe { str::from_utf8_unchecked(self.0.as_slice()) }
    }
}

impl Deref for PString {
    type Target = str;

    #[inline(always)]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for PString {
    fn borrow(&self) -> &str {
        self
    }
}

impl Borrow<str> for Owned<'_, PString> {
    fn borrow(&self) -> &str {
        self
    }
}

impl AsRef<str> for PString {
    fn as_ref(&self) -> &str {
        self
    }
}

impl fmt::Debug for PString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for PString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl Hash for PString {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialEq for PString {
    fn eq(&self, other: &PString) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for PString {}

impl PartialEq<str> for PString {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for PString {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for PString {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl PartialOrd for PString {
    fn partial_cmp(&self, other: &PString) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PString {
    fn cmp(&self, other: &PString) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

// SAFETY: a vector of bytes.
unsafe impl Recoverable for PString {
    type Pointers = Yes;
    type Borrowed = str;
    const PADDED: bool = false;

    fn describe(_types: &mut Types) -> String {
        "PString".to_owned()
    }

    unsafe fn store(from: *const Self, to: *mut Self) {
        // SAFETY: the caller's word.
        unsafe { PVec::store(from.cast::<PVec<u8>>(), to.cast()) }
    }

    #[inline]
    unsafe fn moved(this: *mut Self, by: isize) {
        // SAFETY: the caller's word.
        unsafe { PVec::moved(this.cast::<PVec<u8>>(), by) }
    }

    unsafe fn free(this: *mut Self, tx: Tx<'_>) {
        // SAFETY: the caller's word.
        unsafe { PVec::free(this.cast::<PVec<u8>>(), tx) }
    }

    unsafe fn load(from: Datum, to: *mut Self, loader: &Loader<'_, '_>) {
        // SAFETY: the caller's word.
        unsafe { loader.text(from).init(to, loader.tx()) }
    }
}

// SAFETY: an empty string is the same anywhere, and no other has a value outside of a store.
unsafe impl<'id> Init<'id, PString> for PString {
    unsafe fn init(self, to: *mut PString, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { to.write(self) }
    }
}

macro_rules! from_text {
    ($($type:ty)*) => {$(
        // SAFETY: a string is made.
        unsafe impl<'id> Init<'id, PString> for $type {
            unsafe fn init(self, to: *mut PString, tx: Tx<'id>) {
                // SAFETY: memory for a string, declared if need be; it is one from here on.
                let mut made = unsafe {
                    to.write(PString::new());
                    Mut::<PString>::new(to, tx)
                };
                made.push_str(&self);
            }
        }
    )*};
}

from_text!(&str String &String &PString);

impl<'id> Mut<'_, 'id, PString> {
    fn bytes(&mut self) -> Mut<'_, 'id, PVec<u8>> {
        // SAFETY: the string is a vector; callers put text into it.
        unsafe { Mut::new(self.as_ptr().cast(), self.tx()) }
    }

    /// Puts text at the end.
    pub fn push_str(&mut self, text: &str) {
        let more = text.len();
        if self.len() + more > self.0.capacity() {
            // A string that is made has what it needs; one that grows will go on growing.
            if self.is_empty() { self.bytes().reserve_exact(more) } else { self.bytes().reserve(more) }
        }
        self.bytes().extend_from_slice(text.as_bytes());
    }

    /// Puts a character at the end.
    pub fn push(&mut self, character: char) {
        self.push_str(character.encode_utf8(&mut [0; 4]));
    }

    /// Takes the last character away.
    pub fn pop(&mut self) -> Option<char> {
        let (at, last) = self.char_indices().next_back()?;
        self.bytes().truncate(at);
        Some(last)
    }

    /// Cuts it to `len` bytes.
    ///
    /// # Panics
    /// If a character lies across that place.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            assert!(self.is_char_boundary(len), "a character lies across byte {len}");
            self.bytes().truncate(len);
        }
    }

    /// Makes it empty. The room stays.
    pub fn clear(&mut self) {
        self.bytes().clear();
    }

    /// Replaces the text, in the same memory if there is room.
    pub fn assign(&mut self, text: &str) {
        self.clear();
        self.push_str(text);
    }

    /// Makes room for so many bytes more.
    pub fn reserve(&mut self, additional: usize) {
        self.bytes().reserve(additional);
    }

    /// Gives back what the text does not need.
    pub fn shrink_to_fit(&mut self) {
        self.bytes().shrink_to_fit();
    }
}

impl fmt::Write for Mut<'_, '_, PString> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push_str(text);
        Ok(())
    }
}

impl<'t> Extend<&'t str> for Mut<'_, '_, PString> {
    fn extend<I: IntoIterator<Item = &'t str>>(&mut self, texts: I) {
        texts.into_iter().for_each(|text| self.push_str(text));
    }
}

impl Extend<char> for Mut<'_, '_, PString> {
    fn extend<I: IntoIterator<Item = char>>(&mut self, characters: I) {
        characters.into_iter().for_each(|character| self.push(character));
    }
}
