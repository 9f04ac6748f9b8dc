//! Manual pages of section 3, from the words that stand with each function in a header, `caliburn.h` or `pm.h`; one
//! called as the header has the conventions and lists them all.

use crate::install::write;
use std::path::Path;

/// A function of the header.
struct Function {
    name: String,
    prototype: String,
    words: String,
}

/// A header, and what its pages say of it.
pub struct Manual {
    /// Without `.h`: what its functions' names begin with, too.
    pub header: &'static str,
    pub library: &'static str,
    pub about: &'static str,
    /// What a function returns.
    pub codes: &'static str,
    pub see: &'static str,
    /// Functions that there are at least.
    pub least: usize,
}

pub const CALIBURN: Manual = Manual {
    header: "caliburn",
    library: "caliburn",
    about: "recoverable memory",
    codes: "a code, CALIBURN_OK if it is done, unless the description says otherwise; caliburn_message()",
    see: "rvm (3)",
    least: 50,
};
pub const PM: Manual = Manual {
    header: "pm",
    library: "caliburn_pm",
    about: "memory that outlives the system",
    codes: "0, or a number of errno.h; pm_message()",
    see: "caliburn (3)",
    least: 30,
};

/// Writes a page for each function of the header, and the one about all of them.
pub fn write_pages(manual: &Manual, header: &str, folder: &Path) -> Result<(), String> {
    let functions = functions(header, &format!("{}_", manual.header));
    if functions.len() < manual.least {
        return Err(format!(
            "the header has only {} functions that the manual's reader finds",
            functions.len()
        ));
    }
    for function in &functions {
        write(&folder.join(format!("{}.3", function.name)), &function.page(manual))?;
    }
    write(&folder.join(format!("{}.3", manual.header)), &overview(manual, header, &functions))
}

fn functions(header: &str, prefix: &str) -> Vec<Function> {
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
            if let Some(name) = name.filter(|name| name.starts_with(prefix) && prototype.contains('(')) {
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

    fn page(&self, manual: &Manual) -> String {
        let Function { name, prototype, words } = self;
        let Manual { header, codes, .. } = manual;
        format!(
            ".TH {} {HEAD}\n.SH NAME\n{name} \\- {}.SH SYNOPSIS\n.nf\n#include <{header}.h>\n.sp\n{}.fi\n.SH DESCRIPTION\n{}\
             .SH RETURN VALUE\nFunctions that return int return {codes} has the words.\n.SH SEE ALSO\n.BR {header} (3)\n",
            name.to_uppercase(),
            plain(&self.summary()),
            plain(prototype),
            plain(words)
        )
    }
}

fn overview(manual: &Manual, header: &str, functions: &[Function]) -> String {
    let Manual { header: name, library, about: short, see, .. } = manual;
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
        ".TH {} {HEAD}\n.SH NAME\n{name} \\- {short}\n.SH SYNOPSIS\n.nf\n#include <{name}.h>\n\
         cc \\fIprogram.c\\fR $(pkg\\-config \\-\\-cflags \\-\\-libs {library})\n.fi\n.SH DESCRIPTION\n.nf\n{}.fi\n\
         .SH FUNCTIONS\n{list}.SH SEE ALSO\n.BR caliburn (1),\n.BR {see}\n",
        name.to_uppercase(),
        plain(&about)
    )
}
