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
#define RMS_OPTIONS 64

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

struct rms_option {
    int set;
    uint64_t value;
};

/* What rms_set_option() has set. */
__attribute__((weak)) struct rms_option rms_set_options[RMS_OPTIONS];

/* Any other option of caliburn_options_set(), such as CALIBURN_BEFORE_IMAGES, for what is attached from now on. 0, or -1 with
   errno EINVAL and caliburn_message() if there is no such option, or it takes no such value. */
static inline int rms_set_option(int option, uint64_t value)
{
    caliburn_options *tried = caliburn_options_new();
    int there = option >= 0 && option < RMS_OPTIONS && caliburn_options_set(tried, option, value) == CALIBURN_OK;
    caliburn_options_free(tried);
    if (!there) {
        errno = EINVAL;
        return -1;
    }
    rms_set_options[option].set = 1;
    rms_set_options[option].value = value;
    return 0;
}

static inline struct rms_segment *rms_find(const char *file)
{
    int i;
    for (i = 0; i < RMS_SEGMENTS; i++)
        if (rms_segments[i].name != NULL && strcmp(rms_segments[i].name, file) == 0)
            return &rms_segments[i];
    return NULL;
}

/* Whether a file is whole sectors of 512 bytes: else errno is EINVAL, since what is behind them could not be undone. One
   that is not there whoever opens it will tell of. */
static inline int rms_is_whole(const char *file)
{
    struct stat about;
    if (stat(file, &about) != 0 || about.st_size % 512 == 0)
        return 1;
    errno = EINVAL;
    return 0;
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
static inline int rms_segment_of(caliburn_store *store, const char *file, caliburn_segment **found)
{
    static const uint64_t loaded = 1;
    caliburn_region *region = NULL;
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    struct stat about;
    if (caliburn_policy(store) != CALIBURN_UNDO)
        return rms_is_whole(file) ? caliburn_segment_adopt(store, file, found) : CALIBURN_INVALID;
    /* One that was loaded stays as long as it is, whatever becomes of the file. */
    if (caliburn_segment_open(store, "data", found) == CALIBURN_OK) {
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
    int code = first != NULL && fstat(fileno(first), &about) == 0 ? CALIBURN_OK : CALIBURN_IO;
    size_t len = code == CALIBURN_OK ? (size_t)about.st_size : 0;
    if (code == CALIBURN_OK)
        code = caliburn_segment_open_or_create(store, "data", len + sizeof loaded, found);
    if (code == CALIBURN_OK)
        code = caliburn_map(*found, 0, 0, &region);
    if (code == CALIBURN_OK) {
        char *start = (char *)caliburn_region_address(region);
        code = caliburn_begin(store, CALIBURN_RESTORE, &tx);
        if (code == CALIBURN_OK && len > 0)
            code = caliburn_set_range(&tx, start, len);
        if (code == CALIBURN_OK && fread(start, 1, len, first) != len)
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

/* Opens the store in a directory, or makes it, and maps the first length bytes of a file's segment, or all if that is 0. */
static inline void *rms_map(const char *file, size_t length, int policy, const char *log, const char *directory,
                            caliburn_store **store, caliburn_region **region)
{
    caliburn_segment *found = NULL;
    caliburn_options *options = caliburn_options_new();
    caliburn_options_set(options, CALIBURN_CREATE, 1);
    caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, (uint64_t)policy);
    caliburn_options_set(options, CALIBURN_TRACKING, CALIBURN_FAULTS);
    caliburn_options_set(options, CALIBURN_RESERVE_BYTES, 0);
    for (int i = 0; i < RMS_OPTIONS; i++)
        if (rms_set_options[i].set)
            caliburn_options_set(options, i, rms_set_options[i].value);
    caliburn_options_add_outside(options, file);
    if (log != NULL)
        caliburn_options_set_log_path(options, log);
    int code = caliburn_open(directory, options, store);
    caliburn_options_free(options);
    if (code != CALIBURN_OK)
        return NULL;
    code = rms_segment_of(*store, file, &found);
    if (code == CALIBURN_OK)
        code = caliburn_map(found, 0, length, region);
    caliburn_segment_release(found);
    if (code == CALIBURN_OK)
        return caliburn_region_address(*region);
    caliburn_close(*store);
    return NULL;
}

/* Maps a file with the shadow policy (section 5.2.2): its first length bytes, or all of them if that is 0. What pages held
   is written to the log before they are stored to; what belongs to the file besides is kept in the directory of
   metadata. Null for a log: a file in that directory. Null with caliburn_message(), or errno, if it cannot be done. The
   store and the region are the caller's, to begin and commit transactions, and to close. */
static inline void *mmap_shadow(const char *file, size_t length, const char *log, const char *metadata,
                                caliburn_store **store, caliburn_region **region)
{
    return rms_map(file, length, CALIBURN_SHADOW, log, metadata, store, region);
}

/* Maps a segment's file, recovered if need be. Null with caliburn_message(), or errno, if it cannot. Attached once. */
static inline void *rms_attach(const char *file)
{
    struct rms_segment *segment = NULL;
    void *start = NULL;
    int i;
    if (rms_find(file) != NULL)
        return caliburn_region_address(rms_find(file)->region);
    for (i = 0; i < RMS_SEGMENTS && segment == NULL; i++)
        if (rms_segments[i].name == NULL)
            segment = &rms_segments[i];
    char *directory = (char *)malloc(strlen(file) + sizeof ".caliburn"), *name = strdup(file);
    if (segment != NULL && directory != NULL && name != NULL) {
        sprintf(directory, "%s.caliburn", file);
        start = rms_map(file, 0, rms_policy, NULL, directory, &segment->store, &segment->region);
    }
    free(directory);
    if (start == NULL)
        free(name);
    else
        segment->name = name;
    return start;
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
