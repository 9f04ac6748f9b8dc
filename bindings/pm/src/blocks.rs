//! Segments of blocks, attached, and transactions over them.

use crate::error::{Done, call, none};
use crate::region::{self, pm_region};
use caliburn_c_common::{handle::Table, text};
use caliburn_pm::Blocks;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

/// An attached segment of blocks.
pub struct pm_blocks;
/// Writes of several blocks that happen together, or not at all.
pub struct pm_transaction;

static BLOCKS: Table<Arc<Blocks>> = Table::new(3);
static TRANSACTIONS: Table<Transaction> = Table::new(4);

struct Transaction {
    blocks: Arc<Blocks>,
    writes: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

fn attached(handle: *const pm_blocks) -> Done<&'static Arc<Blocks>> {
    BLOCKS.get(handle).ok_or_else(|| none("segment of blocks"))
}

/// Attaches a segment of blocks, and undoes or keeps what its last writer had under way when it died: by many to be
/// read, or by one to be written, EBUSY otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn pm_attach_blocks(
    region: *mut pm_region,
    name: *const c_char,
    write: c_int,
    blocks: *mut *mut pm_blocks,
) -> c_int {
    call(|| {
        text::check("blocks", blocks)?;
        let found = region::open(region)?.attach_blocks(text::name("name", name)?, write != 0)?;
        Ok(text::put("blocks", blocks, BLOCKS.insert(Arc::new(found)))?)
    })
}

/// Gives a segment of blocks up, when the last transaction of it has ended, whatever comes back. After any code but
/// 0 what was written since the last flush may be lost.
#[unsafe(no_mangle)]
pub extern "C" fn pm_detach_blocks(blocks: *mut pm_blocks) -> c_int {
    call(|| {
        let blocks = BLOCKS.take(blocks).ok_or_else(|| none("segment of blocks"))?;
        if blocks.is_writable() { Ok(blocks.flush()?) } else { Ok(()) }
    })
}

/// Bytes of a block; 0 if there is no such segment.
#[unsafe(no_mangle)]
pub extern "C" fn pm_block_bytes(blocks: *const pm_blocks) -> u32 {
    attached(blocks).map_or(0, |blocks| blocks.block_bytes() as u32)
}

/// Blocks of a segment; 0 if there is no such segment.
#[unsafe(no_mangle)]
pub extern "C" fn pm_block_count(blocks: *const pm_blocks) -> u64 {
    attached(blocks).map_or(0, |blocks| blocks.len())
}

/// Reads blocks, from this one on: len is a multiple of a block's bytes. Each is as some write has left it; writes
/// at once are seen in all of them, or in none. EBADMSG if one is damaged; the message has its number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_read_blocks(
    blocks: *const pm_blocks,
    block: u64,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: the caller has so many bytes there (convention 2), which nobody else uses meanwhile.
    call(|| Ok(attached(blocks)?.read(block, unsafe { text::buffer("buffer", buffer.cast(), len) }?)?))
}

/// Writes blocks, from this one on, each wholly or not at all; at_once, a mebibyte at most: all of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_write_blocks(
    blocks: *mut pm_blocks,
    block: u64,
    bytes: *const c_void,
    len: usize,
    at_once: c_int,
) -> c_int {
    call(|| {
        let (blocks, bytes) = (attached(blocks)?, text::bytes("bytes", bytes.cast(), len)?);
        let written =
            if at_once != 0 { blocks.write_at_once(block, bytes) } else { blocks.write(block, bytes) };
        Ok(written?)
    })
}

/// Clears so many blocks: they read as zeros, and take no place.
#[unsafe(no_mangle)]
pub extern "C" fn pm_clear_blocks(blocks: *mut pm_blocks, block: u64, count: u64) -> c_int {
    call(|| Ok(attached(blocks)?.clear(block..block.saturating_add(count))?))
}

/// Makes what was written last as long as the medium does.
#[unsafe(no_mangle)]
pub extern "C" fn pm_flush_blocks(blocks: *mut pm_blocks) -> c_int {
    call(|| Ok(attached(blocks)?.flush()?))
}

/// Looks at so many blocks, from this one on, and gives the numbers of those that are damaged, as many as there is
/// room for. count: room in damaged before, how many were found afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_scrub(
    blocks: *const pm_blocks,
    block: u64,
    blocks_looked_at: u64,
    damaged: *mut u64,
    count: *mut usize,
) -> c_int {
    call(|| {
        text::check("count", count)?;
        // SAFETY: not null, it is valid (convention 2).
        let room = unsafe { *count };
        if room > 0 {
            text::check("damaged", damaged)?;
        }
        let found = attached(blocks)?.scrub(block..block.saturating_add(blocks_looked_at))?;
        for (at, number) in found.iter().take(room).enumerate() {
            // SAFETY: there is room for so many (convention 2).
            unsafe { damaged.add(at).write(*number) };
        }
        Ok(text::put("count", count, found.len())?)
    })
}

/// Begins a transaction, of a mebibyte of blocks at most. It sees nothing, and locks nothing, until it commits.
#[unsafe(no_mangle)]
pub extern "C" fn pm_begin(blocks: *mut pm_blocks, transaction: *mut *mut pm_transaction) -> c_int {
    call(|| {
        text::check("transaction", transaction)?;
        let begun = Transaction { blocks: Arc::clone(attached(blocks)?), writes: Mutex::default() };
        Ok(text::put("transaction", transaction, TRANSACTIONS.insert(begun))?)
    })
}

/// Adds the write of a block to a transaction, with as many bytes as a block has; of two writes of a block the later
/// one counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_transaction_write(
    transaction: *mut pm_transaction,
    block: u64,
    bytes: *const c_void,
) -> c_int {
    call(|| {
        let transaction = TRANSACTIONS.get(transaction).ok_or_else(|| none("transaction"))?;
        let blocks = &transaction.blocks;
        blocks.check(block..block.saturating_add(1))?;
        let bytes = text::bytes("bytes", bytes.cast(), blocks.block_bytes())?;
        transaction.writes.lock().expect("no panic under this lock").insert(block, bytes.into());
        Ok(())
    })
}

/// Writes the blocks of a transaction, all of them wholly, or none; it is over then, whatever comes back. When it
/// returns 0 they last as long as the medium does; after EIO it is known only when the region is opened anew whether
/// they do.
#[unsafe(no_mangle)]
pub extern "C" fn pm_commit(transaction: *mut pm_transaction) -> c_int {
    call(|| {
        let ended = TRANSACTIONS.take(transaction).ok_or_else(|| none("transaction"))?;
        let writes = ended.writes.into_inner().expect("no panic under this lock");
        let mut all = ended.blocks.transaction();
        for (block, bytes) in &writes {
            all.write(*block, bytes)?;
        }
        Ok(all.commit()?)
    })
}

/// Ends a transaction without writing anything.
#[unsafe(no_mangle)]
pub extern "C" fn pm_abort(transaction: *mut pm_transaction) -> c_int {
    call(|| TRANSACTIONS.take(transaction).map(drop).ok_or_else(|| none("transaction")))
}
