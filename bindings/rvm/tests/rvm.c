/* RVM's interface: what each call does, and which code each misuse has. */
#include "lives.h"

#include <rvm/rvm_segment.h>
#include <rvm/rvm_statistics.h>

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

static void names_and_numbers(void)
{
    CHECK(strcmp(rvm_return(RVM_EVM_OVERLAP), "RVM_EVM_OVERLAP") == 0);
    CHECK(strcmp(rvm_return(203), "RVM_EPLACEHOLDER") == 0);
    CHECK(strcmp(rvm_return(199), "Invalid RVM return code") == 0 && strcmp(rvm_return(0), "RVM_SUCCESS") == 0);
    CHECK(strcmp(rvm_mode(no_flush), "no_flush") == 0 && strcmp(rvm_mode(0), "Invalid RVM transaction mode") == 0);
    CHECK(strcmp(rvm_type(rvm_statistics_id), "rvm_statistics_id") == 0);
    CHECK(strcmp(rvm_type(45), "Invalid RVM structure type") == 0);
    rvm_offset_t x = RVM_OFFSET_INITIALIZER(1, 5), y = RVM_MK_OFFSET(0, ~0ul), z;
    z = RVM_ADD_OFFSETS(x, y);
    CHECK(z.high == 2 && z.low == 4);
    z = RVM_SUB_OFFSETS(z, y);
    CHECK(RVM_OFFSET_EQL(z, x) && RVM_OFFSET_GTR(x, y) && RVM_OFFSET_LSS(y, x) && RVM_OFFSET_GEQ(x, z));
    z = RVM_SUB_LENGTH_FROM_OFFSET(x, 6);
    CHECK(z.high == 0 && z.low == ~0ul);
    z = RVM_ADD_LENGTH_TO_OFFSET(z, 1);
    CHECK(z.high == 1 && z.low == 0);
    RVM_ZERO_OFFSET(z);
    CHECK(RVM_OFFSET_EQL_ZERO(z) && RVM_OFFSET_TO_LENGTH(RVM_LENGTH_TO_OFFSET(9)) == 9);
    rvm_length_t page = RVM_PAGE_SIZE;
    CHECK(page == (rvm_length_t)sysconf(_SC_PAGESIZE));
    CHECK(RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(page + 1) == 2 * page && RVM_ROUND_LENGTH_DOWN_TO_PAGE_SIZE(page - 1) == 0);
    x = RVM_MK_OFFSET(3, page + 1);
    z = RVM_ROUND_OFFSET_UP_TO_PAGE_SIZE(x);
    CHECK(z.high == 3 && z.low == 2 * page);
    CHECK(RVM_ADD_LENGTH_TO_ADDR(4, (char *)page) == (char *)page + 4);
    CHECK(RVM_SUB_LENGTH_FROM_ADDR((char *)page, 4) == (char *)page - 4);
}

static void records(void)
{
    rvm_options_t *options = rvm_malloc_options(), *copy;
    CHECK(options->struct_id == rvm_options_id && options->from_heap && options->truncate == 50);
    CHECK(options->create_log_mode == 0600 && options->max_read_len == 524288 && options->flags == 0);
    options->tid_array = malloc(8);
    copy = rvm_copy_options(options);
    CHECK(copy != options && copy->truncate == 50);
    copy->tid_array = NULL;
    rvm_free_options(copy);
    rvm_free_options(options);
    rvm_region_t region;
    memset(&region, 0xFF, sizeof region);
    CHECK(rvm_copy_region(&region) == NULL);
    rvm_free_region(&region);
    rvm_init_region(&region);
    CHECK(region.struct_id == rvm_region_id && !region.from_heap && region.length == 0);
    rvm_free_region(&region);
    rvm_init_region(NULL);
    rvm_free_tid(NULL);
    CHECK(rvm_copy_statistics(NULL) == NULL && rvm_copy_options(NULL) == NULL && rvm_copy_tid(NULL) == NULL);
}

