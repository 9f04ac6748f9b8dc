/* The whole engine through caliburn.h, with either policy: what is committed is there, what is not is not. */
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void count_segment(int *count, const char *name, uint64_t len)
{
    CHECK(strcmp(name, "data") == 0 && len == 65536);
    ++*count;
}

static int visit_segment(void *context, const char *name, uint64_t len)
{
    count_segment(context, name, len);
    return 0;
}

/* Told how far something is; below zero, it has had enough. */
static int count_told(void *context, int phase, uint64_t done, uint64_t total)
{
    int *told = context;
    CHECK((phase == CALIBURN_READ_LOG || phase == CALIBURN_VERIFY_SEGMENTS) && done <= total);
    if (*told < 0) return 1;
    *told += 1;
    return 0;
}

static void transactions(const char *path, int policy)
{
    caliburn_store *store = opened(path, policy);
    CHECK(caliburn_policy(store) == policy);
    int most = policy == CALIBURN_REDO ? CALIBURN_POWER : CALIBURN_PROCESS;
    CHECK(caliburn_reach(store) == CALIBURN_PROCESS || caliburn_reach(store) == CALIBURN_POWER);
    most = caliburn_reach(store);
    caliburn_region *region = mapped(store, "data", 65536);
    CHECK(caliburn_region_len(region) == 65536 && caliburn_region_offset(region) == 0);
    int64_t *word = caliburn_region_address(region);
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    OK(caliburn_set_range(&tx, word, 16));
    word[0] = -100;
    word[1] = 100;
    OK(caliburn_commit(&tx, most));
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    int64_t other[2] = {7, 8};
    OK(caliburn_write(&tx, word, other, sizeof other));
    CHECK(word[0] == 7);
    CHECK(caliburn_region_uncommitted(region) == 1);
    FAILS(CALIBURN_BUSY, caliburn_unmap(region));
    FAILS(CALIBURN_BUSY, caliburn_close(store));
    OK(caliburn_abort(&tx));
    CHECK(word[0] == -100 && word[1] == 100);
    CHECK(caliburn_region_uncommitted(region) == 0);

    /* Parts are rolled back; another part is done elsewhere. */
    caliburn_savepoint_t first, second;
    caliburn_tx branch = CALIBURN_TX_INITIALIZER;
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    OK(caliburn_write(&tx, word, other, sizeof other));
    OK(caliburn_savepoint(&tx, &first));
    OK(caliburn_set_range(&tx, word, 16));
    word[0] = 9;
    OK(caliburn_savepoint(&tx, &second));
    OK(caliburn_rollback_to(&tx, &first));
    CHECK(word[0] == 7 && word[1] == 8);
    FAILS(CALIBURN_INVALID, caliburn_rollback_to(&tx, &second));
    OK(caliburn_release(&tx, &first));
    FAILS(CALIBURN_INVALID, caliburn_release(&tx, &first));
    FAILS(CALIBURN_INVALID, caliburn_savepoint(&tx, NULL));
    OK(caliburn_branch(&tx, &branch));
    FAILS(CALIBURN_INVALID, caliburn_branch(&tx, &branch));
    OK(caliburn_set_range(&branch, word + 2, 8));
    word[2] = 11;
    FAILS(CALIBURN_INVALID, caliburn_commit(&tx, CALIBURN_PROCESS));
    FAILS(CALIBURN_INVALID, caliburn_abort(&tx));
    FAILS(CALIBURN_INVALID, caliburn_commit(&branch, CALIBURN_PROCESS));
    FAILS(CALIBURN_INVALID, caliburn_adopt(&tx, &tx));
    OK(caliburn_adopt(&tx, &branch));
    FAILS(CALIBURN_INVALID, caliburn_adopt(&tx, &branch));
    OK(caliburn_branch(&tx, &branch));
    OK(caliburn_set_range(&branch, word, 8));
    word[0] = 12;
    OK(caliburn_abort(&branch));
    CHECK(word[0] == 7 && word[1] == 8 && word[2] == 11);
    OK(caliburn_abort(&tx));
    CHECK(word[0] == -100 && word[1] == 100 && word[2] == 0);
    if (policy == CALIBURN_REDO) {
        OK(caliburn_begin(store, CALIBURN_NO_RESTORE, &tx));
        FAILS(CALIBURN_INVALID, caliburn_savepoint(&tx, &first));
        OK(caliburn_commit(&tx, CALIBURN_PROCESS));
    }

    /* Source and target overlap. */
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    OK(caliburn_write(&tx, word + 1, word, 16));
    OK(caliburn_set_range(&tx, word, 0));
    OK(caliburn_write(&tx, word, NULL, 0));
    OK(caliburn_commit(&tx, CALIBURN_PROCESS));
    CHECK(word[1] == -100 && word[2] == 100);

    int count = 0;
    OK(caliburn_segments(store, visit_segment, &count));
    CHECK(count == 1);
    caliburn_statistics statistics;
    OK(caliburn_statistics_get(store, &statistics, sizeof statistics));
    uint64_t committed = policy == CALIBURN_REDO ? 3 : 2;
    CHECK(statistics.committed == committed && statistics.aborted == 2);
    /* A program compiled with a header that knew less. */
    memset(&statistics, 0xFF, sizeof statistics);
    OK(caliburn_statistics_get(store, &statistics, 8));
    CHECK(statistics.committed == committed && statistics.aborted == UINT64_MAX);
    caliburn_query query;
    OK(caliburn_query_store(store, &query, sizeof query));
    CHECK(query.uncommitted == 0 && query.failed == 0 && query.page_bytes >= 4096);
    if (policy == CALIBURN_REDO) {
        OK(caliburn_flush(store));
        OK(caliburn_truncate(store));
        OK(caliburn_tune(store, CALIBURN_TRUNCATE_PERCENT, 30));
        FAILS(CALIBURN_INVALID, caliburn_tune(store, CALIBURN_TRUNCATE_PERCENT, 100));
    }
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
    OK(caliburn_check(path, NULL, NULL));
    int told = 0;
    caliburn_options *watched = caliburn_options_new();
    OK(caliburn_options_set_progress(watched, count_told, &told));
    OK(caliburn_check_with(path, watched, NULL, NULL));
    CHECK(told > 0);
    told = -1;
    FAILS(CALIBURN_INTERRUPTED, caliburn_check_with(path, watched, NULL, NULL));
    OK(caliburn_options_set_progress(watched, NULL, NULL));
    OK(caliburn_check_with(path, watched, NULL, NULL));
    caliburn_options_free(watched);

    store = opened(path, policy);
    region = mapped(store, "data", 65536);
    word = caliburn_region_address(region);
    CHECK(word[0] == -100 && word[1] == -100 && word[2] == 100);
    caliburn_segment *segment;
    OK(caliburn_segment_open(store, "data", &segment));
    char name[8];
    CHECK(caliburn_segment_name(segment, name, sizeof name) == 4 && strcmp(name, "data") == 0);
    CHECK(caliburn_segment_name(segment, name, 3) == 4 && strcmp(name, "da") == 0);
    OK(caliburn_segment_grow(segment, 200000));
    CHECK(caliburn_segment_len(segment) == 262144);
    OK(caliburn_region_grow(region, 262144));
    CHECK(caliburn_region_address(region) == (void *)word && caliburn_region_len(region) == 262144);
    caliburn_segment_release(segment);
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
}

