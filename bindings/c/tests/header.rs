//! The header is what the functions are: it is generated from them, and kept here for those who read it.

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
