/* librds: the heap. Each call that changes it runs in a transaction: the caller's, or its own under the heap's lock. */
#include "rds_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct heap *heap;
pthread_mutex_t heap_lock = PTHREAD_MUTEX_INITIALIZER;

/* What programs import, though no header declares it. */
rvm_region_def_t *RegionDefs;
unsigned long NRegionDefs;
__attribute__((weak)) rvm_bool_t rds_testsw = rvm_false;

int rds_tracing;
FILE *rds_tracing_file;

/* An int for results that the caller does not want. */
static int *wanted(int *err)
{
    static __thread int nobody;
    return err != NULL ? err : &nobody;
}

/* A transaction of a call's own, if the caller has none. */
struct scope {
    rvm_tid_t own;
    rvm_tid_t *tid;
};

static int begin(struct scope *scope, rvm_tid_t *tid)
{
    pthread_mutex_lock(&heap_lock);
    scope->tid = tid;
    int code = heap == NULL ? EHEAP_INIT : SUCCESS;
    if (code == SUCCESS && tid == NULL) {
        rvm_init_tid(&scope->own);
        scope->tid = &scope->own;
        code = rvm_begin_transaction(scope->tid, restore);
    }
    if (code == SUCCESS) {
        code = change_stats(scope->tid);
        if (code != SUCCESS && tid == NULL)
            rvm_abort_transaction(scope->tid);
    }
    if (code != SUCCESS)
        pthread_mutex_unlock(&heap_lock);
    return code;
}

static int end(struct scope *scope, int code, rvm_mode_t mode)
{
    if (scope->tid == &scope->own) {
        if (code == SUCCESS)
            code = rvm_end_transaction(scope->tid, mode);
        else
            rvm_abort_transaction(scope->tid);
    }
    pthread_mutex_unlock(&heap_lock);
    return code;
}

char *rds_malloc(unsigned long size, rvm_tid_t *tid, int *err)
{
    struct scope scope;
    struct block *block = NULL;
    int code = begin(&scope, tid);
    if (code == SUCCESS) {
        heap->stats.malloc++;
        code = end(&scope, take_block(chunks_for(size), scope.tid, &block), no_flush);
    }
    *wanted(err) = code;
    if (code != SUCCESS)
        return NULL;
    RDS_LOG("rds_malloc: %lu bytes at %p\n", size, (void *)data_of(block));
    return data_of(block);
}

int rds_free(char *addr, rvm_tid_t *tid, int *err)
{
    struct scope scope;
    struct block *block;
    int code = begin(&scope, tid), refused = 1;
    if (code == SUCCESS) {
        code = find_block(addr, &block);
        refused = code != SUCCESS;
        if (!refused) {
            heap->stats.free++;
            code = put_block(block, scope.tid);
        }
        code = end(&scope, code, no_flush);
    }
    *wanted(err) = code;
    RDS_LOG("rds_free: %p, %d\n", (void *)addr, code);
    return refused ? -1 : 0;
}

int rds_prealloc(unsigned long size, unsigned long nblocks, rvm_tid_t *tid, int *err)
{
    struct scope scope;
    int code = begin(&scope, tid);
    if (code == SUCCESS) {
        uint64_t chunks = chunks_for(size);
        if (chunks >= heap->largest) {
            end(&scope, EBAD_ARGS, no_flush);
            *wanted(err) = SUCCESS;
            return -1;
        }
        heap->stats.prealloc++;
        code = end(&scope, make_blocks(chunks, nblocks, scope.tid), no_flush);
    }
    *wanted(err) = code;
    return code == SUCCESS ? 0 : -1;
}

int rds_maxblock(unsigned long size)
{
    pthread_mutex_lock(&heap_lock);
    int there = heap != NULL && is_there(chunks_for(size));
    pthread_mutex_unlock(&heap_lock);
    return there;
}

int rds_fake_free(char *addr, intentionList_t *list)
{
    struct block *block;
    if (list == NULL)
        return EBAD_ARGS;
    pthread_mutex_lock(&heap_lock);
    int code = heap == NULL ? EHEAP_INIT : addr == NULL ? SUCCESS : find_block(addr, &block);
    pthread_mutex_unlock(&heap_lock);
    if (code != SUCCESS || addr == NULL)
        return code;
    if (list->table == NULL || (list->count + 1) * sizeof *list->table > list->size) {
        unsigned long size = list->table == NULL ? STARTSIZE : 2 * list->size;
        char **table = realloc(list->table, size);
        if (table == NULL)
            return RVM_ENO_MEMORY;
        if (list->table == NULL)
            list->count = 0;
        list->table = table;
        list->size = size;
    }
    list->table[list->count++] = addr;
    return SUCCESS;
}

