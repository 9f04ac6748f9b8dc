//! Regions, and the segments in them.

use crate::error::{Done, call, none};
use caliburn_c_common::{Misuse, handle::Table, text};
use caliburn_pm::{Region, RegionInfo, RegionOptions, SegmentInfo, SegmentKind, SegmentOptions, Survives};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// What is written survives the death of the process.
pub const PM_PROCESS: c_int = 0;
/// And a crash of the system, with a warm start.
pub const PM_OS: c_int = 1;
/// And a power cut.
pub const PM_POWER: c_int = 2;

/// Room for a segment's name, of 64 bytes at most, and a zero.
pub const PM_NAME: usize = 72;

/// An open region.
pub struct pm_region;

static REGIONS: Table<Arc<Region>> = Table::new(1);

/// The region of a handle.
pub fn open(handle: *const pm_region) -> Done<&'static Arc<Region>> {
    REGIONS.get(handle).ok_or_else(|| none("region"))
}

/// How a region is made. Zeros mean the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pm_region_options {
    /// Bytes of it; 0: all of a device, or of a file that is there.
    pub bytes: u64,
    /// Bytes in which memory is given to segments, a power of two, 64 KiB to 1 GiB; 0: 2 MiB, 64 KiB in small
    /// regions, and at least what the memory can be mapped by.
    pub unit: u32,
    /// Not 0: makes it where there is one already, which is lost.
    pub force: c_int,
}

/// Makes a region on a device, or in a file, which is made if it is missing, and stays if this fails. Options may be
/// null; size is sizeof *options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_create(
    path: *const c_char,
    options: *const pm_region_options,
    size: usize,
    region: *mut *mut pm_region,
) -> c_int {
    call(|| {
        text::check("region", region)?;
        let options =
            take("options", options, size)?.map_or_else(RegionOptions::default, |options| RegionOptions {
                len: Some(options.bytes).filter(|bytes| *bytes > 0),
                unit: Some(options.unit).filter(|unit| *unit > 0),
                force: options.force != 0,
            });
        let made = Arc::new(Region::create(text::path("path", path)?, &options)?);
        Ok(text::put("region", region, REGIONS.insert(made))?)
    })
}

/// Opens a region; write: whether it, or anything in it, is to be changed.
#[unsafe(no_mangle)]
pub extern "C" fn pm_open(path: *const c_char, write: c_int, region: *mut *mut pm_region) -> c_int {
    call(|| {
        text::check("region", region)?;
        let path = text::path("path", path)?;
        let opened = if write != 0 { Region::open(path)? } else { Region::open_to_read(path)? };
        Ok(text::put("region", region, REGIONS.insert(Arc::new(opened)))?)
    })
}

/// Closes a region. What was attached in it stays so.
#[unsafe(no_mangle)]
pub extern "C" fn pm_close(region: *mut pm_region) -> c_int {
    call(|| REGIONS.take(region).map(drop).ok_or_else(|| none("region")))
}

/// Makes a region larger, while it is used.
#[unsafe(no_mangle)]
pub extern "C" fn pm_grow(region: *mut pm_region, bytes: u64) -> c_int {
    call(|| Ok(open(region)?.grow(bytes)?))
}

/// Makes a region smaller, while it is used, down to where its segments end: EBUSY otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn pm_shrink(region: *mut pm_region, bytes: u64) -> c_int {
    call(|| Ok(open(region)?.shrink(bytes)?))
}

/// What a region is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pm_region_info {
    /// Bytes of it.
    pub bytes: u64,
    /// Bytes of the medium, to which it can grow.
    pub medium_bytes: u64,
    /// Bytes that are nobody's.
    pub free_bytes: u64,
    /// Bytes in which memory is given to segments.
    pub unit: u32,
    /// What a write that has returned survives: PM_PROCESS, PM_OS, PM_POWER.
    pub written_survives: c_int,
    /// What a flush that has returned survives.
    pub flushed_survives: c_int,
    /// Not 0: that copy of the base segment does not count. The next change makes it again.
    pub damaged: [c_int; 2],
    /// Identifies it.
    pub id: [u8; 16],
    /// 0.
    pub reserved: u32,
}

fn number(survives: Survives) -> c_int {
    match survives {
        Survives::Process => PM_PROCESS,
        Survives::Os => PM_OS,
        Survives::Power => PM_POWER,
    }
}

