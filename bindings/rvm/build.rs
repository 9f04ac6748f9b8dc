//! Compiles librvm, libseg and librds, the plain flavour, into this crate.

fn main() {
    let sources = [
        "names",
        "offsets",
        "records",
        "state",
        "log",
        "life",
        "map",
        "transaction",
        "statistics",
        "segment",
        "rds",
        "rds_blocks",
        "rds_stats",
        "tool",
    ];
    let mut build = cc::Build::new();
    build.std("gnu11").define("_GNU_SOURCE", None).include("include").include("../c/include");
    for source in sources {
        build.file(format!("src/{source}.c"));
    }
    build.compile("rvm_plain");
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=include");
    println!("cargo:rerun-if-changed=../c/include");
}
