/* The heap of RVM: what each call does and returns, across lives, crashes and aborts. */
#include "lives.h"

#include <rvm/rds.h>
#include <rvm/rvm_segment.h>

#define START ((char *)0x50000000)
#define HEAP_LENGTH (64 * 4096)
#define STATIC_LENGTH (4 * 4096)
#define LENGTH (HEAP_LENGTH + STATIC_LENGTH + 4096)

/* What existing programs import, though no header declares it. */
extern rvm_region_def_t *RegionDefs;
extern unsigned long NRegionDefs;
extern rvm_bool_t rds_testsw;
extern long rds_rvmsize;
extern char *rds_startaddr;
extern int print_heap(void);

static rvm_offset_t length(void)
{
    return RVM_MK_OFFSET(0, LENGTH);
}

static void zapped(void)
{
    int err = 77;
    begin_life("heap-log", 1 << 20);
    char *path = data_file("heap", LENGTH);
    char *fixed;
    CHECK(rds_malloc(8, NULL, &err) == NULL && err == EHEAP_INIT);
    CHECK(rds_free(START, NULL, &err) == -1 && err == EHEAP_INIT);
    CHECK(rds_prealloc(8, 1, NULL, &err) == -1 && err == EHEAP_INIT);
    CHECK(rds_maxblock(8) == 0 && rds_print_stats() == -1 && print_heap() == -1 && rds_clear_stats(&err) == -1);
    CHECK(rds_load_heap(path, length(), &fixed, &err) == -1 && err == RVM_ESEGMENT_HDR);
    CHECK(rds_zap_heap(path, length(), START, STATIC_LENGTH, HEAP_LENGTH, 80, 30, &err) == -1 && err == EBAD_ARGS);
    CHECK(rds_zap_heap(path, length(), START, STATIC_LENGTH, HEAP_LENGTH, 80, 64, &err) == 0 && err == SUCCESS);
    CHECK(rds_maxblock(8) == 0);
    OK(rvm_terminate());
}

static void loaded(void)
{
    char *fixed;
    int err = 77;
    CHECK(rds_load_heap(in("heap"), length(), &fixed, &err) == 0 && err == SUCCESS);
    CHECK(fixed == START + HEAP_LENGTH && NRegionDefs == 2 && RegionDefs[0].vmaddr == START);
    CHECK(rds_startaddr == START && rds_rvmsize == HEAP_LENGTH + STATIC_LENGTH);
}

static void allocating(void)
{
    int err;
    rds_stats_t stats;
    rvm_tid_t tid;
    begin_life("heap-log", 1 << 20);
    loaded();
    rds_testsw = rvm_true;
    CHECK(rds_get_stats(NULL) == EBAD_ARGS && rds_get_stats(&stats) == 0);
    unsigned all = stats.freebytes;
    CHECK(all > HEAP_LENGTH - 4096 && all % 64 == 0 && stats.mallocbytes == 0 && stats.malloc == 0);
    char *first = rds_malloc(40, NULL, &err);
    CHECK(first != NULL && err == SUCCESS && (unsigned long)first % 16 == 0);
    rds_get_stats(&stats);
    CHECK(stats.malloc == 1 && stats.mallocbytes == 128 && stats.freebytes == all - 128 && stats.misses == 1);
    char *second = rds_malloc(39, NULL, &err);
    rds_get_stats(&stats);
    CHECK(second != NULL && stats.mallocbytes == 192);

    /* What it holds is the program's. */
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_modify_bytes(&tid, first, "kept", 5));
    OK(rvm_modify_bytes(&tid, START + HEAP_LENGTH, &first, sizeof first));
    OK(rvm_end_transaction(&tid, flush));

    /* Freeing: once, what was allocated. */
    CHECK(rds_free(second, NULL, &err) == 0 && err == SUCCESS);
    CHECK(rds_free(second, NULL, &err) == -1 && err == EFREED_TWICE);
    CHECK(rds_free(second + 1, NULL, &err) == -1 && err == EBAD_ARGS);
    CHECK(rds_free(NULL, NULL, &err) == -1 && err == EBAD_ARGS);
    CHECK(rds_free(first + 64, NULL, &err) == -1 && err != SUCCESS);
    CHECK(rds_malloc(39, NULL, &err) == second);
    rds_get_stats(&stats);
    CHECK(stats.hits == 1);

    /* In the caller's transaction: an abort takes it back. */
    OK(rvm_begin_transaction(&tid, restore));
    char *gone = rds_malloc(1000, &tid, &err);
    CHECK(gone != NULL && rds_free(first, &tid, &err) == 0);
    OK(rvm_abort_transaction(&tid));
    CHECK(rds_free(gone, NULL, &err) == -1 && strcmp(first, "kept") == 0);
    CHECK(rds_free(second, NULL, &err) == 0);
    rds_get_stats(&stats);
    CHECK(stats.mallocbytes == 128);
    CHECK(rds_malloc(HEAP_LENGTH, NULL, &err) == NULL && err == ENO_ROOM);
    CHECK(rds_malloc(~0ul, NULL, &err) == NULL && err == ENO_ROOM);

    /* A guard word is overwritten. */
    char *spoilt = rds_malloc(100, NULL, &err);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, spoilt + 104, 8));
    memset(spoilt + 104, 0, 8);
    CHECK(rds_free(spoilt, NULL, &err) == -1 && err == ECORRUPT);
    OK(rvm_abort_transaction(&tid));
    CHECK(rds_free(spoilt, NULL, &err) == 0 && err == SUCCESS);
    CHECK(rds_clear_stats(&err) == 0);
    rds_get_stats(&stats);
    CHECK(stats.malloc == 0 && stats.mallocbytes == 128 && stats.freebytes == all - 128);
    CHECK(rds_print_stats() == 0 && print_heap() == 0);
    CHECK(rds_unload_heap(&err) == 0 && err == SUCCESS);
    OK(rvm_terminate());
}

