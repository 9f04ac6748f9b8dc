// caliburn.h: recoverable memory for programs in C and C++.
//
// A program maps segments of a store and keeps its data there, in native form. Groups of stores to that memory are
// atomic, and survive the crashes that a commit names: a killed process, a crash of the system, a power cut.
//
//     caliburn_store *store; caliburn_segment *segment; caliburn_region *region;
//     caliburn_tx tx = CALIBURN_TX_INITIALIZER;
//     caliburn_options *options = caliburn_options_new();
//     caliburn_options_set(options, CALIBURN_CREATE, 1);
//     if (caliburn_open("accounts", options, &store)) die(caliburn_message());
//     caliburn_segment_open_or_create(store, "data", 1 << 20, &segment);
//     caliburn_map(segment, 0, 0, &region);
//     int64_t *balance = caliburn_region_address(region);
//     caliburn_begin(store, CALIBURN_RESTORE, &tx);
//     caliburn_set_range(&tx, balance, 2 * sizeof *balance);
//     balance[0] -= 100;
//     balance[1] += 100;
//     caliburn_commit(&tx, CALIBURN_POWER);
//
// Conventions, for every function here:
//
//  1. Codes. A function that returns int returns CALIBURN_OK, which is 0, or another code; caliburn_message() then says
//     what, where and what to do, and with CALIBURN_IO errno has the cause. After any code but 0 nothing was
//     changed, unless the function says otherwise. No function ends the process, and none lets an exception out; functions
//     that a program passes throw none, either.
//  2. Arguments. Pointers are valid for what they point to; results go where the last argument says. A null pointer, a
//     null function, a number outside its bounds give CALIBURN_INVALID. Strings end with a zero byte, names are
//     UTF-8. Nothing that a program passes is kept: it may be freed or changed when the function returns.
//  3. Handles. What a function makes belongs to the program, which gives it back to the function that its kind names:
//     caliburn_options_free, caliburn_close, caliburn_segment_release, caliburn_unmap or caliburn_leave,
//     caliburn_heap_close, caliburn_ticket_wait or caliburn_ticket_free. A handle that was given back, or never was
//     one, gives CALIBURN_INVALID.
//  4. Threads. Any thread may use any handle, several at a time. No thread may give a handle back while another uses it.
//  5. Transactions are in memory of the program's own and any number are open at a time, in any threads; one is used by
//     one thread at a time. They are not kept apart from each other: programs lock what they share. A transaction
//     whose memory goes away without commit or abort stays open until the process ends, and is undone then.
//  6. Signals. No function may be called in a signal handler. Memory of regions may be read there, and stored to.
//  7. Processes. After fork() the child uses nothing of its parent's handles; it opens stores of its own.
//  8. Versions. Functions and constants are only added; structures that may grow are passed with their size.


#ifndef CALIBURN_H
#define CALIBURN_H

#include <stddef.h>
#include <stdint.h>

// It is done.
#define CALIBURN_OK 0

// An argument cannot be: a null pointer, a handle that is none or was given back, a value outside its bounds.
#define CALIBURN_INVALID 1

// There is nothing of that name, or at that address.
#define CALIBURN_NOT_FOUND 2

// There is something of that name, or at that address, already.
#define CALIBURN_EXISTS 3

// In use: by another process, or by transactions, regions or heaps that must end first.
#define CALIBURN_BUSY 4

// An operation on a file failed; the message says which and why. `errno` holds the cause.
#define CALIBURN_IO 5

// The store has failed earlier and takes no more changes; close it, mend the cause, open it again.
#define CALIBURN_FAILED 6

// A file is not what it must be: damaged, cut off, or of something else.
#define CALIBURN_DAMAGED 7

// A file's format is of a version that this library does not know.
#define CALIBURN_VERSION 8

// There is no store in that directory.
#define CALIBURN_NOT_A_STORE 9

// The store was opened read-only.
#define CALIBURN_READ_ONLY 10

// The bytes lie in no region, or outside of a segment.
#define CALIBURN_RANGE 11

// The transaction would not fit the log, or the memory budget.
#define CALIBURN_TOO_BIG 12

// There is no memory, address space or disk space.
#define CALIBURN_NO_SPACE 13

// The store's media cannot give that failure class.
#define CALIBURN_CLASS 14

// The store's recovery policy has no such thing.
#define CALIBURN_POLICY 15

// No object is allocated there: freed already, or never from this heap.
#define CALIBURN_NOT_ALLOCATED 16

