/* rvm/rvm_statistics.h: what RVM counts. To be included after rvm.h, as programs do; it does so itself, too. */
#ifndef RVM_STATISTICS_VERSION
#define RVM_STATISTICS_VERSION "RVM Statistics Version 1.1 8 Dec 1992"

#include <stdio.h>

#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Histograms: a value is counted where the first bound is as large, or last. */
#define flush_times_len 10
#define flush_times_dist 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000 /* milliseconds */
#define truncation_times_len 5
#define truncation_times_dist 1, 10, 100, 500 /* seconds */
#define range_lengths_len 13
#define range_lengths_dist 0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096 /* bytes */
#define range_overlaps_len 13
#define range_overlaps_dist 0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096
#define trans_overlaps_len 13
#define trans_overlaps_dist 0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096
#define range_elims_len 6
#define range_elims_dist 0, 5, 10, 50, 100
#define trans_elims_len 6
#define trans_elims_dist 0, 5, 10, 50, 100
#define trans_coalesces_len 6
#define trans_coalesces_dist 0, 5, 10, 50, 100

typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;

    /* Since the last truncation. */
    rvm_length_t n_abort;
    rvm_length_t n_flush_commit;
    rvm_length_t n_no_flush_commit;
    rvm_length_t n_uncommit;          /* open transactions */
    rvm_length_t n_no_flush;          /* committed, not flushed */
    rvm_length_t n_truncation_wait;
    rvm_offset_t no_flush_length;     /* log bytes of these */
    rvm_length_t n_split;
    rvm_length_t n_flush;
    rvm_length_t n_rvm_flush;         /* by rvm_flush */
    rvm_length_t n_special;
    rvm_length_t n_wrap;
    rvm_length_t log_dev_cur;         /* log in use, percent */
    rvm_offset_t log_written;         /* log in use, bytes */
    rvm_offset_t range_overlap;       /* bytes kept out of the log */
    rvm_offset_t trans_overlap;
    rvm_length_t n_range_elim;
    rvm_length_t n_trans_elim;
    rvm_length_t n_trans_coalesced;
    struct timeval flush_time;
    rvm_length_t last_flush_time;
    rvm_length_t last_truncation_time;
    rvm_length_t last_tree_build_time;
    rvm_length_t last_tree_apply_time;
    rvm_length_t flush_times[flush_times_len];
    rvm_length_t range_lengths[range_lengths_len];
    rvm_length_t range_elims[range_elims_len];
    rvm_length_t trans_elims[trans_elims_len];
    rvm_length_t range_overlaps[range_overlaps_len];
    rvm_length_t trans_overlaps[range_overlaps_len];

    /* Before that. */
    rvm_length_t tot_abort;
    rvm_length_t tot_flush_commit;
    rvm_length_t tot_no_flush_commit;
    rvm_length_t tot_split;
    rvm_length_t tot_flush;
    rvm_length_t tot_rvm_flush;
    rvm_length_t tot_special;
    rvm_length_t tot_wrap;
    rvm_length_t log_dev_max;
    rvm_offset_t tot_log_written;
    rvm_offset_t tot_range_overlap;
    rvm_offset_t tot_trans_overlap;
    rvm_length_t tot_range_elim;
    rvm_length_t tot_trans_elim;
    rvm_length_t tot_trans_coalesced;
    rvm_length_t tot_rvm_truncate;    /* by rvm_truncate */
    rvm_length_t tot_async_truncation; /* in the background */
    rvm_length_t tot_sync_truncation; /* because the log was full */
    rvm_length_t tot_truncation_wait;
    rvm_length_t tot_recovery;
    struct timeval tot_flush_time;
    struct timeval tot_truncation_time;
    rvm_length_t tot_tree_build_times[truncation_times_len];
    rvm_length_t tot_tree_apply_times[truncation_times_len];
    rvm_length_t tot_truncation_times[truncation_times_len];
    rvm_length_t tot_flush_times[flush_times_len];
    rvm_length_t tot_range_lengths[range_lengths_len];
    rvm_length_t tot_range_elims[range_elims_len];
    rvm_length_t tot_trans_elims[trans_elims_len];
    rvm_length_t tot_range_overlaps[range_overlaps_len];
    rvm_length_t tot_trans_overlaps[range_overlaps_len];
    rvm_length_t tot_trans_coalesces[trans_coalesces_len];
} rvm_statistics_t;

extern rvm_return_t rvm_statistics(const char *version, rvm_statistics_t *statistics);
extern rvm_return_t rvm_print_statistics(rvm_statistics_t *statistics, FILE *out_stream);

extern rvm_statistics_t *rvm_malloc_statistics(void);
extern void rvm_init_statistics(rvm_statistics_t *statistics);
extern rvm_statistics_t *rvm_copy_statistics(rvm_statistics_t *statistics);
extern void rvm_free_statistics(rvm_statistics_t *statistics);

#define RVM_STATISTICS(p) (rvm_statistics(RVM_STATISTICS_VERSION, (p)))

#ifdef __cplusplus
}
#endif
#endif