/* Blocks are cut up and merged again until none is too small. */
static void coalescing(void)
{
    enum { COUNT = 2000 };
    static char *blocks[COUNT];
    int err, count = 0;
    begin_life("heap-log", 1 << 20);
    loaded();
    char *first = *(char **)(START + HEAP_LENGTH);
    CHECK(strcmp(first, "kept") == 0);
    while (count < COUNT && (blocks[count] = rds_malloc(100 + count % 7 * 50, NULL, &err)) != NULL)
        count++;
    CHECK(err == ENO_ROOM && count > 400 && rds_maxblock(1000) == 0);
    for (int i = 0; i < count; i += 2)
        CHECK(rds_free(blocks[i], NULL, &err) == 0 && err == SUCCESS);
    for (int i = 1; i < count; i += 2)
        CHECK(rds_free(blocks[i], NULL, &err) == 0 && err == SUCCESS);
    CHECK(rds_maxblock(HEAP_LENGTH / 2) == 0);
    char *large = rds_malloc(HEAP_LENGTH - 8192, NULL, &err);
    CHECK(large != NULL && err == SUCCESS);
    rds_stats_t stats;
    rds_get_stats(&stats);
    CHECK(stats.coalesce > 0 && stats.merged > 400);
    CHECK(rds_free(large, NULL, &err) == 0);
    rds_get_stats(&stats);
    unsigned misses = stats.misses, large_misses = stats.large_misses;
    CHECK(rds_prealloc(200, 10, NULL, &err) == 0 && err == SUCCESS && rds_maxblock(200) == 1);
    rds_get_stats(&stats);
    CHECK(stats.misses == misses && stats.large_misses == large_misses);
    CHECK(rds_prealloc(HEAP_LENGTH / 2, 1, NULL, &err) == -1 && err == SUCCESS);
    rds_get_stats(&stats);
    unsigned hits = stats.hits;
    CHECK(rds_malloc(200, NULL, &err) != NULL);
    rds_get_stats(&stats);
    CHECK(stats.hits == hits + 1 && stats.prealloc == 1);
    CHECK(rds_unload_heap(&err) == 0);
    OK(rvm_terminate());
}