// A defect of Caliburn's, or bytes changed without being declared that the verifier found.
#define CALIBURN_PANIC 17

// The function that was told of the progress ended it.
#define CALIBURN_INTERRUPTED 18

// The store was opened by the parent process, from which this one was forked. Close it here, and open it when the
// parent has closed it.
#define CALIBURN_INHERITED 19

// No place: what removes a root.
#define CALIBURN_NOWHERE UINT64_MAX

// Creates the store if the directory holds none: 0 or 1. Default 0.
#define CALIBURN_CREATE 1

// Creates the store, and fails if one is there: 0 or 1. Default 0.
#define CALIBURN_CREATE_NEW 2

// Opens for reading; several readers may share: 0 or 1. Default 0.
#define CALIBURN_OPEN_READ_ONLY 3

// Opens a damaged store read-only and shows what precedes the damage: 0 or 1. Default 0.
#define CALIBURN_SALVAGE 4

// Recovery policy of a new store: CALIBURN_REDO (default), CALIBURN_UNDO or CALIBURN_SHADOW.
#define CALIBURN_RECOVERY_POLICY 5

// Bytes of a new store's log, a multiple of 4096. Default 64 MiB. A transaction takes half of it at most.
#define CALIBURN_LOG_BYTES 6

// Bytes of the stage, which holds commits until they are in the log. Default 32 MiB.
#define CALIBURN_STAGE_BYTES 7

// Address space kept free behind each region that reaches its segment's end, for growth. Default 64 GiB.
#define CALIBURN_RESERVE_BYTES 8

// The failure class that the memory of a store with the undo policy survives, where the system does not know.
#define CALIBURN_MEMORY_SURVIVES 9

// Refuses a store whose media cannot give this failure class. Default CALIBURN_PROCESS.
#define CALIBURN_REQUIRE 10

// Protection from stores outside of transactions: CALIBURN_GUARD_OFF (default in the library), _PAGES or _KEYS.
#define CALIBURN_GUARD 11

// Looks at every commit for bytes that were changed without being declared, which then fails with
// CALIBURN_PANIC: 0 or
// 1. Default 0. For tests: it takes as much memory again as the regions.
#define CALIBURN_VERIFY 12

// Lets nothing but declared bytes reach a segment, redo policy only: 0 or 1. Default 0.
#define CALIBURN_DECLARED_ONLY 13

// Threads that flush and truncate in the background: 0 or 1. Default 1. Without them only calls do.
#define CALIBURN_BACKGROUND 14

// Truncation begins when this share of the log is in use, 1 to 90 percent. Default 50. Can be changed later.
#define CALIBURN_TRUNCATE_PERCENT 15

// A lazy commit is forced within so many milliseconds. Default 100; UINT64_MAX: only when something else
// forces. Can be changed later.
#define CALIBURN_FLUSH_INTERVAL_MS 16

// Bytes of private copies of pages that may be kept. Default: a third of what the process may use. Can be changed
// later.
#define CALIBURN_MEMORY_BUDGET 17

// Drops superseded bytes of lazy commits: 0 or 1. Default 1. Can be changed later.
#define CALIBURN_MERGE_LAZY 18

// Who may read and write the files that are made, as for chmod: default 0600, the owner alone.
#define CALIBURN_FILE_MODE 19

// Opens for writing also a store that was copied, or restored, while it was in use, after all of it was verified as
// far as it can be: 0 or 1. Default 0.
#define CALIBURN_COPIED 20

// How changes are found: CALIBURN_DECLARED (default), CALIBURN_FAULTS or CALIBURN_SCAN.
#define CALIBURN_TRACKING 21

// When what pages held is written, with CALIBURN_SHADOW and CALIBURN_FAULTS: CALIBURN_EAGER, CALIBURN_LAZY or
// CALIBURN_ADAPTIVE (default).
#define CALIBURN_BEFORE_IMAGES 22

// What is read into memory before the program touches it: CALIBURN_ASKED (default), CALIBURN_REGIONS or
// CALIBURN_RECORDED.
#define CALIBURN_PREFETCH 23

// Bytes a second that are read ahead at most; UINT64_MAX, the default: as fast as they come. Can be changed later.
#define CALIBURN_PREFETCH_RATE 24

// Bytes of a buffer pool that shows regions in place of the system, with CALIBURN_SHADOW and CALIBURN_FAULTS; 0,
// the default: none. System calls that are given memory of a region fail with EFAULT where its page is not in a
// frame, and a forked child has no memory there.
#define CALIBURN_POOL_BYTES 25

