//! The record of types, read back: see [`layout`](crate::value::layout).

use crate::log::CHUNKS;
use std::collections::HashMap;

/// Most types in types, and bytes of a type's text.
const DEEPEST: u32 = 60;
const LONGEST: usize = 4096;
/// Most bytes of a type.
const LARGEST: u64 = 1 << 40;

/// A type as it is written in a record: a name with parameters, a tuple, an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Type {
    /// As it is written, without parameters; empty for a tuple.
    pub name: String,
    /// Parameters, or what a tuple or an array consists of.
    pub of: Vec<Type>,
    /// Values of an array.
    pub count: Option<u64>,
    /// As it is written.
    pub text: String,
}

/// A field: its name, where it is, and its type.
#[derive(Debug, Clone)]
pub struct Field {
    pub name: String,
    pub offset: u64,
    pub of: Type,
}

/// A variant of an enum: its name, tag and fields.
pub type Variant = (String, u64, Vec<Field>);

/// What a record says of a type.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    pub size: u64,
    pub align: u64,
    /// Bytes of an enum's tag.
    pub tag: u64,
    pub fields: Vec<Field>,
    pub variants: Vec<Variant>,
    /// Of an option.
    pub none: NoneTold,
}

/// How an option says that it is none.
#[derive(Debug, Clone, Default)]
pub struct NoneTold {
    /// A byte of the number that tells.
    told_at: u64,
    /// The bytes that are not all 0, and where they begin.
    number_at: u64,
    number: Vec<u8>,
}

impl NoneTold {
    fn parse(text: &str) -> Option<NoneTold> {
        let mut parts = text.split('/');
        let mut at = || parts.next()?.parse().ok().filter(|at| *at <= LARGEST);
        let (told_at, number_at) = (at()?, at()?);
        let digits = parts.next().filter(|digits| digits.len() <= 16 && digits.len().is_multiple_of(2))?;
        let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let number = (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
        Some(NoneTold { told_at, number_at, number })
    }
}

/// A record.
#[derive(Debug)]
pub struct Record {
    pub root: Type,
    pub layouts: HashMap<String, Layout>,
}

impl Type {
    /// A type of that text.
    pub fn parse(text: &str) -> Result<Type, String> {
        Type::parse_within(text, 0)
    }

    fn parse_within(text: &str, depth: u32) -> Result<Type, String> {
        if depth > DEEPEST || text.len() > LONGEST {
            return Err("a type is deeper or longer than any".to_owned());
        }
        let list = |text: &str| list(text, depth + 1);
        let bad = || format!("{text:?} is no type");
        let within = |open: char, close: char| text.strip_prefix(open).and_then(|t| t.strip_suffix(close));
        let (name, of, count) = if let Some(inner) = within('(', ')') {
            (String::new(), list(inner)?, None)
        } else if let Some(inner) = within('[', ']') {
            let (of, count) = inner.rsplit_once("; ").ok_or_else(bad)?;
            (
                "[]".to_owned(),
                vec![Type::parse_within(of, depth + 1)?],
                Some(count.parse().map_err(|_| bad())?),
            )
        } else if let Some((name, rest)) = text.split_once('<') {
            (name.to_owned(), list(rest.strip_suffix('>').ok_or_else(bad)?)?, None)
        } else {
            (text.to_owned(), Vec::new(), None)
        };
        Ok(Type { name, of, count, text: text.to_owned() })
    }

    /// The name in small letters; of an integer that is not zero, that of the integer.
    pub fn known(&self) -> String {
        let integer = self.name.strip_prefix("NonZero").filter(|rest| rest.starts_with(['U', 'I']));
        integer.unwrap_or(&self.name).to_ascii_lowercase()
    }

