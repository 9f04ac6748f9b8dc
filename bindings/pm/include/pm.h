// pm.h: memory that outlives the system, for programs in C and C++ (Persistent Memory for HP-UX, section 3).
//
// A region lies in memory, or a file, that a restart leaves alone; it is cut into segments: of bytes, copied or mapped, or
// of blocks with checksums, of which several are written wholly or not at all. What each medium survives: docs/pm.md.
//
//     pm_region *region; pm_blocks *disk; pm_transaction *both;
//     pm_region_options size = {.bytes = 64 << 20};
//     pm_segment_options kind = {.block_bytes = 4096};
//     if (pm_create("region", &size, sizeof size, &region)) die(pm_message());
//     pm_create_segment(region, "disk", 16 << 20, &kind, sizeof kind);
//     pm_attach_blocks(region, "disk", 1, &disk);
//     pm_begin(disk, &both);
//     pm_transaction_write(both, 7, here);
//     pm_transaction_write(both, 100, there);
//     pm_commit(both);
//
// Link with -lcaliburn_pm. Conventions, for every function here:
//
//  1. Codes. A function that returns int returns 0, or a number of errno.h; pm_message() then says what, where and what to
//     do. EINVAL: an argument that cannot be. ENOENT, EEXIST: no such segment, or one already. EBUSY: somebody uses it.
//     ENOSPC, ERANGE: too little room, or none of those bytes. EACCES, EROFS: mode and protection, or open for reading.
//     EMEDIUMTYPE, EUCLEAN, EBADMSG: not a region, a damaged one, a damaged block. Others are the system's. After any code
//     but 0 nothing was changed, unless the function says otherwise; of several blocks that are not written at once those
//     before the one that failed were. After a force that failed (EIO) what was under way may be there, and nothing more is
//     written to the region until it is opened anew. No function ends the process; functions that a program passes let no
//     exception out.
//  2. Arguments. Pointers are valid for what they point to; results go where the last argument says. Strings end with a zero
//     byte, names are UTF-8. Nothing that a program passes is kept.
//  3. Handles. What a function makes belongs to the program, which gives it back: pm_close, pm_detach, pm_detach_blocks,
//     pm_commit or pm_abort. A handle that was given back, or never was one, gives EINVAL.
//  4. Threads. Any thread may use any handle, several at a time. No thread may give a handle back while another uses it.
//  5. Processes. After fork() the child uses nothing of its parent's handles; what is attached is given up when it has
//     ended, too, or executes another program.
//  6. Versions. Functions and constants are only added; structures grow at their ends, and are passed with their size. What
//     a library does not know is zeros when it gives a structure, and must be zeros when it takes one, else EINVAL.


#ifndef PM_H
#define PM_H

#include <stddef.h>
#include <stdint.h>

// What is written survives the death of the process.
#define PM_PROCESS 0

// And a crash of the system, with a warm start.
#define PM_OS 1

// And a power cut.
#define PM_POWER 2

// Room for a segment's name, of 64 bytes at most, and a zero.
#define PM_NAME 72

// An attached segment of blocks.
typedef struct pm_blocks pm_blocks;

// An open region.
typedef struct pm_region pm_region;

// An attached segment of bytes.
typedef struct pm_segment pm_segment;

// Writes of several blocks that happen together, or not at all.
typedef struct pm_transaction pm_transaction;

// How a region is made. Zeros mean the defaults.
typedef struct pm_region_options {
    // Bytes of it; 0: all of a device, or of a file that is there.
    uint64_t bytes;
    // Bytes in which memory is given to segments, a power of two, 64 KiB to 1 GiB; 0: 2 MiB, 64 KiB in small
    // regions, and at least what the memory can be mapped by.
    uint32_t unit;
    // Not 0: makes it where there is one already, which is lost.
    int force;
} pm_region_options;