static int old_value(int64_t *sum, uint64_t offset, const void *bytes, size_t len)
{
    CHECK(offset == 0 && len == 8);
    *sum += *(const int64_t *)bytes;
    return 0;
}

static void visit_old(void *context, uint32_t segment, uint64_t offset, const void *bytes, size_t len)
{
    (void)segment;
    old_value(context, offset, bytes, len);
}

static int visit_prepared(void *context, const caliburn_prepared *prepared)
{
    CHECK(prepared->global_id_len == 3 && memcmp(prepared->global_id, "one", 3) == 0 && prepared->time > 0);
    ++*(int *)context;
    return 0;
}

static void prepared_and_tickets(const char *path)
{
    caliburn_store *store = opened(path, CALIBURN_REDO);
    caliburn_region *region = mapped(store, "data", 65536);
    int64_t *word = caliburn_region_address(region);
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    OK(caliburn_set_range(&tx, word, 8));
    word[0] = 5;
    OK(caliburn_prepare(&tx, "one", 3));
    int count = 0;
    OK(caliburn_prepared_list(store, visit_prepared, &count));
    CHECK(count == 1);
    FAILS(CALIBURN_NOT_FOUND, caliburn_commit_prepared(store, "two", 3));
    OK(caliburn_commit_prepared(store, "one", 3));
    CHECK(word[0] == 5);

    caliburn_ticket *ticket;
    OK(caliburn_begin(store, CALIBURN_NO_RESTORE, &tx));
    OK(caliburn_set_range(&tx, word, 8));
    word[0] = 6;
    OK(caliburn_commit_async(&tx, &ticket));
    FAILS(CALIBURN_BUSY, caliburn_close(store));
    OK(caliburn_ticket_wait(ticket));
    CHECK(caliburn_ticket_is_durable(ticket) == -1);
    FAILS(CALIBURN_INVALID, caliburn_ticket_wait(ticket));

    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    OK(caliburn_set_range(&tx, word, 8));
    word[0] = 7;
    int64_t sum = 0;
    OK(caliburn_commit_returning_old(&tx, CALIBURN_POWER, visit_old, &sum));
    CHECK(sum == 6);
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
}

