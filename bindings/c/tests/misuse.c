/* What must not be: each has its code, and nothing crashes. */
#include "check.h"

#include <unistd.h>

static void *garbage(void)
{
    return (void *)(uintptr_t)0x123456789ABCDEF0;
}

static void handles(const char *dir)
{
    char *path = in(dir, "store");
    caliburn_store *store = opened(path, CALIBURN_REDO), *none = NULL;
    caliburn_region *region = mapped(store, "data", 65536);
    char *bytes = caliburn_region_address(region);
    caliburn_segment *segment;
    caliburn_heap *heap;
    OK(caliburn_segment_open(store, "data", &segment));
    OK(caliburn_heap_open(store, "objects", &heap));
    OK(caliburn_heap_close(heap));
    caliburn_segment_release(segment);
    caliburn_segment_release(segment);
    caliburn_segment_release(NULL);
    caliburn_options_free(garbage());
    caliburn_ticket_free(garbage());

    /* Null, garbage, given back, of another kind. */
    void *wrong[] = {NULL, garbage(), segment, heap, region};
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    caliburn_segment *s = NULL;
    caliburn_region *r = NULL;
    caliburn_heap *h = NULL;
    caliburn_query query;
    caliburn_statistics statistics;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *w = wrong[i];
        FAILS(CALIBURN_INVALID, caliburn_close(w));
        FAILS(CALIBURN_INVALID, caliburn_begin(w, CALIBURN_RESTORE, &tx));
        FAILS(CALIBURN_INVALID, caliburn_flush(w));
        FAILS(CALIBURN_INVALID, caliburn_truncate(w));
        FAILS(CALIBURN_INVALID, caliburn_tend(w));
        FAILS(CALIBURN_INVALID, caliburn_tune(w, CALIBURN_MERGE_LAZY, 1));
        FAILS(CALIBURN_INVALID, caliburn_segment_open(w, "data", &s));
        FAILS(CALIBURN_INVALID, caliburn_heap_open(w, "objects", &h));
        FAILS(CALIBURN_INVALID, caliburn_heap_begin(w, &tx));
        FAILS(CALIBURN_INVALID, caliburn_heap_check(w));
        FAILS(CALIBURN_INVALID, caliburn_map(w, 0, 0, &r));
        FAILS(CALIBURN_INVALID, caliburn_load(w, &r));
        FAILS(CALIBURN_INVALID, caliburn_segment_grow(w, 1));
        FAILS(CALIBURN_INVALID, caliburn_query_store(w, &query, sizeof query));
        FAILS(CALIBURN_INVALID, caliburn_statistics_get(w, &statistics, sizeof statistics));
        FAILS(CALIBURN_INVALID, caliburn_commit_prepared(w, "x", 1));
        FAILS(CALIBURN_INVALID, caliburn_ticket_wait(w));
        CHECK(caliburn_policy(w) == -1 && caliburn_reach(w) == -1 && caliburn_segment_len(w) == 0);
        CHECK(caliburn_heap_at(w, 0) == NULL && caliburn_heap_place(w, bytes) == CALIBURN_NOWHERE);
        if (w == region)
            continue;
        FAILS(CALIBURN_INVALID, caliburn_unmap(w));
        FAILS(CALIBURN_INVALID, caliburn_leave(w));
        FAILS(CALIBURN_INVALID, caliburn_region_grow(w, 1));
        CHECK(caliburn_region_address(w) == NULL && caliburn_region_len(w) == 0);
        CHECK(caliburn_region_uncommitted(w) == -1);
    }
    CHECK(s == NULL && r == NULL && h == NULL);
    FAILS(CALIBURN_INVALID, caliburn_options_set(NULL, CALIBURN_CREATE, 1));
    FAILS(CALIBURN_INVALID, caliburn_open(NULL, NULL, &none));
    FAILS(CALIBURN_INVALID, caliburn_open(path, garbage(), &none));
    FAILS(CALIBURN_INVALID, caliburn_open(path, NULL, NULL));
    FAILS(CALIBURN_INVALID, caliburn_segment_open(store, NULL, &s));
    FAILS(CALIBURN_INVALID, caliburn_segment_open(store, "\xFF", &s));
    FAILS(CALIBURN_INVALID, caliburn_segment_open(store, "data", NULL));
    FAILS(CALIBURN_INVALID, caliburn_segments(store, NULL, NULL));
    FAILS(CALIBURN_INVALID, caliburn_query_store(store, NULL, sizeof query));
    FAILS(CALIBURN_INVALID, caliburn_check(NULL, NULL, NULL));

    /* Transactions: none, ended, copied, begun twice, of another kind. */
    caliburn_tx *wrong_tx[] = {NULL, &tx, (caliburn_tx *)((char *)&tx + 1)};
    for (size_t i = 0; i < 3; i++) {
        FAILS(CALIBURN_INVALID, caliburn_set_range(wrong_tx[i], bytes, 8));
        FAILS(CALIBURN_INVALID, caliburn_write(wrong_tx[i], bytes, "x", 1));
        FAILS(CALIBURN_INVALID, caliburn_commit(wrong_tx[i], CALIBURN_PROCESS));
        FAILS(CALIBURN_INVALID, caliburn_abort(wrong_tx[i]));
        FAILS(CALIBURN_INVALID, caliburn_prepare(wrong_tx[i], "x", 1));
    }
    FAILS(CALIBURN_INVALID, caliburn_begin(store, CALIBURN_RESTORE, NULL));
    FAILS(CALIBURN_INVALID, caliburn_begin(store, 2, &tx));
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    FAILS(CALIBURN_INVALID, caliburn_begin(store, CALIBURN_RESTORE, &tx));
    caliburn_tx copy = tx;
    FAILS(CALIBURN_INVALID, caliburn_commit(&copy, CALIBURN_PROCESS));
    FAILS(CALIBURN_INVALID, caliburn_commit(&tx, 3));
    FAILS(CALIBURN_INVALID, caliburn_commit(&tx, -1));
    uint64_t place;
    FAILS(CALIBURN_INVALID, caliburn_heap_alloc(&tx, 8, &place));
    FAILS(CALIBURN_RANGE, caliburn_set_range(&tx, NULL, 8));
    FAILS(CALIBURN_RANGE, caliburn_set_range(&tx, &tx, 8));
    FAILS(CALIBURN_RANGE, caliburn_set_range(&tx, bytes + 65530, 8));
    FAILS(CALIBURN_RANGE, caliburn_set_range(&tx, bytes, SIZE_MAX));
    FAILS(CALIBURN_INVALID, caliburn_write(&tx, bytes, NULL, 8));
    FAILS(CALIBURN_INVALID, caliburn_write(&tx, bytes, bytes, SIZE_MAX));
    OK(caliburn_set_range(&tx, bytes, 8));
    OK(caliburn_commit(&tx, CALIBURN_PROCESS));
    FAILS(CALIBURN_INVALID, caliburn_commit(&tx, CALIBURN_PROCESS));
    FAILS(CALIBURN_INVALID, caliburn_abort(&tx));

    OK(caliburn_begin(store, CALIBURN_NO_RESTORE, &tx));
    OK(caliburn_set_range(&tx, bytes, 8));
    FAILS(CALIBURN_INVALID, caliburn_abort(&tx));
    FAILS(CALIBURN_INVALID, caliburn_prepare(&tx, "x", 1));
    OK(caliburn_commit(&tx, CALIBURN_PROCESS));
    OK(caliburn_segment_open(store, "data", &segment));
    FAILS(CALIBURN_INVALID, caliburn_map_at(segment, 0, 0, NULL, &r));
    FAILS(CALIBURN_INVALID, caliburn_map_at(segment, 0, 0, (void *)4097, &r));
    caliburn_segment_release(segment);
    /* Undecided, by this process: it stays so when the store is closed. */
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    OK(caliburn_set_range(&tx, bytes, 8));
    OK(caliburn_prepare(&tx, "x", 1));
    FAILS(CALIBURN_BUSY, caliburn_unmap(region));
    OK(caliburn_close(store));
    OK(caliburn_unmap(region));
    FAILS(CALIBURN_INVALID, caliburn_unmap(region));
    FAILS(CALIBURN_INVALID, caliburn_close(store));
    FAILS(CALIBURN_INVALID, caliburn_begin(store, CALIBURN_RESTORE, &tx));
    /* The same places in the tables are used again; the old handles are none. */
    caliburn_store *again = opened(path, CALIBURN_REDO);
    CHECK(again != store);
    FAILS(CALIBURN_INVALID, caliburn_flush(store));
    OK(caliburn_commit_prepared(again, "x", 1));
    FAILS(CALIBURN_NOT_FOUND, caliburn_abort_prepared(again, "x", 1));
    OK(caliburn_close(again));
    free(path);
}

