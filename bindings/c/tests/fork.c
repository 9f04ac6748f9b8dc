/* A forked child keeps calling the library: each call is refused, and the parent loses nothing. */
#include "check.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t forked(int with_handlers)
{
    return with_handlers ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static void refused(caliburn_store *store, caliburn_region *region, caliburn_heap *heap)
{
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    caliburn_segment *segment = NULL;
    caliburn_query query;
    FAILS(CALIBURN_INHERITED, caliburn_begin(store, CALIBURN_RESTORE, &tx));
    CHECK(strstr(caliburn_message(), "parent process") != NULL);
    FAILS(CALIBURN_INHERITED, caliburn_heap_begin(heap, &tx));
    FAILS(CALIBURN_INHERITED, caliburn_heap_close(heap));
    FAILS(CALIBURN_INHERITED, caliburn_segment_open(store, "data", &segment));
    FAILS(CALIBURN_INHERITED, caliburn_segment_create(store, "other", 1 << 16, &segment));
    FAILS(CALIBURN_INHERITED, caliburn_flush(store));
    FAILS(CALIBURN_INHERITED, caliburn_truncate(store));
    FAILS(CALIBURN_INHERITED, caliburn_query_store(store, &query, sizeof query));
    FAILS(CALIBURN_INHERITED, caliburn_commit_prepared(store, "x", 1));
    FAILS(CALIBURN_INHERITED, caliburn_unmap(region));
    CHECK(caliburn_region_uncommitted(region) == -1);
    CHECK(caliburn_region_address(region) != NULL);
    OK(caliburn_close(store));
    FAILS(CALIBURN_INVALID, caliburn_begin(store, CALIBURN_RESTORE, &tx));
}

static void run(const char *path, int policy, int with_handlers)
{
    int forced = policy == CALIBURN_UNDO ? CALIBURN_PROCESS : CALIBURN_POWER, status;
    caliburn_store *store = opened(path, policy);
    caliburn_region *region = mapped(store, "data", 1 << 16);
    caliburn_heap *heap = NULL;
    caliburn_tx tx = CALIBURN_TX_INITIALIZER;
    long *word = caliburn_region_address(region);
    if (policy != CALIBURN_SHADOW)
        OK(caliburn_heap_open(store, "heap", &heap));
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    OK(caliburn_set_range(&tx, word, sizeof *word));
    *word = 1;
    pid_t child = forked(with_handlers);
    if (child == 0) {
        FAILS(CALIBURN_INHERITED, caliburn_set_range(&tx, word + 8, sizeof *word));
        FAILS(CALIBURN_INHERITED, caliburn_commit(&tx, CALIBURN_PROCESS));
        FAILS(CALIBURN_INHERITED, caliburn_abort(&tx));
        if (heap != NULL)
            refused(store, region, heap);
        else
            OK(caliburn_close(store));
        // The child does not exit: a leak checker would report what belongs to the parent's threads.
        execlp("true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(caliburn_commit(&tx, forced));
    for (long i = 0; i < 100; i++) {
        OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
        OK(caliburn_set_range(&tx, word, sizeof *word));
        *word = i;
        OK(caliburn_commit(&tx, forced));
    }
    if (heap != NULL)
        OK(caliburn_heap_close(heap));
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
    store = opened(path, policy);
    region = mapped(store, "data", 1 << 16);
    CHECK(*(long *)caliburn_region_address(region) == 99);
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
}

int main(int count, char **arguments)
{
    const int policies[] = {CALIBURN_REDO, CALIBURN_UNDO, CALIBURN_SHADOW};
    const char *dir = count > 1 ? arguments[1] : ".";
    for (int i = 0; i < 6; i++) {
        char name[8];
        sprintf(name, "s%d", i);
        char *path = in(dir, name);
        run(path, policies[i / 2], i % 2);
        free(path);
    }
    return 0;
}
