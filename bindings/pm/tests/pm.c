/* Regions, segments of bytes and of blocks through pm.h: what is written is there, in this process and in the next one;
   misuse gives codes. */
#include <pm.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, pm_message());  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define CODE(expected, call)                                                                       \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_ != (expected)) {                                                                 \
            fprintf(stderr, "%s:%d: %s: %s, expected %s: %s\n", __FILE__, __LINE__, #call,         \
                    strerror(code_), strerror(expected), pm_message());                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) CODE(0, call)

enum { BLOCK = 4096, BLOCKS = 256 };

static char path[4096];

static pm_region *opened(int write)
{
    pm_region *region;
    OK(pm_open(path, write, &region));
    return region;
}

static void count_segment(void *context, const pm_segment_info *segment, size_t size)
{
    CHECK(size == sizeof *segment && segment->reserved == 0);
    CHECK(strcmp(segment->name, "disk") == 0 || strcmp(segment->name, "memory") == 0);
    *(int *)context += 1;
}

static void regions(void)
{
    pm_region *region, *other;
    pm_region_options size = {.bytes = 16 << 20};
    CODE(EINVAL, pm_create(path, NULL, 0, &region));
    OK(pm_create(path, &size, sizeof size, &region));
    CODE(EMEDIUMTYPE, pm_create(path, &size, sizeof size, &other));
    CHECK(strstr(pm_message(), "already") != NULL);
    pm_segment_options blocks = {.block_bytes = BLOCK, .mode = 0640};
    OK(pm_create_segment(region, "disk", BLOCKS * BLOCK, &blocks, sizeof blocks));
    OK(pm_create_segment(region, "memory", 100000, NULL, 0));
    CODE(EEXIST, pm_create_segment(region, "memory", 1, NULL, 0));
    CODE(ENOSPC, pm_create_segment(region, "large", 1 << 30, NULL, 0));
    CODE(EINVAL, pm_create_segment(region, "", 1, NULL, 0));
    CODE(EINVAL, pm_create_segment(region, NULL, 1, NULL, 0));
    OK(pm_grow(region, 32 << 20));
    CODE(EBUSY, pm_shrink(region, 1 << 20));
    pm_region_info about;
    memset(&about, 7, sizeof about);
    OK(pm_region_about(region, &about, sizeof about));
    CHECK(about.bytes == 32 << 20 && about.free_bytes < about.bytes && about.unit == 65536);
    CHECK(about.written_survives == PM_PROCESS && !about.damaged[0] && !about.damaged[1]);
    /* A program that knows less of it. */
    memset(&about, 7, sizeof about);
    OK(pm_region_about(region, &about, 8));
    CHECK(about.bytes == 32 << 20 && about.free_bytes == 0x0707070707070707);
    /* One that knows more. */
    struct {
        pm_region_info known;
        uint64_t unknown;
    } more;
    memset(&more, 7, sizeof more);
    OK(pm_region_about(region, &more.known, sizeof more));
    CHECK(more.known.bytes == 32 << 20 && more.unknown == 0);
    struct {
        pm_segment_options known;
        uint64_t unknown;
    } later;
    memset(&later, 0, sizeof later);
    OK(pm_create_segment(region, "later", 1, &later.known, sizeof later));
    OK(pm_destroy(region, "later"));
    later.known.reserved = 1;
    CODE(EINVAL, pm_create_segment(region, "later", 1, &later.known, sizeof later));
    later.known.reserved = 0;
    later.unknown = 1;
    CODE(EINVAL, pm_create_segment(region, "later", 1, &later.known, sizeof later));
    /* The longest name is told of whole. */
    char name[65];
    memset(name, 'n', 64);
    name[64] = 0;
    pm_segment_info longest;
    OK(pm_create_segment(region, name, 1, NULL, 0));
    OK(pm_segment_about(region, name, &longest, sizeof longest));
    CHECK(strcmp(longest.name, name) == 0);
    OK(pm_destroy(region, longest.name));
    int count = 0;
    OK(pm_segments(region, count_segment, &count));
    CHECK(count == 2);
    pm_segment_info segment;
    OK(pm_segment_about(region, "disk", &segment, sizeof segment));
    CHECK(segment.block_bytes == BLOCK && segment.bytes == BLOCKS * BLOCK && segment.mode == 0640);
    CODE(ENOENT, pm_segment_about(region, "none", &segment, sizeof segment));
    OK(pm_resize(region, "memory", 200000));
    OK(pm_protect(region, "memory", 1));
    CODE(EACCES, pm_destroy(region, "memory"));
    OK(pm_protect(region, "memory", 0));
    OK(pm_own(region, "memory", 0600, -1, -1));
    CODE(EINVAL, pm_own(region, "memory", -2, -1, -1));
    OK(pm_create_segment(region, "other", 1, NULL, 0));
    OK(pm_destroy(region, "other"));
    OK(pm_close(region));
    CODE(EINVAL, pm_close(region));
    CODE(EINVAL, pm_grow(region, 0));
    CODE(EINVAL, pm_open(path, 1, NULL));
    CODE(ENOENT, pm_open("/none/such", 1, &region));
}