int rds_do_free(intentionList_t *list, rvm_mode_t mode)
{
    struct scope scope;
    if (list == NULL)
        return EBAD_ARGS;
    int code = SUCCESS;
    if (list->table != NULL && list->count > 0) {
        code = begin(&scope, NULL);
        if (code != SUCCESS)
            return code;
        for (unsigned long i = 0; i < list->count && code == SUCCESS; i++) {
            struct block *block;
            code = find_block(list->table[i], &block);
            if (code == SUCCESS) {
                heap->stats.free++;
                code = put_block(block, scope.tid);
            }
        }
        code = end(&scope, code, mode);
    }
    free(list->table);
    list->table = NULL;
    list->count = list->size = 0;
    return code;
}

int rds_init_heap(char *base, rvm_length_t length, unsigned long chunk_size, unsigned long nlists, rvm_tid_t *tid,
                  int *err)
{
    struct heap *made = (struct heap *)base;
    rvm_length_t header = sizeof *made + nlists * sizeof made->lists[0];
    if (base == NULL || chunk_size < CHUNK_MIN || chunk_size % sizeof(uint64_t) != 0 || nlists == 0) {
        *wanted(err) = EBAD_ARGS;
        return -1;
    }
    if (nlists > length / sizeof made->lists[0] || header > length) {
        *wanted(err) = ENO_ROOM;
        return -1;
    }
    int code = rvm_set_range(tid, base, header);
    if (code == RVM_SUCCESS) {
        memset(base, 0, header);
        strcpy(made->version, HEAP_VERSION);
        made->length = length;
        made->chunk = chunk_size;
        made->lists_count = made->largest = nlists;
        for (unsigned long i = 1; i <= nlists; i++)
            made->lists[i].guard = LIST_GUARD;
        uintptr_t first = ((uintptr_t)base + header + chunk_size - 1) / chunk_size * chunk_size;
        uintptr_t stop = (uintptr_t)base + length;
        struct block *block = (struct block *)first;
        uint64_t chunks = stop > first ? (stop - first) / chunk_size : 0;
        uint64_t *guard = (uint64_t *)(first + chunks * chunk_size) - 1;
        if (chunks == 0)
            code = ENO_ROOM;
        if (code == RVM_SUCCESS)
            code = rvm_set_range(tid, block, sizeof *block);
        if (code == RVM_SUCCESS)
            code = rvm_set_range(tid, guard, sizeof *guard);
        if (code == RVM_SUCCESS) {
            *block = (struct block){FREE_TYPE, chunks, NULL, NULL};
            *guard = END_GUARD;
            /* Of so many chunks; the largest are on the last list. */
            made->largest = chunks < nlists ? chunks : nlists;
            made->lists[made->largest].head = block;
            made->stats.freebytes = (unsigned)(chunks * chunk_size);
            made->stats.large_list = chunks >= nlists;
        }
    }
    *wanted(err) = code;
    return code == SUCCESS ? 0 : -1;
}

/* Whether what a header says can be: its lists and a block lie within the heap, and all of that in memory. */
static int can_be(const struct heap *found)
{
    uint64_t chunk = found->chunk, length = found->length;
    uint64_t lists = length > sizeof *found ? (length - sizeof *found) / sizeof found->lists[0] : 0;
    uintptr_t page = (uintptr_t)found / RVM_PAGE_SIZE * RVM_PAGE_SIZE;
    return chunk >= CHUNK_MIN && chunk % sizeof(uint64_t) == 0 && chunk <= length && found->lists_count >= 1 &&
           found->lists_count <= lists && found->largest <= found->lists_count &&
           length < UINTPTR_MAX - (uintptr_t)found &&
           /* Refused if anything there is not mapped. */
           msync((void *)page, (uintptr_t)found - page + length, MS_ASYNC) == 0;
}

