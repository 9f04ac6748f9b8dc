//! Objects taken apart by the layouts that are recorded: everything that a root leads to, in pieces of which each is
//! a value of a collection, so that no more than one is in memory at a time.

use crate::show::Shown;
use crate::show::reader::{Element, Parts, Reader, slot_key};
use crate::show::record::Type;
use crate::value::datum::{Datum, Piece};
use std::collections::HashSet;

/// Values in values, at most, for those who make values of the pieces at once: who makes and reads them calls itself
/// for each.
pub(crate) const DEEPEST: u32 = 400;

/// Whether a part is left out: a field of a struct, or the values of an enum's variant, by the type and the name.
pub(crate) type LeftOut<'l> = dyn Fn(&Type, &str) -> bool + 'l;

/// Leaves nothing out.
#[cfg(feature = "serde")]
pub(crate) const WHOLE: &LeftOut<'_> = &|_, _| false;

/// Takes a root apart.
pub(crate) struct Pieces<'p, 'r> {
    reader: &'p Reader<'r>,
    left_out: &'p LeftOut<'p>,
    /// Objects with several pointers that were met: the others say their number.
    met: HashSet<u64>,
    /// Those whose values are left out.
    without: HashSet<u64>,
    deepest: u32,
    found: &'p mut Found<'p>,
}

/// Is called with each piece, and the names of fields that lead to it.
pub(crate) type Found<'f> = dyn FnMut(&[String], Piece) -> Result<(), String> + 'f;

impl<'p, 'r> Pieces<'p, 'r> {
    /// Calls `found` with every piece of the root at a place, in an order that is the same each time.
    pub fn each(
        reader: &'p Reader<'r>,
        at: u64,
        deepest: u32,
        left_out: &'p LeftOut<'p>,
        found: &'p mut Found<'p>,
    ) -> Result<(), String> {
        let (met, without) = (HashSet::new(), HashSet::new());
        let mut pieces = Pieces { reader, left_out, met, without, deepest, found };
        pieces.walk(at, &reader.record.root, &mut Vec::new())
    }

    fn walk(&mut self, at: u64, of: &'r Type, path: &mut Vec<String>) -> Result<(), String> {
        let reader = self.reader;
        let parts = reader.parts(at, of)?;
        match parts {
            Parts::Fields(_, false, fields) => {
                for field in fields.iter().filter(|field| !(self.left_out)(of, &field.name)) {
                    path.push(field.name.clone());
                    self.walk(at.saturating_add(field.offset), &field.of, path)?;
                    path.pop();
                }
                Ok(())
            }
            // An array is whole, since its length is part of its type; and so are values without bytes.
            Parts::Items(_, item) | Parts::Entries(_, item, None)
                if of.count.is_none() && reader.record.size(item)?.0 > 0 =>
            {
                reader.each(at, of, &mut |element| {
                    if let Element::Item(at) | Element::Entry(at, _) = element
                        && let Some(item) = self.datum(at, item, 0)?
                    {
                        (self.found)(path, Piece::Item(item))?;
                    }
                    Ok(true)
                })?;
                Ok(())
            }
            Parts::Slots(_, value) => {
                reader.each(at, of, &mut |element| {
                    if let Element::Slot(slot, at) = element {
                        let (key, value) = self.slot(slot, at, value, 0)?;
                        (self.found)(path, Piece::Entry(key, value))?;
                    }
                    Ok(true)
                })?;
                Ok(())
            }
            Parts::Entries(_, key_type, Some(value_type)) => {
                reader.each(at, of, &mut |element| {
                    if let Element::Entry(key, value) = element {
                        let key = self.datum(key, key_type, 0)?;
                        let value = self.datum(value, value_type, 0)?;
                        if let (Some(key), Some(value)) = (key, value) {
                            (self.found)(path, Piece::Entry(key, value))?;
                        }
                    }
                    Ok(true)
                })?;
                Ok(())
            }
            _ => {
                let whole = self.datum(at, of, 0)?;
                whole.map_or(Ok(()), |whole| (self.found)(path, Piece::Whole(whole)))
            }
        }
    }

    /// A slot's key and value. Where the value is left out, the slot is free, and its key stale.
    fn slot(
        &mut self,
        (index, generation): (u64, u32),
        at: Option<u64>,
        of: &'r Type,
        depth: u32,
    ) -> Result<(Datum, Datum), String> {
        let value = at.map(|at| self.datum(at, of, depth)).transpose()?;
        let generation = if value == Some(None) { generation.wrapping_add(1) } else { generation };
        let key = Datum::Text(slot_key((index, generation)));
        Ok((key, value.flatten().unwrap_or(Datum::Vacant)))
    }

