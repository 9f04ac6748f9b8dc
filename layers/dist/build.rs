//! Compiles the interfaces, without tools that would have to be installed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        [
            "proto/caliburn.proto",
            "proto/admin.proto",
            "proto/etcd.proto",
            "proto/bank.proto",
            "proto/array.proto",
        ],
        ["proto"],
    )?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