static void intentions(void)
{
    int err;
    intentionList_t list = {0, 0, NULL};
    char *blocks[40];
    begin_life("heap-log", 1 << 20);
    loaded();
    for (int i = 0; i < 40; i++)
        CHECK((blocks[i] = rds_malloc(50, NULL, &err)) != NULL);
    CHECK(rds_fake_free(NULL, &list) == SUCCESS && list.count == 0);
    CHECK(rds_fake_free(blocks[0] + 4, &list) == EBAD_ARGS);
    for (int i = 0; i < 40; i++)
        CHECK(rds_fake_free(blocks[i], &list) == SUCCESS);
    CHECK(list.count == 40 && list.table[39] == blocks[39] && list.size >= 40 * sizeof(char *));
    /* Not yet. */
    CHECK(rds_fake_free(blocks[0], &list) == SUCCESS && list.count == 41);
    list.count = 40;
    CHECK(rds_do_free(&list, flush) == 0 && list.table == NULL);
    CHECK(rds_fake_free(blocks[0], &list) == EFREED_TWICE);
    FILE *out = fopen(in("trace"), "w");
    CHECK(rds_trace_on(out) == 0 && rds_tracing && rds_tracing_file == out);
    RDS_LOG("nothing else\n");
    CHECK(rds_malloc(50, NULL, &err) != NULL && rds_trace_dump_heap() == 0 && rds_trace_off() == 0 && !rds_tracing);
    CHECK(ftell(out) > 100 && fclose(out) == 0);
    /* Killed with the heap loaded. */
    raise(SIGKILL);
}

/* The original leaves blocks that are larger than its largest list with any on that list, and so may find them there. */
static void of_the_original(void)
{
    int err;
    rvm_tid_t tid;
    begin_life("heap-log", 1 << 20);
    char *path = data_file("original", LENGTH), *fixed;
    CHECK(rds_zap_heap(path, length(), START, STATIC_LENGTH, HEAP_LENGTH, 80, 64, &err) == 0);
    CHECK(rds_load_heap(path, length(), &fixed, &err) == 0 && err == SUCCESS);
    /* All of it is on list 60 of 80. */
    unsigned long *largest = (unsigned long *)(START + 160);
    char **list_60 = (char **)(START + 248 + 60 * 16 + 8), **list_80 = (char **)(START + 248 + 80 * 16 + 8);
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, START, 248 + 81 * 16));
    CHECK(*largest == 80 && *list_80 != NULL && *list_60 == NULL);
    *list_60 = *list_80;
    *list_80 = NULL;
    *largest = 60;
    OK(rvm_end_transaction(&tid, flush));
    char *small = rds_malloc(100, NULL, &err);
    CHECK(small != NULL && err == SUCCESS);
    char *large = rds_malloc(20000, NULL, &err);
    CHECK(large != NULL && err == SUCCESS);
    CHECK(rds_free(large, NULL, &err) == 0 && err == SUCCESS && rds_free(small, NULL, &err) == 0 && err == SUCCESS);
    CHECK(rds_malloc(HEAP_LENGTH - 8192, NULL, &err) != NULL && err == SUCCESS);
    /* Too many are asked for in a transaction that goes on: nothing is lost. */
    rds_stats_t before, after;
    rds_get_stats(&before);
    OK(rvm_begin_transaction(&tid, restore));
    CHECK(rds_prealloc(500, 1000, &tid, &err) == -1 && err == ENO_ROOM);
    OK(rvm_end_transaction(&tid, flush));
    rds_get_stats(&after);
    CHECK(before.freebytes == after.freebytes && before.mallocbytes == after.mallocbytes);
    CHECK(rds_unload_heap(&err) == 0);
    OK(rvm_terminate());
}

static void after_that(void)
{
    int err;
    begin_life("heap-log", 1 << 20);
    loaded();
    rds_stats_t stats;
    rds_get_stats(&stats);
    CHECK(strcmp(*(char **)(START + HEAP_LENGTH), "kept") == 0 && stats.free >= 40);
    CHECK(rds_unload_heap(&err) == 0);
    CHECK(rds_start_heap(NULL, &err) == -1 && err == EBAD_ARGS);
    char other[4096] = "another heap";
    CHECK(rds_start_heap(other, &err) == -1 && err == EHEAP_VERSION_SKEW && rds_maxblock(1) == 0);
    CHECK(rds_stop_heap(&err) == -1 && err == SUCCESS);
    /* Too small for the header. */
    rvm_tid_t tid;
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    CHECK(rds_init_heap(other, 264 + 16 * 80 - 1, 64, 80, &tid, &err) == -1 && err == ENO_ROOM);
    OK(rvm_abort_transaction(&tid));
    OK(rvm_terminate());
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    dir = realpath(argv[1], NULL);
    void (*all[])(void) = {zapped, allocating, coalescing, intentions, after_that, of_the_original};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lives(all[i]);
    puts("sound");
    return 0;
}