int rds_start_heap(char *start_addr, int *err)
{
    struct heap *found = (struct heap *)start_addr;
    int code = start_addr == NULL ? EBAD_ARGS : SUCCESS;
    if (code == SUCCESS && strncmp(found->version, HEAP_VERSION, sizeof found->version) != 0)
        code = EHEAP_VERSION_SKEW;
    if (code == SUCCESS && !can_be(found))
        code = ECORRUPT;
    pthread_mutex_lock(&heap_lock);
    heap = code == SUCCESS ? found : NULL;
    pthread_mutex_unlock(&heap_lock);
    *wanted(err) = code;
    /* Whatever happened: programs look at err. */
    return -1;
}

int rds_stop_heap(int *err)
{
    pthread_mutex_lock(&heap_lock);
    heap = NULL;
    pthread_mutex_unlock(&heap_lock);
    *wanted(err) = SUCCESS;
    return -1;
}

int rds_load_heap(char *dev_name, rvm_offset_t dev_length, char **static_addr, int *err)
{
    unsigned long count;
    rvm_region_def_t *defs;
    int code = dev_name == NULL ? EBAD_ARGS : rvm_load_segment(dev_name, dev_length, NULL, &count, &defs);
    if (code != SUCCESS) {
        fprintf(stderr, "rds_load_heap: %s: %s (%d)\n", dev_name != NULL ? dev_name : "no name",
                code == RVM_ESEGMENT_HDR ? "it has no segment header" : rvm_return(code), code);
        *wanted(err) = code;
        return -1;
    }
    if (count != 2) {
        rvm_release_segment(count, &defs);
        *wanted(err) = EBAD_SEGMENT_HDR;
        return -1;
    }
    RegionDefs = defs;
    NRegionDefs = count;
    if (static_addr != NULL)
        *static_addr = defs[1].vmaddr;
    rds_start_heap(defs[0].vmaddr, err);
    return 0;
}

int rds_unload_heap(int *err)
{
    int code = rvm_flush();
    if (code == RVM_SUCCESS)
        code = rvm_truncate();
    if (code == RVM_SUCCESS && RegionDefs != NULL)
        code = rvm_release_segment(NRegionDefs, &RegionDefs);
    if (code == RVM_SUCCESS) {
        NRegionDefs = 0;
        rds_stop_heap(err);
    }
    *wanted(err) = code;
    return code == RVM_SUCCESS ? 0 : -1;
}

/* Initialises the heap of a loaded segment. */
static int init_loaded(const rvm_region_def_t *defs, unsigned long chunk, unsigned long nlists)
{
    rvm_tid_t tid;
    int err;
    rvm_init_tid(&tid);
    int code = rvm_begin_transaction(&tid, restore);
    if (code != RVM_SUCCESS)
        return code;
    if (rds_init_heap(defs[0].vmaddr, defs[0].length, chunk, nlists, &tid, &err) == 0)
        code = rvm_end_transaction(&tid, flush);
    else
        code = err;
    if (code != RVM_SUCCESS)
        rvm_abort_transaction(&tid);
    return code;
}

int rds_zap_heap(char *dev_name, rvm_offset_t dev_length, char *start_addr, rvm_length_t static_length,
                 rvm_length_t heap_length, unsigned long nlists, unsigned long chunk_size, int *err)
{
    rvm_region_def_t regions[2], *defs = NULL;
    unsigned long count = 0;
    int code = SUCCESS;
    memset(regions, 0, sizeof regions);
    if (chunk_size < CHUNK_MIN || chunk_size % sizeof(uint64_t) != 0 || nlists == 0 || dev_name == NULL)
        code = EBAD_ARGS;
    regions[0].length = heap_length;
    regions[0].vmaddr = start_addr;
    regions[1].length = static_length;
    regions[1].vmaddr = start_addr + heap_length;
    if (code == SUCCESS)
        code = rvm_create_segment(dev_name, dev_length, NULL, 2, regions);
    if (code == RVM_SUCCESS)
        code = rvm_truncate();
    if (code == RVM_SUCCESS)
        code = rvm_load_segment(dev_name, dev_length, NULL, &count, &defs);
    if (code == RVM_SUCCESS) {
        code = init_loaded(defs, chunk_size, nlists);
        if (code == RVM_SUCCESS)
            code = rvm_truncate();
        int released = rvm_release_segment(count, &defs);
        if (code == RVM_SUCCESS)
            code = released;
    }
    *wanted(err) = code;
    return code == SUCCESS ? 0 : -1;
}
