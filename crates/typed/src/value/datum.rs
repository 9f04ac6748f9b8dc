//! Values as they are outside of stores: trees, of which text and other forms are made, and from which values are
//! made again, of the same type or of one that has changed. Fields and variants go by their names, numbers by
//! their digits: so a field may have moved, gone, or become wider.

use crate::error::Error;
use crate::value::guard::{Mut, Owned};
use crate::value::recoverable::{Init, Recoverable};
use crate::value::tx::Tx;
use caliburn_heap::Place;
use caliburn_os::simulated::{even_if, unless};
use std::any::TypeId;
use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

/// A value outside of a store.
#[derive(Debug, Clone, PartialEq)]
pub enum Datum {
    /// `None`, a weak pointer to nothing, `()`.
    Nothing,
    /// A free place of a slot map, whose key says how often it was used. A map without places has none.
    Vacant,
    /// `true` or `false`.
    Bool(bool),
    /// A number, by its digits.
    Number(String),
    /// A string, a character, the key of a slot, a variant without fields.
    Text(String),
    /// Values in order. A value in an option that may itself be nothing is one of these.
    List(Vec<Datum>),
    /// Keys and values.
    Map(Vec<(Datum, Datum)>),
    /// Names and values of fields; of a variant with fields, its name and those. A map whose keys are texts looks
    /// the same to who does not know its type.
    Fields(Vec<(String, Datum)>),
    /// An object with counts. A number for the object, if others point to it; the object, where it is met first.
    Counted(Option<u64>, Option<Box<Datum>>),
}

/// A part of what a root consists of: how an object of any size is taken apart and put together again.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// What is there.
    Whole(Datum),
    /// One more value of a collection.
    Item(Datum),
    /// One more entry of a map, or a value by its slot.
    Entry(Datum, Datum),
}

impl Datum {
    /// What it is, for messages.
    fn kind(&self) -> &'static str {
        match self {
            Datum::Nothing => "nothing",
            Datum::Vacant => "a free place",
            Datum::Bool(_) => "a truth value",
            Datum::Number(_) => "a number",
            Datum::Text(_) => "a text",
            Datum::List(_) => "a list",
            Datum::Map(_) => "a map",
            Datum::Fields(_) => "something with fields",
            Datum::Counted(..) => "an object with several owners",
        }
    }

    /// Whether nothing is lost with it.
    fn is_nothing(&self) -> bool {
        match self {
            Datum::Nothing | Datum::Vacant => true,
            Datum::Fields(fields) => fields.iter().all(|(_, value)| value.is_nothing()),
            _ => false,
        }
    }

    /// Bytes that it takes, about.
    pub(crate) fn weight(&self) -> usize {
        32 + match self {
            Datum::Nothing | Datum::Vacant | Datum::Bool(_) => 0,
            Datum::Number(text) | Datum::Text(text) => text.len(),
            Datum::List(items) => items.iter().map(Datum::weight).sum(),
            Datum::Map(entries) => entries.iter().map(|(key, value)| key.weight() + value.weight()).sum(),
            Datum::Fields(fields) => fields.iter().map(|(name, value)| name.len() + value.weight()).sum(),
            Datum::Counted(_, value) => value.as_ref().map_or(0, |value| value.weight()),
        }
    }
}

impl Piece {
    /// Bytes that it takes, about.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Piece::Whole(value) | Piece::Item(value) => value.weight(),
            Piece::Entry(key, value) => key.weight() + value.weight(),
        }
    }
}

/// Objects with counts that were met, by their numbers.
pub(crate) type CountedObjects = RefCell<HashMap<u64, Numbered>>;

/// An object with counts that was met.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbered {
    /// Where its counts are.
    pub place: Place,
    /// The type of its value.
    pub of: TypeId,
    /// Its value is there, or is being made.
    pub made: bool,
}

/// Makes values of data, in a transaction. What cannot be made ends the transaction: it unwinds, as a lack of room
/// does.
pub struct Loader<'l, 'id> {
    tx: Tx<'id>,
    counted: &'l CountedObjects,
}

impl fmt::Debug for Loader<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Loader")
    }
}

impl<'l, 'id> Loader<'l, 'id> {
    pub(crate) fn new(tx: Tx<'id>, counted: &'l CountedObjects) -> Loader<'l, 'id> {
        Loader { tx, counted }
    }

