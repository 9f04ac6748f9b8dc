/* Camelot's library (Spector and others, section 3) for C, on Caliburn: data servers with recoverable objects, and
 * applications that run transactions over them. GNU C (gcc, clang). docs/camelot.md has the table of what is the
 * same and what is not.
 *
 *     BEGIN_TRANSACTION
 *         SERVER_CALL("testserver@2", rc, record_write(ARGS index, value));
 *     END_TRANSACTION(status);
 *
 * Where a transaction ends early, control goes to its END_TRANSACTION by longjmp: variables of the function that were
 * changed in between must be volatile to be relied on there, and nothing is cleaned up. The body must not be left by
 * goto; left by return, break or continue it aborts. These macros are blocks, not statements: no `else` behind them.
 *
 * A transaction, and a call outside of any, takes 60 s at most. Operations have stacks of 2 MiB, messages 4 MiB. */
#ifndef CAMELOT_H
#define CAMELOT_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#error "camelot.h is for C"
#endif

#ifndef TRUE
#define TRUE 1
#define FALSE 0
#endif

typedef int boolean_t;
typedef int port_t;
typedef int status_t;
/* A transaction: equal for all that belong to one family. */
typedef struct {
    unsigned char bytes[33];
} tid_t;

/* How a transaction has ended: any other status is that of an abort; those of programs are 1 to 0xffff. */
#define COMMITTED 0
#define CAMELOT_TIMEOUT 0x10001     /* a call, or the transaction, took too long */
#define CAMELOT_UNAVAILABLE 0x10002 /* there is no such server, or it is not there, or has too much to do */
#define CAMELOT_ABORTED 0x10003     /* the victim of a deadlock; a server voted no, or was lost; or for no reason given */
#define CAMELOT_UNKNOWN 0x10004     /* its node was lost while it committed: it has or has not, everywhere */
#define CAMELOT_DENIED 0x10005      /* not allowed */
#define CAMELOT_WRONG 0x10006       /* wrong arguments; the other end has another interface */
#define CAMELOT_NOT_RUNNING 0x10007 /* Camelot does not run here: Camlib_InitializeAppl has said so */

/* What the last status of this thread that is not COMMITTED was about, in words. */
const char *Camlib_Message(void);

/* ---- applications ------------------------------------------------------------------------------------------ */

/* Whether Camelot runs here: without, an application can only call servers, and each call is a transaction of its
 * own. The environment says where: CALIBURN_CLUSTER, CALIBURN_COORDINATOR (the number of the node that is to
 * coordinate; CALIBURN_NODE is its deprecated name), and CALIBURN_NODES or CALIBURN_ETCD, as servers are told. */
boolean_t Camlib_InitializeAppl(const char *name);

/* ---- data servers ------------------------------------------------------------------------------------------ */

struct camelot_request;
/* What dispatches calls: made of an interface by camelot-stubs. */
typedef boolean_t (*camelot_dispatch_t)(struct camelot_request *);

/* `init` is run as a transaction the first time that the server runs. `unregistered`: in etcd others find it by its node
 * only.
 * `name` must be the one that the environment gives it (CALIBURN_SERVER), which `caliburn node add-server` sets. */
void Camlib_InitializeServer(void (*init)(void), boolean_t unregistered, const char *name);
/* Before Camlib_Serve: the server's clock forgets how far it had gone, if it has not obeyed this number before, as with
 * CALIBURN_FORGET_CLOCK. For a server that others refuse since its machine's clock was ahead once. Timestamps may come
 * again. */
void Camlib_ForgetClock(uint64_t order);
/* Serves, until it is told to stop. The procedures may be NULL: when a transaction has committed, was aborted, is to
 * be voted for (FALSE: no). They read recoverable objects, and neither change, lock nor call: others wait for them.
 * `level`: calls that are executed at one time. */
void Camlib_Serve(camelot_dispatch_t dispatch, void (*commit)(tid_t), void (*abort)(tid_t), boolean_t (*prepare)(tid_t),
                  int level);
/* Ends the server, and says why. */
void Camlib_TerminateServer(const char *message) __attribute__((noreturn));

/* Recoverable objects: zeros at first. Once in a program. */
#define DECLARE_RECOVERABLE_OBJECTS struct camelot_objects {
#define END_RECOVERABLE_DECLARATIONS                                                                                  \
    };                                                                                                                \
    static struct camelot_objects *camelot_objects_;                                                                  \
    __attribute__((constructor)) static void camelot_declare_objects_(void) {                                         \
        camelot_objects_at((void **)&camelot_objects_, sizeof(struct camelot_objects));                               \
    }
#define REC(object) (camelot_objects_->object)
/* Assigns to a recoverable object: what can be assigned to in C, but for bit-fields. The value is computed before its
 * bytes are locked: lock first what it depends on. */
