/* Starting and stopping: one log per process, one life per process; and what a program can ask. */
#include "rvm_state.h"

#include <stdlib.h>
#include <string.h>

#ifdef RVM_LWP
/* Lightweight processes, where a program is linked with them. */
#pragma weak LWP_Init
#pragma weak IOMGR_Initialize
extern int LWP_Init(int version, int priority, void **pid);
extern int IOMGR_Initialize(void);
#define LWP_VERSION 210888002
#define LWP_NORMAL_PRIORITY 3

static void start_lightweight_processes(void)
{
    void *self;
    if (LWP_Init != NULL)
        LWP_Init(LWP_VERSION, LWP_NORMAL_PRIORITY, &self);
    if (IOMGR_Initialize != NULL)
        IOMGR_Initialize();
}
#else
static void start_lightweight_processes(void) {}
#endif

/* A child that is forked has no life of its parent's: what is open there stays open, and is not the child's. */
static void in_child(void)
{
    if (phase != RUNNING)
        return;
    phase = ENDED;
    /* A thread of the parent may have held it. */
    pthread_mutex_init(&gate, NULL);
}

static rvm_return_t initialize(rvm_options_t *options)
{
    static bool noticed;
    if (phase == RUNNING)
        return RVM_SUCCESS;
    if (phase == ENDED)
        return RVM_EINIT;
    start_lightweight_processes();
    rvm_init_options(&settings);
    if (options != NULL) {
        rvm_return_t code = RVM_SUCCESS;
        if (options->create_log_file)
            code = log_create(options, &options->create_log_size, options->create_log_mode);
        if (code == RVM_SUCCESS)
            code = options_apply(options);
        if (code != RVM_SUCCESS)
            return code;
    }
    if (!noticed && pthread_atfork(NULL, NULL, in_child) != 0)
        return RVM_ENO_MEMORY;
    noticed = true;
    phase = RUNNING;
    return RVM_SUCCESS;
}

rvm_return_t rvm_initialize(const char *version, rvm_options_t *options)
{
    if (version == NULL || strcmp(version, RVM_VERSION) != 0)
        return RVM_EVERSION_SKEW;
    if (options != NULL) {
        rvm_return_t fault = options_fault(options);
        if (fault != RVM_SUCCESS)
            return fault;
    }
    pthread_mutex_lock(&gate);
    rvm_return_t code = initialize(options);
    pthread_mutex_unlock(&gate);
    return code;
}

rvm_return_t rvm_set_options(rvm_options_t *options)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    if (options == NULL)
        return RVM_EOPTIONS;
    rvm_return_t code = options_fault(options);
    if (code != RVM_SUCCESS)
        return code;
    pthread_mutex_lock(&gate);
    code = phase == RUNNING ? options_apply(options) : RVM_EINIT;
    pthread_mutex_unlock(&gate);
    return code;
}

static rvm_return_t terminate(void)
{
    if (phase == NEVER)
        return RVM_EINIT;
    if (phase == ENDED) {
        /* In a child: the parent's log is let go of. */
        if (the_log.store != NULL)
            caliburn_close(the_log.store);
        the_log.store = NULL;
        return RVM_SUCCESS;
    }
    rvm_return_t code = transactions_stop();
    if (code != RVM_SUCCESS)
        return code;
    if (the_log.store != NULL) {
        code = code_of(caliburn_close(the_log.store));
        map_forget();
        the_log.store = NULL;
    }
    return code;
}

rvm_return_t rvm_terminate(void)
{
    pthread_mutex_lock(&gate);
    rvm_return_t code = terminate();
    pthread_mutex_unlock(&gate);
    return code;
}

static rvm_return_t query(rvm_options_t *options, const rvm_region_t *asked)
{
    const struct region *region = NULL;
    if (asked != NULL) {
        for (region = regions; region != NULL; region = region->next)
            if (region->vmaddr == asked->vmaddr && region->length == asked->length)
                break;
        if (region == NULL)
            return RVM_ENOT_MAPPED;
    }
    options->flags = settings.flags;
    options->max_read_len = settings.max_read_len;
    if (the_log.store == NULL)
        return RVM_SUCCESS;
    if (options->log_dev != NULL)
        strcpy(options->log_dev, the_log.path);
    options->truncate = settings.truncate;
    options->recovery_buf_len = settings.recovery_buf_len;
    options->flush_buf_len = 0;
    options->log_empty = log_is_empty() ? rvm_true : rvm_false;
    /* Those that begin meanwhile are not counted. */
    unsigned long room = atomic_load(&transactions_open);
    rvm_tid_t *tids = realloc(options->tid_array, (room + 1) * sizeof *tids);
    if (tids == NULL)
        return RVM_ENO_MEMORY;
    options->tid_array = tids;
    options->n_uncommit = (long)transactions_in(region, tids, room);
    return RVM_SUCCESS;
}

rvm_return_t rvm_query(rvm_options_t *options, rvm_region_t *region)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    if (region != NULL && region->struct_id != rvm_region_id)
        return RVM_EREGION;
    if (options == NULL || options->struct_id != rvm_options_id)
        return RVM_EOPTIONS;
    pthread_mutex_lock(&gate);
    rvm_return_t code = phase == RUNNING ? query(options, region) : RVM_EINIT;
    pthread_mutex_unlock(&gate);
    return code;
}
