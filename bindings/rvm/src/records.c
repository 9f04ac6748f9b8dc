/* Descriptor records: made, initialised, copied, freed. */
#include "rvm_state.h"

#include <stdlib.h>
#include <string.h>

/* The four functions of a kind of record; defaults sets what is not zero in a fresh one. */
#define RECORD(kind, defaults)                                                    \
    void rvm_init_##kind(rvm_##kind##_t *record)                                  \
    {                                                                             \
        if (record == NULL)                                                       \
            return;                                                               \
        memset(record, 0, sizeof *record);                                        \
        record->struct_id = rvm_##kind##_id;                                      \
        defaults(record);                                                         \
    }                                                                             \
    rvm_##kind##_t *rvm_malloc_##kind(void)                                       \
    {                                                                             \
        rvm_##kind##_t *record = malloc(sizeof *record);                          \
        rvm_init_##kind(record);                                                  \
        if (record != NULL)                                                       \
            record->from_heap = rvm_true;                                         \
        return record;                                                            \
    }                                                                             \
    rvm_##kind##_t *rvm_copy_##kind(rvm_##kind##_t *record)                       \
    {                                                                             \
        if (record == NULL || record->struct_id != rvm_##kind##_id)               \
            return NULL;                                                          \
        rvm_##kind##_t *copy = malloc(sizeof *copy);                              \
        if (copy != NULL) {                                                       \
            *copy = *record;                                                      \
            copy->from_heap = rvm_true;                                           \
        }                                                                         \
        return copy;                                                              \
    }                                                                             \
    /* Whether it is to be freed; it is none afterwards, should it be looked at. */ \
    static bool spent_##kind(rvm_##kind##_t *record)                              \
    {                                                                             \
        if (record == NULL || record->struct_id != rvm_##kind##_id || !record->from_heap) \
            return false;                                                         \
        record->struct_id = rvm_first_struct_id;                                  \
        return true;                                                              \
    }

#define NO_DEFAULTS(record) ((void)(record))

static void default_options(rvm_options_t *options)
{
    options->truncate = TRUNCATE;
    options->recovery_buf_len = RECOVERY_BUF_LEN;
    options->flush_buf_len = FLUSH_BUF_LEN;
    options->max_read_len = MAX_READ_LEN;
    options->create_log_mode = 0600;
}

RECORD(region, NO_DEFAULTS)
RECORD(tid, NO_DEFAULTS)
RECORD(statistics, NO_DEFAULTS)
RECORD(options, default_options)

void rvm_free_region(rvm_region_t *region)
{
    if (spent_region(region))
        free(region);
}

void rvm_free_tid(rvm_tid_t *tid)
{
    if (spent_tid(tid))
        free(tid);
}

void rvm_free_statistics(rvm_statistics_t *statistics)
{
    if (spent_statistics(statistics))
        free(statistics);
}

void rvm_free_options(rvm_options_t *options)
{
    if (spent_options(options)) {
        free(options->tid_array);
        free(options);
    }
}