/* A process that is killed within a transaction leaves those before it. */
static void killed(const char *path, int policy)
{
    int to_parent[2];
    CHECK(pipe(to_parent) == 0);
    pid_t child = fork();
    if (child == 0) {
        caliburn_store *store = opened(path, policy);
        int64_t *word = caliburn_region_address(mapped(store, "data", 65536));
        caliburn_tx tx = CALIBURN_TX_INITIALIZER;
        OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
        OK(caliburn_set_range(&tx, word, 8));
        word[0] = 1;
        OK(caliburn_commit(&tx, CALIBURN_PROCESS));
        OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
        OK(caliburn_set_range(&tx, word, 16));
        word[0] = word[1] = 2;
        CHECK(write(to_parent[1], "x", 1) == 1);
        pause();
        _exit(1);
    }
    char byte;
    close(to_parent[1]);
    CHECK(read(to_parent[0], &byte, 1) == 1);
    close(to_parent[0]);
    caliburn_options *options = small();
    caliburn_store *store = NULL;
    FAILS(CALIBURN_BUSY, caliburn_open(path, options, &store));
    CHECK(store == NULL && strstr(caliburn_message(), "in use") != NULL);
    caliburn_options_free(options);
    int status;
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    store = opened(path, policy);
    caliburn_region *region = mapped(store, "data", 65536);
    int64_t *word = caliburn_region_address(region);
    CHECK(word[0] == 1 && word[1] == 0);
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
}

struct worker {
    caliburn_store *store;
    int64_t *word;
};

static void *work(void *context)
{
    struct worker *worker = context;
    for (int i = 0; i < 500; i++) {
        caliburn_tx tx = CALIBURN_TX_INITIALIZER;
        OK(caliburn_begin(worker->store, CALIBURN_RESTORE, &tx));
        OK(caliburn_set_range(&tx, worker->word, 8));
        ++*worker->word;
        if (i % 5 == 4)
            OK(caliburn_abort(&tx));
        else
            OK(caliburn_commit(&tx, CALIBURN_PROCESS));
    }
    return NULL;
}