#define MODIFY(object, value)                                                                                         \
    do {                                                                                                              \
        __typeof__(object) camelot_value_ = (value);                                                                  \
        camelot_check(camelot_modify(&(object), &camelot_value_, sizeof(object)));                                    \
    } while (0)
/* The primitives behind it: before bytes are changed in place, and after. */
#define Camlib_LogOldValue(object, bytes) camelot_check(camelot_declare((object), (bytes)))
#define Camlib_LogNewValue(object, bytes) ((void)(object), (void)(bytes))

typedef uint64_t camelot_lock_t;
#define LOCK_MODE_READ 1
#define LOCK_MODE_WRITE 2
/* Of a recoverable object, without REC; and of any 32-bit quantity. */
#define LOCK_NAME(object) ((camelot_lock_t)offsetof(struct camelot_objects, object) + 1)
#define LOCK_NUMBER(number) (((camelot_lock_t)1 << 32) + (uint32_t)(number))

/* Until the transaction has ended. A deadlock aborts it. */
#define Camlib_Lock(name, mode) camelot_check(camelot_lock((name), (mode)))
/* Whether it was had, at once. */
boolean_t Camlib_TryLock(camelot_lock_t name, int mode);
/* 0, or the strongest mode in which anybody holds it. */
int Camlib_LockStatus(camelot_lock_t name);
/* Before the transaction has ended: neither serializable nor atomic any more. */
void Camlib_Unlock(camelot_lock_t name);

/* ---- calls ------------------------------------------------------------------------------------------------- */

/* `server`: "name", "name@node" (a number), "name@*". The code is the routine's, or one of those above. One that takes
 * too long, or that the server has aborted, aborts the innermost transaction. */
#define SERVER_CALL(server, code, call) SERVER_CALL_2(server, code, call, 60000)
/* `time`: milliseconds. */
#define SERVER_CALL_2(server, code, call, time)                                                                       \
    do {                                                                                                              \
        __typeof__(code) *camelot_code_ = &(code);                                                                    \
        camelot_call_to((server), (time));                                                                            \
        *camelot_code_ = (call);                                                                                      \
        camelot_called();                                                                                             \
    } while (0)
#define NOARGS camelot_port(), THIS_TID
#define ARGS NOARGS,

/* ---- transactions ------------------------------------------------------------------------------------------ */

/* Of BEGIN_TRANSACTION_2, and Camlib_ConcurrentTopLevelTrans2: taken, and of no consequence. */
#define FEW_PAGES 0
#define MANY_PAGES 1
/* Of END_TRANSACTION_2: of a top-level transaction; a nested one commits as its top does. */
#define FAST_COMMIT 0
#define NON_BLOCKING_COMMIT 1

#define CAMELOT_NESTED_ 0
#define CAMELOT_TOP_ 1
#define CAMELOT_OPERATION_ 2
#define CAMELOT_THREAD_ 3

struct camelot_frame {
    jmp_buf jump;
    struct camelot_frame *up;
    int kind, protocol, open, entered;
    status_t status;
    size_t calls;
};

/* Its end tells how it is to be committed, so that is looked at first. */
#define CAMELOT_BEGIN_(kind_)                                                                                         \
    {                                                                                                                 \
        __label__ camelot_top_, camelot_bottom_;                                                                      \
        struct camelot_frame camelot_frame_ __attribute__((cleanup(camelot_dropped)));                                \
        camelot_frame_.entered = 0;                                                                                   \
        goto camelot_bottom_;                                                                                         \
    camelot_top_:                                                                                                     \
        camelot_enter(&camelot_frame_, (kind_));                                                                      \
        if (setjmp(camelot_frame_.jump) == 0)                                                                         \
            if (camelot_started(&camelot_frame_)) {
#define CAMELOT_END_(protocol_, status_)                                                                              \
                camelot_commit(&camelot_frame_);                                                                      \
            }                                                                                                         \
        (status_) = camelot_leave(&camelot_frame_);                                                                   \
        if (0) {                                                                                                      \
        camelot_bottom_:                                                                                              \
            camelot_frame_.protocol = (protocol_);                                                                    \
            goto camelot_top_;                                                                                        \
        }                                                                                                             \
    }

#define BEGIN_TRANSACTION CAMELOT_BEGIN_(CAMELOT_NESTED_)
#define BEGIN_TRANSACTION_2(pages) CAMELOT_BEGIN_(((void)(pages), CAMELOT_NESTED_))
#define END_TRANSACTION(status) CAMELOT_END_(FAST_COMMIT, status)
#define END_TRANSACTION_2(protocol, status) CAMELOT_END_(protocol, status)
#define BEGIN_TOP_LEVEL_TRANSACTION CAMELOT_BEGIN_(CAMELOT_TOP_)
#define BEGIN_TOP_LEVEL_TRANSACTION_2(pages) CAMELOT_BEGIN_(((void)(pages), CAMELOT_TOP_))
#define END_TOP_LEVEL_TRANSACTION(status) CAMELOT_END_(FAST_COMMIT, status)
#define END_TOP_LEVEL_TRANSACTION_2(protocol, status) CAMELOT_END_(protocol, status)

