/* Where transactions of a thread begin and end, and jumps to where they end.
 *
 * A frame is on the stack of the function that has the transaction; the library in Rust has the transaction itself,
 * on a stack of its own that goes up and down with these. Only C's frames are jumped over: whatever is in Rust has
 * returned before. */
#include "camelot.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In Rust. */
status_t camelot_begin(int kind, int protocol);
status_t camelot_end(boolean_t commit);
boolean_t camelot_in_operation(void);
void *camelot_fork(boolean_t transaction);
status_t camelot_adopt(void *context);
void camelot_disown(void);
int camelot_call_failed(status_t *status);
void camelot_say(const char *message);
size_t camelot_calls(void);
void camelot_cut_calls(size_t count);

static _Thread_local struct camelot_frame *innermost;

static void misused(const char *what) {
    fprintf(stderr, "camelot: %s\n", what);
    abort();
}

void camelot_enter(struct camelot_frame *frame, int kind) {
    frame->up = innermost;
    frame->kind = kind;
    frame->open = 0;
    frame->entered = 1;
    frame->status = COMMITTED;
    frame->calls = camelot_calls();
    innermost = frame;
}

int camelot_started(struct camelot_frame *frame) {
    frame->status = camelot_begin(frame->kind, frame->protocol);
    frame->open = frame->status == COMMITTED;
    return frame->open;
}

void camelot_commit(struct camelot_frame *frame) {
    if (innermost != frame)
        misused("a transaction within this one has not ended");
    frame->open = 0;
    frame->status = camelot_end(TRUE);
}

status_t camelot_leave(struct camelot_frame *frame) {
    innermost = frame->up;
    frame->entered = 0;
    return frame->status;
}

/* The block was left otherwise. */
void camelot_dropped(struct camelot_frame *frame) {
    if (!frame->entered)
        return;
    innermost = frame->up;
    if (frame->open)
        camelot_end(FALSE);
}

/* Ends all down to a frame, and goes on there. */
static void __attribute__((noreturn)) jump_to(struct camelot_frame *target, status_t status) {
    for (struct camelot_frame *frame = innermost;; frame = frame->up) {
        if (frame->open)
            camelot_end(FALSE);
        frame->open = 0;
        if (frame == target)
            break;
        frame->entered = 0;
    }
    innermost = target;
    camelot_cut_calls(target->calls);
    target->status = status <= COMMITTED ? CAMELOT_ABORTED : status;
    longjmp(target->jump, 1);
}

void Camlib_AbortTransaction(status_t status) {
    if (!innermost)
        misused("there is no transaction to abort");
    jump_to(innermost, status);
}

/* Of an operation, tells its caller. */
static _Thread_local int all_of_it;

void Camlib_AbortTopLevelTransaction(status_t status) {
    struct camelot_frame *frame = innermost;
    if (!frame)
        misused("there is no transaction to abort");
    while (frame->up && frame->kind == CAMELOT_NESTED_)
        frame = frame->up;
    all_of_it = frame->kind != CAMELOT_TOP_;
    jump_to(frame, status);
}

/* Within a transaction what fails aborts it; elsewhere it was misused. */
void camelot_check(status_t status) {
    if (status == COMMITTED)
        return;
    if (!innermost)
        misused(Camlib_Message());
    Camlib_AbortTransaction(status);
}

void camelot_called(void) {
    status_t status;
    int failed = camelot_call_failed(&status);
    if (!failed || !innermost)
        return;
    if (failed == 2)
        Camlib_AbortTopLevelTransaction(status);
    Camlib_AbortTransaction(status);
}

/* Called by Rust: runs an operation. 0, or the status of an abort; `all`: 1 of the whole family, 2 if there is no such
 * routine. */
status_t camelot_operate(camelot_dispatch_t dispatch, struct camelot_request *request, int *all) {
    struct camelot_frame frame;
    camelot_enter(&frame, CAMELOT_OPERATION_);
    all_of_it = 0;
    *all = 0;
    if (setjmp(frame.jump) == 0) {
        if (!dispatch(request))
            *all = 2;
    } else {
        *all = all_of_it;
    }
    return camelot_leave(&frame);
}