static void before_and_after(void)
{
    rvm_options_t options;
    rvm_region_t region;
    rvm_tid_t tid;
    rvm_offset_t length = RVM_MK_OFFSET(0, 4096);
    char byte;
    rvm_init_options(&options);
    rvm_init_region(&region);
    rvm_init_tid(&tid);
    rvm_statistics_t *statistics = rvm_malloc_statistics();
    for (int round = 0; round < 2; round++) {
        IS(RVM_EINIT, rvm_begin_transaction(NULL, restore));
        IS(RVM_EINIT, rvm_set_range(&tid, &byte, 1));
        IS(RVM_EINIT, rvm_modify_bytes(&tid, &byte, &byte, 1));
        IS(RVM_EINIT, rvm_end_transaction(&tid, flush));
        IS(RVM_EINIT, rvm_abort_transaction(&tid));
        IS(RVM_EINIT, rvm_map(&region, &options));
        IS(RVM_EINIT, rvm_unmap(&region));
        IS(RVM_EINIT, rvm_flush());
        IS(RVM_EINIT, rvm_truncate());
        IS(RVM_EINIT, rvm_query(&options, NULL));
        IS(RVM_EINIT, rvm_set_options(&options));
        IS(RVM_EINIT, rvm_create_log(&options, &length, 0600));
        IS(RVM_EINIT, RVM_STATISTICS(statistics));
        IS(RVM_EINIT, rvm_print_statistics(statistics, stdout));
        if (round == 1)
            break;
        IS(RVM_EINIT, rvm_terminate());
        IS(RVM_EVERSION_SKEW, rvm_initialize("RVM Interface Version 1.2", &options));
        IS(RVM_EVERSION_SKEW, rvm_initialize(NULL, &options));
        options.struct_id = rvm_region_id;
        IS(RVM_EOPTIONS, RVM_INIT(&options));
        rvm_init_options(&options);
        char *name = malloc(MAXPATHLEN + 1);
        memset(name, 'a', MAXPATHLEN);
        name[MAXPATHLEN] = 0;
        options.log_dev = name;
        IS(RVM_ENAME_TOO_LONG, RVM_INIT(&options));
        options.log_dev = in("no-such-log");
        errno = 0;
        IS(RVM_EIO, RVM_INIT(&options));
        CHECK(errno == ENOENT);
        options.log_dev = data_file("no-log", 8192);
        IS(RVM_ELOG, RVM_INIT(&options));
        free(name);

        /* Without a log. */
        OK(RVM_INIT(NULL));
        OK(RVM_INIT(NULL));
        IS(RVM_ETID, rvm_begin_transaction(NULL, restore));
        IS(RVM_ELOG, rvm_begin_transaction(&tid, restore));
        IS(RVM_ELOG, rvm_flush());
        IS(RVM_ELOG, rvm_truncate());
        IS(RVM_ELOG, RVM_STATISTICS(statistics));
        region.data_dev = in("no-log");
        IS(RVM_ELOG, rvm_map(&region, NULL));
        rvm_init_options(&options);
        OK(rvm_query(&options, NULL));
        CHECK(options.max_read_len == MAX_READ_LEN && options.n_uncommit == 0);
        OK(rvm_terminate());
        OK(rvm_terminate());
        IS(RVM_EINIT, RVM_INIT(NULL));
    }
    rvm_free_statistics(statistics);
}

static void logs(void)
{
    rvm_options_t options;
    rvm_offset_t length = RVM_MK_OFFSET(0, 4096);
    char path[MAXPATHLEN + 1];
    struct stat about;
    OK(RVM_INIT(NULL));
    rvm_init_options(&options);
    IS(RVM_EOPTIONS, rvm_create_log(NULL, &length, 0600));
    IS(RVM_EOPTIONS, rvm_set_options(NULL));
    options.log_dev = in("made");
    IS(RVM_EOPTIONS, rvm_create_log(&options, NULL, 0600));
    length.high = 1;
    IS(RVM_ETOO_BIG, rvm_create_log(&options, &length, 0600));
    length.high = 0;
    umask(022);
    OK(rvm_create_log(&options, &length, 0666));
    CHECK(stat(options.log_dev, &about) == 0 && (about.st_mode & 0777) == 0644 && about.st_size >= 4096);
    IS(RVM_ELOG, rvm_create_log(&options, &length, 0600));
    options.log_dev = in("no/such/folder/log");
    IS(RVM_EIO, rvm_create_log(&options, &length, 0600));
    /* It was not opened. */
    rvm_tid_t tid;
    rvm_init_tid(&tid);
    IS(RVM_ELOG, rvm_begin_transaction(&tid, restore));
    options.log_dev = in("made");
    options.max_read_len = 1000;
    options.truncate = 30;
    OK(rvm_set_options(&options));
    CHECK(options.max_read_len == 512);
    OK(rvm_set_options(&options));
    CHECK(chdir(dir) == 0);
    options.log_dev = "made";
    OK(rvm_set_options(&options));
    options.log_dev = in("other");
    OK(rvm_create_log(&options, &length, 0600));
    IS(RVM_ELOG, rvm_set_options(&options));
    rvm_init_options(&options);
    options.log_dev = path;
    OK(rvm_query(&options, NULL));
    CHECK(strcmp(path, in("made")) == 0 && options.log_empty && options.truncate == 30);
    CHECK(options.max_read_len == 512 && options.flush_buf_len == 0);
    free(options.tid_array);
    OK(rvm_terminate());
}

