/* PMDK's libpmemobj: the records are one array in the root object, a key is an offset in it, changed in place. Process class:
   PMEM_IS_PMEM_FORCE=1 and PMEM_NO_FLUSH=1, since stores to the page cache survive the process; Power: neither, so that it calls
   msync, which is what it does on a disk that is no persistent memory. */
#include "rival.h"

#include <libpmemobj.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct database {
    PMEMobjpool *pool;
    char *records;
};

static const char *version(void)
{
    return PMDK_VERSION;
}

static void *open_database(const char *directory, int forced, uint64_t bytes)
{
    struct database *d = calloc(1, sizeof *d);
    char path[512];
    (void)forced;
    snprintf(path, sizeof path, "%s/pool", directory);
    d->pool = pmemobj_open(path, "records");
    if (d->pool == NULL)
        d->pool = pmemobj_create(path, "records", bytes + bytes / 8 + ((size_t)128 << 20), 0644);
    if (d->pool == NULL)
        return NULL;
    d->records = pmemobj_direct(pmemobj_root(d->pool, bytes));
    return d->records == NULL ? NULL : d;
}

static void *session(void *database)
{
    return database;
}

static int begin(void *of)
{
    return pmemobj_tx_begin(((struct database *)of)->pool, NULL, TX_PARAM_NONE) == 0;
}

static int get(void *of, uint64_t key, void *value, size_t len)
{
    memcpy(value, ((struct database *)of)->records + key, len);
    return 1;
}

static void *declare(void *of, uint64_t key, size_t len)
{
    char *at = ((struct database *)of)->records + key;
    return pmemobj_tx_add_range_direct(at, len) == 0 ? at : NULL;
}

static int commit(void *of)
{
    (void)of;
    pmemobj_tx_commit();
    return pmemobj_tx_end() == 0;
}

static void end(void *of)
{
    (void)of;
}

static void close_database(void *database)
{
    pmemobj_close(((struct database *)database)->pool);
    free(database);
}

const struct rival pmdk = {"PMDK", version, open_database, session, begin, get, declare, NULL, NULL, NULL, commit, end, close_database};
