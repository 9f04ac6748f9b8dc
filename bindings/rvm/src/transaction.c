/* Transactions. */
#include "rvm_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Places for transactions: chunks that double, so that a place stays where it is. A place's number, from 1 on, is what
   a program's rvm_tid_t has. */
#define FIRST_CHUNK 16
#define CHUNKS 26

static pthread_mutex_t pool = PTHREAD_MUTEX_INITIALIZER;
static struct transaction *_Atomic chunks[CHUNKS];
static unsigned made;
static struct transaction *unused;
static bool stopped;
static struct timeval last_name;

/* The place of a number, null if there is none. */
static struct transaction *place_of(unsigned long number)
{
    unsigned long index = number - 1, first = 0;
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        unsigned long size = (unsigned long)FIRST_CHUNK << chunk;
        if (index - first < size) {
            struct transaction *places = atomic_load_explicit(&chunks[chunk], memory_order_acquire);
            return places == NULL ? NULL : places + (index - first);
        }
        first += size;
    }
    return NULL;
}

/* A place that is not used, under the lock of the pool. */
static struct transaction *take_place(void)
{
    if (unused == NULL) {
        unsigned size = FIRST_CHUNK, chunk = 0;
        while (chunk < CHUNKS && chunks[chunk] != NULL) {
            chunk++;
            size *= 2;
        }
        struct transaction *places = chunk < CHUNKS ? calloc(size, sizeof *places) : NULL;
        if (places == NULL)
            return NULL;
        for (unsigned i = size; i-- > 0;) {
            places[i].number = made + i + 1;
            pthread_mutex_init(&places[i].lock, NULL);
            places[i].next = unused;
            unused = &places[i];
        }
        atomic_store_explicit(&chunks[chunk], places, memory_order_release);
        made += size;
    }
    struct transaction *place = unused;
    unused = place->next;
    return place;
}

/* Later than any before it. */
static struct timeval new_name(void)
{
    struct timeval now;
    gettimeofday(&now, NULL);
    if (now.tv_sec < last_name.tv_sec || (now.tv_sec == last_name.tv_sec && now.tv_usec <= last_name.tv_usec)) {
        now = last_name;
        if (++now.tv_usec == 1000000) {
            now.tv_usec = 0;
            now.tv_sec++;
        }
    }
    return last_name = now;
}

/* The open transaction of a record; null if there is none. */
static struct transaction *transaction_of(const rvm_tid_t *tid)
{
    if (tid == NULL || tid->struct_id != rvm_tid_id || tid->tid == NULL)
        return NULL;
    struct transaction *found = place_of((unsigned long)tid->tid);
    if (found == NULL || !found->open || found->uname.tv_sec != tid->uname.tv_sec ||
        found->uname.tv_usec != tid->uname.tv_usec)
        return NULL;
    return found;
}

static void release(struct transaction *transaction)
{
    pthread_mutex_lock(&transaction->lock);
    transaction->open = false;
    for (size_t i = 0; i < transaction->kept_count; i++)
        free(transaction->kept[i].old);
    transaction->count = transaction->kept_count = 0;
    transaction->declared = 0;
    /* A huge transaction's memory is not kept for ever. */
    if (transaction->room > 4096) {
        free(transaction->ranges);
        transaction->ranges = NULL;
        transaction->room = 0;
    }
    pthread_mutex_unlock(&transaction->lock);
    pthread_mutex_lock(&pool);
    transaction->next = unused;
    unused = transaction;
    transactions_open--;
    pthread_mutex_unlock(&pool);
}

rvm_return_t rvm_begin_transaction(rvm_tid_t *tid, rvm_mode_t mode)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    if (tid == NULL || tid->struct_id != rvm_tid_id)
        return RVM_ETID;
    pthread_mutex_lock(&pool);
    struct transaction *transaction = NULL;
    rvm_return_t code = RVM_SUCCESS;
    if (stopped)
        code = RVM_EINIT;
    else if (the_log.store == NULL)
        code = RVM_ELOG;
    else if (mode != restore && mode != no_restore)
        code = RVM_EMODE;
    else if ((transaction = take_place()) == NULL)
        code = RVM_ENO_MEMORY;
    else {
        transaction->uname = new_name();
        transactions_open++;
    }
    pthread_mutex_unlock(&pool);
    if (code != RVM_SUCCESS)
        return code;
    transaction->restores = mode == restore;
    transaction->flags = optimizations;
    int begun = caliburn_begin(the_log.store, mode == restore ? CALIBURN_RESTORE : CALIBURN_NO_RESTORE,
                               &transaction->tx);
    if (begun != CALIBURN_OK) {
        release(transaction);
        return code_of(begun);
    }
    pthread_mutex_lock(&transaction->lock);
    transaction->open = true;
    pthread_mutex_unlock(&transaction->lock);
    tid->uname = transaction->uname;
    tid->tid = (void *)(unsigned long)transaction->number;
    return RVM_SUCCESS;
}