// What a region is.
typedef struct pm_region_info {
    // Bytes of it.
    uint64_t bytes;
    // Bytes of the medium, to which it can grow.
    uint64_t medium_bytes;
    // Bytes that are nobody's.
    uint64_t free_bytes;
    // Bytes in which memory is given to segments.
    uint32_t unit;
    // What a write that has returned survives: PM_PROCESS, PM_OS, PM_POWER.
    int written_survives;
    // What a flush that has returned survives.
    int flushed_survives;
    // Not 0: that copy of the base segment does not count. The next change makes it again.
    int damaged[2];
    // Identifies it.
    uint8_t id[16];
    // 0.
    uint32_t reserved;
} pm_region_info;

// What is known of a segment without attaching it.
typedef struct pm_segment_info {
    // Its name.
    char name[PM_NAME];
    // By whom it was last written.
    char writer[PM_NAME];
    // Bytes that its users see.
    uint64_t bytes;
    // Bytes of the region that it takes.
    uint64_t taken_bytes;
    // Where it is mapped, if that was asked for; else 0.
    uint64_t address;
    // When it was made: nanoseconds since 1970.
    uint64_t created_ns;
    // When it was last attached for writing, or given up after that; 0 if never.
    uint64_t written_ns;
    // Bytes of a block; 0 for a segment of bytes.
    uint32_t block_bytes;
    // Who may read and write it, as for chmod(2).
    uint32_t mode;
    // Whose it is.
    uint32_t uid;
    // And of which group.
    uint32_t gid;
    // Not 0: nobody may write to it.
    int is_protected;
    // Not 0: it is attached for writing, or was when its user died.
    int writing;
    // Not 0: the system was started since it was last written.
    int from_before;
    // 0.
    uint32_t reserved;
} pm_segment_info;

// Called with a segment, which is valid until it returns and has so many bytes, and with what the caller passed
// along.
typedef void (*pm_segment_fn)(void *context, const struct pm_segment_info *segment, size_t size);

// How a segment is made. Zeros mean the defaults.
typedef struct pm_segment_options {
    // Of blocks of so many bytes, a power of two, 512 to 65536, with checksums; 0: of bytes, to be copied or
    // mapped.
    uint32_t block_bytes;
    // Who may read and write it, as for chmod(2); 0: its owner.
    uint32_t mode;
    // Writers of blocks that go along side by side; 0: 8.
    uint32_t lanes;
    // 0.
    uint32_t reserved;
    // Where it is mapped each time, so that pointers in it hold; 0: anywhere.
    uint64_t address;
} pm_segment_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Attaches a segment of blocks, and undoes or keeps what its last writer had under way when it died: by many to be
// read, or by one to be written, EBUSY otherwise.
int pm_attach_blocks(struct pm_region *region,
                     const char *name,
                     int write,
                     struct pm_blocks **blocks);

// Gives a segment of blocks up, when the last transaction of it has ended, whatever comes back. After any code but
// 0 what was written since the last flush may be lost.
int pm_detach_blocks(struct pm_blocks *blocks);

// Bytes of a block; 0 if there is no such segment.
uint32_t pm_block_bytes(const struct pm_blocks *blocks);

// Blocks of a segment; 0 if there is no such segment.
uint64_t pm_block_count(const struct pm_blocks *blocks);

// Reads blocks, from this one on: len is a multiple of a block's bytes. Each is as some write has left it; writes
// at once are seen in all of them, or in none. EBADMSG if one is damaged; the message has its number.
int pm_read_blocks(const struct pm_blocks *blocks,
                   uint64_t block,
                   void *buffer,
                   size_t len);

// Writes blocks, from this one on, each wholly or not at all; at_once, a mebibyte at most: all of them.
int pm_write_blocks(struct pm_blocks *blocks, uint64_t block, const void *bytes, size_t len, int at_once);

// Clears so many blocks: they read as zeros, and take no place.
int pm_clear_blocks(struct pm_blocks *blocks, uint64_t block, uint64_t count);

// Makes what was written last as long as the medium does.
int pm_flush_blocks(struct pm_blocks *blocks);

// Looks at so many blocks, from this one on, and gives the numbers of those that are damaged, as many as there is
// room for. count: room in damaged before, how many were found afterwards.
int pm_scrub(const struct pm_blocks *blocks,
             uint64_t block,
             uint64_t blocks_looked_at,
             uint64_t *damaged,
             size_t *count);