static void mapping(void)
{
    begin_life("mapping-log", 1 << 20);
    char *path = data_file("mapped", 10000);
    rvm_region_t *region = map_file(path);
    rvm_length_t page = RVM_PAGE_SIZE;
    CHECK(region->length == 9728 && region->vmaddr != NULL && (unsigned char)region->vmaddr[9727] == 9727 % 251);
    rvm_region_t other, saved;
    rvm_init_region(&other);
    IS(RVM_EREGION, rvm_map(NULL, NULL));
    other.struct_id = rvm_tid_id;
    IS(RVM_EREGION, rvm_map(&other, NULL));
    IS(RVM_EREGION, rvm_unmap(&other));
    rvm_init_region(&other);
    other.data_dev = path;
    saved = other;
    IS(RVM_EOVERLAP, rvm_map(&other, NULL));
    CHECK(memcmp(&saved, &other, sizeof other) == 0);
    other.vmaddr = region->vmaddr;
    IS(RVM_EVM_OVERLAP, rvm_map(&other, NULL));
    other.vmaddr = (char *)1;
    IS(RVM_ERANGE, rvm_map(&other, NULL));
    other.vmaddr = NULL;
    other.offset = RVM_MK_OFFSET(0, 10001);
    IS(RVM_EOFFSET, rvm_map(&other, NULL));
    other.offset = RVM_MK_OFFSET(0, 512);
    other.length = ~0ul;
    IS(RVM_EOFFSET, rvm_map(&other, NULL));
    other.offset = RVM_MK_OFFSET(1, 0);
    IS(RVM_EOFFSET, rvm_map(&other, NULL));
    rvm_init_region(&other);
    other.data_dev = in("no-such-file");
    IS(RVM_EIO, rvm_map(&other, NULL));
    other.data_dev = path;
    rvm_options_t options;
    rvm_init_options(&options);
    options.pager = "pager";
    IS(RVM_EPAGER, rvm_map(&other, &options));
    options.struct_id = 0;
    IS(RVM_EOPTIONS, rvm_map(&other, &options));

    /* Unmapping: which region, and not while it is being changed. */
    rvm_init_region(&other);
    other.vmaddr = (char *)&other;
    other.length = 8;
    IS(RVM_ENOT_MAPPED, rvm_unmap(&other));
    other.vmaddr = region->vmaddr + page;
    other.length = page;
    IS(RVM_ERANGE, rvm_unmap(&other));
    rvm_tid_t tid;
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_modify_bytes(&tid, region->vmaddr + 5, "hello", 5));
    IS(RVM_EUNCOMMIT, rvm_unmap(region));
    IS(RVM_EUNCOMMIT, rvm_unmap(&other));
    OK(rvm_end_transaction(&tid, no_flush));
    char *left = region->vmaddr;
    OK(rvm_unmap(region));
    CHECK(memcmp(left + 5, "hello", 5) == 0);
    IS(RVM_ENOT_MAPPED, rvm_unmap(region));

    /* Again, where it was: the latest values, also those that were not flushed. */
    memset(left, 0, page);
    region->data_dev = path;
    OK(rvm_map(region, NULL));
    CHECK(region->vmaddr == left && memcmp(left + 5, "hello", 5) == 0 && left[4] == 4);
    OK(rvm_unmap(region));

    /* In two parts, at addresses of the program's own; the second as it is. */
    char *mine = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(mine, 'm', 4 * page);
    rvm_region_t first, second;
    rvm_init_region(&first);
    rvm_init_region(&second);
    first.data_dev = second.data_dev = path;
    first.length = 100;
    first.vmaddr = mine;
    OK(rvm_map(&first, NULL));
    CHECK(first.length == page && mine[5] == 'h' && mine[page] == 'm');
    second.offset = RVM_MK_OFFSET(0, page + 7);
    second.vmaddr = mine + page;
    second.no_copy = rvm_true;
    OK(rvm_map(&second, NULL));
    CHECK(second.offset.low == page && second.length == 9728 - page && mine[page] == 'm' && mine[2 * page] == 'm');
    OK(rvm_begin_transaction(&tid, restore));
    IS(RVM_ENOT_MAPPED, rvm_set_range(&tid, mine + page - 1, 2));
    OK(rvm_set_range(&tid, mine + page, 1));
    mine[page] = 'n';
    mine[page + 1] = 'x';
    OK(rvm_end_transaction(&tid, flush));
    OK(rvm_truncate());
    CHECK(byte_of(path, (long)page) == 'n' && byte_of(path, (long)page + 1) == (int)(page + 1) % 251);
    CHECK(byte_of(path, 9999) == 9999 % 251);
    OK(rvm_terminate());
    CHECK(mine[page] == 'n');
    rvm_free_region(region);
}

