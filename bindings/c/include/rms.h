/* rms.h: the recoverable memory service (McNamee, Table 5.1), upon caliburn.h.
 *
 *     rms_options(CALIBURN_REDO, CALIBURN_POWER);
 *     struct graph *graph = rms_attach("graph");
 *     rms_begin_transaction("graph");
 *     graph->parts = 7;                     nothing is declared: the first store to a page is noticed
 *     if (!rms_commit("graph")) rms_restore("graph");
 *     rms_detach("graph");
 *
 * A segment is a file, mapped read-only but for the pages that a transaction has stored to: the first store to each
 * faults, and the fault's handler declares the page. With CALIBURN_REDO the file holds the data; with CALIBURN_UNDO it
 * was their first version, and they live in the directory FILE.caliburn. One transaction is open per segment, in one
 * thread at a time. A store outside of a transaction ends the program as any wild store does.
 *
 * The handler of SIGSEGV that a program has is called for what is not a segment's. System calls cannot store to a page that
 * the transaction has not stored to yet: they fail with EFAULT. */
#ifndef RMS_H
#define RMS_H

#include <caliburn.h>

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RMS_SEGMENTS 64

struct rms_segment {
    char *name;
    caliburn_store *store;
    caliburn_region *region;
    char *start;
    size_t len;
    caliburn_tx tx;
    int open;
    struct rms_page *kept; /* pages that could not be declared: the transaction can only be aborted */
};

/* A page as it was before the first store to it. */
struct rms_page {
    struct rms_page *next;
    char *at;
    size_t len;
    char bytes[1];
};

/* One of each for the whole program, wherever this header is included. */
__attribute__((weak)) struct rms_segment rms_segments[RMS_SEGMENTS];
__attribute__((weak)) struct sigaction rms_previous;
__attribute__((weak)) int rms_handling, rms_policy = CALIBURN_REDO, rms_class = CALIBURN_POWER;

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

/* Keeps a page that could not be declared, since the transaction has become too large or the store has failed. */
static inline int rms_keep(struct rms_segment *segment, char *at, size_t len)
{
    void *memory = mmap(NULL, sizeof(struct rms_page) + len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    struct rms_page *page = (struct rms_page *)memory;
    page->next = segment->kept;
    page->at = at;
    page->len = len;
    memcpy(page->bytes, at, len);
    segment->kept = page;
    return 1;
}

/* A store to a page of a segment: it is declared, then allowed. The fault is at the program's own instruction, not in the
   middle of a library's, so that declaring is a call like any other. */
static inline void rms_fault(int number, siginfo_t *info, void *context)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)info->si_addr & ~(page - 1);
    int i;
    for (i = 0; i < RMS_SEGMENTS; i++) {
        struct rms_segment *segment = &rms_segments[i];
        uintptr_t into = at - (uintptr_t)segment->start;
        if (segment->name == NULL || !segment->open || into >= segment->len)
            continue;
        size_t len = segment->len - into < page ? segment->len - into : page;
        if (caliburn_set_range(&segment->tx, (void *)at, len) != CALIBURN_OK && !rms_keep(segment, (char *)at, len))
            break;
        if (mprotect((void *)at, page, PROT_READ | PROT_WRITE) == 0)
            return;
    }
    if (rms_previous.sa_flags & SA_SIGINFO)
        rms_previous.sa_sigaction(number, info, context);
    else if (rms_previous.sa_handler != SIG_DFL && rms_previous.sa_handler != SIG_IGN)
        rms_previous.sa_handler(number);
    else
        signal(number, SIG_DFL); /* the store is tried again, and ends the program */
}

static inline int rms_protect(struct rms_segment *segment)
{
    return mprotect(segment->start, segment->len, PROT_READ) == 0;
}

/* The segment of a file in its store. With the undo policy its content is loaded once; its last eight bytes say that it was,
   in the same transaction. */
