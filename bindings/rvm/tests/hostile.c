/* Segments and heaps that somebody made to do harm: what they are used for fails or succeeds, and ends. Words of a
   heap's file are changed, each try in a process of its own, which no signal may end. */
#include "lives.h"

#include <rvm/rds.h>
#include <rvm/rvm_segment.h>

#include <stdint.h>

#define START ((char *)0x50000000)
#define HEAP_LENGTH (16 * 4096)
#define STATIC_LENGTH (2 * 4096)
#define LENGTH (HEAP_LENGTH + STATIC_LENGTH + 4096)
#define TRIES 1000

extern int print_heap(void);

static rvm_offset_t length(void)
{
    return RVM_MK_OFFSET(0, LENGTH);
}

/* A heap with blocks of several sizes, free and not. */
static void sample(void)
{
    char *blocks[40];
    int err;
    begin_life("hostile-log", 1 << 20);
    char *path = data_file("sample", LENGTH);
    CHECK(rds_zap_heap(path, length(), START, STATIC_LENGTH, HEAP_LENGTH, 20, 64, &err) == 0);
    CHECK(rds_load_heap(path, length(), NULL, &err) == 0 && err == SUCCESS);
    for (unsigned i = 0; i < 40; i++)
        CHECK((blocks[i] = rds_malloc(i * 37 % 900 + 1, NULL, &err)) != NULL);
    for (unsigned i = 0; i < 40; i += 3)
        CHECK(rds_free(blocks[i], NULL, &err) == 0);
    CHECK(rds_unload_heap(&err) == 0);
    OK(rvm_terminate());
}

static uint64_t seed;

static uint64_t number(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

/* One of the words that matter, or any. */
static size_t place(void)
{
    switch (number(5)) {
    case 0: /* the segment's header */
        return number(20) == 0 ? 0 : 132 + number(10) * 8 + 4;
    case 1: /* the heap's: length, chunk, lists, statistics, largest */
        return 4096 + 80 + number(14) * 8;
    case 2: /* lists */
        return 4096 + 248 + number(42) * 8;
    default: /* blocks, and what is in them */
        return 4096 + 600 + number((HEAP_LENGTH - 608) / 8) * 8;
    }
}

static uint64_t word(void)
{
    uint64_t inside = (uint64_t)(uintptr_t)START + number(HEAP_LENGTH / 8) * 8;
    uint64_t words[] = {0,           1,      number(64), number(1 << 20), inside,         inside + 1,
                        UINT64_MAX,  1 << 31, 1ul << 62,  0x345298af,      0x783bd92c,     0xad938945,
                        inside + 64, 4096,   LENGTH,     UINT64_MAX - 8,  (uintptr_t)&seed, 0xfd10a32e};
    return words[number(sizeof words / sizeof *words)];
}

static void spoil(const char *path)
{
    static char bytes[LENGTH];
    FILE *file = fopen(in("sample"), "r");
    CHECK(file != NULL && fread(bytes, 1, LENGTH, file) == LENGTH);
    fclose(file);
    for (uint64_t left = 1 + number(4); left > 0; left--) {
        size_t at = place();
        uint64_t value = word();
        memcpy(bytes + at, &value, sizeof value);
    }
    file = fopen(path, "w");
    CHECK(file != NULL && fwrite(bytes, 1, LENGTH, file) == LENGTH && fclose(file) == 0);
}

/* Does with the heap what programs do. Nothing is compared: it holds nonsense. */
static void use(const char *path)
{
    char *blocks[20];
    int err;
    begin_life("hostile-log", 1 << 20);
    if (rds_load_heap((char *)path, length(), NULL, &err) == 0 && err == SUCCESS) {
        rds_prealloc(100, 5, NULL, &err);
        for (unsigned i = 0; i < 20; i++)
            blocks[i] = rds_malloc(1 + i * 211 % 3000, NULL, &err);
        for (unsigned i = 0; i < 20; i += 2)
            rds_free(blocks[i], NULL, &err);
        for (size_t at = 0; at < HEAP_LENGTH; at += 64)
            rds_free(START + at + 16, NULL, &err);
        rds_maxblock(100);
        rds_malloc(HEAP_LENGTH / 2, NULL, &err);
        print_heap();
        rds_trace_on(stdout);
        rds_trace_dump_heap();
        rds_unload_heap(&err);
    }
    rvm_terminate();
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    dir = realpath(argv[1], NULL);
    lives(sample);
    for (seed = 1; seed <= TRIES; seed++) {
        uint64_t begin = seed;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            char *path = strdup(in("hostile"));
            spoil(path);
            CHECK(freopen("/dev/null", "w", stdout) != NULL && freopen("/dev/null", "w", stderr) != NULL);
            alarm(20);
            use(path);
            exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (WIFSIGNALED(status)) {
            fprintf(stderr, "try %lu: signal %d\n", (unsigned long)begin, WTERMSIG(status));
            exit(1);
        }
    }
    puts("sound");
    return 0;
}
