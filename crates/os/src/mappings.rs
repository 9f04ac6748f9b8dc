//! How many mappings this process may still make. A process that has as many as the system allows gets no memory
//! either, and dies of it in any allocation: who maps regions stops before that. What the engine maps for itself is
//! not counted here.

use crate::descriptors;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// Mappings that a reservation of address space can become: itself, cut in two by what is mapped into it.
const EACH: i64 = 3;
/// Reservations that may be made before the mappings are counted again.
static LEFT: AtomicI64 = AtomicI64::new(1024);

/// How many mappings a process may have (`vm.max_map_count`), as it was when this was asked first.
pub fn allowed() -> usize {
    static ALLOWED: OnceLock<usize> = OnceLock::new();
    let read = || descriptors::read_text("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok();
    *ALLOWED.get_or_init(|| read().unwrap_or(65_530))
}

/// Takes the mappings of one reservation.
///
/// # Errors
/// When so few would be left that the program might not get memory.
pub fn take() -> io::Result<()> {
    if LEFT.fetch_sub(1, Ordering::Relaxed) > 0 {
        return Ok(());
    }
    let number = |path: &str| descriptors::read_text(path).ok()?.trim().parse::<i64>().ok();
    let Some(allowed) = number("/proc/sys/vm/max_map_count") else { return Ok(()) };
    let there = descriptors::read("/proc/self/maps")?.iter().filter(|byte| **byte == b'\n').count() as i64;
    // A sixteenth is the program's.
    let left = (allowed - allowed / 16 - there) / EACH;
    LEFT.store(left, Ordering::Relaxed);
    if left > 0 {
        return Ok(());
    }
    let text = format!(
        "the process has {there} mappings, and the system allows {allowed}: map fewer, larger regions, or raise \
         vm.max_map_count"
    );
    Err(io::Error::new(io::ErrorKind::OutOfMemory, text))
}
