//! What safe code must not do: each file in `refused/` is an attempt that does not compile, with what the
//! compiler says.

#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/refused/*.rs");
}
