//! Persistent memory: what memory mapped from a medium survives, and how stores reach it.
//!
//! A store is in the processor's cache first. It is in memory when its line was written back and a fence
//! came after: `clwb` and `sfence` on x86-64, `dc cvap` and `dsb` on aarch64, or what older processors have
//! in their place. Where the caches themselves survive (`persistence_domain` is `cpu_cache`) the fence suffices.
//!
//! The kernel says whether a mapping is of such memory, with all that it takes to find the bytes again already
//! durable (`MAP_SYNC`), and which bus the device is on: one that it made of the parameter `memmap=` is
//! ordinary memory, which survives a warm start at most.

use crate::descriptors;
use crate::page_size;
use crate::simulated;
use crate::span;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

/// What memory survives, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Survives {
    /// The death of the process: the page cache.
    Process,
    /// A warm start of the machine.
    Os,
    /// A power cut.
    Power,
}

/// The memory that a medium maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// What it survives.
    pub survives: Survives,
    /// Whether it is to be mapped with `MAP_SYNC`.
    pub sync: bool,
    /// How stores reach it.
    pub flush: Flush,
}

impl Memory {
    /// The page cache: stores are where they must be at once.
    pub const CACHE: Memory = Memory { survives: Survives::Process, sync: false, flush: Flush::Nothing };

    /// Ordinary memory of which somebody says that it survives more.
    pub fn assumed(survives: Survives) -> Memory {
        Memory::CACHE.surviving(survives)
    }

    /// The same memory, of which somebody says that it survives this.
    pub fn surviving(self, survives: Survives) -> Memory {
        Memory { survives, flush: self.flush.max(Flush::of_this_processor()), ..self }
    }

    /// Asks the kernel about a file.
    pub fn of(file: &File) -> Memory {
        let Ok(metadata) = file.metadata() else { return Memory::CACHE };
        if !maps_synchronously(file) {
            return Memory::CACHE;
        }
        let device = metadata.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        Memory { sync: true, ..Memory::of_device(Path::new(&format!("/sys/dev/block/{major}:{minor}"))) }
    }

    /// Asks it about a device, by its folder below `/sys/dev`.
    pub(crate) fn of_device(device: &Path) -> Memory {
        let bus = bus(device, 0);
        let flush = if bus.caches { Flush::Fence } else { Flush::of_this_processor() };
        // Of an unknown bus, too: somebody may know what the device survives.
        Memory { survives: bus.survives, sync: false, flush }
    }

    /// The weaker of two: what both survive, reached in a way that is right for both.
    pub fn and(self, other: Memory) -> Memory {
        Memory {
            survives: self.survives.min(other.survives),
            sync: self.sync && other.sync,
            flush: self.flush.max(other.flush),
        }
    }
}

fn maps_synchronously(file: &File) -> bool {
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // SAFETY: a new mapping where the system likes, which nobody touches.
    let mapped = unsafe { mmap(ptr::null_mut(), page_size(), ProtFlags::READ, flags, file, 0) };
    // SAFETY: the mapping is the one just made.
    mapped.map(|base| unsafe { munmap(base, page_size()) }).is_ok()
}

/// What is known of a device.
struct Bus {
    survives: Survives,
    /// The processor's caches survive with it.
    caches: bool,
}

/// Looks for the bus of persistent memory that a device is on, or those below it are.
fn bus(device: &Path, depth: usize) -> Bus {
    let unknown = Bus { survives: Survives::Process, caches: false };
    let Ok(device) = fs::canonicalize(device) else { return unknown };
    let slaves: Vec<PathBuf> = descriptors::list(device.join("slaves"))
        .into_iter()
        .flatten()
        .filter_map(|e| Some(e.ok()?.path()))
        .collect();
    if !slaves.is_empty() && depth < 8 {
        let below = slaves.iter().map(|slave| bus(slave, depth + 1));
        return below
            .reduce(|a, b| Bus { survives: a.survives.min(b.survives), caches: a.caches && b.caches })
            .unwrap_or(unknown);
    }
    let named = |prefix: &str| {
        device.ancestors().find(|a| a.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
    };
    let read = |folder: Option<&Path>, name: &str| {
        folder.and_then(|f| descriptors::read_text(f.join(name)).ok()).unwrap_or_default().trim().to_owned()
    };
    let survives = match read(named("ndbus"), "provider").as_str() {
        "" => Survives::Process,
        _ if read(named("region"), "devtype") == "nd_volatile" => Survives::Process,
        // Ordinary memory, reserved by `memmap=` or by the firmware.
        "e820" => Survives::Os,
        _ => Survives::Power,
    };
    Bus { survives, caches: read(named("region"), "persistence_domain") == "cpu_cache" }
}

/// How stores reach memory. The later ones are right wherever the earlier ones are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flush {
    /// They are there at once.
    Nothing,
    /// By a fence.
    Fence,
    /// Lines are written back with the processor's best instruction, then a fence.
    Lines(WriteBack),
}