    /// The transaction.
    pub fn tx(&self) -> Tx<'id> {
        self.tx
    }

    pub(crate) fn counted(&self) -> &CountedObjects {
        self.counted
    }

    /// Leaves: it cannot be made.
    #[cold]
    pub fn refuse(&self, why: impl Into<String>) -> ! {
        self.tx.fail(Error::NotMade { why: why.into() })
    }

    #[cold]
    fn unlike(&self, found: &Datum, wanted: &str) -> ! {
        self.refuse(format!("{} where {wanted} should be", found.kind()))
    }

    /// The digits of a number.
    pub(crate) fn digits(&self, from: Datum) -> String {
        match from {
            Datum::Number(text) | Datum::Text(text) => text,
            other => self.unlike(&other, "a number"),
        }
    }

    pub(crate) fn text(&self, from: Datum) -> String {
        match from {
            Datum::Text(text) => text,
            other => self.unlike(&other, "a text"),
        }
    }

    pub(crate) fn truth(&self, from: &Datum) -> bool {
        match from {
            Datum::Bool(value) => *value,
            other => self.unlike(other, "a truth value"),
        }
    }

    pub(crate) fn items(&self, from: Datum) -> Vec<Datum> {
        match from {
            Datum::List(items) => items,
            other => self.unlike(&other, "a list"),
        }
    }

    pub(crate) fn entries(&self, from: Datum) -> Vec<(Datum, Datum)> {
        match from {
            Datum::Map(entries) => entries,
            Datum::Fields(fields) => {
                fields.into_iter().map(|(name, value)| (Datum::Text(name), value)).collect()
            }
            Datum::List(pairs) => pairs.into_iter().map(|pair| self.pair(pair)).collect(),
            other => self.unlike(&other, "a map"),
        }
    }

    fn pair(&self, from: Datum) -> (Datum, Datum) {
        let mut items = self.items(from).into_iter();
        match (items.next(), items.next(), items.next()) {
            (Some(key), Some(value), None) => (key, value),
            _ => self.refuse("a list of other than two where a key and a value should be"),
        }
    }

    /// The number and the value of an object with counts.
    pub(crate) fn object(&self, from: Datum) -> (Option<u64>, Option<Datum>) {
        let fields = match from {
            Datum::Counted(number, value) => return (number, value.map(|value| *value)),
            Datum::Fields(fields) => fields,
            other => self.unlike(&other, "an object with several owners"),
        };
        let mut fields = Parts(fields);
        let number = fields.take(&[NUMBER]).map(|number| {
            let digits = self.digits(number);
            digits.parse().unwrap_or_else(|_| self.refuse(format!("{digits} is not the number of an object")))
        });
        let value = fields.take(&[VALUE]);
        self.nothing_left("an object with several owners", fields, &[]);
        (number, value)
    }

    /// Refuses what is of a type without bytes, and is something.
    pub(crate) fn nothing(&self, from: &Datum) {
        if !from.is_nothing() {
            self.unlike(from, "nothing");
        }
    }

    /// Refuses to lose a value in a set, or an entry of a map, behind another one that is the same.
    pub(crate) fn once(&self, new: bool) {
        if unless("same-key-replaced", !new) {
            self.refuse("a key is there twice, or a value of a set: one of the two would be lost");
        }
    }

    /// Refuses to lose a field that nothing has taken, but for those that are declared gone.
    pub fn nothing_left(&self, of: &str, fields: Parts, gone: &[&str]) {
        let lost = |(name, value): &&(String, Datum)| !gone.contains(&&**name) && !value.is_nothing();
        if let Some((name, _)) = fields.0.iter().find(lost).filter(|_| unless("untaken-field-dropped", true))
        {
            self.untaken(of, name)
        }
    }

    /// Leaves: nothing takes the variant.
    #[cold]
    pub fn no_variant(&self, of: &str, name: &str) -> ! {
        self.refuse(format!(
            "{of} has no variant {name}: say #[recoverable(was = \"{name}\")] of the one that takes its values, or \
             #[recoverable(gone(\"{name}\"))] of {of}, which drops them from collections and options"
        ))
    }

    /// Leaves: nothing takes the field.
    #[cold]
    pub fn untaken(&self, of: &str, name: &str) -> ! {
        self.refuse(format!(
            "nothing takes the field {name} of {of}: say #[recoverable(was = \"{name}\")] of the field that does, or \
             #[recoverable(gone(\"{name}\"))] of {of}"
        ))
    }

    /// The fields of a struct.
    pub fn fields(&self, from: Datum) -> Parts {
        match from {
            Datum::Fields(fields) => Parts(fields),
            Datum::List(items) => {
                Parts(items.into_iter().enumerate().map(|(i, item)| (i.to_string(), item)).collect())
            }
            Datum::Map(entries) if entries.is_empty() => Parts(Vec::new()),
            other => self.unlike(&other, "a struct"),
        }
    }

    /// The name of a variant, and its fields.
    pub fn variant(&self, from: Datum) -> (String, Parts) {
        match from {
            Datum::Text(name) => (name, Parts(Vec::new())),
            Datum::Fields(mut fields) if fields.len() == 1 => {
                let (name, fields) = fields.remove(0);
                (name, self.fields(fields))
            }
            other => self.unlike(&other, "a variant"),
        }
    }

    /// The value of a field, by its name or an older one.
    pub fn field(&self, of: &str, fields: &mut Parts, names: &[&str]) -> Datum {
        fields.take(names).unwrap_or_else(|| {
            let name = names[0];
            self.refuse(format!(
                "nothing is said of the field {name} of {of}: say #[recoverable(default)] of it, or \
                 #[recoverable(was = \"its old name\")]"
            ))
        })
    }
}