static void transactions(void)
{
    begin_life("transaction-log", 1 << 16);
    char *path = data_file("changed", 1 << 18);
    rvm_region_t *region = map_file(path);
    char *bytes = region->vmaddr;
    rvm_tid_t tid, second, stale;
    rvm_init_tid(&tid);
    rvm_init_tid(&second);
    IS(RVM_EMODE, rvm_begin_transaction(&tid, flush));
    IS(RVM_ETID, rvm_set_range(&tid, bytes, 1));
    IS(RVM_ETID, rvm_abort_transaction(&tid));
    IS(RVM_ETID, rvm_abort_transaction(NULL));
    IS(RVM_ETID, rvm_end_transaction(NULL, flush));
    OK(rvm_set_range(&tid, NULL, 0));
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_begin_transaction(&second, no_restore));
    CHECK(tid.uname.tv_sec != 0 && timercmp(&tid.uname, &second.uname, <));
    stale = tid;
    IS(RVM_EMODE, rvm_end_transaction(&tid, restore));
    IS(RVM_ENOT_MAPPED, rvm_set_range(&tid, &tid, 1));
    IS(RVM_ENOT_MAPPED, rvm_set_range(&tid, bytes + region->length - 1, 2));

    /* Abort: the values before the first of the ranges, though they overlap. */
    IS(RVM_ESRC, rvm_modify_bytes(&tid, bytes, NULL, 10));
    OK(rvm_set_range(&tid, bytes, 10));
    memset(bytes, 'a', 10);
    OK(rvm_set_range(&tid, bytes + 5, 10));
    memset(bytes + 5, 'b', 10);
    OK(rvm_set_range(&second, bytes + 100, 1));
    bytes[100] = 'c';
    IS(RVM_EUNCOMMIT, rvm_terminate());
    rvm_options_t *options = rvm_malloc_options();
    OK(rvm_query(options, region));
    CHECK(options->n_uncommit == 2 && !options->from_heap == 0);
    OK(rvm_abort_transaction(&stale));
    IS(RVM_ETID, rvm_abort_transaction(&tid));
    CHECK(bytes[0] == 0 && bytes[9] == 9 && bytes[14] == 14);
    /* By the record that the query gave. */
    CHECK(timercmp(&options->tid_array[1].uname, &second.uname, ==));
    OK(rvm_abort_transaction(&options->tid_array[1]));
    CHECK(bytes[100] == 'c');
    rvm_free_options(options);
    rvm_region_t unknown;
    rvm_init_region(&unknown);
    options = rvm_malloc_options();
    IS(RVM_ENOT_MAPPED, rvm_query(options, &unknown));
    IS(RVM_EOPTIONS, rvm_query(NULL, NULL));
    OK(rvm_query(options, NULL));
    CHECK(options->n_uncommit == 0);
    rvm_free_options(options);

    /* The value at the commit is the one that becomes durable; what was not declared does not. */
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, bytes + 200, 1));
    bytes[200] = 'd';
    OK(rvm_end_transaction(&tid, no_flush));
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, bytes + 200, 2));
    bytes[200] = 'e';
    bytes[202] = 'u';
    OK(rvm_truncate());
    CHECK(byte_of(path, 200) == 'd' && byte_of(path, 202) == 202);
    OK(rvm_abort_transaction(&tid));
    CHECK(bytes[200] == 'd');

    /* Larger than the log: it can still be aborted. */
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, bytes, 1000));
    memset(bytes, 'f', 1000);
    OK(rvm_set_range(&tid, bytes, 1 << 17));
    memset(bytes, 'g', 1 << 17);
    OK(rvm_set_range(&tid, bytes + 500, 1));
    bytes[500] = 'h';
    IS(RVM_EUNCOMMIT, rvm_unmap(region));
    IS(RVM_ETOO_BIG, rvm_end_transaction(&tid, flush));
    OK(rvm_abort_transaction(&tid));
    CHECK(bytes[1] == 1 && bytes[500] == 500 % 251 - 256 + (500 % 251 < 128 ? 256 : 0) && bytes[(1 << 17) - 1] == (char)(((1 << 17) - 1) % 251));
    /* As large as the log. */
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, bytes, 1 << 16));
    OK(rvm_set_range(&tid, bytes, 1 << 16));
    memset(bytes, 'i', 1 << 16);
    OK(rvm_end_transaction(&tid, flush));
    /* More than the log takes, one after the other. */
    for (int i = 0; i < 100; i++) {
        OK(rvm_begin_transaction(&tid, no_restore));
        OK(rvm_set_range(&tid, bytes + i, 5000));
        memset(bytes + i, i, 5000);
        OK(rvm_end_transaction(&tid, i % 3 ? no_flush : flush));
    }
    OK(rvm_flush());
    OK(rvm_truncate());
    CHECK(byte_of(path, 50) == 50 && byte_of(path, 5098) == 99);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_end_transaction(&tid, flush));
    OK(rvm_unmap(region));
    OK(rvm_terminate());
    rvm_free_region(region);
}