/// Instructions that write a cache line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteBack {
    /// x86-64: keeps the line in the cache.
    Clwb,
    /// x86-64: drops it.
    ClflushOpt,
    /// x86-64, always there: drops it, one at a time.
    Clflush,
    /// aarch64: to the point of persistence.
    DcCvap,
    /// aarch64, always there: to the point of coherency.
    DcCvac,
}

impl Flush {
    /// Chosen by asking the processor, once.
    pub fn of_this_processor() -> Flush {
        static CHOSEN: OnceLock<WriteBack> = OnceLock::new();
        Flush::Lines(*CHOSEN.get_or_init(choose))
    }

    /// Begins to write back the lines of `len` bytes; the next [`Flush::fence`] of this thread completes it.
    ///
    /// # Safety
    /// The bytes must be mapped.
    #[inline]
    pub unsafe fn lines(self, at: *const u8, len: usize) {
        if let Flush::Lines(instruction) = self {
            let line = line_bytes();
            let mut line_at = at.map_addr(|at| at & !(line - 1));
            let end = at.wrapping_add(len);
            while line_at < end {
                // SAFETY: the line holds a mapped byte, and lines do not cross pages.
                unsafe { write_back(instruction, line_at) };
                line_at = line_at.wrapping_add(line);
            }
        }
        if self != Flush::Nothing {
            simulated::flushed(at, len);
        }
    }

    /// Copies, and begins to write back what it has copied; the next [`Flush::fence`] of this thread completes it.
    /// Past the caches where the processor can: for what will hardly be read soon.
    ///
    /// # Safety
    /// `len` bytes must be readable at `source` and writable at `target`; other threads may read there.
    #[inline]
    pub unsafe fn copy(self, source: *const u8, target: *mut u8, len: usize) {
        #[cfg(target_arch = "x86_64")]
        if matches!(self, Flush::Lines(_)) {
            let head = target.align_offset(STREAM).min(len);
            let lines = (len - head) / STREAM * STREAM;
            // SAFETY: three parts of what the caller vouches for; the one between is whole aligned lines.
            unsafe {
                self.copy_in_cache(source, target, head);
                stream(source.add(head), target.add(head), lines);
                simulated::stored(target.add(head), lines);
                simulated::flushed(target.add(head), lines);
                let done = head + lines;
                self.copy_in_cache(source.add(done), target.add(done), len - done);
            }
            return;
        }
        // SAFETY: passed on from the caller.
        unsafe { self.copy_in_cache(source, target, len) }
    }

    /// # Safety
    /// As for [`Flush::copy`].
    #[inline]
    unsafe fn copy_in_cache(self, source: *const u8, target: *mut u8, len: usize) {
        if len > 0 {
            // SAFETY: passed on from the caller.
            unsafe { span::copy(source, target, len) };
            simulated::stored(target, len);
            // SAFETY: likewise.
            unsafe { self.lines(target, len) };
        }
    }

    /// Stores a word, and begins to write it back. It is never seen in part; no crash leaves a part of it.
    ///
    /// # Safety
    /// The word must be writable and aligned; other threads may read it.
    #[inline]
    pub unsafe fn word(self, target: *mut u64, value: u64) {
        #[cfg(target_arch = "x86_64")]
        if matches!(self, Flush::Lines(_)) {
            // SAFETY: an aligned word that the caller vouches for.
            unsafe {
                std::arch::asm!("movnti qword ptr [{}], {}", in(reg) target, in(reg) value,
                    options(nostack, preserves_flags));
            }
            simulated::stored(target.cast(), 8);
            simulated::flushed(target.cast(), 8);
            return;
        }
        // SAFETY: as above.
        unsafe { target.write_volatile(value) };
        simulated::stored(target.cast(), 8);
        // SAFETY: as above.
        unsafe { self.lines(target.cast(), 8) };
    }

