/* Berkeley DB, transactional B-tree: DB_TXN_WRITE_NOSYNC for the Process class, its default for Power; a cache as large as the
   data, a log buffer of 4 MB, a checkpoint every 64 MB of log. Reads stand before the transaction and what it stores comes at its end: nobody
   else changes these records, and a transaction that the deadlock detector chose is done again. */
#include "rival.h"

#include <db.h>
#include <stdlib.h>
#include <string.h>

struct database {
    DB_ENV *env;
    DB *records;
};

/* A record that is to be stored, or taken out. */
struct change {
    int taken;
    uint64_t key;
    size_t len, room;
    void *value;
};

struct session {
    struct database *database;
    struct change *changes;
    size_t count, room;
    unsigned commits;
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
    if (db_env_create(&d->env, 0) != 0 || d->env->set_cachesize(d->env, cache >> 30, cache & ((1u << 30) - 1), 1) != 0 ||
        d->env->set_lg_bsize(d->env, 4 << 20) != 0 || d->env->set_lg_max(d->env, 64 << 20) != 0 ||
        d->env->set_lk_max_locks(d->env, 100000) != 0 || d->env->set_lk_max_objects(d->env, 100000) != 0 ||
        d->env->set_lk_detect(d->env, DB_LOCK_DEFAULT) != 0 || (!forced && d->env->set_flags(d->env, DB_TXN_WRITE_NOSYNC, 1) != 0) ||
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
    ((struct session *)of)->count = 0;
    return 1;
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
    int code = s->database->records->get(s->database->records, NULL, &k, &v, 0);
    return code == 0 ? 1 : code == DB_NOTFOUND ? 0 : -1;
}

static int change(struct session *s, uint64_t key, const void *value, size_t len, int taken)
{
    if (s->count == s->room) {
        size_t room = s->room * 2 + 8;
        struct change *more = realloc(s->changes, room * sizeof *more);
        if (more == NULL)
            return 0;
        memset(more + s->room, 0, (room - s->room) * sizeof *more);
        s->changes = more;
        s->room = room;
    }
    struct change *c = &s->changes[s->count];
    if (c->room < len) {
        void *more = realloc(c->value, len);
        if (more == NULL)
            return 0;
        c->value = more;
        c->room = len;
    }
    if (len > 0)
        memcpy(c->value, value, len);
    c->key = key;
    c->len = len;
    c->taken = taken;
    s->count++;
    return 1;
}

static int put(void *of, uint64_t key, const void *value, size_t len)
{
    return change(of, key, value, len, 0);
}

static int take(void *of, uint64_t key)
{
    return change(of, key, NULL, 0, 1);
}

static int64_t scan(void *of, uint64_t from, uint64_t count, void *value, size_t len)
{
    struct session *s = of;
    DBT k = spell(&from), v;
    DBC *cursor;
    uint64_t there;
    if (s->database->records->cursor(s->database->records, NULL, &cursor, 0) != 0)
        return -1;
    memset(&v, 0, sizeof v);
    v.data = value;
    v.ulen = (unsigned)len;
    v.flags = DB_DBT_USERMEM;
    memcpy(&there, &from, sizeof there);
    k.data = &there;
    k.ulen = sizeof there;
    k.flags = DB_DBT_USERMEM;
    uint64_t found = 0;
    int code = cursor->get(cursor, &k, &v, DB_SET_RANGE);
    while (code == 0 && ++found < count)
        code = cursor->get(cursor, &k, &v, DB_NEXT);
    cursor->close(cursor);
    return code == 0 || code == DB_NOTFOUND ? (int64_t)found : -1;
}

/* One try: 0, DB_LOCK_DEADLOCK, or another error. */
static int try_commit(struct session *s)
{
    DB_ENV *env = s->database->env;
    DB_TXN *txn;
    int code = env->txn_begin(env, NULL, &txn, 0);
    if (code != 0)
        return code;
    for (size_t i = 0; i < s->count; i++) {
        uint64_t key = s->changes[i].key;
        DBT k = spell(&key), v;
        memset(&v, 0, sizeof v);
        v.data = s->changes[i].value;
        v.size = (unsigned)s->changes[i].len;
        code = s->changes[i].taken ? s->database->records->del(s->database->records, txn, &k, 0)
                                   : s->database->records->put(s->database->records, txn, &k, &v, 0);
        if (code != 0) {
            txn->abort(txn);
            return code;
        }
    }
    return txn->commit(txn, 0);
}

static int commit(void *of)
{
    struct session *s = of;
    int code = 0;
    if (s->count == 0)
        return 1;
    do
        code = try_commit(s);
    while (code == DB_LOCK_DEADLOCK);
    if (code == 0 && ++s->commits % 4096 == 0)
        code = s->database->env->txn_checkpoint(s->database->env, 64 << 10, 0, 0);
    return code == 0;
}

static void end(void *of)
{
    struct session *s = of;
    for (size_t i = 0; i < s->room; i++)
        free(s->changes[i].value);
    free(s->changes);
    free(s);
}

static void close_database(void *database)
{
    struct database *d = database;
    d->records->close(d->records, 0);
    d->env->close(d->env, 0);
    free(d);
}

const struct rival berkeley = {"Berkeley DB", version, open_database, session, begin, get, NULL, put, take, scan, commit, end, close_database};
