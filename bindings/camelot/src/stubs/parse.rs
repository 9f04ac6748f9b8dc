//! Reads an interface.

use crate::stubs::{Argument, Interface, Kind, Routine};
use std::collections::BTreeMap;

/// What is wrong with an interface, and where.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// Its line.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

/// Words, numbers, strings with their quotes, and signs.
fn tokens(text: &str) -> Result<Vec<Token>, ParseError> {
    let mut all: Vec<Token> = Vec::new();
    let mut defined: BTreeMap<String, String> = BTreeMap::new();
    let mut in_comment = false;
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |what: String| ParseError { line: number, what };
        let mut rest = line;
        if !in_comment && let Some(define) = rest.trim_start().strip_prefix("#define") {
            let define = define.split("/*").next().unwrap_or_default().split("//").next().unwrap_or_default();
            let mut words = define.split_whitespace();
            let (Some(name), Some(value), None) = (words.next(), words.next(), words.next()) else {
                return Err(wrong("a #define is a name and a number".into()));
            };
            defined.insert(name.to_owned(), value.to_owned());
            continue;
        }
        while let Some(first) = rest.chars().next() {
            if in_comment {
                match rest.split_once("*/") {
                    Some((_, after)) => (in_comment, rest) = (false, after),
                    None => break,
                }
                continue;
            }
            if rest.starts_with("//") {
                break;
            }
            if let Some(after) = rest.strip_prefix("/*") {
                (in_comment, rest) = (true, after);
                continue;
            }
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            let length = match first {
                c if c.is_whitespace() => {
                    rest = &rest[c.len_utf8()..];
                    continue;
                }
                '"' | '<' => {
                    let end = if first == '"' { '"' } else { '>' };
                    let length =
                        rest[1..].find(end).ok_or_else(|| wrong("a name that does not end".into()))?;
                    length + 2
                }
                c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                c if ";:=,()[]*".contains(c) => 1,
                c => return Err(wrong(format!("{c:?} means nothing here"))),
            };
            let (word, after) = rest.split_at(length);
            let text = defined.get(word).cloned().unwrap_or_else(|| word.to_owned());
            all.push(Token { text, line: number });
            rest = after;
        }
    }
    Ok(all)
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
}

impl Reader {
    fn wrong(&self, what: impl Into<String>) -> ParseError {
        let token = self.tokens.get(self.at).or(self.tokens.last());
        ParseError { line: token.map_or(1, |token| token.line), what: what.into() }
    }

    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).map(|token| token.text.as_str())
    }

    fn next(&mut self, what: &str) -> Result<String, ParseError> {
        let token = self.tokens.get(self.at).map(|token| token.text.clone());
        let token = token.ok_or_else(|| self.wrong(format!("it ends where {what} should be")))?;
        self.at += 1;
        Ok(token)
    }

    fn take(&mut self, sign: &str) -> bool {
        let is_it = self.peek() == Some(sign);
        self.at += usize::from(is_it);
        is_it
    }

    fn need(&mut self, sign: &str) -> Result<(), ParseError> {
        match self.take(sign) {
            true => Ok(()),
            false => {
                let found = self.peek().unwrap_or("the end").to_owned();
                Err(self.wrong(format!("{sign:?} should be here, and not {found:?}")))
            }
        }
    }

    fn name(&mut self, what: &str) -> Result<String, ParseError> {
        let name = self.next(what)?;
        let first = name.chars().next().unwrap_or('0');
        if first.is_ascii_alphabetic() || first == '_' {
            return Ok(name);
        }
        self.at -= 1;
        Err(self.wrong(format!("{name:?} is no name: {what} should be here")))
    }

    fn number(&mut self) -> Result<u64, ParseError> {
        let number = self.next("a number")?;
        number.parse().ok().filter(|number| *number > 0).ok_or_else(|| {
            self.at -= 1;
            self.wrong(format!("{number:?} should be a number"))
        })
    }

    /// A type's own words; `name`: what it is to be called.
    fn kind(&mut self, types: &BTreeMap<String, Kind>, name: Option<&str>) -> Result<Kind, ParseError> {
        let word = self.name("a type")?;
        match word.as_str() {
            "int" | "short" | "char" | "boolean_t" | "long" | "int64_t" | "unsigned" => {
                Ok(Kind::Number(word))
            }
            "sint64" => Ok(Kind::Zigzag),
            "double" => Ok(Kind::Real),
            "c_string" => {
                self.need("[")?;
                let length = self.number()?;
                self.need("]")?;
                Ok(Kind::Text(length))
            }
            "array" | "struct" => {
                self.need("[")?;
                let count = self.number()?;
                self.need("]")?;
                self.need_word("of")?;
                let each = self.element()?;
                let name =
                    name.ok_or_else(|| self.wrong("an array needs a type of its own: type ... = array ..."))?;
                let bytes = count.checked_mul(each).ok_or_else(|| self.wrong("that is too long"))?;
                Ok(Kind::Bytes(name.to_owned(), bytes))
            }
            known => match types.get(known) {
                Some(kind) => Ok(kind.clone()),
                None => {
                    self.at -= 1;
                    Err(self.wrong(format!("{known:?} is no type that was declared")))
                }
            },
        }
    }

    fn need_word(&mut self, word: &str) -> Result<(), ParseError> {
        self.need(word)
    }

    /// Bytes of an array's element: `char`, or `(MSG_TYPE_..., bits)`.
    fn element(&mut self) -> Result<u64, ParseError> {
        if self.take("char") {
            return Ok(1);
        }
        self.need("(")?;
        self.name("what the bits are")?;
        self.need(",")?;
        let bits = self.number()?;
        self.need(")")?;
        match bits % 8 {
            0 => Ok(bits / 8),
            _ => Err(self.wrong("bits are whole bytes here")),
        }
    }
}