static void statistics(void)
{
    begin_life("counted-log", 1 << 20);
    rvm_region_t *region = map_file(data_file("counted", 1 << 16));
    rvm_statistics_t counts;
    rvm_tid_t tid;
    rvm_options_t *options = rvm_malloc_options();
    rvm_init_statistics(&counts);
    IS(RVM_ESTAT_VERSION_SKEW, rvm_statistics("other", &counts));
    IS(RVM_ESTATISTICS, RVM_STATISTICS(NULL));
    counts.struct_id = 0;
    IS(RVM_ESTATISTICS, RVM_STATISTICS(&counts));
    rvm_init_statistics(&counts);
    rvm_init_tid(&tid);
    for (int i = 0; i < 6; i++) {
        OK(rvm_begin_transaction(&tid, restore));
        OK(rvm_modify_bytes(&tid, region->vmaddr + 100 * i, "0123456789", 10));
        if (i == 5)
            OK(rvm_abort_transaction(&tid));
        else
            OK(rvm_end_transaction(&tid, i < 2 ? flush : no_flush));
    }
    OK(rvm_begin_transaction(&tid, restore));
    OK(RVM_STATISTICS(&counts));
    CHECK(counts.n_flush_commit == 2 && counts.n_no_flush_commit == 3 && counts.n_abort == 1 && counts.n_uncommit == 1);
    CHECK(counts.n_no_flush == 3 && counts.no_flush_length.low >= 30 && counts.range_lengths[3] == 5);
    OK(rvm_query(options, NULL));
    CHECK(!options->log_empty && options->n_uncommit == 1);
    OK(rvm_flush());
    OK(RVM_STATISTICS(&counts));
    CHECK(counts.n_no_flush == 0 && counts.n_rvm_flush == 1 && counts.n_no_flush_commit == 3);
    CHECK(counts.log_written.low > 0);
    OK(rvm_abort_transaction(&tid));
    OK(rvm_truncate());
    OK(RVM_STATISTICS(&counts));
    CHECK(counts.n_flush_commit == 0 && counts.n_no_flush_commit == 0 && counts.tot_flush_commit == 2);
    CHECK(counts.tot_no_flush_commit == 3 && counts.tot_rvm_truncate == 1 && counts.log_written.low == 0);
    OK(rvm_query(options, NULL));
    CHECK(options->log_empty);
    rvm_free_options(options);
    FILE *out = fopen(in("printed"), "w");
    OK(rvm_print_statistics(&counts, out));
    IS(RVM_ESTATISTICS, rvm_print_statistics(NULL, out));
    CHECK(fclose(out) == 0 && byte_of(in("printed"), 0) == 'R');
    OK(rvm_terminate());
    rvm_free_region(region);
}