// Bytes of a page of that pool: a power of two, from the system's page to 16 MiB. Default 64 KiB.
#define CALIBURN_POOL_PAGE_BYTES 26

// Which page leaves it for another one: CALIBURN_RANDOM (default), CALIBURN_FIFO or CALIBURN_SECOND_CHANCE.
#define CALIBURN_POOL_REPLACEMENT 27

// Whether the log may grow for a transaction that outgrows it; 0 or 1 (default). Else what would be too much is
// refused with CALIBURN_TOO_BIG. With CALIBURN_REDO.
#define CALIBURN_LARGE_TRANSACTIONS 28

// Whether a transaction may outgrow the memory budget: what it changes lies in files then; 0 (default) or 1. With
// CALIBURN_REDO. What is known to be missing is in docs/memory.md.
#define CALIBURN_OVERFLOW 29

// Says that what a killed program had stored in memory is there, where no witness can tell it: 0 or 1. Default 0.
// Only if the system did not go down since, and no other state of the file system was mounted.
#define CALIBURN_MEMORY_KEPT 30

// Any page.
#define CALIBURN_RANDOM 0

// The page that has been there for the longest time.
#define CALIBURN_FIFO 1

// The same, but what is touched while it is hidden stays.
#define CALIBURN_SECOND_CHANCE 2

// What caliburn_region_prefetch() asks for.
#define CALIBURN_ASKED 0

// All of a region when it is mapped, if there is memory for all that is mapped.
#define CALIBURN_REGIONS 1

// What the program touched when the store was open before, in that order; it is recorded again.
#define CALIBURN_RECORDED 2

// Before the page is stored to.
#define CALIBURN_EAGER 0

// As late as the memory budget lets it: with the commit, at the latest.
#define CALIBURN_LAZY 1

// Lazily as long as memory is plentiful.
#define CALIBURN_ADAPTIVE 2

// New values go to a log, and from there to the segments (RVM).
#define CALIBURN_REDO 0

// The segments are the store; old values are kept until the commit (Vista).
#define CALIBURN_UNDO 1

// The segments are the store; what pages held is on the medium before they are stored to (UMS). One transaction
// at a time is open, as large as the disk.
#define CALIBURN_SHADOW 2

// The program declares what it is about to change.
#define CALIBURN_DECLARED 0

// The program just stores while a transaction is open, the only one: the first store to each page faults, and waits
// until what the page holds is kept. System calls that store to a page which is not open fail with EFAULT, unless
// the range was declared. Transactions have neither savepoints nor branches.
#define CALIBURN_FAULTS 1

// The program just stores while a transaction is open, the only one: the kernel notes the pages, and the commit
// finds and logs the bytes that differ. With CALIBURN_REDO only; what system calls store is found, too. A page that
// was changed takes twice its memory. Transactions have neither savepoints nor branches.
#define CALIBURN_SCAN 2

// A commit survives the death of the process.
#define CALIBURN_PROCESS 0

// A commit survives a crash of the system.
#define CALIBURN_OS 1

// A commit survives a power cut.
#define CALIBURN_POWER 2

// Regions are not protected.
#define CALIBURN_GUARD_OFF 0

// By the protection of their pages: two system calls per transaction and region.
#define CALIBURN_GUARD_PAGES 1

// By memory protection keys, where the processor has them.
#define CALIBURN_GUARD_KEYS 2

// The log is read, and searched behind its end for what was lost; or the undo logs are.
#define CALIBURN_READ_LOG 0

// Segments are compared with their checksums.
#define CALIBURN_VERIFY_SEGMENTS 1

// Old values are kept, so that the transaction can be aborted.
#define CALIBURN_RESTORE 0

// No old values are kept with the redo policy: aborting leaves the memory as it is.
#define CALIBURN_NO_RESTORE 1

// The transaction changes few pages.
#define CALIBURN_FEW 0

// It changes more pages than memory should hold until it commits.
#define CALIBURN_MANY 1

// A heap of an open store.
typedef struct caliburn_heap caliburn_heap;

// How a store is created and opened: made by caliburn_options_new(), changed by caliburn_options_set().
typedef struct caliburn_options caliburn_options;

// A mapped region.
typedef struct caliburn_region caliburn_region;

// A segment of an open store.
typedef struct caliburn_segment caliburn_segment;

