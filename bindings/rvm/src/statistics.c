/* Statistics. The engine counts since the store was opened; what RVM counts since the last truncation begins anew when
   one has moved the log's head. Totals are of this process. */
#include "rvm_state.h"

#include <string.h>

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static rvm_statistics_t counts;
/* The engine's counters, as they were when the present epoch began. */
static caliburn_statistics before;
static uint64_t epochs_seen;

static const rvm_length_t flush_bounds[] = {flush_times_dist}, truncation_bounds[] = {truncation_times_dist},
                          length_bounds[] = {range_lengths_dist}, overlap_bounds[] = {range_overlaps_dist};

#define COUNT(histogram, bounds, value) count_in(histogram, bounds, sizeof(bounds) / sizeof *(bounds), value)

static void count_in(rvm_length_t *histogram, const rvm_length_t *bounds, size_t count, rvm_length_t value)
{
    size_t i = 0;
    while (i < count && bounds[i] < value)
        i++;
    histogram[i]++;
}

static caliburn_statistics engine(void)
{
    caliburn_statistics now;
    memset(&now, 0, sizeof now);
    caliburn_statistics_get(the_log.store, &now, sizeof now);
    return now;
}

static void add(rvm_offset_t *sum, rvm_offset_t more)
{
    *sum = rvm_add_offsets(sum, &more);
}

/* What the engine has counted in the present epoch. */
static void fill_present(const caliburn_statistics *now)
{
    counts.log_written = rvm_mk_offset(0, now->log_bytes - before.log_bytes);
    counts.range_overlap = rvm_mk_offset(0, now->duplicate_bytes - before.duplicate_bytes);
    counts.trans_overlap = rvm_mk_offset(0, now->merged_bytes - before.merged_bytes);
    counts.n_range_elim = now->joined_ranges - before.joined_ranges;
    counts.n_trans_coalesced = now->merged_transactions - before.merged_transactions;
}

#define MOVE(tot, present) (counts.tot += counts.present, counts.present = 0)
#define MOVE_ALL(tot, present)                                                 \
    do {                                                                       \
        for (size_t i_ = 0; i_ < sizeof counts.present / sizeof *counts.present; i_++) \
            counts.tot[i_] += counts.present[i_], counts.present[i_] = 0;      \
    } while (0)

/* A truncation was done: the present epoch becomes part of the totals. */
static void new_epoch(const caliburn_statistics *now)
{
    fill_present(now);
    add(&counts.tot_log_written, counts.log_written);
    add(&counts.tot_range_overlap, counts.range_overlap);
    add(&counts.tot_trans_overlap, counts.trans_overlap);
    MOVE(tot_abort, n_abort);
    MOVE(tot_flush_commit, n_flush_commit);
    MOVE(tot_no_flush_commit, n_no_flush_commit);
    MOVE(tot_flush, n_flush);
    timeradd(&counts.tot_flush_time, &counts.flush_time, &counts.tot_flush_time);
    timerclear(&counts.flush_time);
    MOVE(tot_rvm_flush, n_rvm_flush);
    MOVE(tot_range_elim, n_range_elim);
    MOVE(tot_trans_coalesced, n_trans_coalesced);
    MOVE_ALL(tot_flush_times, flush_times);
    MOVE_ALL(tot_range_lengths, range_lengths);
    MOVE_ALL(tot_range_overlaps, range_overlaps);
    counts.n_no_flush = 0;
    counts.no_flush_length = rvm_mk_offset(0, 0);
    before = *now;
    epochs_seen = now->epochs;
}

/* Looks for truncations that nobody called for. */
static caliburn_statistics look(void)
{
    caliburn_statistics now = engine();
    if (now.epochs > epochs_seen) {
        if (BACKGROUND)
            counts.tot_async_truncation += now.epochs - epochs_seen;
        else
            counts.tot_sync_truncation += now.epochs - epochs_seen;
        new_epoch(&now);
    }
    return now;
}

