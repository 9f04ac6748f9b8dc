//! The interfaces, as `build.rs` makes them of the files in `proto`, which say what is what.
#![allow(missing_docs, clippy::all, reason = "generated")]

pub mod admin {
    tonic::include_proto!("caliburn.admin.v1");
}
pub mod array {
    tonic::include_proto!("caliburn.examples.v1");
}
pub mod bank {
    tonic::include_proto!("caliburn.bank.v1");
}
pub mod caliburn {
    tonic::include_proto!("caliburn.v1");
}
pub mod etcd {
    tonic::include_proto!("etcdserverpb");
}