// An open store.
typedef struct caliburn_store caliburn_store;

// A commit that may not be durable yet.
typedef struct caliburn_ticket caliburn_ticket;

// A transaction. Its memory is the caller's, initialised with CALIBURN_TX_INITIALIZER or zeros, and stays
// where it is until the transaction ends; then another can be begun in it.
typedef struct caliburn_tx {
    // Caliburn's own.
    uint64_t opaque[32];
} caliburn_tx;

// The state of a heap.
typedef struct caliburn_heap_statistics {
    // Objects that are smaller than a span of 64 KiB.
    uint64_t objects;
    // Objects that have spans of their own.
    uint64_t large_objects;
    // Bytes of those.
    uint64_t large_bytes;
    // Bytes of spans that hold no object.
    uint64_t free_bytes;
    // Bytes of the heap.
    uint64_t bytes;
    // Share of the used spans that holds no object, 0 to 1.
    double fragmentation;
} caliburn_heap_statistics;

// Called while a store is opened or checked, at least with every mebibyte that is read, with what is done
// (CALIBURN_READ_LOG, CALIBURN_VERIFY_SEGMENTS), how many bytes of it were read, and how many are at most; and with
// what the caller passed along. Other than 0 ends it with CALIBURN_INTERRUPTED: nothing is lost.
typedef int (*caliburn_progress_fn)(void *context, int phase, uint64_t done, uint64_t total);

// An undecided transaction.
typedef struct caliburn_prepared {
    // Its global identifier.
    const void *global_id;
    // Bytes of it.
    size_t global_id_len;
    // When it was prepared, in nanoseconds since 1970.
    uint64_t time;
    // Whether an earlier process prepared it: 0 or 1.
    int recovered;
} caliburn_prepared;

// Called with an undecided transaction, valid until it returns; what is not 0 ends the walk.
typedef int (*caliburn_prepared_fn)(void *context, const struct caliburn_prepared *prepared);

// The state of a store at one moment.
typedef struct caliburn_query {
    // Transactions begun and neither committed nor aborted; prepared ones among them.
    uint64_t uncommitted;
    // Prepared transactions that are undecided.
    uint64_t prepared;
    // Bytes of the log's ring.
    uint64_t log_bytes;
    // Bytes in use.
    uint64_t log_used;
    // Bytes that are not forced yet.
    uint64_t log_unforced;
    // Pages with committed changes that their segment lacks.
    uint64_t dirty_pages;
    // Pages of which the process has a private copy.
    uint64_t private_pages;
    // Bytes per page.
    uint64_t page_bytes;
    // Bytes of private pages that may be kept.
    uint64_t memory_budget;
    // Whether the store has failed: 0 or 1.
    uint64_t failed;
    // Bytes of pages that lie in files, since a transaction has outgrown the memory budget.
    uint64_t overflow_bytes;
} caliburn_query;

// Counters since the store was opened.
typedef struct caliburn_statistics {
    // Transactions committed.
    uint64_t committed;
    // Transactions aborted.
    uint64_t aborted;
    // Ranges declared.
    uint64_t ranges;
    // Bytes declared.
    uint64_t declared_bytes;
    // Bytes declared again within a transaction.
    uint64_t duplicate_bytes;
    // Ranges joined to adjacent or overlapping ones.
    uint64_t joined_ranges;
    // Bytes of ranges handed to the log by commits.
    uint64_t committed_log_bytes;
    // Transactions merged with others into one record.
    uint64_t merged_transactions;
    // Log bytes dropped because a later lazy commit superseded them.
    uint64_t merged_bytes;
    // Records written.
    uint64_t records;
    // Bytes written to the log.
    uint64_t log_bytes;
    // Movements from the stage to the log.
    uint64_t flushes;
    // Forces of the log for commits.
    uint64_t forces;
    // Incremental truncations that wrote something.
    uint64_t truncations;
    // Epoch truncations.
    uint64_t epochs;
    // Pages written to segments.
    uint64_t pages_written;
    // Private pages given back to the system.
    uint64_t pages_dropped;
    // Times that an uncommitted transaction kept a page from being written.
    uint64_t pages_blocked;
} caliburn_statistics;

// Called with the name and length of a segment; what is not 0 ends the walk.
typedef int (*caliburn_segment_fn)(void *context, const char *name, uint64_t len);

// Something that caliburn_check() found.
typedef struct caliburn_problem {
    // The file.
    const char *path;
    // Where in it.
    uint64_t offset;
    // What is wrong.
    const char *text;
} caliburn_problem;

