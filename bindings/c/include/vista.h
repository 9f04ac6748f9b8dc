/* vista.h: Vista's calls (Lowell and Chen, section 3), upon caliburn.h: the undo policy, commits that survive what the
 * store's memory does.
 *
 *     vista_init("accounts");
 *     int64_t *balance = vista_map("balances", 1 << 20);
 *     vista_tid tid = VISTA_TID;
 *     vista_begin_transaction(&tid);
 *     vista_set_range(&tid, balance, sizeof *balance);
 *     ++*balance;
 *     vista_end_transaction(&tid);
 *
 * Functions that return int return a code of caliburn.h's, 0 if it is done; a pointer is null if it is not. Memory that
 * vista_malloc() gave stays where it is while the store is open; vista_root() finds it again in the next process. */
#ifndef VISTA_H
#define VISTA_H

#include <caliburn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef caliburn_tx vista_tid;
#define VISTA_TID CALIBURN_TX_INITIALIZER

/* One of each for the whole program, wherever this header is included. */
__attribute__((weak)) caliburn_store *vista_store;
__attribute__((weak)) caliburn_heap *vista_heap;

/* Opens the store in a directory, or makes it, and recovers it. With CALIBURN_FAULTS for tracking nothing needs to be
   declared (section 4): what a transaction stores to is found by page faults, and one at a time is open. */
static inline int vista_init_tracking(const char *path, int tracking)
{
    caliburn_options *options = caliburn_options_new();
    caliburn_options_set(options, CALIBURN_CREATE, 1);
    caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, CALIBURN_UNDO);
    caliburn_options_set(options, CALIBURN_TRACKING, (uint64_t)tracking);
    int code = caliburn_open(path, options, &vista_store);
    caliburn_options_free(options);
    if (code != CALIBURN_OK)
        return code;
    code = caliburn_heap_open(vista_store, "vista", &vista_heap);
    if (code != CALIBURN_OK)
        caliburn_close(vista_store);
    return code;
}

/* The same; transactions declare what they are about to change. */
static inline int vista_init(const char *path)
{
    return vista_init_tracking(path, CALIBURN_DECLARED);
}

/* Maps a segment, made of zeros if there is none of that name. */
static inline void *vista_map(const char *name, uint64_t len)
{
    caliburn_segment *segment;
    caliburn_region *region = NULL;
    if (caliburn_segment_open_or_create(vista_store, name, len, &segment) != CALIBURN_OK)
        return NULL;
    caliburn_map(segment, 0, 0, &region);
    caliburn_segment_release(segment);
    return caliburn_region_address(region);
}

static inline int vista_begin_transaction(vista_tid *tid)
{
    return caliburn_heap_begin(vista_heap, tid);
}

static inline int vista_set_range(vista_tid *tid, const void *address, size_t len)
{
    return caliburn_set_range(tid, address, len);
}

static inline int vista_end_transaction(vista_tid *tid)
{
    return caliburn_commit(tid, CALIBURN_PROCESS);
}

static inline int vista_abort_transaction(vista_tid *tid)
{
    return caliburn_abort(tid);
}

/* Memory of the store, until it is freed; again free if the transaction aborts. It need not be declared. */
static inline void *vista_malloc(vista_tid *tid, size_t len)
{
    uint64_t place;
    if (caliburn_heap_alloc(tid, len, &place) != CALIBURN_OK)
        return NULL;
    void *memory = caliburn_heap_at(vista_heap, place);
    return caliburn_set_range(tid, memory, len) == CALIBURN_OK ? memory : NULL;
}

/* Frees it when the transaction commits. */
static inline int vista_free(vista_tid *tid, const void *memory)
{
    return caliburn_heap_free(tid, caliburn_heap_place(vista_heap, memory));
}

/* Names memory of vista_malloc()'s, or with null takes the name away. */
static inline int vista_set_root(vista_tid *tid, const char *name, const void *memory)
{
    uint64_t place = caliburn_heap_place(vista_heap, memory);
    return memory != NULL && place == CALIBURN_NOWHERE ? CALIBURN_INVALID : caliburn_heap_set_root(tid, name, place);
}

static inline void *vista_root(const char *name)
{
    uint64_t place;
    return caliburn_heap_root(vista_heap, name, &place) == CALIBURN_OK ? caliburn_heap_at(vista_heap, place) : NULL;
}

/* Closes the store; maps of segments stay until the process ends. */
static inline int vista_exit(void)
{
    int code = caliburn_heap_close(vista_heap);
    return code != CALIBURN_OK ? code : caliburn_close(vista_store);
}

#ifdef __cplusplus
}
#endif
#endif