// Begins a transaction, of a mebibyte of blocks at most. It sees nothing, and locks nothing, until it commits.
int pm_begin(struct pm_blocks *blocks,
             struct pm_transaction **transaction);

// Adds the write of a block to a transaction, with as many bytes as a block has; of two writes of a block the later
// one counts.
int pm_transaction_write(struct pm_transaction *transaction,
                         uint64_t block,
                         const void *bytes);

// Writes the blocks of a transaction, all of them wholly, or none; it is over then, whatever comes back. When it
// returns 0 they last as long as the medium does; after EIO it is known only when the region is opened anew whether
// they do.
int pm_commit(struct pm_transaction *transaction);

// Ends a transaction without writing anything.
int pm_abort(struct pm_transaction *transaction);

// What the calling thread's last call that failed had to say: what, where and what to do. Valid until its next one
// fails; empty before the first.
const char *pm_message(void);

// Makes a region on a device, or in a file, which is made if it is missing, and stays if this fails. Options may be
// null; size is sizeof *options.
int pm_create(const char *path,
              const struct pm_region_options *options,
              size_t size,
              struct pm_region **region);

// Opens a region; write: whether it, or anything in it, is to be changed.
int pm_open(const char *path, int write, struct pm_region **region);

// Closes a region. What was attached in it stays so.
int pm_close(struct pm_region *region);

// Makes a region larger, while it is used.
int pm_grow(struct pm_region *region, uint64_t bytes);

// Makes a region smaller, while it is used, down to where its segments end: EBUSY otherwise.
int pm_shrink(struct pm_region *region, uint64_t bytes);

// Says what a region is; size is sizeof *info.
int pm_region_about(const struct pm_region *region, struct pm_region_info *info, size_t size);

// Calls a function with each segment of a region, as they were at one moment.
int pm_segments(const struct pm_region *region, pm_segment_fn each, void *context);

// Says what is known of a segment; size is sizeof *info.
int pm_segment_about(const struct pm_region *region,
                     const char *name,
                     struct pm_segment_info *info,
                     size_t size);

// Makes a segment of so many bytes, all zeros. Options may be null; size is sizeof *options.
int pm_create_segment(struct pm_region *region,
                      const char *name,
                      uint64_t bytes,
                      const struct pm_segment_options *options,
                      size_t size);

// Destroys a segment that nobody has attached: EBUSY otherwise.
int pm_destroy(struct pm_region *region, const char *name);

// Gives a segment of bytes that nobody has attached another length; what comes is zeros.
int pm_resize(struct pm_region *region, const char *name, uint64_t bytes);

// Forbids everybody to write to a segment, or allows it again.
int pm_protect(struct pm_region *region, const char *name, int is_protected);

// Changes who may read and write a segment, and whose it is; -1 leaves what is there.
int pm_own(struct pm_region *region, const char *name, int64_t mode, int64_t uid, int64_t gid);

// Attaches a segment of bytes: by many to be read, or by one to be written, EBUSY otherwise.
int pm_attach(struct pm_region *region, const char *name, int write, struct pm_segment **segment);

// Gives a segment up. Where it was mapped is nothing any more.
int pm_detach(struct pm_segment *segment);

// Where a segment is mapped; null if there is no such segment. One that is attached to be read must not be stored
// to. What a program stores there lasts when pm_written() and pm_flush() were called.
void *pm_address(const struct pm_segment *segment);

// Bytes of a segment; 0 if there is no such segment.
uint64_t pm_length(const struct pm_segment *segment);

// Copies bytes out.
int pm_read(const struct pm_segment *segment, uint64_t at, void *buffer, size_t len);

// Copies bytes in. What was there may be seen in part if the process dies meanwhile, or others read.
int pm_write(struct pm_segment *segment, uint64_t at, const void *bytes, size_t len);

// Says that the program itself has stored so many bytes where the segment is mapped.
int pm_written(struct pm_segment *segment, uint64_t at, size_t len);

// Makes what was written last as long as the medium does.
int pm_flush(struct pm_segment *segment);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PM_H */
