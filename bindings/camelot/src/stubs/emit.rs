//! Writes the stubs.

use crate::stubs::{Argument, Interface, Kind, Routine, SERVICE};
use std::fmt::Write as _;

impl Kind {
    /// As an argument in C; `out`: where it comes to.
    fn in_c(&self, name: &str, out: bool) -> String {
        match (self, out) {
            (Kind::Number(of), false) => format!("{of} {name}"),
            (Kind::Number(of), true) => format!("{of} *{name}"),
            (Kind::Zigzag, false) => format!("int64_t {name}"),
            (Kind::Zigzag, true) => format!("int64_t *{name}"),
            (Kind::Real, false) => format!("double {name}"),
            (Kind::Real, true) => format!("double *{name}"),
            (Kind::Bytes(of, _), false) => format!("{of} {name}"),
            (Kind::Bytes(of, _), true) => format!("{of} *{name}"),
            (Kind::Text(_), false) => format!("const char *{name}"),
            (Kind::Text(_), true) => format!("char *{name}"),
        }
    }

    /// A variable for it.
    fn variable(&self, name: &str) -> String {
        match self {
            Kind::Number(of) => format!("{of} {name} = 0;"),
            Kind::Zigzag => format!("int64_t {name} = 0;"),
            Kind::Real => format!("double {name} = 0;"),
            Kind::Bytes(of, _) => format!("{of} {name};\n    memset(&{name}, 0, sizeof {name});"),
            Kind::Text(length) => format!("char {name}[{length}] = \"\";"),
        }
    }

    /// Puts what an expression has into a message; of bytes and strings, what it points to.
    fn put(&self, message: &str, field: usize, from: &str) -> String {
        match self {
            Kind::Number(_) => format!("camelot_put_number({message}, {field}, {from});"),
            Kind::Zigzag => format!("camelot_put_number({message}, {field}, camelot_zigzag({from}));"),
            Kind::Real => format!("camelot_put_double({message}, {field}, {from});"),
            Kind::Bytes(_, length) => format!("camelot_put_bytes({message}, {field}, {from}, {length});"),
            Kind::Text(_) => format!("camelot_put_bytes({message}, {field}, {from}, strlen({from}));"),
        }
    }

    /// Takes the field that was read.
    fn get(&self, message: &str, to: &str) -> String {
        match self {
            Kind::Number(of) => format!("*({to}) = ({of})({message})->number;"),
            Kind::Zigzag => format!("*({to}) = camelot_unzigzag(({message})->number);"),
            Kind::Real => format!("*({to}) = camelot_double({message});"),
            Kind::Bytes(_, length) => format!("camelot_get_bytes({message}, {to}, {length});"),
            Kind::Text(length) => format!("camelot_get_string({message}, {to}, {length});"),
        }
    }

    fn in_proto(&self) -> &'static str {
        match self {
            Kind::Number(_) => "int64",
            Kind::Zigzag => "sint64",
            Kind::Real => "double",
            Kind::Bytes(..) => "bytes",
            Kind::Text(_) => "string",
        }
    }
}

impl Argument {
    /// That its type in C is as long as the interface says, and is no array, which would not go by value.
    fn has_its_size(&self, pointer: bool) -> String {
        let Kind::Bytes(of, length) = &self.kind else { return String::new() };
        let (star, name) = (if pointer { "*" } else { "" }, &self.name);
        format!(
            "    _Static_assert(sizeof {star}{name} == {length}, \"{of} has {length} bytes in the interface, and is no array in C\");\n"
        )
    }

    /// What puts its value, where the function has it as an argument or, if it comes back, a pointer to it.
    fn given(&self) -> String {
        match (&self.kind, self.comes) {
            (Kind::Bytes(..), false) => format!("&{}", self.name),
            (Kind::Number(_) | Kind::Zigzag | Kind::Real, true) => format!("*{}", self.name),
            _ => self.name.clone(),
        }
    }
}

