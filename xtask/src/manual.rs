//! Manual pages of section 3, from the words that stand with each function in `caliburn.h`; `caliburn(3)` has the
//! conventions and lists them all.

use crate::install::write;
use std::path::Path;

/// A function of the header.
struct Function {
    name: String,
    prototype: String,
    words: String,
}

/// Writes a page for each function of the header, and the one about all of them.
pub fn write_pages(header: &str, folder: &Path) -> Result<(), String> {
    let functions = functions(header);
    if functions.len() < 50 {
        return Err(format!(
            "the header has only {} functions that the manual's reader finds",
            functions.len()
        ));
    }
    for function in &functions {
        write(&folder.join(format!("{}.3", function.name)), &function.page())?;
    }
    write(&folder.join("caliburn.3"), &overview(header, &functions))
}

fn functions(header: &str) -> Vec<Function> {
    let (mut found, mut words, mut prototype) = (Vec::new(), String::new(), String::new());
    for line in header.lines() {
        if let Some(comment) = line.strip_prefix("//") {
            words.push_str(comment.trim_start());
            words.push(' ');
            continue;
        }
        if line.is_empty() || line.starts_with('#') || line.starts_with("typedef") {
            words.clear();
            prototype.clear();
            continue;
        }
        prototype.push_str(line);
        prototype.push('\n');
        if line.ends_with(';') {
            let name = prototype.split('(').next().and_then(|head| head.split([' ', '*']).next_back());
            if let Some(name) = name.filter(|name| name.starts_with("caliburn_") && prototype.contains('(')) {
                let name = name.to_owned();
                found.push(Function { name, prototype: prototype.clone(), words: words.trim().to_owned() });
            }
            words.clear();
            prototype.clear();
        }
    }
    found
}

/// Text that the formatter takes as it is.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    text.lines()
        .map(|line| if line.starts_with(['.', '\'']) { format!("\\&{line}\n") } else { format!("{line}\n") })
        .collect()
}

const HEAD: &str = "3 \"\" \"Caliburn\" \"Library Functions\"";

impl Function {
    /// Its first sentence, as manuals name things.
    fn summary(&self) -> String {
        let first = self.words.split(". ").next().unwrap_or_default();
        let first = first.split(": ").next().unwrap_or_default().trim_end_matches('.');
        first.to_owned()
    }

    fn page(&self) -> String {
        let Function { name, prototype, words } = self;
        format!(
            ".TH {} {HEAD}\n.SH NAME\n{name} \\- {}.SH SYNOPSIS\n.nf\n#include <caliburn.h>\n.sp\n{}.fi\n.SH DESCRIPTION\n{}\
             .SH RETURN VALUE\nFunctions that return int return a code, CALIBURN_OK if it is done, unless the description \
             says otherwise; caliburn_message() has the words.\n.SH SEE ALSO\n.BR caliburn (3)\n",
            name.to_uppercase(),
            plain(&self.summary()),
            plain(prototype),
            plain(words)
        )
    }
}

fn overview(header: &str, functions: &[Function]) -> String {
    let about: String = header
        .lines()
        .take_while(|line| line.starts_with("//") || line.is_empty())
        .filter_map(|line| line.strip_prefix("//"))
        .map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line)))
        .collect();
    let list: String = functions
        .iter()
        .map(|function| format!(".TP\n.BR {} (3)\n{}", function.name, plain(&function.summary())))
        .collect();
    format!(
        ".TH CALIBURN {HEAD}\n.SH NAME\ncaliburn \\- recoverable memory\n.SH SYNOPSIS\n.nf\n#include <caliburn.h>\n\
         cc \\fIprogram.c\\fR $(pkg\\-config \\-\\-cflags \\-\\-libs caliburn)\n.fi\n.SH DESCRIPTION\n.nf\n{}.fi\n\
         .SH FUNCTIONS\n{list}.SH SEE ALSO\n.BR caliburn (1),\n.BR rvm (3)\n",
        plain(&about)
    )
}