/* Notes a range in a list, with its old bytes if there are any to be kept. */
static bool note(struct range **list, size_t *count, size_t *room, struct range range)
{
    if (*count == *room) {
        size_t more = *room == 0 ? 16 : 2 * *room;
        struct range *longer = realloc(*list, more * sizeof **list);
        if (longer == NULL)
            return false;
        *list = longer;
        *room = more;
    }
    (*list)[(*count)++] = range;
    return true;
}

/* Whether a range lies in a single region. */
static bool mapped(const char *start, rvm_length_t length)
{
    bool found = false;
    pthread_rwlock_rdlock(&regions_lock);
    for (const struct region *region = regions; region != NULL && !found; region = region->next)
        found = start >= region->vmaddr && (rvm_length_t)(start - region->vmaddr) <= region->length &&
                length <= region->length - (rvm_length_t)(start - region->vmaddr);
    pthread_rwlock_unlock(&regions_lock);
    return found;
}

/* A range of a transaction that the log cannot take: it fails at its end, but can be aborted until then. */
static rvm_return_t keep(struct transaction *transaction, char *start, rvm_length_t length)
{
    struct range range = {start, length, NULL};
    if (!mapped(start, length))
        return RVM_ENOT_MAPPED;
    if (transaction->restores) {
        range.old = malloc(length);
        if (range.old == NULL)
            return RVM_ENO_MEMORY;
        memcpy(range.old, start, length);
    }
    if (note(&transaction->kept, &transaction->kept_count, &transaction->kept_room, range))
        return RVM_SUCCESS;
    free(range.old);
    return RVM_ENO_MEMORY;
}

rvm_return_t rvm_set_range(rvm_tid_t *tid, void *dest, rvm_length_t length)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    if (length == 0 && optimizations != 0)
        return RVM_SUCCESS;
    struct transaction *transaction = transaction_of(tid);
    if (transaction == NULL)
        return RVM_ETID;
    if (length == 0)
        return mapped(dest, 0) ? RVM_SUCCESS : RVM_ENOT_MAPPED;
    pthread_mutex_lock(&transaction->lock);
    /* First the note, which may fail: what is declared and not noted would let its region be unmapped. */
    struct range range = {dest, length, NULL};
    rvm_return_t code = RVM_ENO_MEMORY;
    const struct range *last = transaction->count > 0 ? &transaction->ranges[transaction->count - 1] : NULL;
    /* A loop that declares the same again and again makes no list. */
    bool known = last != NULL && range.start >= last->start && range.start + length <= last->start + last->length;
    if (known || note(&transaction->ranges, &transaction->count, &transaction->room, range)) {
        code = RVM_ETOO_BIG;
        if (transaction->kept_count == 0)
            code = code_of(caliburn_set_range(&transaction->tx, dest, length));
        if (code == RVM_ETOO_BIG)
            code = keep(transaction, dest, length);
        if (code != RVM_SUCCESS)
            transaction->count -= !known;
        else
            transaction->declared += known ? 0 : length;
    }
    pthread_mutex_unlock(&transaction->lock);
    return code;
}

rvm_return_t rvm_modify_bytes(rvm_tid_t *tid, void *dest, const void *src, rvm_length_t length)
{
    if (phase == RUNNING && src == NULL && length != 0)
        return RVM_ESRC;
    rvm_return_t code = rvm_set_range(tid, dest, length);
    if (code == RVM_SUCCESS && length != 0)
        memmove(dest, src, length);
    return code;
}

rvm_return_t rvm_abort_transaction(rvm_tid_t *tid)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    struct transaction *transaction = transaction_of(tid);
    if (transaction == NULL)
        return RVM_ETID;
    /* The newest first, and all of them before those that the engine has. */
    for (size_t i = transaction->kept_count; i-- > 0 && transaction->restores;)
        memcpy(transaction->kept[i].start, transaction->kept[i].old, transaction->kept[i].length);
    rvm_return_t code = code_of(caliburn_abort(&transaction->tx));
    count_abort();
    release(transaction);
    return code;
}

static int by_start(const void *a, const void *b)
{
    const struct range *one = a, *other = b;
    return one->start < other->start ? -1 : one->start > other->start;
}

