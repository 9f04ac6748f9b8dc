/* Berkeley DB, transactional B-tree: DB_TXN_WRITE_NOSYNC for the Process class, its default for Power; a cache as large as the
   data, a log buffer of 4 MB. One writer at a time is let in here: neighbours on a page would wait for each other's ends. */
#include "rival.h"

#include <db.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct database {
    DB_ENV *env;
    DB *records;
    pthread_mutex_t writing;
};

struct session {
    struct database *database;
    DB_TXN *txn;
};

static const char *version(void)
{
    return db_version(NULL, NULL, NULL);
}

static void *open_database(const char *directory, int forced, uint64_t bytes)
{
    struct database *d = calloc(1, sizeof *d);
    unsigned flags = DB_CREATE | DB_INIT_LOCK | DB_INIT_LOG | DB_INIT_MPOOL | DB_INIT_TXN | DB_THREAD | DB_PRIVATE | DB_RECOVER;
    uint64_t cache = bytes * 3 + (64 << 20);
    pthread_mutex_init(&d->writing, NULL);
    if (db_env_create(&d->env, 0) != 0 || d->env->set_cachesize(d->env, cache >> 30, cache & ((1u << 30) - 1), 1) != 0 ||
        d->env->set_lg_bsize(d->env, 4 << 20) != 0 || d->env->set_lg_max(d->env, 64 << 20) != 0 ||
        d->env->set_lk_max_locks(d->env, 100000) != 0 || d->env->set_lk_max_objects(d->env, 100000) != 0 ||
        (!forced && d->env->set_flags(d->env, DB_TXN_WRITE_NOSYNC, 1) != 0) ||
        d->env->open(d->env, directory, flags, 0) != 0 || db_create(&d->records, d->env, 0) != 0 ||
        d->records->open(d->records, NULL, "records", NULL, DB_BTREE, DB_CREATE | DB_AUTO_COMMIT | DB_THREAD, 0) != 0)
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
    pthread_mutex_lock(&s->database->writing);
    return s->database->env->txn_begin(s->database->env, NULL, &s->txn, 0) == 0;
}

static DBT spell(uint64_t *key)
{
    DBT k;
    *key = __builtin_bswap64(*key);
    memset(&k, 0, sizeof k);
    k.data = key;
    k.size = sizeof *key;
    return k;
}

static int get(void *of, uint64_t key, void *value, size_t len)
{
    struct session *s = of;
    DBT k = spell(&key), v;
    memset(&v, 0, sizeof v);
    v.data = value;
    v.ulen = (unsigned)len;
    v.flags = DB_DBT_USERMEM;
    int code = s->database->records->get(s->database->records, s->txn, &k, &v, DB_RMW);
    return code == 0 ? 1 : code == DB_NOTFOUND ? 0 : -1;
}

static int put(void *of, uint64_t key, const void *value, size_t len)
{
    struct session *s = of;
    DBT k = spell(&key), v;
    memset(&v, 0, sizeof v);
    v.data = (void *)value;
    v.size = (unsigned)len;
    return s->database->records->put(s->database->records, s->txn, &k, &v, 0) == 0;
}

static int commit(void *of)
{
    struct session *s = of;
    int done = s->txn->commit(s->txn, 0) == 0;
    pthread_mutex_unlock(&s->database->writing);
    return done;
}

static void close_database(void *database)
{
    struct database *d = database;
    d->records->close(d->records, 0);
    d->env->close(d->env, 0);
    free(d);
}

const struct rival berkeley = {"Berkeley DB", version, open_database, session, begin, get, put, commit, free, close_database};