// Called with each problem, whose strings are valid until it returns, and with what the caller passed along.
typedef void (*caliburn_problem_fn)(void *context, const struct caliburn_problem *problem);

// A place in a transaction that it can be rolled back to. Caliburn's own.
typedef struct caliburn_savepoint_t {
    // Caliburn's own.
    uint64_t opaque[2];
} caliburn_savepoint_t;

// Called with a value that a transaction replaced: segment number, offset, and the bytes.
typedef void (*caliburn_old_fn)(void *context,
                                uint32_t segment,
                                uint64_t offset,
                                const void *bytes,
                                size_t len);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What the calling thread's last call that failed had to say: what, where and what to do. Valid until its next
// one fails; empty before the first.
const char *caliburn_message(void);

// The name of a return code, such as "CALIBURN_BUSY"; of a number that is none, "not a code of Caliburn's".
const char *caliburn_code_name(int code);

// Opens the heap of that name, which is made if there is none: segments NAME and NAME.heap. A heap is opened
// once.
int caliburn_heap_open(struct caliburn_store *store, const char *name, struct caliburn_heap **heap);

// Closes a heap, which stays in the store. CALIBURN_BUSY while transactions of it are open, or were prepared by
// this process and are undecided.
int caliburn_heap_close(struct caliburn_heap *heap);

// Begins a transaction that can allocate and free; all else that transactions can do, it can.
int caliburn_heap_begin(struct caliburn_heap *heap, struct caliburn_tx *tx);

// Allocates len bytes, aligned to 16. What they hold is unknown, and they are not declared: declare what is
// stored.
int caliburn_heap_alloc(struct caliburn_tx *tx, uint64_t len, uint64_t *place);

// Allocates len bytes at a multiple of align, a power of two up to 4096.
int caliburn_heap_alloc_aligned(struct caliburn_tx *tx, uint64_t len, uint64_t align, uint64_t *place);

// Frees an object; its memory is used again after the transaction has committed. CALIBURN_NOT_ALLOCATED if no
// object begins there.
int caliburn_heap_free(struct caliburn_tx *tx, uint64_t place);

// Makes an object len bytes long, if need be in another place, with as much of its content as fits.
int caliburn_heap_realloc(struct caliburn_tx *tx, uint64_t place, uint64_t len, uint64_t *to);

// Names an object, or with CALIBURN_NOWHERE takes the name away: when the transaction commits.
int caliburn_heap_set_root(struct caliburn_tx *tx, const char *name, uint64_t place);

// The object of that name: CALIBURN_NOT_FOUND if there is none.
int caliburn_heap_root(const struct caliburn_heap *heap, const char *name, uint64_t *place);

// Where an object is in memory, until the heap is closed; null for a place that the heap does not have.
void *caliburn_heap_at(const struct caliburn_heap *heap, uint64_t place);

// The place of an address within the heap; CALIBURN_NOWHERE for any other.
uint64_t caliburn_heap_place(const struct caliburn_heap *heap, const void *address);

// Bytes that the object at a place may use; 0 if none begins there.
uint64_t caliburn_heap_usable_len(const struct caliburn_heap *heap, uint64_t place);

// Commits an undecided transaction of the heap, with what it has allocated and freed. Decided by
// caliburn_commit_prepared() instead, what it freed stays taken until the heap is opened again.
int caliburn_heap_commit_prepared(struct caliburn_heap *heap, const void *global_id, size_t len);

// Aborts an undecided transaction of the heap: what it has allocated is free again.
int caliburn_heap_abort_prepared(struct caliburn_heap *heap, const void *global_id, size_t len);

// Verifies the heap's own data: CALIBURN_DAMAGED if it was overwritten.
int caliburn_heap_check(const struct caliburn_heap *heap);

// The state of a heap.
int caliburn_heap_statistics_get(const struct caliburn_heap *heap,
                                 struct caliburn_heap_statistics *statistics);

// Makes options with their defaults, to be freed with caliburn_options_free().
struct caliburn_options *caliburn_options_new(void);

// Sets an option, one of the constants CALIBURN_CREATE to CALIBURN_OVERFLOW.
int caliburn_options_set(struct caliburn_options *options, int option, uint64_t value);

// Sets the file or block device for a new store's log. Default: a file in the store.
int caliburn_options_set_log_path(struct caliburn_options *options, const char *path);

