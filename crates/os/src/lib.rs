//! What Caliburn asks of the operating system, and nothing else: the only crate that calls the kernel
//! or touches raw mapped memory. It knows no transactions.
//!
//! | module | noun |
//! |---|---|
//! | [`medium`] | the one seam to storage: `read_at`, `write_at`, `sync`, `set_len`, and directories |
//! | [`files`] | files and devices of the running system behind that seam; a directory that is held |
//! | [`descriptors`] | which numbers they get: none of the standard streams' |
//! | [`lineage`] | whether this process has made something, or a parent from which it was forked |
//! | [`mapped`] | memory that can only be mapped: device DAX, hugetlbfs |
//! | [`mappings`] | how many of them a process may have |
//! | [`map`] | address space: reservations, private and shared file mappings |
//! | [`private`] | pages of file mappings: which are in memory, which are copies, and making one |
//! | [`written`] | pages that were stored to, as the kernel notes |
//! | [`faults`] | stores to protected memory, caught |
//! | [`guard`] | write protection, and the message when it is met |
//! | [`rescue`] | memory of files that run out of room: detached, and the store fails |
//! | [`observed`] | a medium whose reads are told to somebody |
//! | [`duplex`] | two media that hold the same |
//! | [`overflow`] | pages that lie in a file without a name, where the system can write them |
//! | [`overlay`] | a medium with what was written laid over it, in memory |
//! | [`span`] | copies between ordinary memory and memory that other threads may be storing to |
//! | [`clock`] | stamps that order commits, without a shared cache line where the machine allows |
//! | [`summed`] | copies that are summed on their way |
//! | [`persist`] | what memory survives, and how stores reach it |
//! | [`barrier`] | the asymmetric barrier: hot side free, cold side one system call |
//! | [`memory`] | how much memory this process may use, and whether it is short |
//! | [`host`] | boot identity, random identifiers, locks with a named holder |
//! | `holder` | the text in a lock: who holds it, and where its process has that number |
//! | [`nbd_device`] | a socket as a block device |
//! | [`ordinal`] | small numbers for threads, and what they own by them |
//! | [`event`] | waiting for a counter to change |
//! | [`sync`] | locks and atomics, or those of a deterministic scheduler |
//! | [`witness`] | whether memory survived: several witnesses, and the verdict |
//! | [`simulated`] | what development builds report to a simulator |

// Words that are stored to mapped media stand there as the machine has them: formats are little-endian throughout.
#[cfg(target_endian = "big")]
compile_error!("Caliburn's formats are little-endian, and so must the machine be");

pub mod barrier;
pub mod clock;
pub mod descriptors;
pub mod duplex;
pub mod event;
pub mod faults;
pub mod files;
pub mod guard;
mod holder;
pub mod host;
mod inode;
pub mod lineage;
pub mod map;
pub mod mapped;
pub mod mappings;
pub mod medium;
pub mod memory;
mod names;
pub mod nbd_device;
pub mod observed;
pub mod ordinal;
pub mod overflow;
pub mod overlay;
pub mod persist;
pub mod private;
pub mod rescue;
pub mod simulated;
pub mod span;
pub mod summed;
pub mod sync;
pub mod witness;
pub mod written;

/// The system's page size in bytes; a power of two, never assumed.
pub fn page_size() -> usize {
    // SAFETY: `sysconf` takes an integer and has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("every system has a page size")
}