/// Names of the parts of an object with counts.
pub(crate) const NUMBER: &str = "#";
pub(crate) const VALUE: &str = "=";

/// Fields that are still to be made.
#[derive(Debug)]
pub struct Parts(Vec<(String, Datum)>);

impl Parts {
    /// Takes the field out that has one of the names, the first of them that there is.
    pub fn take(&mut self, names: &[&str]) -> Option<Datum> {
        let of_name = |wanted: &&str| self.0.iter().position(|(name, _)| name == wanted);
        // Its own first: what another one was called once may be called so now.
        let at = names.iter().find_map(of_name)?;
        Some(self.0.swap_remove(at).1)
    }
}

/// A value that is made of a datum where it is put.
pub(crate) struct Loading<'l, 'id>(pub Datum, pub &'l Loader<'l, 'id>);

// SAFETY: `load` makes a value.
unsafe impl<'id, T: Recoverable> Init<'id, T> for Loading<'_, 'id> {
    unsafe fn init(self, to: *mut T, _tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { T::load(self.0, to, self.1) }
    }
}

/// A key that was made of a datum: it is looked up before it is put in.
pub(crate) struct LoadedKey<'id, K: Recoverable, Q: ?Sized>(Owned<'id, K>, PhantomData<Q>);

impl<'id, K: Recoverable + Borrow<Q>, Q: ?Sized> LoadedKey<'id, K, Q> {
    pub fn new(from: Datum, loader: &Loader<'_, 'id>) -> LoadedKey<'id, K, Q> {
        LoadedKey(Owned::new(Loading(from, loader), loader.tx()), PhantomData)
    }
}

impl<K: Recoverable + Borrow<Q>, Q: ?Sized> Borrow<Q> for LoadedKey<'_, K, Q> {
    fn borrow(&self) -> &Q {
        (*self.0).borrow()
    }
}

// SAFETY: the key is moved to its place.
unsafe impl<'id, K: Recoverable, Q: ?Sized> Init<'id, K> for LoadedKey<'id, K, Q> {
    unsafe fn init(self, to: *mut K, tx: Tx<'id>) {
        // SAFETY: the caller's word.
        unsafe { self.0.init(to, tx) }
    }
}

/// Makes an empty collection, and lets `fill` fill it.
///
/// # Safety
/// As [`Init::init`].
pub(crate) unsafe fn collect<'id, C: Recoverable>(
    to: *mut C,
    empty: C,
    loader: &Loader<'_, 'id>,
    fill: impl FnOnce(Mut<'_, 'id, C>),
) {
    // SAFETY: the caller's word; an empty collection is one anywhere.
    fill(unsafe {
        to.write(empty);
        Mut::new(to, loader.tx())
    });
}

/// Lets `put` put an item into a collection, if the piece is one.
///
/// # Safety
/// As [`Recoverable::absorb`].
pub(crate) unsafe fn absorb_item<'id, C: Recoverable>(
    this: *mut C,
    (path, piece): (&[String], Piece),
    loader: &Loader<'_, 'id>,
    put: impl FnOnce(Mut<'_, 'id, C>, Datum),
) {
    match (path, piece) {
        // SAFETY: the caller's word.
        ([], Piece::Item(item)) => put(unsafe { Mut::new(this, loader.tx()) }, item),
        // SAFETY: likewise.
        (path, piece) => unsafe { replace(this, path, piece, loader) },
    }
}

/// Whether a map takes what comes with a key: a free place of a slot map is no entry.
pub(crate) fn is_entry(value: &Datum) -> bool {
    even_if("free-places-migrate", *value != Datum::Vacant)
}

/// The same of an entry.
///
/// # Safety
/// Likewise.
pub(crate) unsafe fn absorb_entry<'id, C: Recoverable>(
    this: *mut C,
    (path, piece): (&[String], Piece),
    loader: &Loader<'_, 'id>,
    put: impl FnOnce(Mut<'_, 'id, C>, Datum, Datum),
) {
    match (path, piece) {
        // SAFETY: the caller's word.
        ([], Piece::Entry(key, value)) => put(unsafe { Mut::new(this, loader.tx()) }, key, value),
        // SAFETY: likewise.
        (path, piece) => unsafe { replace(this, path, piece, loader) },
    }
}

/// Puts a piece where `path` leads from a value that consists of no others: only all of it can be replaced.
///
/// # Safety
/// As [`Recoverable::absorb`].
pub unsafe fn replace<T: Recoverable>(this: *mut T, path: &[String], piece: Piece, loader: &Loader<'_, '_>) {
    match (path, piece) {
        ([], Piece::Whole(value)) => {
            loader.tx().declare(this, 1);
            // SAFETY: a value, declared; another takes its place, or the transaction ends.
            unsafe {
                T::free(this, loader.tx());
                T::load(value, this, loader);
            }
        }
        ([], _) => loader.refuse("one more value for what is no collection"),
        ([name, ..], _) => loader.refuse(format!("there is nothing by the name of {name} in it")),
    }
}
