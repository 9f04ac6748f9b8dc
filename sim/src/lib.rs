//! Crash tests of Caliburn on simulated machines. Exists in development builds only:
//! `RUSTFLAGS="--cfg caliburn_sim"`; `cargo xtask` sets it.
//!
//! | module | noun |
//! |---|---|
//! | `media` | the machine behind the engine's seam, and the faults it may commit |
//! | `disk`, `content` | what it keeps, and what a crash leaves of it |
//! | `model` | what a store must hold |
//! | `script` | workloads as text |
//! | `flavour` | kinds of stores |
//! | `life` | a store opened, compared, put through a script |
//! | `creation`, `damage` | crashes while a store is made; flipped bits |
//! | `restoring` | crashes while a store is restored, and when that is tried again |
//! | `yesterday` | one file is what it was earlier |
//! | `copies` | two copies of a log, of which one is lost, lags or lies |
//! | `heap` | crashes of programs with a heap |
//! | `undecided` | prepared transactions of a life |
//! | `names` | walks through names, links, copies and forks, on this machine's files |
//! | `pm` | regions of persistent memory |
//! | `threads` | several threads under a deterministic scheduler |
//! | `images`, `dumps` | images of a region, and dumps, under that scheduler |
//! | `locks` | locks of families, under that scheduler |
//! | `replicas` | a log that another machine has too, under that scheduler |
//! | `explore` | every crash of a life, and of the lives after it |
#![cfg(caliburn_sim)]

mod adoption;
pub mod content;
pub mod copies;
pub mod creation;
pub mod damage;
pub mod disk;
#[cfg(caliburn_shuttle)]
pub mod dumps;
pub mod explore;
pub mod flavour;
pub mod heap;
#[cfg(caliburn_shuttle)]
pub mod images;
pub mod life;
#[cfg(caliburn_shuttle)]
pub mod locks;
mod making;
pub mod media;
pub mod model;
pub mod names;
pub mod pm;
pub mod random;
#[cfg(caliburn_shuttle)]
pub mod replicas;
pub mod restoring;
pub mod script;
pub mod sight;
#[cfg(caliburn_shuttle)]
pub mod threads;
mod undecided;
pub mod yesterday;