static void threads(const char *path, int policy)
{
    caliburn_store *store = opened(path, policy);
    caliburn_region *region = mapped(store, "data", 65536);
    int64_t *word = caliburn_region_address(region);
    struct worker workers[4];
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){store, word + i};
        CHECK(pthread_create(&thread[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(word[i] == 400);
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
}

static void heap(const char *path, int policy)
{
    caliburn_store *store = opened(path, policy);
    caliburn_heap *heap;
    OK(caliburn_heap_open(store, "objects", &heap));
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    uint64_t place, larger, kept;
    OK(caliburn_heap_begin(heap, &tx));
    OK(caliburn_heap_alloc(&tx, 100, &place));
    char *text = caliburn_heap_at(heap, place);
    CHECK(text != NULL && caliburn_heap_place(heap, text) == place && caliburn_heap_usable_len(heap, place) >= 100);
    OK(caliburn_set_range(&tx, text, 100));
    strcpy(text, "kept across openings");
    OK(caliburn_heap_set_root(&tx, "text", place));
    OK(caliburn_heap_alloc_aligned(&tx, 5000, 4096, &kept));
    CHECK((uintptr_t)caliburn_heap_at(heap, kept) % 4096 == 0);
    FAILS(CALIBURN_BUSY, caliburn_heap_close(heap));
    OK(caliburn_commit(&tx, CALIBURN_PROCESS));
    OK(caliburn_heap_begin(heap, &tx));
    OK(caliburn_heap_realloc(&tx, place, 10000, &larger));
    OK(caliburn_heap_free(&tx, kept));
    OK(caliburn_abort(&tx));
    OK(caliburn_heap_check(heap));
    caliburn_heap_statistics statistics;
    OK(caliburn_heap_statistics_get(heap, &statistics));
    CHECK(statistics.objects == 2 && statistics.bytes > 0);
    FAILS(CALIBURN_BUSY, caliburn_close(store));
    OK(caliburn_heap_close(heap));
    OK(caliburn_close(store));

    store = opened(path, policy);
    OK(caliburn_heap_open(store, "objects", &heap));
    OK(caliburn_heap_root(heap, "text", &place));
    CHECK(strcmp(caliburn_heap_at(heap, place), "kept across openings") == 0);
    FAILS(CALIBURN_NOT_FOUND, caliburn_heap_root(heap, "nothing", &place));
    OK(caliburn_heap_begin(heap, &tx));
    OK(caliburn_heap_free(&tx, kept));
    FAILS(CALIBURN_NOT_ALLOCATED, caliburn_heap_free(&tx, kept));
    FAILS(CALIBURN_NOT_ALLOCATED, caliburn_heap_free(&tx, 12345));
    OK(caliburn_heap_set_root(&tx, "text", CALIBURN_NOWHERE));
    OK(caliburn_commit(&tx, CALIBURN_PROCESS));
    FAILS(CALIBURN_NOT_FOUND, caliburn_heap_root(heap, "text", &place));
    /* Undecided, and forced later. */
    for (int committed = 0; policy == CALIBURN_REDO && committed < 2; committed++) {
        OK(caliburn_heap_begin(heap, &tx));
        OK(caliburn_heap_alloc(&tx, 100, &place));
        OK(caliburn_prepare(&tx, "two", 3));
        FAILS(CALIBURN_INVALID, caliburn_commit(&tx, CALIBURN_PROCESS));
        FAILS(CALIBURN_BUSY, caliburn_heap_close(heap));
        OK(committed ? caliburn_heap_commit_prepared(heap, "two", 3) : caliburn_heap_abort_prepared(heap, "two", 3));
        FAILS(CALIBURN_NOT_FOUND, caliburn_heap_abort_prepared(heap, "two", 3));
        OK(caliburn_heap_statistics_get(heap, &statistics));
        CHECK(statistics.objects == (committed ? 2 : 1));
    }
    caliburn_ticket *ticket;
    OK(caliburn_heap_begin(heap, &tx));
    OK(caliburn_heap_alloc(&tx, 100, &place));
    int later = caliburn_commit_async(&tx, &ticket);
    CHECK(later == (policy == CALIBURN_REDO ? CALIBURN_OK : CALIBURN_CLASS));
    if (later == CALIBURN_OK)
        OK(caliburn_ticket_wait(ticket));
    OK(caliburn_heap_close(heap));
    OK(caliburn_close(store));
}

/* A file that is nothing but data. */
static void adopted(const char *dir)
{
    char *path = in(dir, "adopting"), *data = in(dir, "data");
    FILE *file = fopen(data, "w");
    for (int i = 0; i < 10000; i++)
        fputc(i % 100, file);
    fclose(file);
    caliburn_options *options = small();
    OK(caliburn_options_set(options, CALIBURN_DECLARED_ONLY, 1));
    caliburn_store *store;
    caliburn_segment *segment;
    caliburn_region *region;
    OK(caliburn_open(path, options, &store));
    caliburn_options_free(options);
    OK(caliburn_segment_adopt(store, data, &segment));
    CHECK(caliburn_segment_len(segment) == 9728);
    OK(caliburn_map(segment, 0, 0, &region));
    char *bytes = caliburn_region_address(region);
    CHECK(bytes[123] == 23);
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    OK(caliburn_set_range(&tx, bytes + 123, 1));
    bytes[123] = 'x';
    bytes[124] = 'y';
    OK(caliburn_commit(&tx, CALIBURN_POWER));
    OK(caliburn_leave(region));
    CHECK(bytes[123] == 'x');
    caliburn_segment_release(segment);
    OK(caliburn_close(store));
    file = fopen(data, "r");
    CHECK(fseek(file, 123, SEEK_SET) == 0 && fgetc(file) == 'x' && fgetc(file) == 24);
    fclose(file);
    free(path);
    free(data);
}

/* Transactions that declare nothing, of which the second is aborted. */
static void just_store(caliburn_store *store, int64_t *words, int failure_class)
{
    for (int turn = 1; turn <= 3; turn++) {
        caliburn_tx tx = CALIBURN_TX_INITIALIZER;
        OK(caliburn_begin(store, CALIBURN_NO_RESTORE, &tx));
        FAILS(CALIBURN_INVALID, caliburn_will_change(&tx, 2));
        OK(caliburn_will_change(&tx, turn == 1 ? CALIBURN_FEW : CALIBURN_MANY));
        for (int i = 0; i < 8000; i += 100)
            words[i] = turn;
        caliburn_savepoint_t savepoint;
        FAILS(CALIBURN_INVALID, caliburn_savepoint(&tx, &savepoint));
        OK(turn == 2 ? caliburn_abort(&tx) : caliburn_commit(&tx, failure_class));
        for (int i = 0; i < 8000; i += 100)
            CHECK(words[i] == (turn == 2 ? 1 : turn));
    }
}

/* Nothing is declared: pages are caught, and what they held is written early or late. */
static void caught(const char *path, uint64_t when)
{
    caliburn_options *options = small();
    caliburn_store *store = NULL;
    OK(caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, CALIBURN_SHADOW));
    OK(caliburn_options_set(options, CALIBURN_TRACKING, CALIBURN_FAULTS));
    FAILS(CALIBURN_INVALID, caliburn_options_set(options, CALIBURN_BEFORE_IMAGES, 3));
    OK(caliburn_options_set(options, CALIBURN_BEFORE_IMAGES, when));
    OK(caliburn_open(path, options, &store));
    caliburn_region *region = mapped(store, "data", 65536);
    just_store(store, caliburn_region_address(region), CALIBURN_POWER);
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
    caliburn_options_free(options);
}

/* The same, in a pool of few frames. */
static void pooled(const char *path)
{
    /* Memory that is hidden is nobody's, valgrind would say before anybody is served. */
    const char *preloaded = getenv("LD_PRELOAD");
    if (preloaded != NULL && strstr(preloaded, "vgpreload") != NULL) return;
    caliburn_options *options = small();
    caliburn_store *store = NULL;
    OK(caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, CALIBURN_SHADOW));
    OK(caliburn_options_set(options, CALIBURN_POOL_PAGE_BYTES, 4096));
    FAILS(CALIBURN_INVALID, caliburn_options_set(options, CALIBURN_POOL_REPLACEMENT, 3));
    for (uint64_t how = CALIBURN_RANDOM; how <= CALIBURN_SECOND_CHANCE; how++) {
        OK(caliburn_options_set(options, CALIBURN_TRACKING, CALIBURN_FAULTS));
        OK(caliburn_options_set(options, CALIBURN_POOL_REPLACEMENT, how));
        OK(caliburn_options_set(options, CALIBURN_POOL_BYTES, 8 * 4096));
        OK(caliburn_open(path, options, &store));
        caliburn_region *region = mapped(store, "data", 65536);
        just_store(store, caliburn_region_address(region), CALIBURN_POWER);
        OK(caliburn_unmap(region));
        OK(caliburn_close(store));
        OK(caliburn_options_set(options, CALIBURN_POOL_BYTES, 7 * 4096));
        FAILS(CALIBURN_INVALID, caliburn_open(path, options, &store));
        OK(caliburn_options_set(options, CALIBURN_POOL_BYTES, 8 * 4096));
        OK(caliburn_options_set(options, CALIBURN_TRACKING, CALIBURN_DECLARED));
        FAILS(CALIBURN_INVALID, caliburn_open(path, options, &store));
    }
    caliburn_options_free(options);
}

