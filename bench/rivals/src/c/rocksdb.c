/* RocksDB: a batch per transaction, pipelined writes, level compaction tuned for a memtable of 256 MB, a block cache as large as
   the data, bloom filters, no compression, log files used again. sync off for the Process
   class: the write-ahead log is written to the page cache; on for Power. */
#include "rival.h"

#include <rocksdb/c.h>
#include <stdlib.h>
#include <string.h>

struct database {
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_writeoptions_t *write;
    rocksdb_readoptions_t *read;
};

struct session {
    struct database *database;
    rocksdb_writebatch_t *batch;
};

static const char *version(void)
{
    return ROCKSDB_VERSION;
}

static void *open_database(const char *directory, int forced, uint64_t bytes)
{
    struct database *d = calloc(1, sizeof *d);
    char *error = NULL;
    d->options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(d->options, 1);
    rocksdb_options_increase_parallelism(d->options, 2);
    rocksdb_options_optimize_level_style_compaction(d->options, (uint64_t)512 << 20);
    rocksdb_options_set_write_buffer_size(d->options, (size_t)256 << 20);
    rocksdb_options_set_enable_pipelined_write(d->options, 1);
    int none[7] = {rocksdb_no_compression, rocksdb_no_compression, rocksdb_no_compression, rocksdb_no_compression,
                   rocksdb_no_compression, rocksdb_no_compression, rocksdb_no_compression};
    rocksdb_options_set_compression_per_level(d->options, none, 7);
    rocksdb_options_set_recycle_log_file_num(d->options, 4);
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(bytes * 2 + (64 << 20)));
    rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_options_set_block_based_table_factory(d->options, table);
    d->write = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(d->write, forced != 0);
    d->read = rocksdb_readoptions_create();
    d->db = rocksdb_open(d->options, directory, &error);
    return error == NULL ? d : NULL;
}

static void *session(void *database)
{
    struct session *s = calloc(1, sizeof *s);
    s->database = database;
    s->batch = rocksdb_writebatch_create();
    return s;
}

static int begin(void *of)
{
    rocksdb_writebatch_clear(((struct session *)of)->batch);
    return 1;
}

/* So that keys are in the order of their numbers. */
static void spell(uint64_t key, char *name)
{
    key = __builtin_bswap64(key);
    memcpy(name, &key, sizeof key);
}

static int get(void *of, uint64_t key, void *value, size_t len)
{
    struct session *s = of;
    char name[8], *error = NULL;
    spell(key, name);
    rocksdb_pinnableslice_t *slice = rocksdb_get_pinned(s->database->db, s->database->read, name, sizeof name, &error);
    if (error != NULL)
        return -1;
    if (slice == NULL)
        return 0;
    size_t there;
    const char *bytes = rocksdb_pinnableslice_value(slice, &there);
    if (there == len)
        memcpy(value, bytes, len);
    rocksdb_pinnableslice_destroy(slice);
    return there == len ? 1 : -1;
}

static int put(void *of, uint64_t key, const void *value, size_t len)
{
    char name[8];
    spell(key, name);
    rocksdb_writebatch_put(((struct session *)of)->batch, name, sizeof name, value, len);
    return 1;
}

static int take(void *of, uint64_t key)
{
    char name[8];
    spell(key, name);
    rocksdb_writebatch_delete(((struct session *)of)->batch, name, sizeof name);
    return 1;
}

static int64_t scan(void *of, uint64_t from, uint64_t count, void *value, size_t len)
{
    struct session *s = of;
    char name[8], *error = NULL;
    spell(from, name);
    rocksdb_iterator_t *at = rocksdb_create_iterator(s->database->db, s->database->read);
    uint64_t found = 0;
    for (rocksdb_iter_seek(at, name, sizeof name); found < count && rocksdb_iter_valid(at); found++) {
        size_t there;
        const char *bytes = rocksdb_iter_value(at, &there);
        if (there != len)
            break;
        memcpy(value, bytes, len);
        rocksdb_iter_next(at);
    }
    rocksdb_iter_get_error(at, &error);
    rocksdb_iter_destroy(at);
    return error == NULL ? (int64_t)found : -1;
}

static int commit(void *of)
{
    struct session *s = of;
    char *error = NULL;
    if (rocksdb_writebatch_count(s->batch) == 0)
        return 1;
    rocksdb_write(s->database->db, s->database->write, s->batch, &error);
    return error == NULL;
}

static void end(void *of)
{
    rocksdb_writebatch_destroy(((struct session *)of)->batch);
    free(of);
}

static void close_database(void *database)
{
    struct database *d = database;
    rocksdb_close(d->db);
    rocksdb_writeoptions_destroy(d->write);
    rocksdb_readoptions_destroy(d->read);
    rocksdb_options_destroy(d->options);
    free(d);
}

const struct rival rocksdb = {"RocksDB", version, open_database, session, begin, get, NULL, put, take, scan, commit, end, close_database};
