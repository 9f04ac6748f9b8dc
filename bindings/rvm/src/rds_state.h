/*
 * The heap as it is in recoverable memory, as thirty years of programs have left it on their disks:
 *
 *   | header | list 0 (unused) | list 1 | ... | list n |   | block | block | ... |
 *   block:  | type | size in chunks | previous, next: of free ones / data | ... | end guard |
 *
 * List i has the free blocks of i chunks, the last one those of as many or more. Pointers are absolute: a heap is
 * always mapped at the same address.
 *
 * Invariant: every word here is declared before it changes, in the caller's transaction or in the call's own.
 */
#ifndef RDS_STATE_H
#define RDS_STATE_H

#include <rvm/rds.h>
#include <rvm/rvm_segment.h>

#include <pthread.h>
#include <stdint.h>

#define HEAP_VERSION "Dynamic Allocator Using Rvm Release 0.1 1 Dec 1990"

#define FREE_TYPE 0x345298afu
#define ALLOCATED_TYPE 0x783bd92cu
#define END_GUARD 0xfd10a32eu
#define LIST_GUARD 0xad938945u

struct block {
    uint64_t type;
    uint64_t size;                /* in chunks */
    struct block *previous, *next; /* of a free one */
};

struct list {
    uint64_t guard;
    struct block *head;
};

struct heap {
    char version[80];
    uint64_t length; /* bytes, the header's among them */
    uint64_t chunk;  /* bytes */
    uint64_t lists_count;
    rds_stats_t stats;
    uint64_t largest; /* no list above it has a block */
    uint64_t spare[10];
    struct list lists[1]; /* as many as lists_count, and one */
};

/* What a block has beside its data. */
#define OVERHEAD (2 * sizeof(uint64_t) + sizeof(uint64_t))
#define CHUNK_MIN 40

extern struct heap *heap; /* null without one */
extern pthread_mutex_t heap_lock;

/* Chunks for so many bytes of data. */
static inline uint64_t chunks_for(unsigned long size)
{
    return size > UINT64_MAX - 2 * OVERHEAD ? UINT64_MAX : (size + OVERHEAD) / heap->chunk + 1;
}

/* The list for blocks of so many chunks. */
static inline uint64_t list_for(uint64_t chunks)
{
    return chunks < heap->lists_count ? chunks : heap->lists_count;
}

static inline struct block *after(const struct block *block)
{
    return (struct block *)((char *)block + block->size * heap->chunk);
}

static inline uint64_t *end_guard(const struct block *block)
{
    return (uint64_t *)after(block) - 1;
}

static inline char *data_of(struct block *block)
{
    return (char *)&block->previous;
}

/* rds_blocks.c */
struct block *first_block(void);
struct block *end_of_heap(void);
int take_block(uint64_t chunks, rvm_tid_t *tid, struct block **taken);
int make_blocks(uint64_t chunks, unsigned long count, rvm_tid_t *tid);
int put_block(struct block *block, rvm_tid_t *tid);
int find_block(const char *data, struct block **found);
int change_stats(rvm_tid_t *tid);
int is_there(uint64_t chunks);
int is_inside(const struct block *block);

#endif