/// Reads an interface.
///
/// # Errors
/// What is wrong with it, and where.
pub fn parse(text: &str) -> Result<Interface, ParseError> {
    let mut reader = Reader { tokens: tokens(text)?, at: 0 };
    let (mut interface, mut types) = (Interface::default(), BTreeMap::new());
    while reader.peek().is_some() {
        let word = reader.name("a declaration")?;
        match word.as_str() {
            "subsystem" => {
                interface.subsystem = reader.name("a name")?;
                // MIG's numbers of messages are names here.
                if reader.peek() != Some(";") {
                    reader.number()?;
                }
            }
            "import" | "uimport" | "simport" => interface.imports.push(reader.next("a header")?),
            "serverprefix" => interface.server_prefix = reader.name("a prefix")?,
            "userprefix" => interface.user_prefix = reader.name("a prefix")?,
            "service" => interface.service = Some(reader.name("a service")?),
            "type" => {
                let name = reader.name("a type's name")?;
                reader.need("=")?;
                let kind = reader.kind(&types, Some(&name))?;
                types.insert(name, kind);
            }
            "camelotroutine" | "routine" => {
                let routine = routine(&mut reader, &types)?;
                if interface.routines.iter().any(|other| other.name == routine.name) {
                    return Err(reader.wrong(format!("routine {} is declared twice", routine.name)));
                }
                interface.routines.push(routine);
            }
            _ => {
                reader.at -= 1;
                return Err(reader.wrong(format!("{word:?} declares nothing")));
            }
        }
        reader.need(";")?;
    }
    match (interface.subsystem.is_empty(), interface.routines.is_empty()) {
        (true, _) => Err(ParseError { line: 1, what: "it has no name: subsystem ...;".into() }),
        (_, true) => Err(ParseError { line: 1, what: "it has no routines".into() }),
        _ => Ok(interface),
    }
}

fn routine(reader: &mut Reader, types: &BTreeMap<String, Kind>) -> Result<Routine, ParseError> {
    let name = reader.name("a routine's name")?;
    let mut arguments: Vec<Argument> = Vec::new();
    reader.need("(")?;
    let mut place = 0;
    while !reader.take(")") {
        let mut direction = reader.name("an argument")?;
        let name = match direction.as_str() {
            "in" | "out" | "inout" if reader.peek() != Some(":") => reader.name("an argument")?,
            _ => std::mem::replace(&mut direction, "in".into()),
        };
        reader.need(":")?;
        place += 1;
        // The system's.
        match (place, reader.peek()) {
            (1, Some("port_t")) | (1 | 2, Some("tid_t")) => reader.at += 1,
            _ => {
                let kind = reader.kind(types, None)?;
                let (goes, comes) = (direction != "out", direction != "in");
                arguments.push(Argument { name, kind, goes, comes });
            }
        }
        if !reader.take(";") && reader.peek() != Some(")") {
            return Err(reader.wrong("arguments are separated by \";\""));
        }
    }
    Ok(Routine { name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: &str = "
        subsystem small_record_array 500;   // as MIG has it
        #define          SIZE_OF_SMALL  32
        type small_record_t = array[SIZE_OF_SMALL] of
                            (MSG_TYPE_UNSTRUCTURED, 8);
        /* the paper's
           own */
        camelotroutine record_write(
            port          : port_t;
            tid           : tid_t;
            index         : int;
            value         : small_record_t);
        camelotroutine record_read(port : port_t; tid : tid_t; index : int; out value : small_record_t;
            inout count : long; name : c_string[16]);
    ";

    #[test]
    fn the_papers_interface_is_read() {
        let interface = parse(PAPER).unwrap();
        assert_eq!(interface.subsystem, "small_record_array");
        let record = || Kind::Bytes("small_record_t".into(), 32);
        let argument = |name: &str, kind, goes, comes| Argument { name: name.into(), kind, goes, comes };
        let index = || argument("index", Kind::Number("int".into()), true, false);
        let write = vec![index(), argument("value", record(), true, false)];
        let read = vec![
            index(),
            argument("value", record(), false, true),
            argument("count", Kind::Number("long".into()), true, true),
            argument("name", Kind::Text(16), true, false),
        ];
        let routine = |name: &str, arguments| Routine { name: name.into(), arguments };
        assert_eq!(interface.routines, [routine("record_write", write), routine("record_read", read)]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let said = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(said("subsystem x;\n"), "line 1: it has no routines");
        assert_eq!(said("routine f();"), "line 1: it has no name: subsystem ...;");
        assert_eq!(
            said("subsystem x;\nroutine f(a : thing);"),
            "line 2: \"thing\" is no type that was declared"
        );
        assert_eq!(
            said("subsystem x;\nroutine f(a : int, b : int);"),
            "line 2: arguments are separated by \";\""
        );
        assert_eq!(said("subsystem x\nroutine"), "line 2: \"routine\" should be a number");
        assert_eq!(said("subsystem x;\n\ntype t = array[0] of char;"), "line 3: \"0\" should be a number");
        assert_eq!(said("subsystem x;\nroutine f();\nroutine f();"), "line 3: routine f is declared twice");
        assert_eq!(said("subsystem x;\ntype t = array[4] of (M, 3);"), "line 2: bits are whole bytes here");
        assert_eq!(said("subsystem x; ?"), "line 1: '?' means nothing here");
    }
}