    /// The parameter of that number.
    pub fn parameter(&self, number: usize) -> Result<&Type, String> {
        self.of.get(number).ok_or_else(|| format!("the type {:?} lacks a parameter", self.text))
    }
}

/// Types with commas between them. A constant that is no type is one by its text.
fn list(text: &str, within: u32) -> Result<Vec<Type>, String> {
    let (mut depth, mut from, mut all) = (0usize, 0, Vec::new());
    for (at, letter) in text.char_indices().chain([(text.len(), ',')]) {
        match letter {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => {
                depth = depth.checked_sub(1).ok_or_else(|| format!("{text:?} are no types"))?
            }
            ',' if depth == 0 => {
                let part = text[from..at].trim();
                if !part.is_empty() {
                    all.push(Type::parse_within(part, within)?);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
    Ok(all)
}

fn field(line: &str) -> Result<Field, String> {
    let bad = || format!("no field: {line:?}");
    let (name, rest) = line.split_once(' ').ok_or_else(bad)?;
    let (offset, of) = rest.split_once(' ').ok_or_else(bad)?;
    let offset = offset.parse().ok().filter(|offset| *offset <= LARGEST).ok_or_else(bad)?;
    Ok(Field { name: name.to_owned(), offset, of: Type::parse(of)? })
}

impl Record {
    /// A record of that text.
    pub fn parse(text: &str) -> Result<Record, String> {
        let mut lines = text.lines();
        if lines.next() != Some(crate::value::layout::HEADER) {
            return Err("it is no record of types that this program knows".to_owned());
        }
        let (mut root, mut layouts, mut now) = (None, HashMap::new(), None);
        for line in lines {
            let bad = || format!("a line of the record is not understood: {line:?}");
            if let Some(line) = line.strip_prefix("    ") {
                let layout: &mut Layout =
                    now.as_ref().and_then(|now| layouts.get_mut(now)).ok_or_else(bad)?;
                layout.variants.last_mut().ok_or_else(bad)?.2.push(field(line)?);
            } else if let Some(line) = line.strip_prefix("  ") {
                let layout: &mut Layout =
                    now.as_ref().and_then(|now| layouts.get_mut(now)).ok_or_else(bad)?;
                match layout.tag {
                    0 => layout.fields.push(field(line)?),
                    _ => {
                        let (name, tag) = line.split_once(' ').ok_or_else(bad)?;
                        layout.variants.push((name.to_owned(), tag.parse().map_err(|_| bad())?, Vec::new()));
                    }
                }
            } else if let Some(name) = line.strip_prefix("root ") {
                root = Some(Type::parse(name)?);
            } else if !line.starts_with("hashing ") {
                // The name may have spaces, what is around it has none.
                let (kind, rest) = line.split_once(' ').ok_or_else(bad)?;
                let (mut tag, mut none) = (0, NoneTold::default());
                let rest = match kind {
                    "enum" => {
                        let (rest, text) = rest.rsplit_once(' ').ok_or_else(bad)?;
                        tag = tag_bytes(text).ok_or_else(bad)?;
                        rest
                    }
                    "option" => {
                        let (rest, text) = rest.rsplit_once(' ').ok_or_else(bad)?;
                        none = NoneTold::parse(text).ok_or_else(bad)?;
                        rest
                    }
                    _ => rest,
                };
                let (rest, align) = rest.rsplit_once(' ').ok_or_else(bad)?;
                let (name, size) = rest.rsplit_once(' ').ok_or_else(bad)?;
                let [size, align] = [size, align].map(|number| number.parse::<u64>());
                let layout = Layout {
                    size: size.ok().filter(|size| *size <= LARGEST).ok_or_else(bad)?,
                    align: align
                        .ok()
                        .filter(|align| align.is_power_of_two() && *align <= 1 << 20)
                        .ok_or_else(bad)?,
                    tag,
                    none,
                    ..Layout::default()
                };
                now = Some(name.to_owned());
                layouts.insert(name.to_owned(), layout);
            }
        }
        Ok(Record { root: root.ok_or("it names no root")?, layouts })
    }

    /// Where the root is behind the anchor.
    pub fn root_at(&self, anchor: u64) -> Result<u64, String> {
        let (_, align) = self.size(&self.root)?;
        Ok((anchor + 16).next_multiple_of(align))
    }

    /// Where the number is that tells whether an option is none, and what it is then.
    pub fn none(&self, of: &Type) -> Result<(u64, Vec<u8>), String> {
        let layout = self.layouts.get(&of.text).ok_or_else(|| format!("nothing is said of {:?}", of.text))?;
        let none = &layout.none;
        let (at, len) = self.number_at(of, none.told_at, 0)?;
        let mut bytes = vec![0; len as usize];
        for (i, byte) in none.number.iter().enumerate() {
            let inside = (none.number_at + i as u64).checked_sub(at).and_then(|i| bytes.get_mut(i as usize));
            *inside.ok_or_else(|| format!("what is said of {:?} does not fit it", of.text))? = *byte;
        }
        Ok((at, bytes))
    }

    /// Where the number begins, and how long it is, that has a byte of a value.
    fn number_at(&self, of: &Type, byte: u64, depth: u32) -> Result<(u64, u64), String> {
        let bad = || format!("no number of {:?} is at {byte}", of.text);
        if depth > DEEPEST {
            return Err(bad());
        }
        let within = |of: &Type, offset: u64| {
            let (at, len) = self.number_at(of, byte - offset, depth + 1)?;
            Ok((at + offset, len))
        };
        if let Some(layout) = self.layouts.get(&of.text) {
            if of.name == "Option" {
                let offset = layout.fields.first().map_or(0, |field| field.offset);
                // Of a tag in front of a value the lowest byte says all.
                return if byte < offset { Ok((0, 1)) } else { within(of.parameter(0)?, offset) };
            }
            if layout.tag > 0 {
                return if byte < layout.tag { Ok((0, layout.tag)) } else { Err(bad()) };
            }
            for field in &layout.fields {
                let end = field.offset.saturating_add(self.size(&field.of)?.0);
                if (field.offset..end).contains(&byte) {
                    return within(&field.of, field.offset);
                }
            }
            return Err(bad());
        }
        let size = self.size(of)?.0;
        if byte >= size {
            return Err(bad());
        }
        if of.count.is_some() {
            let each = self.size(of.parameter(0)?)?.0;
            return within(of.parameter(0)?, byte / each * each);
        }
        if size <= 16 { Ok((0, size)) } else { Err(bad()) }
    }

    /// Size and alignment of a type.
    pub fn size(&self, of: &Type) -> Result<(u64, u64), String> {
        if let Some(layout) = self.layouts.get(&of.text) {
            return Ok((layout.size, layout.align));
        }
        if let Some(count) = of.count {
            let (size, align) = self.size(of.parameter(0)?)?;
            let size = size
                .checked_mul(count)
                .filter(|size| *size <= LARGEST)
                .ok_or_else(|| format!("no memory holds a {:?}", of.text))?;
            return Ok((size, align));
        }
        let bytes = |size| Ok((size, size));
        match of.known().as_str() {
            "u8" | "i8" | "bool" => bytes(1),
            "u16" | "i16" => bytes(2),
            "u32" | "i32" | "f32" | "char" => bytes(4),
            "u64" | "i64" | "f64" | "pbox" | "prc" | "pweak" => bytes(8),
            "u128" | "i128" => bytes(16),
            "" | "phantomdata" => Ok((0, 1)),
            "slotkey" => Ok((8, 4)),
            "pvec" | "pstring" | "pbtreemap" | "pbtreeset" => Ok((24, 8)),
            "pvecdeque" => Ok((32, 8)),
            "phashmap" | "phashset" | "pslotmap" => Ok((40, 8)),
            "plog" => Ok((8 + 8 * CHUNKS as u64, 8)),
            _ => Err(format!("the record says nothing of the type {:?}", of.text)),
        }
    }
}

/// Bytes of the type of a tag.
fn tag_bytes(text: &str) -> Option<u64> {
    let bits = text.strip_prefix(['u', 'i'])?.parse::<u64>().ok()?;
    [8, 16, 32, 64].contains(&bits).then_some(bits / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_as_they_are_written() {
        let of = Type::parse("PHashMap<(u64, [Option<Pair'2<u8>>; 3]), PString>").unwrap();
        assert_eq!((of.name.as_str(), of.of.len()), ("PHashMap", 2));
        assert_eq!(of.of[0].of[1].count, Some(3));
        assert_eq!(of.of[0].of[1].of[0].of[0].text, "Pair'2<u8>");
        assert!(Type::parse("PVec<u8").is_err() && Type::parse("[u8]").is_err());
        assert!(Type::parse("()").unwrap().of.is_empty());
    }

    #[test]
    fn records_of_nonsense_are_refused() {
        let header = crate::value::layout::HEADER;
        for text in [
            "",
            "  x",
            "struct A 8",
            "struct A 8 3",
            "root A\n    x 0 u8",
            "enum A 8 8 u8\n  B",
            "option A 8 8",
            "option A 8 8 0/0/0",
        ] {
            assert!(Record::parse(&format!("{header}\n{text}\n")).is_err(), "{text}");
        }
        assert!(Record::parse("another text").is_err());
    }
}
