/* What the heap counts, and what is seen of it. */
#include "rds_state.h"

#include <string.h>

int rds_get_stats(rds_stats_t *stats)
{
    if (stats == NULL)
        return EBAD_ARGS;
    memset(stats, 0, sizeof *stats);
    pthread_mutex_lock(&heap_lock);
    if (heap != NULL)
        *stats = heap->stats;
    pthread_mutex_unlock(&heap_lock);
    return 0;
}

/* What is free and allocated is not forgotten: it is no count of events. */
static void forget(rds_stats_t *stats)
{
    unsigned free_bytes = stats->freebytes, allocated = stats->mallocbytes, large = stats->large_list;
    memset(stats, 0, sizeof *stats);
    stats->freebytes = free_bytes;
    stats->mallocbytes = allocated;
    stats->large_list = large;
}

int rds_clear_stats(int *err)
{
    rvm_tid_t tid;
    rvm_init_tid(&tid);
    pthread_mutex_lock(&heap_lock);
    int code = heap == NULL ? EHEAP_INIT : rvm_begin_transaction(&tid, restore);
    if (code == SUCCESS) {
        code = change_stats(&tid);
        if (code == SUCCESS) {
            forget(&heap->stats);
            code = rvm_end_transaction(&tid, no_flush);
        }
        if (code != SUCCESS)
            rvm_abort_transaction(&tid);
    }
    pthread_mutex_unlock(&heap_lock);
    if (err != NULL)
        *err = code;
    return code == SUCCESS ? 0 : -1;
}

int rds_print_stats(void)
{
    rds_stats_t stats;
    if (heap == NULL)
        return -1;
    rds_get_stats(&stats);
    printf("RDS heap at %p: %lu bytes in chunks of %lu, %lu lists\n", (void *)heap, (unsigned long)heap->length,
           (unsigned long)heap->chunk, (unsigned long)heap->lists_count);
    printf("  allocated %u bytes, free %u bytes\n", stats.mallocbytes, stats.freebytes);
    printf("  malloc %u, prealloc %u, free %u\n", stats.malloc, stats.prealloc, stats.free);
    printf("  hits %u, misses %u; large blocks: %u on the list, hits %u, misses %u\n", stats.hits, stats.misses,
           stats.large_list, stats.large_hits, stats.large_misses);
    printf("  coalesced %u times: merged %u, left %u\n", stats.coalesce, stats.merged, stats.unmerged);
    return 0;
}

static void dump(FILE *out)
{
    for (uint64_t number = 1; number <= heap->lists_count; number++) {
        unsigned long count = 0, chunks = 0;
        uint64_t most = heap->length / heap->chunk;
        const struct block *block = heap->lists[number].head;
        for (; block != NULL && is_inside(block) && most > 0; block = block->next, most--) {
            count++;
            chunks += block->size;
        }
        if (count > 0)
            fprintf(out, "list %lu: %lu free block(s), %lu chunks\n", (unsigned long)number, count, chunks);
    }
}

int print_heap(void);

int print_heap(void)
{
    pthread_mutex_lock(&heap_lock);
    int there = heap != NULL;
    if (there)
        dump(stdout);
    pthread_mutex_unlock(&heap_lock);
    return there ? 0 : -1;
}

int rds_trace_on(FILE *file)
{
    if (heap == NULL || file == NULL)
        return heap == NULL ? EHEAP_INIT : EBAD_ARGS;
    rds_tracing_file = file;
    rds_tracing = 1;
    return 0;
}

int rds_trace_off(void)
{
    rds_tracing = 0;
    return heap == NULL ? EHEAP_INIT : 0;
}

int rds_trace_dump_heap(void)
{
    pthread_mutex_lock(&heap_lock);
    int there = heap != NULL;
    if (there && rds_tracing && rds_tracing_file != NULL) {
        const struct block *block = first_block();
        while (is_inside(block) && block->size > 0 && block->size <= heap->length / heap->chunk) {
            fprintf(rds_tracing_file, "%p: %s, %lu chunks\n", (const void *)block,
                    block->type == FREE_TYPE ? "free" : "allocated", (unsigned long)block->size);
            block = after(block);
        }
        fflush(rds_tracing_file);
    }
    pthread_mutex_unlock(&heap_lock);
    return there ? 0 : EHEAP_INIT;
}