impl Routine {
    fn prototype(&self, prefix: &str) -> String {
        let system = ["port_t camelot_port_".to_owned(), "tid_t camelot_tid_".to_owned()].into_iter();
        let own = self.arguments.iter().map(|argument| argument.kind.in_c(&argument.name, argument.comes));
        let all: Vec<String> = system.chain(own).collect();
        format!("int {prefix}{}({})", self.name, all.join(", "))
    }

    /// Those that go, with their fields.
    fn going(&self) -> impl Iterator<Item = (usize, &Argument)> {
        (1..).zip(self.arguments.iter().filter(|argument| argument.goes))
    }

    /// Those that come, behind a return code if there is one.
    fn coming(&self, first: usize) -> impl Iterator<Item = (usize, &Argument)> {
        (first..).zip(self.arguments.iter().filter(|argument| argument.comes))
    }
}

impl Interface {
    fn first_that_comes(&self) -> usize {
        if self.service.is_some() { 1 } else { 2 }
    }

    pub(super) fn header(&self) -> String {
        let guard = self.subsystem.to_uppercase();
        let mut text = format!(
            "/* Made by camelot-stubs. */\n#ifndef {guard}_H\n#define {guard}_H\n\n#include \"camelot.h\"\n"
        );
        self.imports.iter().for_each(|import| _ = writeln!(text, "#include {import}"));
        text.push('\n');
        for routine in &self.routines {
            let _ = writeln!(text, "{};", routine.prototype(&self.user_prefix));
            if self.service.is_none() && self.server_prefix != self.user_prefix {
                let _ = writeln!(text, "{};", routine.prototype(&self.server_prefix));
            }
        }
        if self.service.is_none() {
            let _ = writeln!(text, "\nboolean_t {}_server(struct camelot_request *request);", self.subsystem);
        }
        text.push_str("\n#endif\n");
        text
    }

    pub(super) fn user(&self) -> String {
        let mut text = format!(
            "/* Made by camelot-stubs: calls the routines. */\n#include \"{}.h\"\n\n#include <string.h>\n",
            self.subsystem
        );
        let service = self.service.as_deref().unwrap_or(SERVICE);
        for routine in &self.routines {
            let _ = write!(
                text,
                "\n{} {{\n    struct camelot_message camelot_in, camelot_out;\n    int camelot_code;\n    (void)camelot_port_;\n    \
                 (void)camelot_tid_;\n    memset(&camelot_in, 0, sizeof camelot_in);\n    \
                 memset(&camelot_out, 0, sizeof camelot_out);\n",
                routine.prototype(&self.user_prefix)
            );
            for argument in &routine.arguments {
                text.push_str(&argument.has_its_size(argument.comes));
            }
            for (field, argument) in routine.going() {
                let _ = writeln!(text, "    {}", argument.kind.put("&camelot_in", field, &argument.given()));
            }
            let _ = writeln!(
                text,
                "    camelot_code = camelot_invoke(\"/{service}/{}\", &camelot_in, &camelot_out);",
                routine.name
            );
            text.push_str(
                "    camelot_free_message(&camelot_in);\n    if (camelot_code != COMMITTED)\n        return camelot_code;\n",
            );
            // What is not there is zero.
            for (_, argument) in routine.coming(0) {
                let size = match &argument.kind {
                    Kind::Text(_) => "1".to_owned(),
                    _ => format!("sizeof *{}", argument.name),
                };
                let _ = writeln!(text, "    memset({}, 0, {size});", argument.name);
            }
            text.push_str(
                "    for (unsigned camelot_field; (camelot_field = camelot_next(&camelot_out)) != 0;) {\n        switch (camelot_field) {\n",
            );
            if self.service.is_none() {
                text.push_str("        case 1:\n            camelot_code = (int)camelot_out.number;\n            break;\n");
            }
            for (field, argument) in routine.coming(self.first_that_comes()) {
                let get = argument.kind.get("&camelot_out", &argument.name);
                let _ = writeln!(text, "        case {field}:\n            {get}\n            break;");
            }
            text.push_str("        default:\n            break;\n        }\n    }\n");
            text.push_str("    if (camelot_out.wrong)\n        camelot_code = CAMELOT_WRONG;\n");
            text.push_str("    camelot_free_message(&camelot_out);\n    return camelot_code;\n}\n");
        }
        text
    }

