//! Pages of file mappings: which of them are in memory, which are copies of this process's own, and making one.

use crate::descriptors::open_to_read;
use crate::page_size;
use rustix::mm::{Advice, madvise};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Where the kernel tells of every page of this process: eight bytes for each.
const PAGEMAP: &str = "/proc/self/pagemap";
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
/// Pages that are asked for at once.
const ASKED: usize = 8192;

/// Calls `found` with each run of pages that are not the file's any more, since they were stored to: numbers of
/// pages from `start` on. Pages that become so meanwhile may be among them.
///
/// # Errors
/// When the kernel does not tell, as where `/proc` is not mounted.
pub fn copied_pages(start: *const u8, pages: usize, found: impl FnMut(Range<usize>)) -> io::Result<()> {
    pages_with(start, pages, |entry| entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0, found)
}

/// The same of pages that this process has touched, and has mapped still: those of a file with others that lie close
/// and were in memory.
///
/// # Errors
/// As [`copied_pages`].
pub fn present_pages(start: *const u8, pages: usize, found: impl FnMut(Range<usize>)) -> io::Result<()> {
    pages_with(start, pages, |entry| entry & PRESENT != 0, found)
}

fn pages_with(
    start: *const u8,
    pages: usize,
    is_wanted: impl Fn(u64) -> bool,
    mut found: impl FnMut(Range<usize>),
) -> io::Result<()> {
    let told = |e: io::Error| io::Error::new(e.kind(), format!("{PAGEMAP}: {e}"));
    let map = open_to_read(PAGEMAP).map_err(told)?;
    let first = start.addr() / page_size();
    let mut entries = vec![0; ASKED.min(pages) * 8];
    let mut run = 0..0;
    for from in (0..pages).step_by(ASKED) {
        let count = ASKED.min(pages - from);
        let entries = &mut entries[..count * 8];
        map.read_exact_at(entries, (first + from) as u64 * 8).map_err(told)?;
        for (i, entry) in entries.chunks_exact(8).enumerate() {
            let entry = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
            if is_wanted(entry) {
                let page = from + i;
                if run.end != page {
                    if !run.is_empty() {
                        found(run);
                    }
                    run = page..page;
                }
                run.end = page + 1;
            }
        }
    }
    if !run.is_empty() {
        found(run);
    }
    Ok(())
}

/// Gives a private mapping a copy of the page at `at`. Its bytes stay what they are, for those who read them too.
///
/// # Safety
/// The page is mapped privately and can be written to.
#[inline]
pub unsafe fn own(at: *mut u8) {
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("how a byte is written without being changed is not said for this processor");
    // The kernel copies a page that is written to. What is written is what is there, in one step, so that nothing
    // changes for anybody: to the compiler, nothing happens.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the byte can be written to, and keeps its value.
    unsafe {
        std::arch::asm!("lock or byte ptr [{}], 0", in(reg) at, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "2: ldxrb {value:w}, [{at}]",
            "stxrb {failed:w}, {value:w}, [{at}]",
            "cbnz {failed:w}, 2b",
            at = in(reg) at, value = out(reg) _, failed = out(reg) _, options(nostack, preserves_flags)
        );
    }
}

/// Gives a private mapping copies of many pages, in fewer steps than one by one. Where the kernel knows no way
/// (before 5.14), it does nothing.
///
/// # Safety
/// As for [`own`], of all the pages.
pub unsafe fn own_all(at: *mut u8, len: usize) {
    // SAFETY: the caller's word; no byte changes.
    let _ = unsafe { madvise(at.cast(), len, Advice::LinuxPopulateWrite) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;
    use crate::map::Reservation;
    use crate::medium::Media;

    #[test]
    fn pages_that_were_stored_to_are_told_and_a_page_is_owned_without_a_change() {
        let (dir, page) = (tempfile::tempdir().unwrap(), page_size());
        let medium = Files.create(&dir.path().join("f")).unwrap();
        medium.set_len(20 * page as u64).unwrap();
        medium.write_at(b"old", 3 * page as u64).unwrap();
        let map = Reservation::new(20 * page, None).unwrap();
        let base = map.base().as_ptr();
        // SAFETY: the map is fresh, private, and used by this thread alone.
        unsafe { map.map_private(0, 20 * page, medium.descriptor(), 0, true).unwrap() };
        let copied = || {
            let mut all = Vec::new();
            copied_pages(base, 20, |run| all.push(run)).unwrap();
            all
        };
        // SAFETY: as above.
        unsafe {
            assert_eq!(base.add(5 * page).read_volatile(), 0);
            assert_eq!(copied(), []);
            base.add(7 * page).write_volatile(1);
            base.add(8 * page).write_volatile(1);
            own(base.add(3 * page));
            own(base.add(19 * page));
        }
        assert_eq!(copied(), [3..4, 7..9, 19..20]);
        let mut present = Vec::new();
        present_pages(base, 20, |run| present.extend(run)).unwrap();
        assert!([3, 5, 7, 8, 19].iter().all(|page| present.contains(page)), "{present:?}");
        // What is written to the file shows in the pages that are still its own.
        for at in [3, 5] {
            medium.write_at(b"new", (at * page) as u64).unwrap();
        }
        // SAFETY: as above.
        let at = |offset| unsafe { std::slice::from_raw_parts(base.add(offset), 3) };
        assert_eq!((at(3 * page), at(5 * page)), (&b"old"[..], &b"new"[..]));
    }
}