static void bytes(void)
{
    pm_region *region = opened(1);
    pm_segment *segment, *second;
    char there[10];
    OK(pm_attach(region, "memory", 1, &segment));
    CODE(EBUSY, pm_attach(region, "memory", 0, &second));
    CODE(EBUSY, pm_destroy(region, "memory"));
    CODE(EINVAL, pm_attach(region, "disk", 1, &second));
    OK(pm_write(segment, 199990, "0123456789", 10));
    CODE(ERANGE, pm_write(segment, 199991, "0123456789", 10));
    CODE(ERANGE, pm_read(segment, UINT64_MAX, there, 10));
    CODE(EINVAL, pm_read(segment, 0, NULL, 10));
    OK(pm_read(segment, 0, NULL, 0));
    char *memory = pm_address(segment);
    CHECK(pm_length(segment) == 200000 && memcmp(memory + 199990, "0123456789", 10) == 0);
    strcpy(memory + 5, "here");
    OK(pm_written(segment, 5, 5));
    OK(pm_flush(segment));
    OK(pm_close(region));
    OK(pm_read(segment, 5, there, 5));
    CHECK(strcmp(there, "here") == 0);
    OK(pm_detach(segment));
    CODE(EINVAL, pm_detach(segment));
    CHECK(pm_address(segment) == NULL && pm_length(segment) == 0);
    region = opened(0);
    CODE(EROFS, pm_attach(region, "memory", 1, &segment));
    OK(pm_attach(region, "memory", 0, &segment));
    OK(pm_attach(region, "memory", 0, &second));
    CODE(EROFS, pm_write(segment, 0, "x", 1));
    OK(pm_read(second, 199990, there, 10));
    CHECK(memcmp(there, "0123456789", 10) == 0);
    OK(pm_detach(segment));
    OK(pm_detach(second));
    OK(pm_close(region));
}

static void fill(unsigned char *block, unsigned number)
{
    for (int i = 0; i < BLOCK; i++) block[i] = (unsigned char)(number * 7 + i % 251);
}

static void blocks(void)
{
    pm_region *region = opened(1);
    pm_blocks *disk;
    unsigned char one[2 * BLOCK], two[2 * BLOCK];
    OK(pm_attach_blocks(region, "disk", 1, &disk));
    CHECK(pm_block_bytes(disk) == BLOCK && pm_block_count(disk) == BLOCKS);
    fill(one, 1);
    fill(one + BLOCK, 2);
    OK(pm_write_blocks(disk, 3, one, sizeof one, 0));
    OK(pm_write_blocks(disk, 5, one, sizeof one, 1));
    OK(pm_clear_blocks(disk, 5, 1));
    CODE(ERANGE, pm_write_blocks(disk, BLOCKS - 1, one, sizeof one, 0));
    CODE(EINVAL, pm_write_blocks(disk, 0, one, 100, 0));
    CODE(ERANGE, pm_read_blocks(disk, UINT64_MAX, two, BLOCK));
    OK(pm_read_blocks(disk, 3, two, sizeof two));
    CHECK(memcmp(one, two, sizeof one) == 0);
    OK(pm_read_blocks(disk, 5, two, sizeof two));
    CHECK(two[0] == 0 && two[BLOCK - 1] == 0 && memcmp(two + BLOCK, one + BLOCK, BLOCK) == 0);

    pm_transaction *both, *none;
    OK(pm_begin(disk, &both));
    OK(pm_begin(disk, &none));
    fill(two, 9);
    OK(pm_transaction_write(both, 10, two));
    OK(pm_transaction_write(both, 200, two));
    memset(two, 0, sizeof two); /* Nothing that a program passes is kept. */
    OK(pm_transaction_write(none, 11, two));
    CODE(ERANGE, pm_transaction_write(none, BLOCKS, two));
    CODE(EINVAL, pm_transaction_write(none, 11, NULL));
    OK(pm_read_blocks(disk, 10, two, BLOCK));
    CHECK(two[1] == 0);
    OK(pm_commit(both));
    OK(pm_abort(none));
    CODE(EINVAL, pm_commit(both));
    CODE(EINVAL, pm_abort(none));
    OK(pm_flush_blocks(disk));
    OK(pm_close(region));
    OK(pm_detach_blocks(disk));
    CODE(EINVAL, pm_detach_blocks(disk));
    CODE(EINVAL, pm_begin(disk, &both));
    CHECK(pm_block_bytes(disk) == 0 && pm_block_count(disk) == 0);
}

