/* rms.h: the recoverable memory service (McNamee, Table 5.1), and mmap_shadow (section 5.2.2), upon caliburn.h.
 *
 *     rms_options(CALIBURN_SHADOW, CALIBURN_POWER);
 *     struct graph *graph = rms_attach("graph");
 *     rms_begin_transaction("graph");
 *     graph->parts = 7;                     nothing is declared: the first store to a page is noticed
 *     if (!rms_commit("graph")) rms_restore("graph");
 *     rms_detach("graph");
 *
 * A segment is a file, mapped read-only but for the pages that a transaction has stored to (CALIBURN_FAULTS). With
 * CALIBURN_SHADOW and CALIBURN_REDO the file holds the data; with CALIBURN_UNDO it was their first version, and they live
 * in the directory FILE.caliburn. One transaction is open per segment; stores of all threads are its. A store outside of a
 * transaction ends the program as any wild store does. A file is whole sectors of 512 bytes, else it is refused (EINVAL).
 *
 * System calls cannot store to a page that the transaction has not stored to yet: they fail with EFAULT. */
#ifndef RMS_H
#define RMS_H

#include <caliburn.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RMS_SEGMENTS 64

struct rms_segment {
    char *name;
    caliburn_store *store;
    caliburn_region *region;
    caliburn_tx tx;
    int open;
};

/* One of each for the whole program, wherever this header is included. */
__attribute__((weak)) struct rms_segment rms_segments[RMS_SEGMENTS];
__attribute__((weak)) int rms_policy = CALIBURN_REDO, rms_class = CALIBURN_POWER;

/* Which recovery policy segments have that are attached for the first time, and what a commit survives. */
static inline void rms_options(int policy, int failure_class)
{
    rms_policy = policy;
    rms_class = failure_class;
}

static inline struct rms_segment *rms_find(const char *file)
{
    int i;
    for (i = 0; i < RMS_SEGMENTS; i++)
        if (rms_segments[i].name != NULL && strcmp(rms_segments[i].name, file) == 0)
            return &rms_segments[i];
    return NULL;
}

/* Bytes of a file, which are whole sectors of 512: else -1, with errno EINVAL, since what is behind them could not be undone. */
static inline long long rms_file_len(const char *file)
{
    struct stat about;
    if (stat(file, &about) != 0)
        return 0; /* whoever opens it says so */
    if (about.st_size % 512 == 0)
        return about.st_size;
    errno = EINVAL;
    return -1;
}

/* Whether a segment's last eight bytes say that the file was loaded. */
static inline int rms_is_loaded(caliburn_region *region)
{
    uint64_t mark = 0;
    if (region != NULL)
        memcpy(&mark, (char *)caliburn_region_address(region) + caliburn_region_len(region) - sizeof mark, sizeof mark);
    return mark == 1;
}

/* The segment of a file in its store. With the undo policy its content is loaded once; the segment's last eight bytes say
   that it was, in the same transaction. */
static inline int rms_segment_of(struct rms_segment *segment, const char *file, caliburn_segment **found)
{
    static const uint64_t loaded = 1;
    caliburn_region *region = NULL;
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    if (caliburn_policy(segment->store) != CALIBURN_UNDO)
        return caliburn_segment_adopt(segment->store, file, found);
    /* One that was loaded stays as long as it is, whatever becomes of the file. */
    if (caliburn_segment_open(segment->store, "data", found) == CALIBURN_OK) {
        int there = caliburn_map(*found, 0, 0, &region) == CALIBURN_OK && rms_is_loaded(region);
        if (region != NULL)
            caliburn_unmap(region);
        if (there)
            return CALIBURN_OK;
        caliburn_segment_release(*found);
        *found = NULL;
        region = NULL;
    }
    FILE *first = fopen(file, "r");
    long long len = rms_file_len(file);
    int code = first != NULL && len >= 0 ? CALIBURN_OK : CALIBURN_IO;
    if (code == CALIBURN_OK)
        code = caliburn_segment_open_or_create(segment->store, "data", (uint64_t)len + sizeof loaded, found);
    if (code == CALIBURN_OK)
        code = caliburn_map(*found, 0, 0, &region);
    if (code == CALIBURN_OK) {
        char *start = (char *)caliburn_region_address(region);
        code = caliburn_begin(segment->store, CALIBURN_RESTORE, &tx);
        if (code == CALIBURN_OK && len > 0)
            code = caliburn_set_range(&tx, start, (size_t)len);
        if (code == CALIBURN_OK && fread(start, 1, (size_t)len, first) != (size_t)len)
            code = CALIBURN_IO;
        if (code == CALIBURN_OK)
            code = caliburn_write(&tx, start + caliburn_region_len(region) - sizeof loaded, &loaded, sizeof loaded);
        if (code == CALIBURN_OK)
            code = caliburn_commit(&tx, CALIBURN_PROCESS);
        else
            caliburn_abort(&tx);
    }
    if (first != NULL)
        fclose(first);
    if (region != NULL)
        caliburn_unmap(region);
    return code;
}

/* Maps a file with the shadow policy (section 5.2.2): its first length bytes, or all of them if that is 0. What pages held
   is written to the log before they are stored to; what belongs to the file besides is kept in the directory of
   metadata. Null for a log: a file in that directory. Null with caliburn_message() if it cannot be done. The store and the
   region are the caller's, to begin and commit transactions, and to close. */
