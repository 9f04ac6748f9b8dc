/* LMDB. Process class: MDB_WRITEMAP with MDB_NOSYNC, the fastest that survives the process; Power: its default. Integer keys. */
#include "rival.h"

#include <lmdb.h>
#include <stdlib.h>
#include <string.h>

struct database {
    MDB_env *env;
    MDB_dbi records;
};

struct session {
    struct database *database;
    MDB_txn *txn;
};

static const char *version(void)
{
    return mdb_version(NULL, NULL, NULL);
}

static void *open_database(const char *directory, int forced, uint64_t bytes)
{
    struct database *d = calloc(1, sizeof *d);
    unsigned flags = forced ? 0 : MDB_WRITEMAP | MDB_NOSYNC;
    MDB_txn *txn;
    if (d == NULL || mdb_env_create(&d->env) != 0 || mdb_env_set_mapsize(d->env, bytes * 4 + (1 << 28)) != 0 ||
        mdb_env_open(d->env, directory, flags | MDB_NOTLS, 0644) != 0 || mdb_txn_begin(d->env, NULL, 0, &txn) != 0 ||
        mdb_dbi_open(txn, NULL, MDB_INTEGERKEY | MDB_CREATE, &d->records) != 0 || mdb_txn_commit(txn) != 0)
        return NULL;
    return d;
}

static void *session(void *database)
{
    struct session *s = calloc(1, sizeof *s);
    s->database = database;
    return s;
}

static int begin(void *of)
{
    struct session *s = of;
    return mdb_txn_begin(s->database->env, NULL, 0, &s->txn) == 0;
}

static int get(void *of, uint64_t key, void *value, size_t len)
{
    struct session *s = of;
    MDB_val k = {sizeof key, &key}, v;
    int code = mdb_get(s->txn, s->database->records, &k, &v);
    if (code == 0 && v.mv_size == len)
        memcpy(value, v.mv_data, len);
    return code == 0 && v.mv_size == len ? 1 : code == MDB_NOTFOUND ? 0 : -1;
}

static int put(void *of, uint64_t key, const void *value, size_t len)
{
    struct session *s = of;
    MDB_val k = {sizeof key, &key}, v = {len, (void *)value};
    return mdb_put(s->txn, s->database->records, &k, &v, 0) == 0;
}

static int take(void *of, uint64_t key)
{
    struct session *s = of;
    MDB_val k = {sizeof key, &key};
    return mdb_del(s->txn, s->database->records, &k, NULL) == 0;
}

static int64_t scan(void *of, uint64_t from, uint64_t count, void *value, size_t len)
{
    struct session *s = of;
    MDB_val k = {sizeof from, &from}, v;
    MDB_cursor *cursor;
    if (mdb_cursor_open(s->txn, s->database->records, &cursor) != 0)
        return -1;
    uint64_t found = 0;
    int code = mdb_cursor_get(cursor, &k, &v, MDB_SET_RANGE);
    for (; code == 0 && found < count && v.mv_size == len; found++) {
        memcpy(value, v.mv_data, len);
        code = mdb_cursor_get(cursor, &k, &v, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    return code == 0 || code == MDB_NOTFOUND ? (int64_t)found : -1;
}

static int commit(void *of)
{
    return mdb_txn_commit(((struct session *)of)->txn) == 0;
}

static void close_database(void *database)
{
    mdb_env_close(((struct database *)database)->env);
    free(database);
}

const struct rival lmdb = {"LMDB", version, open_database, session, begin, get, NULL, put, take, scan, commit, free, close_database};