// Has the log written to a second file or block device as well, which is not in the store's directory: either may
// be lost, lag or lie. 0: the log has one copy again.
int caliburn_options_set_duplex_log(struct caliburn_options *options,
                                    const char *path);

// Lists a file, a block device, or a directory with all that is in it, that the store may name though it is not in
// its directory: a log, a segment on a device, an adopted file. What is not listed is not touched, since a store
// that came from elsewhere can name any file. Paths that calls are given are listed.
int caliburn_options_add_outside(struct caliburn_options *options,
                                 const char *path);

// Has a function told how far opening or checking a store is, on the thread that does so; null: none. Function and
// context are kept until the options are freed.
int caliburn_options_set_progress(struct caliburn_options *options,
                                  caliburn_progress_fn function,
                                  void *context);

// Frees options. Null is ignored.
void caliburn_options_free(struct caliburn_options *options);

// Calls a function with each undecided transaction of the store.
int caliburn_prepared_list(const struct caliburn_store *store, caliburn_prepared_fn visit, void *context);

// Commits an undecided transaction.
int caliburn_commit_prepared(struct caliburn_store *store, const void *global_id, size_t len);

// Aborts an undecided transaction.
int caliburn_abort_prepared(struct caliburn_store *store, const void *global_id, size_t len);

// The state of a store. size: of the structure, as the program was compiled.
int caliburn_query_store(const struct caliburn_store *store, struct caliburn_query *query, size_t size);

// How many uncommitted transactions have ranges in a region; -1 if there is no such region, or the
// store is the parent process's.
int64_t caliburn_region_uncommitted(const struct caliburn_region *handle);

// The counters of a store. size: of the structure, as the program was compiled.
int caliburn_statistics_get(const struct caliburn_store *store,
                            struct caliburn_statistics *statistics,
                            size_t size);

// The library's version, such as "0.1.0".
const char *caliburn_version(void);

// Maps len bytes of a segment from offset, whole pages, wherever the system likes; len 0 is the rest of the
// segment.
int caliburn_map(struct caliburn_segment *segment,
                 uint64_t offset,
                 uint64_t len,
                 struct caliburn_region **region);

// As caliburn_map(), at exactly that address, which must be free: CALIBURN_EXISTS otherwise.
int caliburn_map_at(struct caliburn_segment *segment,
                    uint64_t offset,
                    uint64_t len,
                    void *address,
                    struct caliburn_region **region);

// As caliburn_map(), in place of memory that the program has at that address, whole pages of it.
int caliburn_map_over(struct caliburn_segment *segment,
                      uint64_t offset,
                      uint64_t len,
                      void *address,
                      struct caliburn_region **region);

// Makes memory that the program has at that address a region, as it is: nothing is read from the segment. For
// stores opened with CALIBURN_DECLARED_ONLY.
int caliburn_map_unread(struct caliburn_segment *segment,
                        uint64_t offset,
                        uint64_t len,
                        void *address,
                        struct caliburn_region **region);

// Maps a whole segment at the address it had when it was first loaded, so that pointers within it stay valid
// (RVM's segment loader). CALIBURN_EXISTS if something else is there in this process.
int caliburn_load(struct caliburn_segment *segment, struct caliburn_region **region);

// The region's first byte; null if there is no such region. It stays where it is, also when the region grows.
void *caliburn_region_address(const struct caliburn_region *handle);

// Bytes mapped; 0 if there is no such region.
size_t caliburn_region_len(const struct caliburn_region *handle);

// Where the region begins in its segment; 0 if there is no such region.
uint64_t caliburn_region_offset(const struct caliburn_region *handle);

// Extends the mapping over a segment that has grown, in place, to len bytes.
int caliburn_region_grow(struct caliburn_region *handle, size_t len);

// Says that len bytes from offset will be touched soon: they are read into memory in the background, until memory
// is short. A hint.
int caliburn_region_prefetch(const struct caliburn_region *handle,
                             size_t offset,
                             size_t len);

// Says whether len bytes from offset are read from the first to the last, once, from now on: 1, or 0 when that has
// ended. A hint.
int caliburn_region_sequential(const struct caliburn_region *handle,
                               size_t offset,
                               size_t len,
                               int sequential);

// Writes a region's committed changes to its segment and unmaps it. CALIBURN_BUSY while uncommitted
// transactions have ranges in it; the region is as it was then.
int caliburn_unmap(struct caliburn_region *handle);