/* Likewise: what is done the first time. */
status_t camelot_initialize(void (*init)(void)) {
    struct camelot_frame frame;
    camelot_enter(&frame, CAMELOT_OPERATION_);
    if (setjmp(frame.jump) == 0)
        init();
    return camelot_leave(&frame);
}

struct camelot_entry {
    void (*proc)(int);
    int arg;
    status_t *status;
    pthread_t thread;
    void *context;
    status_t done;
    int all, started;
};

void camelot_add(struct camelot_group *group, void (*proc)(int), int arg, status_t *status) {
    struct camelot_entry *entries = realloc(group->entries, (group->count + 1) * sizeof *entries);
    if (!entries)
        misused("no memory for one more side by side");
    group->entries = entries;
    memset(&entries[group->count], 0, sizeof *entries);
    entries[group->count].proc = proc;
    entries[group->count].arg = arg;
    entries[group->count].status = status;
    group->count++;
}

static void *run_entry(void *of) {
    struct camelot_entry *entry = of;
    struct camelot_frame frame;
    if (!entry->context) {
        /* A thread, and no transaction. */
        entry->proc(entry->arg);
        return NULL;
    }
    camelot_enter(&frame, entry->status ? CAMELOT_NESTED_ : CAMELOT_THREAD_);
    frame.status = camelot_adopt(entry->context);
    frame.open = frame.status == COMMITTED && entry->status;
    all_of_it = 0;
    if (frame.status == COMMITTED && setjmp(frame.jump) == 0) {
        entry->proc(entry->arg);
        if (entry->status)
            camelot_commit(&frame);
    }
    if (!entry->status)
        camelot_disown();
    entry->all = all_of_it;
    entry->done = camelot_leave(&frame);
    return NULL;
}

static void run_here(struct camelot_entry *entry) {
    void (*volatile proc)(int) = entry->proc;
    if (!entry->status) {
        proc(entry->arg);
        return;
    }
    BEGIN_TRANSACTION
        proc(entry->arg);
    END_TRANSACTION(entry->done)
}

void camelot_run(struct camelot_group *group) {
    boolean_t here = camelot_in_operation();
    for (size_t at = 0; at < group->count; at++) {
        struct camelot_entry *entry = &group->entries[at];
        if (here) {
            run_here(entry);
            continue;
        }
        entry->context = camelot_fork(entry->status != NULL);
        entry->started = pthread_create(&entry->thread, NULL, run_entry, entry) == 0;
        if (!entry->started)
            misused("there is no thread for one more side by side");
    }
    status_t aborts = COMMITTED;
    int all = 0;
    for (size_t at = 0; at < group->count; at++) {
        struct camelot_entry *entry = &group->entries[at];
        if (entry->started)
            pthread_join(entry->thread, NULL);
        if (entry->status)
            *entry->status = entry->done;
        if (entry->all || (!all && !entry->status && entry->done != COMMITTED))
            aborts = entry->done;
        all |= entry->all;
    }
    free(group->entries);
    group->entries = NULL;
    group->count = 0;
    /* What a thread has aborted is this one's transaction. */
    if (aborts != COMMITTED && innermost && all)
        Camlib_AbortTopLevelTransaction(aborts);
    if (aborts != COMMITTED && innermost)
        Camlib_AbortTransaction(aborts);
}

struct concurrent {
    void (*proc)(void);
    int protocol;
};

static void *run_concurrent(void *of) {
    struct concurrent what = *(struct concurrent *)of;
    status_t status;
    free(of);
    BEGIN_TOP_LEVEL_TRANSACTION
        what.proc();
    END_TOP_LEVEL_TRANSACTION_2(what.protocol, status)
    if (status != COMMITTED)
        camelot_say(Camlib_Message());
    return NULL;
}

void Camlib_ConcurrentTopLevelTrans2(void (*proc)(void), int pages, int protocol) {
    struct concurrent *what = malloc(sizeof *what);
    pthread_t thread;
    (void)pages;
    if (!what)
        misused("no memory for a concurrent transaction");
    what->proc = proc;
    what->protocol = protocol;
    if (pthread_create(&thread, NULL, run_concurrent, what) != 0)
        misused("there is no thread for a concurrent transaction");
    pthread_detach(thread);
}

void Camlib_ConcurrentTopLevelTrans(void (*proc)(void)) {
    Camlib_ConcurrentTopLevelTrans2(proc, FEW_PAGES, FAST_COMMIT);
}
