/* SQLite in WAL mode; synchronous OFF for the Process class, FULL for Power; prepared statements, a page cache as large as
   the data, memory-mapped reading. One writer at a time is let in here: its own waiting for the lock sleeps. */
#include "rival.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct database {
    char path[512], setup[512];
    pthread_mutex_t writing;
};

struct session {
    struct database *database;
    sqlite3 *connection;
    sqlite3_stmt *begin, *get, *put, *take, *scan, *commit;
};

static const char *version(void)
{
    return sqlite3_libversion();
}

static void end(void *of)
{
    struct session *s = of;
    sqlite3_finalize(s->begin);
    sqlite3_finalize(s->get);
    sqlite3_finalize(s->put);
    sqlite3_finalize(s->take);
    sqlite3_finalize(s->scan);
    sqlite3_finalize(s->commit);
    sqlite3_close(s->connection);
    free(s);
}

static void *session(void *database)
{
    struct database *d = database;
    struct session *s = calloc(1, sizeof *s);
    s->database = d;
    if (sqlite3_open(d->path, &s->connection) == SQLITE_OK && sqlite3_busy_timeout(s->connection, 60000) == SQLITE_OK &&
        sqlite3_exec(s->connection, d->setup, NULL, NULL, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(s->connection, "BEGIN IMMEDIATE", -1, &s->begin, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(s->connection, "SELECT value FROM records WHERE key = ?", -1, &s->get, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(s->connection, "INSERT OR REPLACE INTO records VALUES (?, ?)", -1, &s->put, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(s->connection, "DELETE FROM records WHERE key = ?", -1, &s->take, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(s->connection, "SELECT value FROM records WHERE key >= ? ORDER BY key LIMIT ?", -1, &s->scan, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(s->connection, "COMMIT", -1, &s->commit, NULL) == SQLITE_OK)
        return s;
    end(s);
    return NULL;
}

static void *open_database(const char *directory, int forced, uint64_t bytes)
{
    struct database *d = calloc(1, sizeof *d);
    snprintf(d->path, sizeof d->path, "%s/records.db", directory);
    snprintf(d->setup, sizeof d->setup,
             "PRAGMA journal_mode=WAL; PRAGMA synchronous=%s; PRAGMA cache_size=-%llu; PRAGMA mmap_size=%llu;"
             "CREATE TABLE IF NOT EXISTS records (key INTEGER PRIMARY KEY, value BLOB)",
             forced ? "FULL" : "OFF", (unsigned long long)(bytes * 2 >> 10) + 8192, (unsigned long long)bytes * 4);
    pthread_mutex_init(&d->writing, NULL);
    return d;
}

static int run(sqlite3_stmt *statement)
{
    int done = sqlite3_step(statement) == SQLITE_DONE;
    return sqlite3_reset(statement) == SQLITE_OK && done;
}

static int begin(void *of)
{
    struct session *s = of;
    pthread_mutex_lock(&s->database->writing);
    return run(s->begin);
}

static int get(void *of, uint64_t key, void *value, size_t len)
{
    struct session *s = of;
    sqlite3_bind_int64(s->get, 1, (sqlite3_int64)key);
    int code = sqlite3_step(s->get), found = 0;
    if (code == SQLITE_ROW && (size_t)sqlite3_column_bytes(s->get, 0) == len) {
        memcpy(value, sqlite3_column_blob(s->get, 0), len);
        found = 1;
    }
    sqlite3_reset(s->get);
    return found || code == SQLITE_DONE ? found : -1;
}

static int put(void *of, uint64_t key, const void *value, size_t len)
{
    struct session *s = of;
    sqlite3_bind_int64(s->put, 1, (sqlite3_int64)key);
    sqlite3_bind_blob(s->put, 2, value, (int)len, SQLITE_STATIC);
    return run(s->put);
}

static int take(void *of, uint64_t key)
{
    struct session *s = of;
    sqlite3_bind_int64(s->take, 1, (sqlite3_int64)key);
    return run(s->take);
}

static int64_t scan(void *of, uint64_t from, uint64_t count, void *value, size_t len)
{
    struct session *s = of;
    sqlite3_bind_int64(s->scan, 1, (sqlite3_int64)from);
    sqlite3_bind_int64(s->scan, 2, (sqlite3_int64)count);
    int code;
    int64_t found = 0;
    while ((code = sqlite3_step(s->scan)) == SQLITE_ROW && (size_t)sqlite3_column_bytes(s->scan, 0) == len) {
        memcpy(value, sqlite3_column_blob(s->scan, 0), len);
        found++;
    }
    sqlite3_reset(s->scan);
    return code == SQLITE_DONE ? found : -1;
}

static int commit(void *of)
{
    struct session *s = of;
    int done = run(s->commit);
    pthread_mutex_unlock(&s->database->writing);
    return done;
}

static void close_database(void *database)
{
    free(database);
}

const struct rival sqlite = {"SQLite", version, open_database, session, begin, get, NULL, put, take, scan, commit, end, close_database};