/* A log was opened, and had something to be recovered or not. */
void count_begin_log(bool recovered)
{
    pthread_mutex_lock(&counting);
    rvm_init_statistics(&counts);
    counts.tot_recovery = recovered;
    before = engine();
    epochs_seen = before.epochs;
    pthread_mutex_unlock(&counting);
}

/* A commit; with flush, and how long that took. */
void count_commit(const struct timeval *flushed_in, const struct transaction *transaction)
{
    pthread_mutex_lock(&counting);
    look();
    for (size_t i = 0; i < transaction->count; i++)
        COUNT(counts.range_lengths, length_bounds, transaction->ranges[i].length);
    if (flushed_in != NULL) {
        counts.n_flush_commit++;
        counts.n_flush++;
        counts.last_flush_time = (rvm_length_t)(flushed_in->tv_sec * 1000 + flushed_in->tv_usec / 1000);
        timeradd(&counts.flush_time, flushed_in, &counts.flush_time);
        COUNT(counts.flush_times, flush_bounds, counts.last_flush_time);
        counts.n_no_flush = 0;
        counts.no_flush_length = rvm_mk_offset(0, 0);
    } else {
        counts.n_no_flush_commit++;
        if (transaction->count > 0) {
            /* A record's frame, and for each range a header. */
            counts.n_no_flush++;
            counts.no_flush_length = rvm_add_length_to_offset(
                &counts.no_flush_length, transaction->declared + 64 + 16 * transaction->count);
        }
    }
    pthread_mutex_unlock(&counting);
}

void count_abort(void)
{
    pthread_mutex_lock(&counting);
    counts.n_abort++;
    pthread_mutex_unlock(&counting);
}

/* Everything is flushed, because somebody called for it. */
void count_flush(bool called)
{
    pthread_mutex_lock(&counting);
    look();
    counts.n_rvm_flush += called;
    counts.n_flush++;
    counts.n_no_flush = 0;
    counts.no_flush_length = rvm_mk_offset(0, 0);
    pthread_mutex_unlock(&counting);
}

/* A truncation that is part of something else. */
void count_truncation(void)
{
    pthread_mutex_lock(&counting);
    caliburn_statistics now = engine();
    new_epoch(&now);
    pthread_mutex_unlock(&counting);
}

void count_truncate_called(struct timeval took)
{
    pthread_mutex_lock(&counting);
    caliburn_statistics now = engine();
    counts.tot_rvm_truncate++;
    counts.last_truncation_time = (rvm_length_t)took.tv_sec;
    COUNT(counts.tot_truncation_times, truncation_bounds, counts.last_truncation_time);
    timeradd(&counts.tot_truncation_time, &took, &counts.tot_truncation_time);
    new_epoch(&now);
    pthread_mutex_unlock(&counting);
}

/* Whether nothing in the log, or on its way there, is to be applied. */
bool log_is_empty(void)
{
    caliburn_query now;
    memset(&now, 0, sizeof now);
    pthread_mutex_lock(&counting);
    look();
    bool none = counts.n_no_flush == 0;
    pthread_mutex_unlock(&counting);
    return caliburn_query_store(the_log.store, &now, sizeof now) == CALIBURN_OK && now.log_used == 0 && none;
}