    /// Waits until what was begun to be written back is in memory; no store after it overtakes one before.
    #[inline]
    pub fn fence(self) {
        if self == Flush::Nothing {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has `sfence`.
        unsafe {
            std::arch::asm!("sfence", options(nostack, preserves_flags));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a barrier has no preconditions.
        unsafe {
            std::arch::asm!("dsb sy", options(nostack, preserves_flags));
        }
        simulated::fenced();
    }
}

/// Bytes of what is stored past the caches at once.
#[cfg(target_arch = "x86_64")]
const STREAM: usize = 64;

/// Copies whole lines past the caches.
///
/// # Safety
/// `len`, a multiple of [`STREAM`], must be readable at `source` and writable at `target`, which is aligned to it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn stream(source: *const u8, target: *mut u8, len: usize) {
    for at in (0..len).step_by(STREAM) {
        // SAFETY: a line within what the caller vouches for; every x86-64 processor has these instructions.
        unsafe {
            std::arch::asm!(
                "movups {0}, xmmword ptr [{4}]", "movups {1}, xmmword ptr [{4} + 16]",
                "movups {2}, xmmword ptr [{4} + 32]", "movups {3}, xmmword ptr [{4} + 48]",
                "movntps xmmword ptr [{5}], {0}", "movntps xmmword ptr [{5} + 16], {1}",
                "movntps xmmword ptr [{5} + 32], {2}", "movntps xmmword ptr [{5} + 48], {3}",
                out(xmm_reg) _, out(xmm_reg) _, out(xmm_reg) _, out(xmm_reg) _,
                in(reg) source.add(at), in(reg) target.add(at), options(nostack, preserves_flags));
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn choose() -> WriteBack {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let (clflushopt, clwb) = (1 << 23, 1 << 24);
    let features = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
    match features {
        f if f & clwb != 0 => WriteBack::Clwb,
        f if f & clflushopt != 0 => WriteBack::ClflushOpt,
        _ => WriteBack::Clflush,
    }
}

#[cfg(target_arch = "aarch64")]
fn choose() -> WriteBack {
    /// Bit of `AT_HWCAP`: the processor has `dc cvap`.
    const DCPOP: u64 = 1 << 16;
    // SAFETY: the call has no preconditions.
    let features = unsafe { libc::getauxval(libc::AT_HWCAP) };
    if features & DCPOP != 0 { WriteBack::DcCvap } else { WriteBack::DcCvac }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn write_back(instruction: WriteBack, at: *const u8) {
    // SAFETY: the processor has the instruction that was chosen; the caller vouches for the line.
    unsafe {
        match instruction {
            WriteBack::Clwb => {
                std::arch::asm!("clwb [{}]", in(reg) at, options(nostack, preserves_flags));
            }
            WriteBack::ClflushOpt => {
                std::arch::asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags));
            }
            _ => std::arch::asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags)),
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn write_back(instruction: WriteBack, at: *const u8) {
    // `dc cvap` and `dc cvac`, spelt so that every assembler knows them.
    // SAFETY: the processor has the instruction that was chosen; the caller vouches for the line.
    unsafe {
        match instruction {
            WriteBack::DcCvap => {
                std::arch::asm!("sys #3, C7, C12, #1, {}", in(reg) at, options(nostack, preserves_flags));
            }
            _ => std::arch::asm!("sys #3, C7, C10, #1, {}", in(reg) at, options(nostack, preserves_flags)),
        }
    }
}

/// Bytes of a cache line, or of the shortest where they differ.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn line_bytes() -> usize {
    64
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn line_bytes() -> usize {
    let types: u64;
    // SAFETY: the cache type register may be read by every program on Linux.
    unsafe {
        std::arch::asm!("mrs {}, ctr_el0", out(reg) types, options(nomem, nostack, preserves_flags));
    }
    // The logarithm of the number of words.
    4 << (types >> 16 & 0xF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_flushed_is_unchanged_and_every_instruction_of_this_processor_works() {
        let bytes: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        let Flush::Lines(best) = Flush::of_this_processor() else { panic!("a processor has one") };
        let all = [
            WriteBack::Clwb,
            WriteBack::ClflushOpt,
            WriteBack::Clflush,
            WriteBack::DcCvap,
            WriteBack::DcCvac,
        ];
        for instruction in all.into_iter().filter(|i| *i >= best) {
            // Those of the other architecture stand for the last of this one.
            for (from, len) in [(0, 1), (1, 63), (63, 2), (0, 1000), (999, 1), (5, 0)] {
                let flush = Flush::Lines(instruction);
                // SAFETY: the bytes are those of the vector.
                unsafe { flush.lines(bytes.as_ptr().wrapping_add(from), len) };
                flush.fence();
            }
        }
        assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }

    #[test]
    fn copies_are_right_at_every_alignment() {
        let source: Vec<u8> = (0..700u32).map(|i| (i * 7 + 1) as u8).collect();
        for flush in [Flush::Nothing, Flush::Fence, Flush::of_this_processor()] {
            for (from, to, len) in
                [(0, 0, 0), (0, 0, 64), (1, 3, 200), (5, 64, 513), (0, 63, 1), (7, 60, 600)]
            {
                let mut target = vec![0u8; 800];
                // SAFETY: within both vectors.
                unsafe { flush.copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
                flush.fence();
                assert_eq!(target[to..to + len], source[from..from + len]);
                assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0));
            }
            let mut words = [1u64, 2, 3];
            // SAFETY: aligned, and the test's own.
            unsafe { flush.word(words.as_mut_ptr().add(1), 7) };
            flush.fence();
            assert_eq!(words, [1, 7, 3]);
        }
    }

    #[test]
    fn an_ordinary_file_is_page_cache() {
        assert_eq!(Memory::of(&tempfile::tempfile().unwrap()), Memory::CACHE);
        let weaker = Memory::assumed(Survives::Power).and(Memory::assumed(Survives::Os));
        assert_eq!(weaker, Memory::assumed(Survives::Os));
        assert_eq!(weaker.and(Memory::CACHE).survives, Survives::Process);
    }
}