/* Control goes to the end of the innermost transaction, or of the top-level one; of a server's operation to its
 * caller's. */
void Camlib_AbortTransaction(status_t status) __attribute__((noreturn));
void Camlib_AbortTopLevelTransaction(status_t status) __attribute__((noreturn));

/* The family of the innermost transaction; zeros outside of any. */
#define THIS_TID camelot_this_tid()
tid_t camelot_this_tid(void);

/* ---- side by side ------------------------------------------------------------------------------------------ */

/* Within a server's operation one after the other. TRANS: each in a nested transaction, or in a top-level one if there
 * is none; THREAD: all in this one. */
struct camelot_group {
    struct camelot_entry *entries;
    size_t count;
};

#define COBEGIN                                                                                                       \
    {                                                                                                                 \
        struct camelot_group camelot_group_ = {0, 0};
#define TRANS(proc, arg, status) camelot_add(&camelot_group_, (proc), (arg), &(status))
#define COEND                                                                                                         \
        camelot_run(&camelot_group_);                                                                                 \
    }
#define COFOR(variable, first, last)                                                                                  \
    {                                                                                                                 \
        struct camelot_group camelot_group_ = {0, 0};                                                                 \
        for ((variable) = (first); (variable) <= (last); (variable)++)
#define THREAD_COBEGIN COBEGIN
#define THREAD(proc, arg) camelot_add(&camelot_group_, (proc), (arg), NULL)
#define THREAD_COEND COEND
#define THREAD_COFOR(variable, first, last) COFOR(variable, first, last)

/* Runs a procedure in a top-level transaction beside this thread, which goes on. */
void Camlib_ConcurrentTopLevelTrans(void (*proc)(void));
void Camlib_ConcurrentTopLevelTrans2(void (*proc)(void), int pages, int protocol);

/* ---- behind the macros and the stubs ----------------------------------------------------------------------- */

void camelot_objects_at(void **pointer, size_t bytes);
status_t camelot_modify(void *object, const void *value, size_t bytes);
status_t camelot_declare(void *object, size_t bytes);
status_t camelot_lock(camelot_lock_t name, int mode);
void camelot_check(status_t status);
void camelot_call_to(const char *server, uint64_t milliseconds);
void camelot_called(void);
port_t camelot_port(void);
void camelot_enter(struct camelot_frame *frame, int kind);
int camelot_started(struct camelot_frame *frame);
void camelot_commit(struct camelot_frame *frame);
status_t camelot_leave(struct camelot_frame *frame);
void camelot_dropped(struct camelot_frame *frame);
void camelot_add(struct camelot_group *group, void (*proc)(int), int arg, status_t *status);
void camelot_run(struct camelot_group *group);

/* Bytes of a message, as Protocol Buffers have them. */
struct camelot_message {
    unsigned char *bytes;
    size_t length, capacity, at;
    /* Of the field that was read last. */
    uint64_t number;
    const unsigned char *field;
    size_t field_length;
    int wrong;
};

/* A call that came. */
struct camelot_request {
    const char *routine;
    tid_t tid;
    struct camelot_message in, out;
};

void camelot_put_number(struct camelot_message *message, unsigned field, int64_t number);
static inline int64_t camelot_zigzag(int64_t number) {
    return (int64_t)((uint64_t)number << 1 ^ (uint64_t)(number >> 63));
}
static inline int64_t camelot_unzigzag(uint64_t number) {
    return (int64_t)(number >> 1 ^ -(number & 1));
}
void camelot_put_double(struct camelot_message *message, unsigned field, double number);
void camelot_put_bytes(struct camelot_message *message, unsigned field, const void *bytes, size_t length);
/* The number of the next field, or 0. */
unsigned camelot_next(struct camelot_message *message);
double camelot_double(const struct camelot_message *message);
/* Of exactly so many bytes, or a string of fewer than so many. */
void camelot_get_bytes(struct camelot_message *message, void *to, size_t length);
void camelot_get_string(struct camelot_message *message, char *to, size_t length);
void camelot_free_message(struct camelot_message *message);
/* Calls a routine at the server that SERVER_CALL has named: `out` for `in`, or a status that is not 0. */
status_t camelot_invoke(const char *routine, struct camelot_message *in, struct camelot_message *out);

#endif