/* What a process that is killed leaves. */
static void killed(void)
{
    begin_life("killed-log", 1 << 20);
    rvm_region_t *region = map_file(in("killed"));
    rvm_tid_t tid, open;
    rvm_init_tid(&tid);
    rvm_init_tid(&open);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_modify_bytes(&tid, region->vmaddr, "flushed", 7));
    OK(rvm_end_transaction(&tid, flush));
    OK(rvm_begin_transaction(&open, restore));
    OK(rvm_modify_bytes(&open, region->vmaddr + 100, "undone", 6));
    raise(SIGKILL);
}

static void recovered(void)
{
    rvm_statistics_t counts;
    begin_life("killed-log", 1 << 20);
    /* Recovery has brought the file up to date. */
    CHECK(byte_of(in("killed"), 0) == 'f' && byte_of(in("killed"), 100) == 100);
    rvm_region_t *region = map_file(in("killed"));
    CHECK(memcmp(region->vmaddr, "flushed", 7) == 0 && region->vmaddr[100] == 100);
    rvm_init_statistics(&counts);
    OK(RVM_STATISTICS(&counts));
    CHECK(counts.tot_recovery == 1);
    OK(rvm_terminate());
    rvm_free_region(region);
}

/* The log names a segment that is not there. */
static void segment_gone(void)
{
    rvm_options_t options;
    rvm_init_options(&options);
    options.log_dev = in("killed-log");
    CHECK(rename(in("killed"), in("hidden")) == 0);
    IS(RVM_EIO, RVM_INIT(&options));
    CHECK(rename(in("hidden"), in("killed")) == 0);
    OK(RVM_INIT(&options));
    OK(rvm_terminate());
}

static void segments(void)
{
    begin_life("segment-log", 1 << 20);
    char *path = data_file("segment", 1 << 17);
    rvm_offset_t length = RVM_MK_OFFSET(0, 1 << 17);
    rvm_region_def_t defs[2], *loaded = NULL;
    unsigned long count = 0;
    IS(RVM_ESEGMENT_HDR, rvm_load_segment(path, length, NULL, &count, &loaded));
    RVM_INIT_REGION(defs[0], RVM_MK_OFFSET(0, 0), 0x8000, (char *)0x30000000)
    RVM_INIT_REGION(defs[1], RVM_MK_OFFSET(0, 0), 0x4000, (char *)0x30004000)
    IS(RVM_ERANGE, rvm_create_segment(path, length, NULL, 2, defs));
    IS(RVM_EREGION_DEF, rvm_create_segment(path, length, NULL, 0, defs));
    defs[1].vmaddr = (char *)0x30008000;
    OK(rvm_create_segment(path, length, NULL, 2, defs));
    OK(rvm_load_segment(path, length, NULL, &count, &loaded));
    CHECK(count == 2 && loaded[0].vmaddr == (char *)0x30000000 && loaded[1].length == 0x4000);
    CHECK(loaded[0].offset.low == RVM_SEGMENT_HDR_SIZE && loaded[1].offset.low == RVM_SEGMENT_HDR_SIZE + 0x8000);
    CHECK((unsigned char)loaded[0].vmaddr[10] == (RVM_SEGMENT_HDR_SIZE + 10) % 251);
    rvm_region_def_t *again;
    unsigned long more;
    CHECK(rvm_load_segment(path, length, NULL, &more, &again) != RVM_SUCCESS);
    rvm_tid_t tid;
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_modify_bytes(&tid, loaded[1].vmaddr, "loaded", 6));
    OK(rvm_end_transaction(&tid, flush));
    OK(rvm_release_segment(count, &loaded));
    CHECK(loaded == NULL);
    OK(rvm_load_segment(path, length, NULL, &count, &loaded));
    CHECK(memcmp(loaded[1].vmaddr, "loaded", 6) == 0);
    OK(rvm_release_segment(count, &loaded));
    /* Something else is there. */
    CHECK(mmap((char *)0x30000000, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    IS(RVM_EINTERNAL, rvm_load_segment(path, length, NULL, &count, &loaded));
    OK(rvm_terminate());
}

/* A log is truncated when as much of it is in use as the program said: by a commit, where no thread does it. */
static void thresholds(void)
{
    begin_life("threshold-log", 1 << 20);
    rvm_options_t options;
    rvm_init_options(&options);
    options.log_dev = in("threshold-log");
    options.truncate = 20;
    OK(rvm_set_options(&options));
    rvm_region_t *region = map_file(data_file("threshold", 8192));
    rvm_statistics_t statistics;
    rvm_init_statistics(&statistics);
    rvm_tid_t tid;
    rvm_init_tid(&tid);
    unsigned commits = 0;
    do {
        OK(rvm_begin_transaction(&tid, restore));
        OK(rvm_set_range(&tid, region->vmaddr, 4096));
        region->vmaddr[commits % 4096]++;
        OK(rvm_end_transaction(&tid, flush));
        OK(rvm_statistics(RVM_STATISTICS_VERSION, &statistics));
        CHECK(++commits < 10000);
    } while (statistics.tot_sync_truncation + statistics.tot_async_truncation == 0);
    /* A fifth of a megabyte. */
    if (statistics.tot_sync_truncation > 0)
        CHECK(commits > 40 && commits < 60);
    OK(rvm_unmap(region));
    rvm_free_region(region);
    OK(rvm_terminate());
}

/* A child that is forked has no life of its parent's, who loses nothing. */
static void put_long(long *word, long value)
{
    rvm_tid_t tid;
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, word, sizeof *word));
    *word = value;
    OK(rvm_end_transaction(&tid, flush));
}