/// A structure of options: plain numbers, of which zeros mean the defaults.
///
/// # Safety
/// Every bit pattern is a value of it.
unsafe trait Options: Copy {}

// SAFETY: integers.
unsafe impl Options for pm_region_options {}
// SAFETY: integers.
unsafe impl Options for pm_segment_options {}

/// Copies as much of a structure as the caller's version of it has, and zeros for what this one does not know
/// (convention 6).
fn give<T: Copy>(what: &str, target: *mut T, size: usize, value: &T) -> Done {
    text::check(what, target)?;
    let len = size.min(size_of::<T>());
    // SAFETY: the caller has so many bytes there (convention 2), and they are not ours.
    unsafe {
        target.cast::<u8>().copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), len);
        target.cast::<u8>().add(len).write_bytes(0, size - len);
    }
    Ok(())
}

fn unknown(what: &str) -> Misuse {
    Misuse(format!("{what}: something is asked for that this library does not know"))
}

// No byte of them is padding: what comes later stands behind.
const _: () = assert!(size_of::<pm_region_options>() == 16 && size_of::<pm_segment_options>() == 24);
const _: () = assert!(size_of::<pm_region_info>() == 64 && size_of::<pm_segment_info>() == 216);

/// The caller's version of options, if there are any: what it does not have is zeros, and what this one does not
/// know must be.
fn take<T: Options>(what: &str, options: *const T, size: usize) -> Done<Option<T>> {
    if options.is_null() {
        return Ok(None);
    }
    let bytes = text::bytes(what, options.cast(), size)?;
    let known = bytes.len().min(size_of::<T>());
    if bytes[known..].iter().any(|byte| *byte != 0) {
        return Err(unknown(what).into());
    }
    let mut taken = MaybeUninit::<T>::zeroed();
    // SAFETY: so many bytes are in both; zeros, and whatever the caller has there, are a value of it.
    Ok(Some(unsafe {
        taken.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), known);
        taken.assume_init()
    }))
}

/// Says what a region is; size is sizeof *info.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_region_about(
    region: *const pm_region,
    info: *mut pm_region_info,
    size: usize,
) -> c_int {
    call(|| {
        let RegionInfo { id, len, medium_len, unit, free, kind, damage, .. } = open(region)?.info()?;
        let about = pm_region_info {
            bytes: len,
            medium_bytes: medium_len,
            free_bytes: free,
            unit,
            written_survives: number(kind.survives()),
            flushed_survives: number(kind.survives_flushed()),
            damaged: damage.map(|why| c_int::from(why.is_some())),
            id,
            reserved: 0,
        };
        give("info", info, size, &about)
    })
}

/// What is known of a segment without attaching it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pm_segment_info {
    /// Its name.
    pub name: [c_char; PM_NAME],
    /// By whom it was last written.
    pub writer: [c_char; PM_NAME],
    /// Bytes that its users see.
    pub bytes: u64,
    /// Bytes of the region that it takes.
    pub taken_bytes: u64,
    /// Where it is mapped, if that was asked for; else 0.
    pub address: u64,
    /// When it was made: nanoseconds since 1970.
    pub created_ns: u64,
    /// When it was last attached for writing, or given up after that; 0 if never.
    pub written_ns: u64,
    /// Bytes of a block; 0 for a segment of bytes.
    pub block_bytes: u32,
    /// Who may read and write it, as for chmod(2).
    pub mode: u32,
    /// Whose it is.
    pub uid: u32,
    /// And of which group.
    pub gid: u32,
    /// Not 0: nobody may write to it.
    pub is_protected: c_int,
    /// Not 0: it is attached for writing, or was when its user died.
    pub writing: c_int,
    /// Not 0: the system was started since it was last written.
    pub from_before: c_int,
    /// 0.
    pub reserved: u32,
}

fn string(text: &str) -> [c_char; PM_NAME] {
    let mut string = [0; PM_NAME];
    // The last one stays zero.
    string[..PM_NAME - 1].iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from as c_char);
    string
}

fn about(info: &SegmentInfo) -> pm_segment_info {
    pm_segment_info {
        name: string(&info.name),
        writer: string(&info.writer),
        bytes: info.len,
        taken_bytes: info.taken,
        address: info.address.unwrap_or(0),
        created_ns: info.created,
        written_ns: info.written,
        block_bytes: match info.kind {
            SegmentKind::Blocks { block_bytes } => block_bytes,
            _ => 0,
        },
        mode: info.mode,
        uid: info.uid,
        gid: info.gid,
        is_protected: info.protected.into(),
        writing: info.writing.into(),
        from_before: info.from_before.into(),
        reserved: 0,
    }
}