/* Nothing is declared: what has changed is found when a transaction commits. */
static void found(const char *path)
{
    caliburn_options *options = small();
    caliburn_store *store = NULL;
    OK(caliburn_options_set(options, CALIBURN_TRACKING, CALIBURN_SCAN));
    OK(caliburn_open(path, options, &store));
    caliburn_region *region = mapped(store, "data", 65536);
    int64_t *words = caliburn_region_address(region);
    just_store(store, words, CALIBURN_PROCESS);
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
    OK(caliburn_open(path, options, &store));
    region = mapped(store, "data", 65536);
    words = caliburn_region_address(region);
    for (int i = 0; i < 8000; i += 100)
        CHECK(words[i] == 3);
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
    /* Where memory is the segment, nothing says what it held. */
    OK(caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, CALIBURN_UNDO));
    char *other = in(path, "other");
    FAILS(CALIBURN_INVALID, caliburn_open(other, options, &store));
    free(other);
    caliburn_options_free(options);
}

/* What is read ahead changes nothing; what is asked for wrongly is refused. */
static void ahead(const char *path)
{
    caliburn_options *options = small();
    caliburn_store *store = NULL;
    FAILS(CALIBURN_INVALID, caliburn_options_set(options, CALIBURN_PREFETCH, 3));
    OK(caliburn_options_set(options, CALIBURN_PREFETCH, CALIBURN_RECORDED));
    OK(caliburn_options_set(options, CALIBURN_PREFETCH_RATE, 0));
    FAILS(CALIBURN_INVALID, caliburn_open(path, options, &store));
    OK(caliburn_options_set(options, CALIBURN_PREFETCH_RATE, UINT64_MAX));
    for (int turn = 1; turn <= 2; turn++) {
        OK(caliburn_open(path, options, &store));
        caliburn_region *region = mapped(store, "data", 65536);
        int64_t *word = caliburn_region_address(region);
        OK(caliburn_region_prefetch(region, 0, 65536));
        FAILS(CALIBURN_INVALID, caliburn_region_prefetch(region, 1, 65536));
        FAILS(CALIBURN_INVALID, caliburn_region_prefetch(region, SIZE_MAX, 2));
        FAILS(CALIBURN_INVALID, caliburn_region_prefetch(NULL, 0, 1));
        OK(caliburn_region_sequential(region, 0, 65536, 1));
        CHECK(*word == turn - 1);
        OK(caliburn_region_sequential(region, 0, 65536, 0));
        caliburn_tx tx = CALIBURN_TX_INITIALIZER;
        OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
        OK(caliburn_set_range(&tx, word, sizeof *word));
        *word = turn;
        OK(caliburn_commit(&tx, CALIBURN_PROCESS));
        OK(caliburn_unmap(region));
        OK(caliburn_close(store));
    }
    caliburn_options_free(options);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const char *dir = argv[1];
    for (int policy = CALIBURN_REDO; policy <= CALIBURN_UNDO; policy++) {
        char name[32];
        void (*all[])(const char *, int) = {transactions, killed, threads, heap};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            sprintf(name, "store-%d-%zu", policy, i);
            char *path = in(dir, name);
            all[i](path, policy);
            free(path);
        }
    }
    char *path = in(dir, "prepared");
    prepared_and_tickets(path);
    free(path);
    for (int when = CALIBURN_EAGER; when <= CALIBURN_ADAPTIVE; when++) {
        char name[32];
        sprintf(name, "caught-%d", when);
        path = in(dir, name);
        caught(path, (uint64_t)when);
        free(path);
    }
    path = in(dir, "found");
    found(path);
    free(path);
    path = in(dir, "ahead");
    ahead(path);
    free(path);
    path = in(dir, "pooled");
    pooled(path);
    free(path);
    adopted(dir);
    printf("%s: sound\n", caliburn_version());
    return 0;
}