    /// A value, if it is not left out with a variant that it is of, or that it leads to: what it stands in is
    /// without it then.
    fn datum(&mut self, at: u64, of: &'r Type, depth: u32) -> Result<Option<Datum>, String> {
        if depth > self.deepest {
            return Err(format!(
                "values are in each other deeper than {}, as in a long chain of boxes",
                self.deepest
            ));
        }
        let (reader, below) = (self.reader, depth + 1);
        let (mut items, mut entries) = (Vec::new(), Vec::new());
        Ok(Some(match reader.parts(at, of)? {
            Parts::Single(shown) => single(shown),
            Parts::Other(None) => Datum::Nothing,
            Parts::Other(Some((to, value))) => {
                let Some(value_datum) = self.datum(to, value, below)? else {
                    return Ok((of.name == "Option").then_some(Datum::Nothing));
                };
                match of.name == "Option" && may_be_nothing(value) {
                    true => Datum::List(vec![value_datum]),
                    false => value_datum,
                }
            }
            Parts::Counted(None) => Datum::Nothing,
            Parts::Counted(Some(counted)) if !counted.owned => match counted.owners {
                0 => Datum::Nothing,
                _ => Datum::Counted(Some(counted.at), None),
            },
            Parts::Counted(Some(counted)) => {
                let number = (counted.owners > 1 || counted.weak > 1).then_some(counted.at);
                match number.is_none_or(|number| self.met.insert(number)) {
                    true => {
                        let Some(value) = self.datum(counted.value.0, counted.value.1, below)? else {
                            self.without.insert(counted.at);
                            return Ok(None);
                        };
                        Datum::Counted(number, Some(Box::new(value)))
                    }
                    false if self.without.contains(&counted.at) => return Ok(None),
                    false => Datum::Counted(number, None),
                }
            }
            Parts::Fields(name, true, _) if (self.left_out)(of, name) => return Ok(None),
            Parts::Fields(name, true, []) => Datum::Text(name.to_owned()),
            Parts::Fields(name, variant, fields) => {
                let mut all = Vec::with_capacity(fields.len());
                for field in fields.iter().filter(|field| variant || !(self.left_out)(of, &field.name)) {
                    let value = self.datum(at.saturating_add(field.offset), &field.of, below)?;
                    all.extend(value.map(|value| (field.name.clone(), value)));
                }
                match variant {
                    true => Datum::Fields(vec![(name.to_owned(), Datum::Fields(all))]),
                    false => Datum::Fields(all),
                }
            }
            Parts::Items(len, item) | Parts::Entries(len, item, None) => {
                reader.each(at, of, &mut |element| {
                    if let Element::Item(at) | Element::Entry(at, _) = element {
                        items.extend(self.datum(at, item, below)?);
                    }
                    Ok(true)
                })?;
                // Of values without bytes some are looked at, and all are alike.
                if items.len() as u64 != len && reader.record.size(item)?.0 == 0 {
                    let len = usize::try_from(len).ok().filter(|len| *len <= 1 << 24);
                    let len = len.ok_or("more values without bytes than are written down")?;
                    items.resize(len, items.first().cloned().unwrap_or(Datum::Nothing));
                }
                Datum::List(items)
            }
            Parts::Slots(_, value) => {
                reader.each(at, of, &mut |element| {
                    if let Element::Slot(slot, at) = element {
                        entries.push(self.slot(slot, at, value, below)?);
                    }
                    Ok(true)
                })?;
                Datum::Map(entries)
            }
            Parts::Entries(_, key_type, Some(value_type)) => {
                reader.each(at, of, &mut |element| {
                    if let Element::Entry(key, value) = element {
                        let key = self.datum(key, key_type, below)?;
                        entries.extend(key.zip(self.datum(value, value_type, below)?));
                    }
                    Ok(true)
                })?;
                Datum::Map(entries)
            }
        }))
    }
}

fn single(shown: Shown) -> Datum {
    match shown {
        Shown::Bool(value) => Datum::Bool(value),
        Shown::Number(digits) => Datum::Number(digits),
        Shown::Text(text) => Datum::Text(text),
        _ => Datum::Nothing,
    }
}

/// As `Recoverable::MAY_BE_NOTHING` says it of the type.
fn may_be_nothing(of: &Type) -> bool {
    match of.name.as_str() {
        "Option" | "PWeak" | "PhantomData" => true,
        "PBox" => of.of.first().is_some_and(may_be_nothing),
        "" => of.of.is_empty(),
        _ => false,
    }
}