/// Called with a segment, which is valid until it returns and has so many bytes, and with what the caller passed
/// along.
pub type pm_segment_fn = Option<
    unsafe extern "C" fn(context: *mut std::ffi::c_void, segment: *const pm_segment_info, size: usize),
>;

/// Calls a function with each segment of a region, as they were at one moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_segments(
    region: *const pm_region,
    each: pm_segment_fn,
    context: *mut std::ffi::c_void,
) -> c_int {
    call(|| {
        let each = each.ok_or_else(|| Misuse("each is a null function".into()))?;
        for segment in open(region)?.segments()? {
            // SAFETY: the function is the caller's word (convention 2).
            unsafe { each(context, &about(&segment), size_of::<pm_segment_info>()) };
        }
        Ok(())
    })
}

/// Says what is known of a segment; size is sizeof *info.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_segment_about(
    region: *const pm_region,
    name: *const c_char,
    info: *mut pm_segment_info,
    size: usize,
) -> c_int {
    call(|| give("info", info, size, &about(&open(region)?.segment(text::name("name", name)?)?)))
}

/// How a segment is made. Zeros mean the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pm_segment_options {
    /// Of blocks of so many bytes, a power of two, 512 to 65536, with checksums; 0: of bytes, to be copied or
    /// mapped.
    pub block_bytes: u32,
    /// Who may read and write it, as for chmod(2); 0: its owner.
    pub mode: u32,
    /// Writers of blocks that go along side by side; 0: 8.
    pub lanes: u32,
    /// 0.
    pub reserved: u32,
    /// Where it is mapped each time, so that pointers in it hold; 0: anywhere.
    pub address: u64,
}

/// Makes a segment of so many bytes, all zeros. Options may be null; size is sizeof *options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pm_create_segment(
    region: *mut pm_region,
    name: *const c_char,
    bytes: u64,
    options: *const pm_segment_options,
    size: usize,
) -> c_int {
    call(|| {
        let default = SegmentOptions::default();
        let options = take("options", options, size)?;
        if options.is_some_and(|options| options.reserved != 0) {
            return Err(unknown("options").into());
        }
        let options = options.map_or(default.clone(), |options| SegmentOptions {
            kind: match options.block_bytes {
                0 => SegmentKind::Plain,
                block_bytes => SegmentKind::Blocks { block_bytes },
            },
            mode: if options.mode == 0 { default.mode } else { options.mode },
            address: Some(options.address).filter(|address| *address > 0),
            lanes: if options.lanes == 0 { default.lanes } else { options.lanes },
        });
        Ok(open(region)?.create_segment(text::name("name", name)?, bytes, &options, |_| {})?)
    })
}

/// Destroys a segment that nobody has attached: EBUSY otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn pm_destroy(region: *mut pm_region, name: *const c_char) -> c_int {
    call(|| Ok(open(region)?.destroy(text::name("name", name)?)?))
}

/// Gives a segment of bytes that nobody has attached another length; what comes is zeros.
#[unsafe(no_mangle)]
pub extern "C" fn pm_resize(region: *mut pm_region, name: *const c_char, bytes: u64) -> c_int {
    call(|| Ok(open(region)?.resize(text::name("name", name)?, bytes, |_| {})?))
}

/// Forbids everybody to write to a segment, or allows it again.
#[unsafe(no_mangle)]
pub extern "C" fn pm_protect(region: *mut pm_region, name: *const c_char, is_protected: c_int) -> c_int {
    call(|| Ok(open(region)?.protect(text::name("name", name)?, is_protected != 0)?))
}

/// Changes who may read and write a segment, and whose it is; -1 leaves what is there.
#[unsafe(no_mangle)]
pub extern "C" fn pm_own(
    region: *mut pm_region,
    name: *const c_char,
    mode: i64,
    uid: i64,
    gid: i64,
) -> c_int {
    call(|| {
        let number = |what: &str, value: i64| match value {
            -1 => Ok(None),
            _ => u32::try_from(value).map(Some).map_err(|_| Misuse(format!("{what} {value} cannot be"))),
        };
        let (mode, uid, gid) = (number("mode", mode)?, number("uid", uid)?, number("gid", gid)?);
        Ok(open(region)?.own(text::name("name", name)?, mode, uid, gid)?)
    })
}