/* Bytes that a transaction declared, each once. */
static rvm_length_t distinct(struct transaction *transaction)
{
    rvm_length_t total = 0;
    char *end = NULL;
    qsort(transaction->ranges, transaction->count, sizeof *transaction->ranges, by_start);
    for (size_t i = 0; i < transaction->count; i++) {
        char *start = transaction->ranges[i].start, *stop = start + transaction->ranges[i].length;
        if (start < end)
            start = end;
        if (stop > start) {
            total += (rvm_length_t)(stop - start);
            end = stop;
        }
    }
    return total;
}

/* Truncates when as much of the log is in use as the program said, where no thread does. A failure is remembered by
   the store, and told by the next call. */
static void truncate_if_due(void)
{
    if (!BACKGROUND)
        caliburn_tend(the_log.store);
}

rvm_return_t rvm_end_transaction(rvm_tid_t *tid, rvm_mode_t mode)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    if (mode != flush && mode != no_flush)
        return RVM_EMODE;
    struct transaction *transaction = transaction_of(tid);
    if (transaction == NULL)
        return RVM_ETID;
    bool too_big = transaction->kept_count > 0;
    if (!too_big && transaction->declared > the_log.length) {
        pthread_mutex_lock(&transaction->lock);
        too_big = distinct(transaction) > the_log.length;
        pthread_mutex_unlock(&transaction->lock);
    }
    if (too_big)
        return RVM_ETOO_BIG;
    struct timeval begin, end;
    gettimeofday(&begin, NULL);
    int code = caliburn_commit(&transaction->tx, mode == flush ? the_log.forced : CALIBURN_PROCESS);
    gettimeofday(&end, NULL);
    timersub(&end, &begin, &end);
    if (code == CALIBURN_OK)
        count_commit(mode == flush ? &end : NULL, transaction);
    release(transaction);
    if (code == CALIBURN_OK && mode == flush)
        truncate_if_due();
    return code_of(code);
}

static bool touches(const struct transaction *transaction, const struct region *region)
{
    for (size_t i = 0; i < transaction->count; i++)
        if (transaction->ranges[i].start < region->vmaddr + region->length &&
            region->vmaddr < transaction->ranges[i].start + transaction->ranges[i].length)
            return true;
    return false;
}

/* The open transactions with ranges in a region, or all of them: as many as there is room for are listed, all are
   counted if there is no list. */
unsigned long transactions_in(const struct region *region, rvm_tid_t *tids, unsigned long room)
{
    unsigned long found = 0;
    pthread_mutex_lock(&pool);
    unsigned long last = made;
    pthread_mutex_unlock(&pool);
    for (unsigned long number = 1; number <= last; number++) {
        struct transaction *transaction = place_of(number);
        pthread_mutex_lock(&transaction->lock);
        if (transaction->open && (region == NULL || touches(transaction, region)) &&
            (tids == NULL || found < room)) {
            if (tids != NULL) {
                rvm_init_tid(&tids[found]);
                tids[found].uname = transaction->uname;
                tids[found].tid = (void *)number;
            }
            found++;
        }
        pthread_mutex_unlock(&transaction->lock);
    }
    return found;
}

/* Ends the library's life, unless transactions are open. */
rvm_return_t transactions_stop(void)
{
    rvm_return_t code = RVM_EUNCOMMIT;
    pthread_mutex_lock(&pool);
    if (transactions_open == 0) {
        stopped = true;
        phase = ENDED;
        code = RVM_SUCCESS;
    }
    pthread_mutex_unlock(&pool);
    return code;
}

/* Makes all commits durable. A log whose disk is lost with the system has none to make so. */
static rvm_return_t flush_log(void)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    if (the_log.store == NULL)
        return RVM_ELOG;
    return the_log.forced < CALIBURN_POWER ? RVM_SUCCESS : code_of(caliburn_flush(the_log.store));
}

rvm_return_t rvm_flush(void)
{
    rvm_return_t code = flush_log();
    if (code == RVM_SUCCESS) {
        count_flush(true);
        truncate_if_due();
    }
    return code;
}

rvm_return_t rvm_truncate(void)
{
    struct timeval begin, end;
    rvm_return_t code = flush_log();
    if (code != RVM_SUCCESS)
        return code;
    gettimeofday(&begin, NULL);
    code = code_of(caliburn_truncate(the_log.store));
    gettimeofday(&end, NULL);
    timersub(&end, &begin, &end);
    if (code == RVM_SUCCESS)
        count_truncate_called(end);
    return code;
}
