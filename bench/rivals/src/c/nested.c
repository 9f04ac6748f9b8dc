/* Rivals that have parts of a transaction which can be undone: SQLite's and RocksDB's savepoints, Berkeley DB's nested
   transactions. Process class, settings as in each one's own file; RocksDB is its TransactionDB, with pessimistic locks and its
   deadlock detector. Its C interface cannot drop a savepoint: one whose part stays is left there. */
#include "nested.h"

#include <db.h>
#include <rocksdb/c.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* SQLite. */

struct lite {
    sqlite3 *connection;
    sqlite3_stmt *begin, *put, *save, *keep, *undo, *commit;
};

static void *lite_open(const char *directory)
{
    struct lite *l = calloc(1, sizeof *l);
    char path[512];
    snprintf(path, sizeof path, "%s/records.db", directory);
    const char *setup = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; PRAGMA cache_size=-65536; PRAGMA mmap_size=268435456;"
                        "CREATE TABLE IF NOT EXISTS records (key INTEGER PRIMARY KEY, value BLOB)";
    if (sqlite3_open(path, &l->connection) == SQLITE_OK && sqlite3_exec(l->connection, setup, NULL, NULL, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(l->connection, "BEGIN IMMEDIATE", -1, &l->begin, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(l->connection, "INSERT OR REPLACE INTO records VALUES (?, ?)", -1, &l->put, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(l->connection, "SAVEPOINT part", -1, &l->save, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(l->connection, "RELEASE part", -1, &l->keep, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(l->connection, "ROLLBACK TO part", -1, &l->undo, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(l->connection, "COMMIT", -1, &l->commit, NULL) == SQLITE_OK)
        return l;
    return NULL;
}

static int run(sqlite3_stmt *statement)
{
    int done = sqlite3_step(statement) == SQLITE_DONE;
    return sqlite3_reset(statement) == SQLITE_OK && done;
}

static int lite_begin(void *of)
{
    return run(((struct lite *)of)->begin);
}

static int lite_part(void *of)
{
    return run(((struct lite *)of)->save);
}

static int lite_put(void *of, uint64_t key, uint64_t value)
{
    struct lite *l = of;
    sqlite3_bind_int64(l->put, 1, (sqlite3_int64)key);
    sqlite3_bind_blob(l->put, 2, &value, sizeof value, SQLITE_TRANSIENT);
    return run(l->put);
}

static int lite_end(void *of, int stays)
{
    struct lite *l = of;
    return (stays || run(l->undo)) && run(l->keep);
}

static int lite_commit(void *of)
{
    return run(((struct lite *)of)->commit);
}

static void lite_close(void *of)
{
    struct lite *l = of;
    sqlite3_stmt *all[] = {l->begin, l->put, l->save, l->keep, l->undo, l->commit};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        sqlite3_finalize(all[i]);
    sqlite3_close(l->connection);
    free(l);
}

/* RocksDB. */

struct rocks {
    rocksdb_transactiondb_t *db;
    rocksdb_options_t *options;
    rocksdb_writeoptions_t *write;
    rocksdb_transaction_options_t *how;
    rocksdb_transaction_t *tx;
};

static void *rocks_open(const char *directory)
{
    struct rocks *r = calloc(1, sizeof *r);
    char *error = NULL;
    r->options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(r->options, 1);
    rocksdb_options_increase_parallelism(r->options, 2);
    rocksdb_options_set_write_buffer_size(r->options, (size_t)256 << 20);
    rocksdb_options_set_recycle_log_file_num(r->options, 4);
    rocksdb_transactiondb_options_t *kind = rocksdb_transactiondb_options_create();
    r->write = rocksdb_writeoptions_create();
    r->how = rocksdb_transaction_options_create();
    rocksdb_transaction_options_set_deadlock_detect(r->how, 1);
    r->db = rocksdb_transactiondb_open(r->options, kind, directory, &error);
    rocksdb_transactiondb_options_destroy(kind);
    return error == NULL ? r : NULL;
}

static int rocks_begin(void *of)
{
    struct rocks *r = of;
    /* The last one is used again. */
    r->tx = rocksdb_transaction_begin(r->db, r->write, r->how, r->tx);
    return r->tx != NULL;
}

static int rocks_part(void *of)
{
    rocksdb_transaction_set_savepoint(((struct rocks *)of)->tx);
    return 1;
}

static int rocks_put(void *of, uint64_t key, uint64_t value)
{
    char *error = NULL;
    key = __builtin_bswap64(key);
    rocksdb_transaction_put(((struct rocks *)of)->tx, (char *)&key, sizeof key, (char *)&value, sizeof value, &error);
    return error == NULL;
}

static int rocks_end(void *of, int stays)
{
    char *error = NULL;
    if (!stays)
        rocksdb_transaction_rollback_to_savepoint(((struct rocks *)of)->tx, &error);
    return error == NULL;
}

static int rocks_commit(void *of)
{
    char *error = NULL;
    rocksdb_transaction_commit(((struct rocks *)of)->tx, &error);
    return error == NULL;
}

static void rocks_close(void *of)
{
    struct rocks *r = of;
    if (r->tx != NULL)
        rocksdb_transaction_destroy(r->tx);
    rocksdb_transactiondb_close(r->db);
    rocksdb_transaction_options_destroy(r->how);
    rocksdb_writeoptions_destroy(r->write);
    rocksdb_options_destroy(r->options);
    free(r);
}

/* Berkeley DB. */

struct berkeley {
    DB_ENV *env;
    DB *records;
    DB_TXN *top, *part;
    unsigned commits;
};

static void *berkeley_open(const char *directory)
{
    struct berkeley *b = calloc(1, sizeof *b);
    unsigned flags = DB_CREATE | DB_INIT_LOCK | DB_INIT_LOG | DB_INIT_MPOOL | DB_INIT_TXN | DB_THREAD | DB_PRIVATE | DB_RECOVER;
    if (db_env_create(&b->env, 0) != 0 || b->env->set_cachesize(b->env, 0, 256u << 20, 1) != 0 || b->env->set_lg_bsize(b->env, 4 << 20) != 0 ||
        b->env->set_lg_max(b->env, 64 << 20) != 0 || b->env->set_lk_max_locks(b->env, 100000) != 0 ||
        b->env->set_lk_max_objects(b->env, 100000) != 0 || b->env->set_lk_detect(b->env, DB_LOCK_DEFAULT) != 0 ||
        b->env->set_flags(b->env, DB_TXN_WRITE_NOSYNC, 1) != 0 || b->env->open(b->env, directory, flags, 0) != 0 ||
        db_create(&b->records, b->env, 0) != 0 ||
        b->records->open(b->records, NULL, "records", NULL, DB_BTREE, DB_CREATE | DB_AUTO_COMMIT | DB_THREAD, 0) != 0)
        return NULL;
    return b;
}

static int berkeley_begin(void *of)
{
    struct berkeley *b = of;
    b->part = NULL;
    return b->env->txn_begin(b->env, NULL, &b->top, 0) == 0;
}

static int berkeley_part(void *of)
{
    struct berkeley *b = of;
    return b->env->txn_begin(b->env, b->top, &b->part, 0) == 0;
}

static int berkeley_put(void *of, uint64_t key, uint64_t value)
{
    struct berkeley *b = of;
    DBT k, v;
    memset(&k, 0, sizeof k);
    memset(&v, 0, sizeof v);
    key = __builtin_bswap64(key);
    k.data = &key;
    k.size = sizeof key;
    v.data = &value;
    v.size = sizeof value;
    return b->records->put(b->records, b->part != NULL ? b->part : b->top, &k, &v, 0) == 0;
}

static int berkeley_end(void *of, int stays)
{
    struct berkeley *b = of;
    DB_TXN *part = b->part;
    b->part = NULL;
    return (stays ? part->commit(part, 0) : part->abort(part)) == 0;
}

static int berkeley_commit(void *of)
{
    struct berkeley *b = of;
    if (b->top->commit(b->top, 0) != 0)
        return 0;
    /* What is not checkpointed is kept in logs for ever. */
    return ++b->commits % 1024 != 0 || b->env->txn_checkpoint(b->env, 64 << 10, 0, 0) == 0;
}

static void berkeley_close(void *of)
{
    struct berkeley *b = of;
    b->records->close(b->records, 0);
    b->env->close(b->env, 0);
    free(b);
}

const struct nested nested[NESTED] = {
    {"SQLite", lite_open, lite_begin, lite_part, lite_put, lite_end, lite_commit, lite_close},
    {"RocksDB", rocks_open, rocks_begin, rocks_part, rocks_put, rocks_end, rocks_commit, rocks_close},
    {"Berkeley DB", berkeley_open, berkeley_begin, berkeley_part, berkeley_put, berkeley_end, berkeley_commit, berkeley_close},
};
