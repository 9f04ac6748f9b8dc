//! The header is what the functions are: it is generated from them, and kept here for those who read it.

use std::collections::BTreeSet;
use std::path::Path;

/// With `CALIBURN_BLESS` set the header, and what the linker exports, are written anew.
#[test]
fn the_header_is_of_these_functions() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(here).with_config(config).generate().unwrap();
    let mut header = Vec::new();
    bindings.write(&mut header);
    let header = String::from_utf8(header).unwrap();
    let functions: BTreeSet<&str> = header
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '(')))
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("pm_"))
        .collect();
    let list: String = functions.iter().map(|name| format!("    {name};\n")).collect();
    let map = format!("PM_0.1 {{\nglobal:\n{list}local:\n    *;\n}};\n");
    for (name, made) in [("include/pm.h", header), ("pm.map", map)] {
        let path = here.join(name);
        if std::env::var_os("CALIBURN_BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            kept == made,
            "{name} is not of these functions: CALIBURN_BLESS=1 cargo test -p caliburn-pm-c"
        );
    }
}