    pub(super) fn server(&self) -> String {
        let mut text = format!(
            "/* Made by camelot-stubs: is called, and calls the routines. */\n#include \"{0}.h\"\n\n#include <string.h>\n",
            self.subsystem
        );
        for routine in &self.routines {
            let _ = writeln!(
                text,
                "\nstatic boolean_t {}_(struct camelot_request *camelot_request) {{\n    int camelot_code;",
                routine.name
            );
            for argument in &routine.arguments {
                let _ = writeln!(text, "    {}", argument.kind.variable(&argument.name));
                text.push_str(&argument.has_its_size(false));
            }
            text.push_str(
                "    for (unsigned camelot_field; (camelot_field = camelot_next(&camelot_request->in)) != 0;) {\n        switch (camelot_field) {\n",
            );
            for (field, argument) in routine.going() {
                let to = if let Kind::Text(_) = argument.kind { "" } else { "&" };
                let get = argument.kind.get("&camelot_request->in", &format!("{to}{}", argument.name));
                let _ = writeln!(text, "        case {field}:\n            {get}\n            break;");
            }
            text.push_str("        default:\n            break;\n        }\n    }\n");
            text.push_str("    if (camelot_request->in.wrong)\n        return FALSE;\n");
            let given = routine.arguments.iter().map(|argument| {
                let points = argument.comes && !matches!(argument.kind, Kind::Text(_));
                format!(", {}{}", if points { "&" } else { "" }, argument.name)
            });
            let given: String = given.collect();
            let prefix = &self.server_prefix;
            let _ = writeln!(
                text,
                "    camelot_code = {prefix}{}(0, camelot_request->tid{given});",
                routine.name
            );
            text.push_str("    camelot_put_number(&camelot_request->out, 1, camelot_code);\n");
            for (field, argument) in routine.coming(2) {
                let points = if let Kind::Bytes(..) = argument.kind { "&" } else { "" };
                let from = format!("{points}{}", argument.name);
                let _ = writeln!(text, "    {}", argument.kind.put("&camelot_request->out", field, &from));
            }
            text.push_str("    return TRUE;\n}\n");
        }
        let _ = writeln!(text, "\nboolean_t {}_server(struct camelot_request *request) {{", self.subsystem);
        for Routine { name, .. } in &self.routines {
            let _ = writeln!(
                text,
                "    if (strcmp(request->routine, \"{name}\") == 0)\n        return {name}_(request);"
            );
        }
        text.push_str("    return FALSE;\n}\n");
        text
    }

    pub(super) fn proto(&self) -> String {
        let (package, name) = SERVICE.rsplit_once('.').expect("it has a package");
        let mut text = format!(
            "// Made by camelot-stubs, for programs in other languages.\nsyntax = \"proto3\";\npackage {package};\n\nservice {name} {{\n"
        );
        for Routine { name, .. } in &self.routines {
            let _ = writeln!(text, "  rpc {name}({name}_request) returns ({name}_reply);");
        }
        text.push_str("}\n");
        for routine in &self.routines {
            let _ = writeln!(text, "\nmessage {}_request {{", routine.name);
            for (field, argument) in routine.going() {
                let _ = writeln!(text, "  {} {} = {field};", argument.kind.in_proto(), argument.name);
            }
            let _ = writeln!(text, "}}\n\nmessage {}_reply {{\n  int64 code = 1;", routine.name);
            for (field, argument) in routine.coming(2) {
                let _ = writeln!(text, "  {} {} = {field};", argument.kind.in_proto(), argument.name);
            }
            text.push_str("}\n");
        }
        text
    }
}