static void forked(void)
{
    begin_life("fork-log", 1 << 20);
    rvm_region_t *region = map_file(in("forked"));
    long *word = (long *)region->vmaddr;
    rvm_tid_t open, other;
    rvm_init_tid(&open);
    rvm_init_tid(&other);
    OK(rvm_begin_transaction(&open, restore));
    OK(rvm_set_range(&open, word, sizeof *word));
    *word = 1;
    pid_t child = fork();
    if (child == 0) {
        IS(RVM_EINIT, rvm_begin_transaction(&other, restore));
        IS(RVM_EINIT, rvm_set_range(&open, word + 8, sizeof *word));
        IS(RVM_EINIT, rvm_end_transaction(&open, flush));
        IS(RVM_EINIT, rvm_abort_transaction(&open));
        IS(RVM_EINIT, rvm_flush());
        IS(RVM_EINIT, rvm_truncate());
        IS(RVM_EINIT, rvm_unmap(region));
        IS(RVM_EINIT, rvm_map(region, NULL));
        IS(RVM_EINIT, RVM_INIT(NULL));
        OK(rvm_terminate());
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(rvm_end_transaction(&open, flush));
    for (long i = 0; i < 100; i++)
        put_long(word + 1, i);
    raise(SIGKILL);
}

static void after_forked(void)
{
    begin_life("fork-log", 1 << 20);
    rvm_region_t *region = map_file(in("forked"));
    CHECK(((long *)region->vmaddr)[0] == 1 && ((long *)region->vmaddr)[1] == 99);
    OK(rvm_unmap(region));
    rvm_free_region(region);
    OK(rvm_terminate());
}

/* A process that is killed while it makes a log leaves none, or a whole one; the next can make it. */
static void make_and_open(void)
{
    begin_life("torn-log", 1 << 16);
    OK(rvm_terminate());
}

static void make_killed(void)
{
    for (unsigned i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            make_and_open();
            _exit(0);
        }
        usleep(i * 400);
        int status;
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        lives(make_and_open);
        CHECK(unlink(in("torn-log")) == 0);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    rvm_no_yield = 1;
    dir = realpath(argv[1], NULL);
    names_and_numbers();
    records();
    data_file("killed", 8192);
    data_file("forked", 8192);
    void (*all[])(void) = {before_and_after, logs,   mapping,   transactions, statistics,
                           killed,           recovered, killed, segment_gone, segments, thresholds,
                           forked,           after_forked};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lives(all[i]);
    make_killed();
    puts("sound");
    return 0;
}
