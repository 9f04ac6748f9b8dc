/* The paper's server (Camelot, section 3.3), and routines that show the rest. */
#include "bank.h"
#include "small_record_array.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

DECLARE_RECOVERABLE_OBJECTS

    small_record_t small_record_array[ARRAY_SIZE];
    int started;

END_RECOVERABLE_DECLARATIONS

static void array_init(void) {
    small_record_t first;
    memset(&first, 'i', sizeof first);
    MODIFY(REC(small_record_array[0]), first);
    MODIFY(REC(started), REC(started) + 1);
}

int do_record_write(port_t port, tid_t tid, int index, small_record_t value) {
    (void)port, (void)tid;
    /* If index is out of bounds, return an error code */
    if (index < 0 || index >= ARRAY_SIZE)
        return (INDEX_OUT_OF_BOUNDS);

    Camlib_Lock(LOCK_NAME(small_record_array[index]), LOCK_MODE_WRITE);
    MODIFY(REC(small_record_array[index]), value);

    return (0);
}

int do_record_read(port_t port, tid_t tid, int index, small_record_t *value) {
    (void)port, (void)tid;
    if (index < 0 || index >= ARRAY_SIZE)
        return (INDEX_OUT_OF_BOUNDS);
    Camlib_Lock(LOCK_NAME(small_record_array[index]), LOCK_MODE_READ);
    *value = REC(small_record_array[index]);
    return (0);
}

int do_sleeps(port_t port, tid_t tid, int time) {
    (void)port, (void)tid;
    usleep((useconds_t)time * 1000);
    return (0);
}

static small_record_t record_of(char letter) {
    small_record_t value;
    memset(&value, letter, sizeof value);
    return value;
}

int do_refuses(port_t port, tid_t tid, int index, int status, boolean_t all) {
    do_record_write(port, tid, index, record_of('x'));
    if (all)
        Camlib_AbortTopLevelTransaction(status);
    Camlib_AbortTransaction(status);
}

int do_nests(port_t port, tid_t tid, int index, int *first, int *second) {
    BEGIN_TRANSACTION
        do_record_write(port, tid, index, record_of('a'));
        Camlib_AbortTransaction(11);
    END_TRANSACTION(*first);
    BEGIN_TRANSACTION
        do_record_write(port, tid, index, record_of('b'));
    END_TRANSACTION(*second);
    return (0);
}

int do_locked(port_t port, tid_t tid, int index, int *mode, boolean_t *had) {
    (void)port, (void)tid;
    *mode = Camlib_LockStatus(LOCK_NAME(small_record_array[index]));
    *had = Camlib_TryLock(LOCK_NAME(small_record_array[index]), LOCK_MODE_WRITE);
    return (0);
}

int do_independent_write(port_t port, tid_t tid, int index) {
    int code;
    status_t status;
    (void)port, (void)tid;
    BEGIN_TOP_LEVEL_TRANSACTION
        SERVER_CALL("testserver", code, record_write(ARGS index, record_of('q')));
    END_TOP_LEVEL_TRANSACTION(status);
    return (status);
}

int do_shouts(port_t port, tid_t tid, char *text, long *length, double *half) {
    (void)port, (void)tid;
    *length = (long)strlen(text);
    *half = (double)*length / 2;
    for (; *text; text++)
        *text = (char)toupper(*text);
    return (0);
}

int do_pays(port_t port, tid_t tid, int index, int account, long amount) {
    int code;
    int64_t balance;
    SERVER_CALL("bank", code, Add(ARGS account, -amount, 0, &balance));
    if (code != 0)
        return (code);
    return (do_record_write(port, tid, index, record_of('p')));
}

static void has_committed(tid_t tid) {
    (void)tid;
    printf("committed\n");
    fflush(stdout);
}

static boolean_t may_prepare(tid_t tid) {
    (void)tid;
    /* What says that it must not. */
    return REC(small_record_array[99]).data[0] != 'n';
}

int main(void) {
    Camlib_InitializeServer(array_init, FALSE, "testserver");
    /* Of one life: the next one has obeyed it already. */
    Camlib_ForgetClock(1);
    Camlib_Serve(small_record_array_server, has_committed, NULL, may_prepare, 10);
    return 0;
}