rvm_return_t rvm_statistics(const char *version, rvm_statistics_t *statistics)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    if (version == NULL || strcmp(version, RVM_STATISTICS_VERSION) != 0)
        return RVM_ESTAT_VERSION_SKEW;
    if (statistics == NULL || statistics->struct_id != rvm_statistics_id)
        return RVM_ESTATISTICS;
    if (the_log.store == NULL)
        return RVM_ELOG;
    rvm_bool_t from_heap = statistics->from_heap;
    unsigned long open = atomic_load(&transactions_open);
    caliburn_query query;
    memset(&query, 0, sizeof query);
    caliburn_query_store(the_log.store, &query, sizeof query);
    pthread_mutex_lock(&counting);
    caliburn_statistics now = look();
    fill_present(&now);
    counts.n_uncommit = open;
    /* The ring is longer than the log was to be. */
    double share = query.log_bytes == 0 ? 0 : (double)query.log_used / (double)query.log_bytes;
    counts.log_written = rvm_mk_offset(0, (rvm_length_t)(share * (double)the_log.length + 0.999));
    counts.log_dev_cur = (rvm_length_t)(share * 100);
    if (counts.log_dev_cur > counts.log_dev_max)
        counts.log_dev_max = counts.log_dev_cur;
    *statistics = counts;
    pthread_mutex_unlock(&counting);
    statistics->from_heap = from_heap;
    return RVM_SUCCESS;
}

static void histogram(FILE *out, const char *what, const rvm_length_t *counts_of, const rvm_length_t *bounds, size_t count)
{
    fprintf(out, "  %s:", what);
    for (size_t i = 0; i < count; i++)
        fprintf(out, " <=%lu: %lu", bounds[i], counts_of[i]);
    fprintf(out, " more: %lu\n", counts_of[count]);
}

#define PRINT(what, histogram_of, bounds) \
    histogram(out, what, statistics->histogram_of, bounds, sizeof(bounds) / sizeof *(bounds))

rvm_return_t rvm_print_statistics(rvm_statistics_t *statistics, FILE *out)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    if (the_log.store == NULL)
        return RVM_ELOG;
    if (statistics == NULL || statistics->struct_id != rvm_statistics_id)
        return RVM_ESTATISTICS;
    if (out == NULL)
        return RVM_EIO;
    const rvm_statistics_t *s = statistics;
    fprintf(out, "RVM statistics of log %s, %lu bytes\n\n", the_log.path, the_log.length);
    fprintf(out, "Log in use: %lu bytes, %lu %% (at most %lu %%)\n", s->log_written.low, s->log_dev_cur, s->log_dev_max);
    fprintf(out, "Transactions open: %lu; committed and not flushed: %lu, %lu bytes of log\n\n", s->n_uncommit,
            s->n_no_flush, s->no_flush_length.low);
    fprintf(out, "                          since the last truncation       before\n");
    fprintf(out, "  flush commits           %25lu %12lu\n", s->n_flush_commit, s->tot_flush_commit);
    fprintf(out, "  no_flush commits        %25lu %12lu\n", s->n_no_flush_commit, s->tot_no_flush_commit);
    fprintf(out, "  aborts                  %25lu %12lu\n", s->n_abort, s->tot_abort);
    fprintf(out, "  flushes                 %25lu %12lu\n", s->n_flush, s->tot_flush);
    fprintf(out, "  of these by rvm_flush   %25lu %12lu\n", s->n_rvm_flush, s->tot_rvm_flush);
    fprintf(out, "  bytes not logged twice  %25lu %12lu\n", s->range_overlap.low, s->tot_range_overlap.low);
    fprintf(out, "  ... by coalescing       %25lu %12lu\n", s->trans_overlap.low, s->tot_trans_overlap.low);
    fprintf(out, "  transactions coalesced  %25lu %12lu\n\n", s->n_trans_coalesced, s->tot_trans_coalesced);
    fprintf(out, "Truncations: %lu by rvm_truncate, %lu in the background, %lu for want of space; recoveries: %lu\n\n",
            s->tot_rvm_truncate, s->tot_async_truncation, s->tot_sync_truncation, s->tot_recovery);
    PRINT("range lengths, bytes", range_lengths, length_bounds);
    PRINT("before, bytes", tot_range_lengths, length_bounds);
    PRINT("range overlaps, bytes", range_overlaps, overlap_bounds);
    PRINT("flush times, ms", flush_times, flush_bounds);
    PRINT("truncation times, s", tot_truncation_times, truncation_bounds);
    return fflush(out) == 0 && !ferror(out) ? RVM_SUCCESS : RVM_EIO;
}