// As caliburn_unmap(), and leaves the memory to the caller, as it is. Redo policy only: with the other one the
// memory is the segment.
int caliburn_leave(struct caliburn_region *handle);

// Creates a segment of len bytes of zeros, rounded up to 64 KiB, in a file of the store. Names are letters,
// digits, '.', '_' and '-'.
int caliburn_segment_create(struct caliburn_store *store,
                            const char *name,
                            uint64_t len,
                            struct caliburn_segment **segment);

// Creates a segment on a given file or block device, whose content is lost.
int caliburn_segment_create_at(struct caliburn_store *store,
                               const char *name,
                               uint64_t len,
                               const char *path,
                               struct caliburn_segment **segment);

// The segment of that name: CALIBURN_NOT_FOUND if there is none.
int caliburn_segment_open(struct caliburn_store *store, const char *name, struct caliburn_segment **segment);

// The segment of that name, made with len bytes if there is none.
int caliburn_segment_open_or_create(struct caliburn_store *store,
                                    const char *name,
                                    uint64_t len,
                                    struct caliburn_segment **segment);

// Takes over a file or block device that is nothing but data, as it is: its whole sectors are the segment.
// Not with the undo policy. The store should be opened with CALIBURN_DECLARED_ONLY if other programs rely on
// what is not declared.
int caliburn_segment_adopt(struct caliburn_store *store, const char *path, struct caliburn_segment **segment);

// Bytes of data; 0 if there is no such segment.
uint64_t caliburn_segment_len(const struct caliburn_segment *handle);

// Copies the segment's name, size bytes at most with its zero; returns its length without that.
size_t caliburn_segment_name(const struct caliburn_segment *handle, char *name, size_t size);

// Makes the segment at least len bytes long, durably, whatever is mapped of it; the new bytes are zero.
int caliburn_segment_grow(struct caliburn_segment *handle, uint64_t len);

// Gives a handle back; the segment stays. Null is ignored.
void caliburn_segment_release(struct caliburn_segment *handle);

// Calls a function with each segment of the store.
int caliburn_segments(const struct caliburn_store *store, caliburn_segment_fn visit, void *context);

// Opens the store in directory path, or creates it as the options say, and recovers it. Options may be null,
// and may be freed afterwards. One process at a time has a store open for writing: CALIBURN_BUSY otherwise.
int caliburn_open(const char *path, const struct caliburn_options *options, struct caliburn_store **store);

// Closes a store: makes every commit durable and gives the directory up. Regions stay mapped, and are to be
// unmapped; no transaction can be begun any more. What was prepared and not decided is undecided when the store is
// opened again. After CALIBURN_BUSY, with transactions, heaps or tickets still there, the store is as it was; after
// any other code it is closed, and the next opening recovers it. In a process that was forked from the one that has
// opened the store, the handle is given back, and nothing else is done.
int caliburn_close(struct caliburn_store *store);

// Makes every commit so far durable.
int caliburn_flush(struct caliburn_store *store);

// Brings every committed change so far to its segment, durably, and empties the log but for what prepared
// transactions need.
int caliburn_truncate(struct caliburn_store *store);

// Does what the background threads would, in a store opened without them: forces lazy commits that are due, and
// truncates as needed.
int caliburn_tend(struct caliburn_store *store);

// Changes one of the options that can be changed later: CALIBURN_TRUNCATE_PERCENT to CALIBURN_MERGE_LAZY.
int caliburn_tune(struct caliburn_store *store, int option, uint64_t value);

// The recovery policy, CALIBURN_REDO, CALIBURN_UNDO or CALIBURN_SHADOW; -1 if there is no such store.
int caliburn_policy(const struct caliburn_store *store);

// The most that a commit can survive: CALIBURN_PROCESS, _OS or _POWER; -1 if there is no such store.
int caliburn_reach(const struct caliburn_store *store);

// Verifies a store that nobody has open for writing: every checksum, every record. CALIBURN_OK if it is sound,
// CALIBURN_DAMAGED if not, and then each problem is passed to the function, which may be null.
int caliburn_check(const char *path,
                   caliburn_problem_fn found,
                   void *context);

// caliburn_check() of a store that is to be opened with these options, which may be null: with what they list
// outside of the store's directory.
int caliburn_check_with(const char *path,
                        const struct caliburn_options *options,
                        caliburn_problem_fn found,
                        void *context);

