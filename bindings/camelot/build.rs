//! Compiles what only C can do: jumps out of transactions.

fn main() {
    cc::Build::new()
        .std("gnu11")
        .define("_GNU_SOURCE", None)
        .include("include")
        .file("src/frames.c")
        .file("src/message.c")
        .compile("camelot_frames");
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=include");
}
