/*
 * What the files of librvm share: the one open log, its segments and regions, and the open transactions.
 *
 * A log LOG is the log of a Caliburn store in the directory LOG.caliburn beside it, under a second name. Segments are
 * adopted: files that are nothing but data. The store lets nothing but declared bytes reach them.
 *
 * Locks, in this order: gate (starting, stopping, options, mapping, asking), pool (which transactions are open), a
 * transaction's own (its list of ranges), the list of regions, the counts.
 */
#ifndef RVM_STATE_H
#define RVM_STATE_H

#include <rvm/rvm.h>
#include <rvm/rvm_statistics.h>

#include <caliburn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* One flavour of the library has threads of its own. */
#ifdef RVM_THREADS
#define BACKGROUND 1
#else
#define BACKGROUND 0
#endif

#define SECTOR 512
/* What a log's directory is called beside the log. */
#define SUFFIX ".caliburn"

enum phase { NEVER, RUNNING, ENDED };

/* A file or device that is a segment, from its first use on. */
struct segment {
    struct segment *next;
    caliburn_segment *handle;
    dev_t device;
    ino_t inode;
    rvm_length_t size; /* whole sectors */
    char path[];
};

/* A mapped region. */
struct region {
    struct region *next;
    struct segment *segment;
    caliburn_region *handle;
    rvm_length_t offset;
    char *vmaddr;
    rvm_length_t length;
};

/* The open log. */
struct open_log {
    caliburn_store *store;
    int forced; /* class of a flush commit: the greatest that the log's disk can give */
    rvm_length_t length; /* of the log, as its maker wanted it */
    char path[MAXPATHLEN];
};

extern pthread_mutex_t gate;
extern _Atomic(enum phase) phase;
extern struct open_log the_log; /* store is null without one */
extern pthread_rwlock_t regions_lock;
extern struct region *regions; /* changed under the gate, too */
extern rvm_options_t settings;  /* those of the last call that set some */
extern atomic_ulong optimizations;
extern atomic_ulong transactions_open; /* changed under the pool's lock */

/* A range that a transaction declared, and in the list of those the engine could not take, its old bytes. */
struct range {
    char *start;
    rvm_length_t length;
    char *old;
};

/* An open transaction, or a place for one; places are never freed, so that a stale rvm_tid_t can be looked at. */
struct transaction {
    caliburn_tx tx;
    struct timeval uname;
    unsigned number;
    atomic_bool open; /* looked at by whoever has a stale record */
    bool restores;
    unsigned long flags;
    pthread_mutex_t lock;
    struct range *ranges;
    size_t count, room;
    rvm_length_t declared; /* bytes, some perhaps more than once */
    struct range *kept;    /* declared when it had grown too big for the log */
    size_t kept_count, kept_room;
    struct transaction *next; /* free */
};

/* The files stand one above the other, and each uses those below: state, statistics, transaction, log, map, life. */

/* state.c */
rvm_return_t code_of(int code);
char *absolute_name(const char *name, char *path);
int open_file(const char *path, int flags, mode_t mode);

/* transaction.c */
unsigned long transactions_in(const struct region *region, rvm_tid_t *tids, unsigned long room);
rvm_return_t transactions_stop(void);

/* log.c */
rvm_return_t options_fault(const rvm_options_t *options);
rvm_return_t options_apply(rvm_options_t *options);
rvm_return_t log_create(rvm_options_t *options, rvm_offset_t *length, long mode);

/* map.c */
void map_forget(void);

/* statistics.c */
void count_begin_log(bool recovered);
void count_commit(const struct timeval *flushed_in, const struct transaction *transaction);
void count_abort(void);
void count_flush(bool called);
void count_truncation(void);
void count_truncate_called(struct timeval took);
bool log_is_empty(void);

#endif
