//! Stores that are simply maps: a key, a value, nothing to be set up. What programs use that come from sled,
//! redb or heed.

use crate::btree_map::PBTreeMap;
use crate::entry::AsKey;
use crate::error::Error;
use crate::hash_map::PHashMap;
use crate::objects::Objects;
use crate::value::recoverable::{Init, Recoverable};
use caliburn_engine::{Class, Store};
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::path::Path;

macro_rules! map {
    ($name:ident, $map:ident, $text:literal, $($bound:ident)+) => {
        #[doc = $text]
        ///
        /// Each call is a transaction of its own. For several changes at once, and for reading without copies,
        /// it is also [`Objects`] whose root is the map: [`transact`](Objects::transact),
        /// [`read`](Objects::read). A handle: clones are cheap.
        pub struct $name<K, V> {
            objects: Objects<$map<K, V>>,
            class: Class,
        }

        impl<K, V> Clone for $name<K, V> {
            fn clone(&self) -> Self {
                $name { objects: self.objects.clone(), class: self.class }
            }
        }

        impl<K, V> fmt::Debug for $name<K, V> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("objects", &self.objects).finish()
            }
        }

        impl<K, V> Deref for $name<K, V> {
            type Target = Objects<$map<K, V>>;

            fn deref(&self) -> &Self::Target {
                &self.objects
            }
        }

        impl<K, V> $name<K, V>
        where
            K: Recoverable + Borrow<K::Borrowed>,
            K::Borrowed: $($bound +)+,
            V: Recoverable,
        {
            /// Opens the map in the store at `path`, both made if there are none.
            ///
            /// # Errors
            /// As [`Objects::create`].
            pub fn create(path: impl AsRef<Path>) -> Result<Self, Error> {
                Objects::create(path).map(Self::of)
            }

            /// Opens the map of that name in a store, made if there is none. Different maps of a store can be
            /// changed at the same time.
            ///
            /// # Errors
            /// As [`Objects::open`].
            pub fn open(store: &Store, name: &str) -> Result<Self, Error> {
                Objects::open(store, name).map(Self::of)
            }

            fn of(objects: Objects<$map<K, V>>) -> Self {
                let class = objects.store().reach();
                $name { objects, class }
            }

            /// The same map, whose calls commit in another class than the most lasting that the store has.
            #[must_use]
            pub fn with_class(&self, class: Class) -> Self {
                $name { objects: self.objects.clone(), class }
            }

            /// Puts an entry in. Whether the key had one, which is replaced.
            ///
            /// # Errors
            /// As [`Objects::transact`].
            pub fn insert<I, J>(&self, key: I, value: J) -> Result<bool, Error>
            where
                I: for<'id> AsKey<'id, K>,
                J: for<'id> Init<'id, V>,
            {
                self.objects.transact_in(self.class, |mut map| Ok(map.insert(key, value).is_some()))
            }

            /// Takes an entry out. Whether there was one.
            ///
            /// # Errors
            /// As [`Objects::transact`].
            pub fn remove<Q>(&self, key: &Q) -> Result<bool, Error>
            where
                K: Borrow<Q>,
                Q: $($bound +)+ ?Sized,
            {
                self.objects.transact_in(self.class, |mut map| Ok(map.remove(key).is_some()))
            }

            /// A copy of the value of a key.
            pub fn get<Q>(&self, key: &Q) -> Option<V>
            where
                K: Borrow<Q>,
                Q: $($bound +)+ ?Sized,
                V: Clone,
            {
                self.objects.read().get(key).cloned()
            }

            /// What `look` makes of the value of a key, in its place.
            pub fn get_with<Q, T>(&self, key: &Q, look: impl FnOnce(&V) -> T) -> Option<T>
            where
                K: Borrow<Q>,
                Q: $($bound +)+ ?Sized,
            {
                self.objects.read().get(key).map(look)
            }

            /// Whether there is an entry with that key.
            pub fn contains_key<Q>(&self, key: &Q) -> bool
            where
                K: Borrow<Q>,
                Q: $($bound +)+ ?Sized,
            {
                self.objects.read().contains_key(key)
            }

            /// Number of entries.
            pub fn len(&self) -> usize {
                self.objects.read().len()
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.objects.read().is_empty()
            }

            /// Frees all entries.
            ///
            /// # Errors
            /// As [`Objects::transact`].
            pub fn clear(&self) -> Result<(), Error> {
                self.objects.transact_in(self.class, |mut map| {
                    map.clear();
                    Ok(())
                })
            }

            /// Closes the map and its store, if nothing else holds them.
            ///
            /// # Errors
            /// As [`Objects::close`].
            pub fn close(self) -> Result<(), Error> {
                self.objects.close()
            }
        }
    };
}

map!(Map, PHashMap, "A store that is a hash map.", Hash Eq);
map!(SortedMap, PBTreeMap, "A store that is a sorted map.", Ord);

/// Opens the hash map in the store at `path`, both made if there are none.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("words");
/// use caliburn::PString;
///
/// let words = caliburn::map::<PString, u64>(path)?;
/// words.insert("recoverable", 1)?; // survives a power cut when it returns
/// words.update(|mut words| {
///     *words.entry("memory").or_insert(0) += 2; // both, or neither
///     *words.entry("recoverable").or_insert(0) += 1;
/// })?;
/// assert_eq!(words.get("memory"), Some(2));
/// assert_eq!(words.read().values().sum::<u64>(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`Objects::create`].
pub fn map<K, V>(path: impl AsRef<Path>) -> Result<Map<K, V>, Error>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Hash + Eq,
    V: Recoverable,
{
    Map::create(path)
}

/// Opens the sorted map in the store at `path`, both made if there are none.
///
/// # Errors
/// As [`Objects::create`].
pub fn sorted_map<K, V>(path: impl AsRef<Path>) -> Result<SortedMap<K, V>, Error>
where
    K: Recoverable + Borrow<K::Borrowed>,
    K::Borrowed: Ord,
    V: Recoverable,
{
    SortedMap::create(path)
}