static inline int rms_segment_of(struct rms_segment *segment, const char *file, caliburn_segment **found)
{
    static const uint64_t loaded = 1;
    caliburn_region *region = NULL;
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    struct stat about;
    if (caliburn_policy(segment->store) == CALIBURN_REDO)
        return caliburn_segment_adopt(segment->store, file, found);
    FILE *first = fopen(file, "r");
    int code = first != NULL && fstat(fileno(first), &about) == 0 ? CALIBURN_OK : CALIBURN_IO;
    size_t len = code == CALIBURN_OK ? (size_t)about.st_size : 0;
    if (code == CALIBURN_OK)
        code = caliburn_segment_open_or_create(segment->store, "data", len + sizeof loaded, found);
    if (code == CALIBURN_OK)
        code = caliburn_map(*found, 0, 0, &region);
    char *start = (char *)caliburn_region_address(region);
    char *mark = start + caliburn_region_len(region) - sizeof loaded;
    if (code == CALIBURN_OK && memcmp(mark, &loaded, sizeof loaded) != 0) {
        code = caliburn_begin(segment->store, CALIBURN_RESTORE, &tx);
        if (code == CALIBURN_OK)
            code = caliburn_set_range(&tx, start, len);
        if (code == CALIBURN_OK && fread(start, 1, len, first) != len)
            code = CALIBURN_IO;
        if (code == CALIBURN_OK)
            code = caliburn_write(&tx, mark, &loaded, sizeof loaded);
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

/* Maps a segment's file, recovered if need be. Null with caliburn_message() if it cannot. Attached once. */
static inline void *rms_attach(const char *file)
{
    struct rms_segment *segment = NULL;
    caliburn_segment *found = NULL;
    int i, code;
    if (rms_find(file) != NULL)
        return rms_find(file)->start;
    for (i = 0; i < RMS_SEGMENTS && segment == NULL; i++)
        if (rms_segments[i].name == NULL)
            segment = &rms_segments[i];
    char *dir = (char *)malloc(strlen(file) + sizeof ".caliburn");
    if (segment == NULL || dir == NULL)
        return free(dir), (void *)NULL;
    sprintf(dir, "%s.caliburn", file);
    caliburn_options *options = caliburn_options_new();
    caliburn_options_set(options, CALIBURN_CREATE, 1);
    caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, (uint64_t)rms_policy);
    caliburn_options_set(options, CALIBURN_DECLARED_ONLY, 1);
    caliburn_options_set(options, CALIBURN_RESERVE_BYTES, 0);
    caliburn_options_add_outside(options, file);
    code = caliburn_open(dir, options, &segment->store);
    caliburn_options_free(options);
    free(dir);
    if (code != CALIBURN_OK)
        return NULL;
    code = rms_segment_of(segment, file, &found);
    if (code == CALIBURN_OK)
        code = caliburn_map(found, 0, 0, &segment->region);
    caliburn_segment_release(found);
    if (code == CALIBURN_OK) {
        segment->start = (char *)caliburn_region_address(segment->region);
        segment->len = caliburn_region_len(segment->region);
        segment->name = strdup(file);
        if (!rms_handling) {
            struct sigaction action;
            memset(&action, 0, sizeof action);
            action.sa_sigaction = rms_fault;
            action.sa_flags = SA_SIGINFO | SA_NODEFER;
            sigemptyset(&action.sa_mask);
            rms_handling = sigaction(SIGSEGV, &action, &rms_previous) == 0;
        }
        if (segment->name != NULL && rms_handling && rms_protect(segment))
            return segment->start;
        free(segment->name);
        segment->name = NULL;
        caliburn_unmap(segment->region);
    }
    caliburn_close(segment->store);
    return NULL;
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
    while (segment->kept != NULL) {
        struct rms_page *page = segment->kept;
        segment->kept = page->next;
        memcpy(page->at, page->bytes, page->len);
        munmap(page, sizeof *page + page->len);
    }
    return (caliburn_abort(&segment->tx) == CALIBURN_OK) & rms_protect(segment);
}

/* Commits: 1, or 0 if it failed. */
static inline int rms_commit(const char *file)
{
    struct rms_segment *segment = rms_find(file);
    if (segment == NULL || !segment->open || segment->kept != NULL)
        return 0;
    int reach = caliburn_reach(segment->store);
    segment->open = 0;
    int code = caliburn_commit(&segment->tx, rms_class < reach ? rms_class : reach);
    return (code == CALIBURN_OK) & rms_protect(segment);
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