static void files(const char *dir)
{
    caliburn_store *store = NULL;
    char *missing = in(dir, "missing"), *path = in(dir, "damaged"), *catalog = in(dir, "damaged/catalog");
    FAILS(CALIBURN_NOT_A_STORE, caliburn_open(missing, NULL, &store));
    FAILS(CALIBURN_NOT_A_STORE, caliburn_check(missing, NULL, NULL));
    caliburn_options *options = small();
    FAILS(CALIBURN_INVALID, caliburn_options_set(options, 99, 1));
    FAILS(CALIBURN_INVALID, caliburn_options_set(options, CALIBURN_CREATE, 2));
    FAILS(CALIBURN_INVALID, caliburn_options_set(options, CALIBURN_REQUIRE, 3));
    FAILS(CALIBURN_INVALID, caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, 9));
    OK(caliburn_options_set(options, CALIBURN_LOG_BYTES, 12345));
    FAILS(CALIBURN_INVALID, caliburn_open(path, options, &store));
    CHECK(strstr(caliburn_message(), "log_bytes = 12345") != NULL);
    caliburn_options_free(options);
    FAILS(CALIBURN_INVALID, caliburn_options_set(options, CALIBURN_CREATE, 1));
    OK(caliburn_close(opened(path, CALIBURN_REDO)));
    FILE *file = fopen(catalog, "r+");
    CHECK(file != NULL && fseek(file, 40, SEEK_SET) == 0 && fputc(0xFF, file) != EOF && fclose(file) == 0);
    FAILS(CALIBURN_DAMAGED, caliburn_open(path, NULL, &store));
    CHECK(strstr(caliburn_message(), "damaged/catalog") != NULL);
    FAILS(CALIBURN_DAMAGED, caliburn_check(path, NULL, NULL));
    CHECK(store == NULL);
    CHECK(strcmp(caliburn_code_name(99), "not a code of Caliburn's") == 0);
    CHECK(strcmp(caliburn_code_name(CALIBURN_PANIC), "CALIBURN_PANIC") == 0);
    free(missing);
    free(path);
    free(catalog);
}