/* A process writes pairs of blocks in transactions until it is killed: no pair is half there. */
static void killed(void)
{
    unsigned char one[BLOCK], two[BLOCK];
    int told[2];
    CHECK(pipe(told) == 0);
    pid_t child = fork();
    if (child == 0) {
        pm_region *region = opened(1);
        pm_blocks *disk;
        OK(pm_attach_blocks(region, "disk", 1, &disk));
        for (unsigned number = 1;; number++) {
            pm_transaction *both;
            OK(pm_begin(disk, &both));
            fill(one, number);
            memcpy(one, &number, sizeof number);
            OK(pm_transaction_write(both, 20, one));
            OK(pm_transaction_write(both, 99, one));
            OK(pm_commit(both));
            CHECK(write(told[1], &number, sizeof number) == sizeof number);
        }
    }
    unsigned number = 0, last, other;
    close(told[1]);
    while (number < 50) CHECK(read(told[0], &number, sizeof number) == sizeof number);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    while (read(told[0], &number, sizeof number) == sizeof number) continue;
    pm_region *region = opened(1);
    pm_blocks *disk;
    OK(pm_attach_blocks(region, "disk", 1, &disk));
    OK(pm_read_blocks(disk, 20, one, BLOCK));
    OK(pm_read_blocks(disk, 99, two, BLOCK));
    memcpy(&last, one, sizeof last);
    memcpy(&other, two, sizeof other);
    CHECK(last == other && last >= number && last <= number + 1);
    uint64_t damaged[4];
    size_t count = 4;
    OK(pm_scrub(disk, 0, BLOCKS, damaged, &count));
    CHECK(count == 0);
    OK(pm_detach_blocks(disk));
    OK(pm_close(region));
}

/* A bit of a block is not what was written. */
static void damaged(void)
{
    unsigned char one[BLOCK], there[BLOCK];
    fill(one, 1);
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL);
    long at = -1;
    for (long offset = 0; fread(there, 1, BLOCK, file) == BLOCK; offset += BLOCK)
        if (memcmp(there, one, BLOCK) == 0) at = offset;
    CHECK(at > 0 && fseek(file, at + 77, SEEK_SET) == 0 && fputc(one[77] ^ 1, file) != EOF && fclose(file) == 0);
    pm_region *region = opened(0);
    pm_blocks *disk;
    OK(pm_attach_blocks(region, "disk", 0, &disk));
    CODE(EBADMSG, pm_read_blocks(disk, 3, there, BLOCK));
    CHECK(strstr(pm_message(), "block 3") != NULL);
    uint64_t numbers[1] = {0};
    size_t count = 1;
    OK(pm_scrub(disk, 0, BLOCKS, numbers, &count));
    CHECK(count == 1 && numbers[0] == 3);
    CODE(EROFS, pm_write_blocks(disk, 3, one, BLOCK, 0));
    OK(pm_detach_blocks(disk));
    OK(pm_close(region));
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    snprintf(path, sizeof path, "%s/region", arguments[1]);
    CHECK(pm_message()[0] == 0);
    regions();
    bytes();
    blocks();
    killed();
    damaged();
    return 0;
}
