/* rvm/rds.h: a heap of recoverable memory. */
#ifndef RDS_H
#define RDS_H

#include <stdio.h>

#include "rvm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stored through err; what is positive is a code of RVM's. */
#define SUCCESS 0
#define ERVM_FAILED (-1)        /* an unexpected answer of RVM's */
#define EBAD_LIST (-2)          /* a free list is not one */
#define EBAD_SEGMENT_HDR (-3)   /* not the segment of a heap */
#define EHEAP_VERSION_SKEW (-4) /* a heap of another version */
#define EHEAP_INIT (-5)         /* no heap is loaded */
#define EBAD_ARGS (-6)
#define ECORRUPT (-7)           /* a guard word was overwritten */
#define EFREED_TWICE (-8)
#define ENO_ROOM (-9)           /* the heap is full */

typedef struct {
    unsigned malloc;
    unsigned prealloc;
    unsigned free;
    unsigned coalesce;
    unsigned hits;         /* a block of the very size was there */
    unsigned misses;
    unsigned large_list;   /* blocks on the list of the largest */
    unsigned large_hits;
    unsigned large_misses;
    unsigned merged;       /* blocks that coalescing merged */
    unsigned unmerged;
    unsigned freebytes;
    unsigned mallocbytes;
} rds_stats_t;

/* Objects to be freed later, together. Begins zeroed. */
#define STARTSIZE 128
typedef struct intlist {
    unsigned long size;  /* bytes of the table */
    unsigned long count; /* objects in it */
    char **table;
} intentionList_t;

extern int rds_zap_heap(char *dev_name, rvm_offset_t dev_length, char *start_addr, rvm_length_t static_length,
                        rvm_length_t heap_length, unsigned long nlists, unsigned long chunk_size, int *err);
extern int rds_init_heap(char *base, rvm_length_t length, unsigned long chunk_size, unsigned long nlists,
                         rvm_tid_t *tid, int *err);
extern int rds_load_heap(char *dev_name, rvm_offset_t dev_length, char **static_addr, int *err);
extern int rds_unload_heap(int *err);
extern int rds_start_heap(char *start_addr, int *err);
extern int rds_stop_heap(int *err);

extern char *rds_malloc(unsigned long size, rvm_tid_t *tid, int *err);
extern int rds_free(char *addr, rvm_tid_t *tid, int *err);
extern int rds_prealloc(unsigned long size, unsigned long nblocks, rvm_tid_t *tid, int *err);
extern int rds_maxblock(unsigned long size);
extern int rds_fake_free(char *addr, intentionList_t *list);
extern int rds_do_free(intentionList_t *list, rvm_mode_t mode);

extern int rds_print_stats(void);
extern int rds_clear_stats(int *err);
extern int rds_get_stats(rds_stats_t *stats);

extern int rds_trace_on(FILE *file);
extern int rds_trace_off(void);
extern int rds_trace_dump_heap(void);

extern int rds_tracing;
extern FILE *rds_tracing_file;

#define RDS_LOG(format, a...)                          \
    do {                                               \
        if (rds_tracing && rds_tracing_file) {         \
            fprintf(rds_tracing_file, format, ##a);    \
            fflush(rds_tracing_file);                  \
        }                                              \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
