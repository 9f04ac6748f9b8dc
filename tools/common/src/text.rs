//! Texts that come from files, as a terminal may have them.

use std::fmt::Display;

/// What it says, with control characters written out: a store that comes from elsewhere can name its files after a
/// terminal's commands.
pub fn plain(what: impl Display) -> String {
    let mut out = String::new();
    for c in what.to_string().chars() {
        if c.is_control() && c != '\n' { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(super::plain("a\u{1b}[2Jb\u{9b}\r\n\u{e9}"), "a\\u{1b}[2Jb\\u{9b}\\r\n\u{e9}");
    }
}
