/* The paper's client (Camelot, section 3.3), and what else a program can do. */
#include "bank.h"
#include "small_record_array.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(what)                                                                                                   \
    do {                                                                                                              \
        if (!(what)) {                                                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, Camlib_Message());                          \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

static small_record_t record_of(char letter) {
    small_record_t value;
    memset(&value, letter, sizeof value);
    return value;
}

boolean_t do_transaction(int index, small_record_t value) {
    int rc;
    status_t status;

    BEGIN_TRANSACTION
        SERVER_CALL("testserver@2", rc,
                    record_write(ARGS index, value));
    END_TRANSACTION(status);

    if (status != COMMITTED)
    {
        printf("Transaction failed.\n");
        return(FALSE);
    }
    return(TRUE);
}

/* What a record begins with, in a transaction of the call's own. */
static char letter_at(int index) {
    int rc;
    small_record_t value;
    SERVER_CALL("testserver", rc, record_read(ARGS index, &value));
    CHECK(rc == 0);
    CHECK(value.data[0] == value.data[SIZE_OF_SMALL - 1]);
    return value.data[0];
}

static int writes(int index, char letter) {
    int rc;
    SERVER_CALL("testserver", rc, record_write(ARGS index, record_of(letter)));
    return rc;
}

static void aborts(void) {
    status_t status, inner;
    volatile int reached = 0;
    CHECK(do_transaction(1, record_of('1')));
    BEGIN_TRANSACTION
        writes(1, 'x');
        Camlib_AbortTransaction(7);
        reached = 1;
    END_TRANSACTION(status);
    CHECK(status == 7 && !reached && letter_at(1) == '1');

    BEGIN_TRANSACTION
        writes(1, '2');
        BEGIN_TRANSACTION
            writes(1, 'y');
            writes(2, 'y');
            Camlib_AbortTransaction(8);
        END_TRANSACTION(inner);
        CHECK(inner == 8);
        BEGIN_TRANSACTION
            writes(2, '2');
        END_TRANSACTION(inner);
        CHECK(inner == COMMITTED);
    END_TRANSACTION(status);
    CHECK(status == COMMITTED && letter_at(1) == '2' && letter_at(2) == '2');

    BEGIN_TRANSACTION
        writes(1, 'z');
        BEGIN_TRANSACTION
            writes(2, 'z');
            Camlib_AbortTopLevelTransaction(9);
        END_TRANSACTION(inner);
        reached = 1;
    END_TRANSACTION(status);
    CHECK(status == 9 && !reached && letter_at(1) == '2' && letter_at(2) == '2');
}

static void returns_early(void) {
    status_t status;
    BEGIN_TRANSACTION
        writes(1, 'r');
        if (letter_at(3) == 0)
            return;
    END_TRANSACTION(status);
    CHECK(status == COMMITTED && !"it has returned");
}

static void independent(void) {
    status_t status, own;
    BEGIN_TRANSACTION
        writes(4, 'x');
        BEGIN_TOP_LEVEL_TRANSACTION
            writes(5, '5');
        END_TOP_LEVEL_TRANSACTION(own);
        CHECK(own == COMMITTED);
        Camlib_AbortTransaction(1);
    END_TRANSACTION(status);
    CHECK(status == 1 && letter_at(4) == 0 && letter_at(5) == '5');
}

static void of_servers(void) {
    int rc, mode, first, second;
    boolean_t had;
    status_t status;
    char text[32] = "quite loud";
    long length;
    double half;

    /* A server aborts what has called it. */
    BEGIN_TRANSACTION
        SERVER_CALL("testserver", rc, refuses(ARGS 6, 21, FALSE));
        CHECK(!"it has gone on");
    END_TRANSACTION(status);
    CHECK(status == 21);
    BEGIN_TRANSACTION
        BEGIN_TRANSACTION
            SERVER_CALL("testserver", rc, refuses(ARGS 6, 22, FALSE));
        END_TRANSACTION(status);
        CHECK(status == 22);
        BEGIN_TRANSACTION
            SERVER_CALL("testserver", rc, refuses(ARGS 6, 23, TRUE));
        END_TRANSACTION(status);
        CHECK(!"all of it was to abort");
    END_TRANSACTION(status);
    CHECK(status == 23 && letter_at(6) == 0);
    /* Outside of any, that is the code. */
    SERVER_CALL("testserver", rc, refuses(ARGS 6, 24, FALSE));
    CHECK(rc == 24 && letter_at(6) == 0);

    SERVER_CALL("testserver", rc, nests(ARGS 7, &first, &second));
    CHECK(rc == 0 && first == 11 && second == COMMITTED && letter_at(7) == 'b');

    /* Codes of its own abort nothing. */
    BEGIN_TRANSACTION
        CHECK(writes(ARRAY_SIZE, 'x') == INDEX_OUT_OF_BOUNDS);
        CHECK(writes(8, '8') == 0);
        SERVER_CALL("nobody", rc, record_write(ARGS 1, record_of('x')));
        CHECK(rc == CAMELOT_UNAVAILABLE);
    END_TRANSACTION(status);
    CHECK(status == COMMITTED && letter_at(8) == '8');

    BEGIN_TRANSACTION
        writes(9, '9');
        BEGIN_TOP_LEVEL_TRANSACTION
            SERVER_CALL("testserver", rc, locked(ARGS 9, &mode, &had));
            CHECK(rc == 0 && mode == LOCK_MODE_WRITE && !had);
        END_TOP_LEVEL_TRANSACTION(status);
        SERVER_CALL("testserver", rc, locked(ARGS 9, &mode, &had));
        CHECK(rc == 0 && mode == LOCK_MODE_WRITE && had);
    END_TRANSACTION(status);
    CHECK(status == COMMITTED);

    SERVER_CALL("testserver", rc, shouts(ARGS text, &length, &half));
    CHECK(rc == 0 && strcmp(text, "QUITE LOUD") == 0 && length == 10 && half == 5);
}

static void takes_too_long(void) {
    int rc;
    status_t status, inner;
    BEGIN_TRANSACTION
        writes(10, 'o');
        BEGIN_TRANSACTION
            SERVER_CALL_2("testserver", rc, sleeps(ARGS 300), 100);
            CHECK(!"it has gone on");
        END_TRANSACTION(inner);
        CHECK(inner == CAMELOT_TIMEOUT);
    END_TRANSACTION(status);
    CHECK(status == COMMITTED && letter_at(10) == 'o');
    SERVER_CALL_2("testserver", rc, sleeps(ARGS 300), 100);
    CHECK(rc == CAMELOT_TIMEOUT);
}

static void write_one(int index) {
    if (index == 22)
        Camlib_AbortTransaction(5);
    CHECK(writes(index, (char)('a' + index - 20)) == 0);
}

static void side_by_side(void) {
    status_t status, one, two, three, all[10];
    int i;
    BEGIN_TRANSACTION
        COBEGIN
            TRANS(write_one, 20, one);
            TRANS(write_one, 21, two);
            TRANS(write_one, 22, three);
        COEND;
        CHECK(one == COMMITTED && two == COMMITTED && three == 5);
        COFOR (i, 0, 9)
            TRANS(write_one, 30 + i, all[i]);
        COEND;
        for (i = 0; i < 10; i++)
            CHECK(all[i] == COMMITTED);
        THREAD_COBEGIN
            THREAD(write_one, 23);
            THREAD(write_one, 24);
        THREAD_COEND;
    END_TRANSACTION(status);
    CHECK(status == COMMITTED);
    CHECK(letter_at(20) == 'a' && letter_at(21) == 'b' && letter_at(22) == 0 && letter_at(39) == 't');
    CHECK(letter_at(23) == 'd' && letter_at(24) == 'e');
    /* Threads of a transaction abort it. */
    BEGIN_TRANSACTION
        THREAD_COBEGIN
            THREAD(write_one, 25);
            THREAD(write_one, 22);
        THREAD_COEND;
        CHECK(!"it has gone on");
    END_TRANSACTION(status);
    CHECK(status == 5 && letter_at(25) == 0);
    /* Outside of any: top-level ones. */
    COBEGIN
        TRANS(write_one, 25, one);
        TRANS(write_one, 22, two);
    COEND;
    CHECK(one == COMMITTED && two == 5 && letter_at(25) == 'f');
}

static void independently(int index) {
    int rc;
    SERVER_CALL("testserver", rc, independent_write(ARGS index));
    CHECK(rc == 0);
}

static void locks_and_aborts(int which) {
    static volatile int holds;
    if (which == 0) {
        CHECK(writes(16, 'l') == 0);
        holds = 1;
        /* The other one waits by now, or will: it must be told. */
        struct timespec time = {0, 200 * 1000 * 1000};
        nanosleep(&time, NULL);
        Camlib_AbortTransaction(6);
    }
    while (!holds)
        sched_yield();
    CHECK(writes(16, 'w') == 0);
}

static int index_of_five(void) {
    int rc;
    small_record_t value;
    SERVER_CALL("testserver", rc, record_read(ARGS 5, &value));
    CHECK(rc == 0);
    return value.data[0] == '5' ? 17 : 18;
}

static void calls_alone(int index) {
    /* A time-out is a code where there is no transaction. */
    int rc;
    SERVER_CALL_2("testserver", rc, sleeps(ARGS 300), 50);
    CHECK(rc == CAMELOT_TIMEOUT);
    CHECK(writes(index, 'c') == 0);
}

static void more(void) {
    int rc, i;
    status_t status, one, two, all[12];
    BEGIN_TRANSACTION
        COBEGIN
            TRANS(locks_and_aborts, 0, one);
            TRANS(locks_and_aborts, 1, two);
        COEND;
        CHECK(one == 6 && two == COMMITTED);
    END_TRANSACTION(status);
    CHECK(status == COMMITTED && letter_at(16) == 'w');
    /* A call for an argument of a call. */
    BEGIN_TRANSACTION
        SERVER_CALL("testserver", rc, record_write(ARGS index_of_five(), record_of('7')));
        CHECK(rc == 0);
    END_TRANSACTION(status);
    CHECK(status == COMMITTED && letter_at(17) == '7');
    BEGIN_TRANSACTION
        SERVER_CALL("testserver", rc, refuses(ARGS 6, -3, FALSE));
        CHECK(!"it has gone on");
    END_TRANSACTION(status);
    CHECK(status == CAMELOT_ABORTED);
    THREAD_COBEGIN
        THREAD(calls_alone, 18);
    THREAD_COEND;
    CHECK(letter_at(18) == 'c');
    /* As many as the server's level, and more, that call it again each. */
    COFOR (i, 0, 11)
        TRANS(independently, 40 + i, all[i]);
    COEND;
    for (i = 0; i < 12; i++)
        CHECK(all[i] == COMMITTED && letter_at(40 + i) == 'q');
}

static void with_rust(void) {
    int rc;
    int64_t before, after;
    status_t status;
    SERVER_CALL("bank", rc, Add(ARGS 3, 0, 0, &before));
    CHECK(rc == 0);
    BEGIN_TRANSACTION
        SERVER_CALL("bank", rc, Add(ARGS 3, 5, 0, &after));
        CHECK(rc == 0 && after == before + 5);
        CHECK(writes(11, 'm') == 0);
    END_TRANSACTION(status);
    CHECK(status == COMMITTED);
    BEGIN_TRANSACTION
        SERVER_CALL("testserver", rc, pays(ARGS 12, 3, 3));
        CHECK(rc == 0);
    END_TRANSACTION(status);
    CHECK(status == COMMITTED && letter_at(12) == 'p');
    BEGIN_TRANSACTION
        SERVER_CALL("testserver", rc, pays(ARGS 13, 3, 3));
        Camlib_AbortTransaction(1);
    END_TRANSACTION(status);
    CHECK(letter_at(13) == 0);
    SERVER_CALL("bank", rc, Add(ARGS 3, 0, 0, &after));
    CHECK(after == before + 2);
}

static void non_blocking(void) {
    int rc;
    status_t status;
    /* These nodes have nobody who keeps votes. */
    BEGIN_TRANSACTION_2(MANY_PAGES)
        SERVER_CALL("testserver", rc, record_write(ARGS 14, record_of('n')));
        CHECK(rc == CAMELOT_WRONG && strstr(Camlib_Message(), "keeps slots"));
    END_TRANSACTION_2(NON_BLOCKING_COMMIT, status);
    CHECK(status == COMMITTED || status == CAMELOT_WRONG || status == CAMELOT_ABORTED);
    CHECK(letter_at(14) == 0);
}

int main(int argc, char **argv) {
    tid_t none = THIS_TID;
    if (!Camlib_InitializeAppl("the paper's client")) {
        CHECK(argc > 1 && strcmp(argv[1], "alone") == 0);
        status_t status;
        BEGIN_TRANSACTION
            CHECK(!"it has begun");
        END_TRANSACTION(status);
        CHECK(status == CAMELOT_NOT_RUNNING);
        /* Each call is a transaction of its own. */
        CHECK(writes(15, 'l') == 0 && letter_at(15) == 'l');
        printf("alone\n");
        return 0;
    }
    CHECK(argc < 2 || strcmp(argv[1], "alone") != 0);
    if (argc > 1 && strcmp(argv[1], "again") == 0) {
        CHECK(letter_at(1) == '2' && letter_at(2) == '2' && letter_at(12) == 'p' && letter_at(13) == 0);
        printf("again\n");
        return 0;
    }
    for (size_t at = 0; at < sizeof none.bytes; at++)
        CHECK(none.bytes[at] == 0);
    CHECK(letter_at(0) == 'i');
    aborts();
    returns_early();
    CHECK(letter_at(1) == '2');
    independent();
    of_servers();
    takes_too_long();
    side_by_side();
    more();
    with_rust();
    non_blocking();
    printf("well\n");
    return 0;
}