// Says beforehand how much an open transaction will change: CALIBURN_FEW or CALIBURN_MANY. It decides when what
// pages held is written, with CALIBURN_SHADOW and CALIBURN_FAULTS, unless that is CALIBURN_EAGER; else it changes
// nothing.
int caliburn_will_change(struct caliburn_tx *tx,
                         int extent);

// Begins a transaction: mode CALIBURN_RESTORE or CALIBURN_NO_RESTORE. Waits while private pages exceed the
// memory budget; with CALIBURN_SHADOW or CALIBURN_FAULTS while another one is open, CALIBURN_BUSY if the calling
// thread has begun that.
int caliburn_begin(struct caliburn_store *store,
                   int mode,
                   struct caliburn_tx *tx);

// Declares that len bytes at an address, within one region of the store, are about to be changed. To be called
// before they are. After an error nothing is declared, and the transaction goes on.
int caliburn_set_range(struct caliburn_tx *tx,
                       const void *address,
                       size_t len);

// Declares len bytes at an address and copies bytes there. The source may overlap them.
int caliburn_write(struct caliburn_tx *tx, void *address, const void *source, size_t len);

// Commits in a failure class: when this returns, the changes survive what CALIBURN_PROCESS, _OS or _POWER
// names. The transaction has ended whatever the code is, but after CALIBURN_INVALID: for the class, for open
// branches, for a branch.
int caliburn_commit(struct caliburn_tx *tx, int class_);

// Aborts: old values come back, with CALIBURN_RESTORE. With CALIBURN_NO_RESTORE the memory stays as it is,
// which only a store opened with CALIBURN_DECLARED_ONLY allows: in another CALIBURN_INVALID says so and the
// transaction goes on.
int caliburn_abort(struct caliburn_tx *tx);

// Marks a place that the transaction can be rolled back to: any number of them, at any depth. For transactions
// with CALIBURN_RESTORE, not of heaps.
int caliburn_savepoint(struct caliburn_tx *tx,
                       struct caliburn_savepoint_t *savepoint);

// Undoes what was changed since a savepoint of the transaction, which stays; those that came after it are gone.
int caliburn_rollback_to(struct caliburn_tx *tx,
                         const struct caliburn_savepoint_t *savepoint);

// Forgets a savepoint of the transaction, and those that came after it; what was changed since stays.
int caliburn_release(struct caliburn_tx *tx, const struct caliburn_savepoint_t *savepoint);

// Begins a branch in the caller's memory: a part of the transaction in which another thread can declare and
// store. caliburn_adopt() makes what it has changed the transaction's, caliburn_abort() undoes it. For
// transactions with CALIBURN_RESTORE, not of heaps. While it is open, the two must not declare the same bytes,
// but that the branch may change what was declared before it began.
int caliburn_branch(struct caliburn_tx *tx,
                    struct caliburn_tx *branch);

// Makes what a branch of the transaction has declared and changed the transaction's own, and ends the branch.
// After an error the branch has ended and is undone, but after CALIBURN_INVALID.
int caliburn_adopt(struct caliburn_tx *tx, struct caliburn_tx *branch);

// Prepares: the transaction is durable and undecided from now on, whatever happens, until
// caliburn_commit_prepared() or caliburn_abort_prepared() with the same identifier of 1 to 1024 bytes. For
// transactions with CALIBURN_RESTORE; one of a heap is decided by caliburn_heap_commit_prepared() or
// caliburn_heap_abort_prepared().
int caliburn_prepare(struct caliburn_tx *tx, const void *global_id, size_t len);

// Commits lazily, and gives a ticket that tells when the commit is durable.
int caliburn_commit_async(struct caliburn_tx *tx, struct caliburn_ticket **ticket);

// Whether a ticket's commit is durable: 1 or 0; -1 if there is no such ticket.
int caliburn_ticket_is_durable(const struct caliburn_ticket *ticket);

// Waits until a ticket's commit is durable, and gives the ticket back.
int caliburn_ticket_wait(struct caliburn_ticket *ticket);

// Gives a ticket back without waiting. Null is ignored.
void caliburn_ticket_free(struct caliburn_ticket *ticket);

// Commits, and passes the values that the transaction replaced to a function, each byte once. For transactions
// with CALIBURN_RESTORE, not of heaps.
int caliburn_commit_returning_old(struct caliburn_tx *tx,
                                  int class_,
                                  caliburn_old_fn visit,
                                  void *context);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CALIBURN_H */

// What a caliburn_tx is before the first transaction in it.
#define CALIBURN_TX_INITIALIZER {{0}}
