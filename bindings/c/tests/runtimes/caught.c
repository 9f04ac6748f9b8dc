/* A program whose stores are caught, to be driven by another language's runtime, which has handlers of its own; or
   by `main`, under a debugger. */
#include "../check.h"
#include "caught.h"

enum { WORDS = 8192, STEP = 100, KINDS = 4 };

static caliburn_store *store;
static caliburn_region *region;
static caliburn_tx tx = CALIBURN_TX_INITIALIZER;

/* Opens a store of a kind: images that are eager, lazy or adaptive, or a buffer pool. */
void caught_open(const char *dir, int kind)
{
    char name[16];
    sprintf(name, "caught-%d", kind);
    char *path = in(dir, name);
    caliburn_options *options = small();
    OK(caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, CALIBURN_SHADOW));
    OK(caliburn_options_set(options, CALIBURN_TRACKING, CALIBURN_FAULTS));
    if (kind < KINDS - 1) {
        OK(caliburn_options_set(options, CALIBURN_BEFORE_IMAGES, (uint64_t)kind));
    } else {
        OK(caliburn_options_set(options, CALIBURN_POOL_PAGE_BYTES, 4096));
        OK(caliburn_options_set(options, CALIBURN_POOL_BYTES, 8 * 4096));
    }
    OK(caliburn_open(path, options, &store));
    caliburn_options_free(options);
    region = mapped(store, "data", WORDS * sizeof(int64_t));
    free(path);
}

static int64_t *words(void)
{
    return caliburn_region_address(region);
}

/* Begins a transaction and does the first half of it. */
void caught_begin(int turn)
{
    OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
    for (int i = 0; i < WORDS / 2; i += STEP)
        words()[i] = turn;
}

/* Does the other half, and commits, or undoes every third. */
void caught_end(int turn)
{
    for (int i = WORDS / 2 / STEP * STEP; i < WORDS; i += STEP)
        words()[i] = turn;
    OK(turn % 3 == 0 ? caliburn_abort(&tx) : caliburn_commit(&tx, CALIBURN_POWER));
    int there = turn % 3 == 0 ? turn - 1 : turn;
    for (int i = 0; i < WORDS; i += STEP)
        CHECK(words()[i] == there);
}

void caught_close(void)
{
    OK(caliburn_unmap(region));
    OK(caliburn_close(store));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    for (int kind = 0; kind < KINDS; kind++) {
        caught_open(argv[1], kind);
        for (int turn = 1; turn <= 6; turn++) {
            caught_begin(turn);
            caught_end(turn);
        }
        caught_close();
    }
    puts("sound");
    return 0;
}
