//! Compiles the rivals' clients that are written in C, against the system's libraries.

fn main() {
    let mut build = cc::Build::new();
    build.std("gnu11").warnings(true).extra_warnings(true).flag("-Werror").opt_level(2);
    for rival in ["lmdb", "sqlite", "rocksdb", "berkeley", "pmdk", "nested"] {
        let file = format!("src/c/{rival}.c");
        println!("cargo:rerun-if-changed={file}");
        build.file(file);
    }
    println!("cargo:rerun-if-changed=src/c/rival.h");
    println!("cargo:rerun-if-changed=src/c/nested.h");
    // Their C interfaces do not say.
    build.define("ROCKSDB_VERSION", format!("{:?}", version_of("librocksdb-dev")).as_str());
    build.define("PMDK_VERSION", format!("{:?}", version_of("libpmemobj-dev")).as_str());
    build.compile("rivals");
    for library in ["lmdb", "sqlite3", "rocksdb", "db", "pmemobj", "pmem"] {
        println!("cargo:rustc-link-lib={library}");
    }
}

/// The version of a package of the system.
fn version_of(package: &str) -> String {
    let query = std::process::Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output();
    query.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}
