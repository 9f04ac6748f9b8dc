//! The header is what the functions are: it is generated from them, and kept here for those who read it.

use std::collections::BTreeSet;
use std::path::Path;

/// With `CALIBURN_BLESS` set the header is written anew.
#[test]
fn the_header_is_of_these_functions() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(here).with_config(config).generate().unwrap();
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    let path = here.join("include/caliburn.h");
    if std::env::var_os("CALIBURN_BLESS").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == generated,
        "caliburn.h is not of these functions: CALIBURN_BLESS=1 cargo test -p caliburn-c"
    );
}

/// Every function of the header is one that the linker exports from the shared library.
#[test]
fn the_linker_exports_these_functions() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(here.join("include/caliburn.h")).unwrap();
    let map = std::fs::read_to_string(here.join("caliburn.map")).unwrap();
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| !line.trim_start().starts_with(['/', '*']))
        .flat_map(|line| line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '(')))
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("caliburn_"))
        .collect();
    let exported: BTreeSet<&str> = map
        .lines()
        .map(|line| line.trim().trim_end_matches(';'))
        .filter(|n| n.starts_with("caliburn_"))
        .collect();
    let odd: Vec<_> = declared.symmetric_difference(&exported).collect();
    assert!(odd.is_empty(), "caliburn.map is not in step with caliburn.h: {odd:?}");
}