static inline void *mmap_shadow(const char *file, size_t length, const char *log, const char *metadata,
                                caliburn_store **store, caliburn_region **region)
{
    caliburn_segment *found = NULL;
    if (rms_file_len(file) < 0)
        return NULL;
    caliburn_options *options = caliburn_options_new();
    caliburn_options_set(options, CALIBURN_CREATE, 1);
    caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, CALIBURN_SHADOW);
    caliburn_options_set(options, CALIBURN_TRACKING, CALIBURN_FAULTS);
    caliburn_options_set(options, CALIBURN_RESERVE_BYTES, 0);
    caliburn_options_add_outside(options, file);
    if (log != NULL)
        caliburn_options_set_log_path(options, log);
    int code = caliburn_open(metadata, options, store);
    caliburn_options_free(options);
    if (code != CALIBURN_OK)
        return NULL;
    code = caliburn_segment_adopt(*store, file, &found);
    if (code == CALIBURN_OK)
        code = caliburn_map(found, 0, length, region);
    caliburn_segment_release(found);
    if (code == CALIBURN_OK)
        return caliburn_region_address(*region);
    caliburn_close(*store);
    return NULL;
}

/* Opens the store of a file, and maps it: what rms_attach() does with the other policies. */
static inline int rms_map(struct rms_segment *segment, const char *file, const char *directory)
{
    caliburn_segment *found = NULL;
    if (rms_file_len(file) < 0)
        return CALIBURN_INVALID;
    caliburn_options *options = caliburn_options_new();
    caliburn_options_set(options, CALIBURN_CREATE, 1);
    caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, (uint64_t)rms_policy);
    caliburn_options_set(options, CALIBURN_TRACKING, CALIBURN_FAULTS);
    caliburn_options_set(options, CALIBURN_RESERVE_BYTES, 0);
    caliburn_options_add_outside(options, file);
    int code = caliburn_open(directory, options, &segment->store);
    caliburn_options_free(options);
    if (code != CALIBURN_OK)
        return code;
    code = rms_segment_of(segment, file, &found);
    if (code == CALIBURN_OK)
        code = caliburn_map(found, 0, 0, &segment->region);
    caliburn_segment_release(found);
    if (code != CALIBURN_OK)
        caliburn_close(segment->store);
    return code;
}

/* Maps a segment's file, recovered if need be. Null with caliburn_message() if it cannot. Attached once. */
static inline void *rms_attach(const char *file)
{
    struct rms_segment *segment = NULL;
    int i, mapped = 0;
    if (rms_find(file) != NULL)
        return caliburn_region_address(rms_find(file)->region);
    for (i = 0; i < RMS_SEGMENTS && segment == NULL; i++)
        if (rms_segments[i].name == NULL)
            segment = &rms_segments[i];
    char *directory = (char *)malloc(strlen(file) + sizeof ".caliburn"), *name = strdup(file);
    if (segment != NULL && directory != NULL && name != NULL) {
        sprintf(directory, "%s.caliburn", file);
        if (rms_policy == CALIBURN_SHADOW)
            mapped = mmap_shadow(file, 0, NULL, directory, &segment->store, &segment->region) != NULL;
        else
            mapped = rms_map(segment, file, directory) == CALIBURN_OK;
    }
    free(directory);
    if (!mapped)
        return free(name), (void *)NULL;
    segment->name = name;
    return caliburn_region_address(segment->region);
}

static inline void rms_begin_transaction(const char *file)
{
    struct rms_segment *segment = rms_find(file);
    static const caliburn_tx none = CALIBURN_TX_INITIALIZER;
    if (segment == NULL || segment->open)
        return;
    segment->tx = none;
    segment->open = caliburn_begin(segment->store, CALIBURN_RESTORE, &segment->tx) == CALIBURN_OK;
}

/* Discards what was stored since the transaction began: 1, or 0 if there is none. */
static inline int rms_abort(const char *file)
{
    struct rms_segment *segment = rms_find(file);
    if (segment == NULL || !segment->open)
        return 0;
    segment->open = 0;
    return caliburn_abort(&segment->tx) == CALIBURN_OK;
}

/* Commits: 1, or 0 if it failed: the segment is as it was before the transaction. */
static inline int rms_commit(const char *file)
{
    struct rms_segment *segment = rms_find(file);
    if (segment == NULL || !segment->open)
        return 0;
    int reach = caliburn_reach(segment->store);
    segment->open = 0;
    return caliburn_commit(&segment->tx, rms_class < reach ? rms_class : reach) == CALIBURN_OK;
}

/* Rolls back what is not committed: 1, or 0 if it failed. */
static inline int rms_restore(const char *file)
{
    struct rms_segment *segment = rms_find(file);
    return segment != NULL && (!segment->open || rms_abort(file));
}

/* Unmaps a segment; a transaction that is open is aborted. */
static inline void rms_detach(const char *file)
{
    struct rms_segment *segment = rms_find(file);
    if (segment == NULL)
        return;
    if (segment->open)
        rms_abort(file);
    caliburn_unmap(segment->region);
    caliburn_close(segment->store);
    free(segment->name);
    segment->name = NULL;
}

#ifdef __cplusplus
}
#endif
#endif