/* The verifier finds what was not declared, and says so with a code. */
static void undeclared(const char *dir)
{
    char *path = in(dir, "verified");
    caliburn_options *options = small();
    OK(caliburn_options_set(options, CALIBURN_VERIFY, 1));
    caliburn_store *store;
    OK(caliburn_open(path, options, &store));
    caliburn_options_free(options);
    caliburn_region *region = mapped(store, "data", 65536);
    char *bytes = caliburn_region_address(region);
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    OK(caliburn_set_range(&tx, bytes, 4));
    bytes[0] = bytes[4] = 1;
    FAILS(CALIBURN_PANIC, caliburn_commit(&tx, CALIBURN_PROCESS));
    CHECK(strstr(caliburn_message(), "1 byte(s) at 4 of segment \"data\"") != NULL);
    bytes[4] = 0;
    caliburn_heap *heap;
    OK(caliburn_heap_open(store, "objects", &heap));
    OK(caliburn_heap_begin(heap, &tx));
    bytes[5] = 1;
    FAILS(CALIBURN_PANIC, caliburn_commit(&tx, CALIBURN_PROCESS));
    bytes[5] = 0;
    OK(caliburn_heap_close(heap));
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
    free(path);
}

/* With the undo policy the memory is the segment. */
static void left(const char *dir)
{
    char *path = in(dir, "undo");
    caliburn_store *store = opened(path, CALIBURN_UNDO);
    caliburn_region *region = mapped(store, "data", 65536);
    FAILS(CALIBURN_POLICY, caliburn_leave(region));
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
    free(path);
}

/* Without threads a call forces what is due. */
static void tended(const char *dir)
{
    char *path = in(dir, "tended");
    caliburn_options *options = small();
    OK(caliburn_options_set(options, CALIBURN_BACKGROUND, 0));
    OK(caliburn_options_set(options, CALIBURN_FLUSH_INTERVAL_MS, 1));
    caliburn_store *store;
    OK(caliburn_open(path, options, &store));
    caliburn_options_free(options);
    caliburn_region *region = mapped(store, "data", 65536);
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    caliburn_query query;
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    OK(caliburn_write(&tx, caliburn_region_address(region), "lazy", 4));
    OK(caliburn_commit(&tx, CALIBURN_PROCESS));
    caliburn_statistics before, after;
    OK(caliburn_statistics_get(store, &before, sizeof before));
    do {
        OK(caliburn_tend(store));
        OK(caliburn_statistics_get(store, &after, sizeof after));
    } while (after.forces == before.forces);
    OK(caliburn_query_store(store, &query, sizeof query));
    CHECK(query.log_unforced == 0);
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
    free(path);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    handles(argv[1]);
    files(argv[1]);
    undeclared(argv[1]);
    left(argv[1]);
    tended(argv[1]);
    puts("sound");
    return 0;
}
