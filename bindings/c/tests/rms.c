/* RMS follows McNamee, section 5.3: stores are found by the faults that they cause, whatever the policy. */
#include "check.h"

#include <rms.h>
#include <sys/wait.h>

static long long at(const long long *words, int i) { return ((volatile const long long *)words)[i]; }

static void killed_within(const char *file)
{
    pid_t child = fork();
    if (child == 0) {
        long long *words = rms_attach(file);
        CHECK(words != NULL);
        rms_begin_transaction(file);
        words[0] = 100;
        words[2000] = 100;
        CHECK(rms_commit(file) == 1);
        rms_begin_transaction(file);
        words[0] = 200;
        words[1000] = 200;
        raise(SIGKILL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

static void policy(const char *file, int which)
{
    FILE *first = fopen(file, "w");
    for (long long i = 0; i < 4096; i++)
        CHECK(fwrite(&i, sizeof i, 1, first) == 1);
    CHECK(fclose(first) == 0);
    rms_options(which, CALIBURN_POWER);
    killed_within(file);

    /* The file of the process that was killed: what was committed, nothing else. */
    long long *words = rms_attach(file);
    CHECK(words != NULL && rms_attach(file) == (void *)words);
    CHECK(at(words, 0) == 100 && at(words, 2000) == 100 && at(words, 1000) == 1000 && at(words, 4095) == 4095);
    CHECK(rms_commit(file) == 0 && rms_abort(file) == 0 && rms_restore(file) == 1);
    rms_begin_transaction(file);
    for (int i = 0; i < 4096; i += 100)
        words[i] = -i;
    CHECK(rms_abort(file) == 1 && at(words, 100) == 100 && at(words, 0) == 100);
    rms_begin_transaction(file);
    words[5] = 6;
    CHECK(rms_restore(file) == 1 && at(words, 5) == 5);
    for (int i = 0; i < 20; i++) {
        rms_begin_transaction(file);
        words[i * 200] = i;
        CHECK(rms_commit(file) == 1);
    }
    rms_detach(file);
    words = rms_attach(file);
    CHECK(words != NULL && at(words, 3800) == 19 && at(words, 3801) == 3801);
    rms_detach(file);

    /* A store outside of a transaction ends the program. */
    pid_t child = fork();
    if (child == 0) {
        words = rms_attach(file);
        words[0] = 1;
        _exit(0);
    }
    int status;
    /* By the signal, or by whoever handled it before. */
    CHECK(waitpid(child, &status, 0) == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

/* The log grows for a transaction that is larger than half of it. */
static void large(const char *file)
{
    static const char zeros[1 << 16];
    FILE *first = fopen(file, "w");
    for (int i = 0; i < 640; i++)
        CHECK(fwrite(zeros, sizeof zeros, 1, first) == 1);
    CHECK(fclose(first) == 0);
    rms_options(CALIBURN_REDO, CALIBURN_PROCESS);
    long long *words = rms_attach(file), pages = 640 * 16;
    CHECK(words != NULL);
    rms_begin_transaction(file);
    for (long long i = 0; i < pages; i++)
        words[i * 512] = 1;
    CHECK(rms_restore(file) == 1 && at(words, 0) == 0 && at(words, (int)((pages - 1) * 512)) == 0);
    rms_begin_transaction(file);
    for (long long i = 0; i < pages; i++)
        words[i * 512] = 2;
    CHECK(rms_commit(file) == 1);
    rms_detach(file);
    words = rms_attach(file);
    CHECK(words != NULL);
    for (long long i = 0; i < pages; i++)
        CHECK(at(words, (int)(i * 512)) == 2);
    rms_detach(file);
}

/* What was loaded is what was committed since, whatever becomes of the file. */
static void loaded_once(const char *file)
{
    CHECK(truncate(file, (1 << 20) + 3) == 0);
    rms_options(CALIBURN_UNDO, CALIBURN_PROCESS);
    long long *words = rms_attach(file);
    CHECK(words != NULL && at(words, 0) == 0 && at(words, 3800) == 19 && at(words, 3801) == 3801);
    rms_detach(file);
}

/* A file with its log and what else belongs to it elsewhere; a part of it is mapped, and a transaction is larger than any
   log but that. */
static void shadowed(const char *file, char *log, char *metadata)
{
    static const char zeros[1 << 16];
    FILE *first = fopen(file, "w");
    for (int i = 0; i < 640; i++)
        CHECK(fwrite(zeros, sizeof zeros, 1, first) == 1);
    CHECK(fclose(first) == 0);
    caliburn_store *store;
    caliburn_region *region;
    for (int turn = 0; turn < 2; turn++) {
        long long *words = mmap_shadow(file, 500 << 16, log, metadata, &store, &region);
        CHECK(words != NULL && caliburn_region_len(region) == 500 << 16);
        CHECK(caliburn_policy(store) == CALIBURN_SHADOW && caliburn_reach(store) == CALIBURN_POWER);
        caliburn_tx tx = CALIBURN_TX_INITIALIZER;
        CHECK(caliburn_begin(store, CALIBURN_NO_RESTORE, &tx) == CALIBURN_OK);
        for (int i = 0; i < 500 << 13; i += 512)
            words[i] += i + 1;
        CHECK(caliburn_commit(&tx, CALIBURN_POWER) == CALIBURN_OK);
        for (int i = 0; i < 500 << 13; i += 512)
            CHECK(at(words, i) == (turn + 1) * (i + 1LL));
        CHECK(caliburn_unmap(region) == CALIBURN_OK && caliburn_close(store) == CALIBURN_OK);
    }
    free(log);
    free(metadata);
    /* What is behind its last whole sector could not be undone. */
    CHECK(truncate(file, 700) == 0);
    rms_options(CALIBURN_SHADOW, CALIBURN_POWER);
    errno = 0;
    CHECK(rms_attach(file) == NULL && errno == EINVAL);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    char *redo = in(argv[1], "redo"), *undo = in(argv[1], "undo"), *none = in(argv[1], "none"),
         *mapped = in(argv[1], "mapped");
    CHECK(rms_attach(none) == NULL && caliburn_message()[0] != 0);
    policy(redo, CALIBURN_REDO);
    policy(undo, CALIBURN_UNDO);
    loaded_once(undo);
    CHECK(rms_set_option(CALIBURN_BEFORE_IMAGES, 3) == -1 && errno == EINVAL);
    CHECK(rms_set_option(-1, 0) == -1 && rms_set_option(1000, 0) == -1);
    for (int when = CALIBURN_EAGER; when <= CALIBURN_ADAPTIVE; when++) {
        char name[32];
        sprintf(name, "shadow-%d", when);
        char *file = in(argv[1], name);
        CHECK(rms_set_option(CALIBURN_BEFORE_IMAGES, (uint64_t)when) == 0);
        policy(file, CALIBURN_SHADOW);
        free(file);
    }
    shadowed(mapped, in(argv[1], "log"), in(argv[1], "metadata"));
    large(redo);
    free(redo);
    free(undo);
    free(mapped);
    free(none);
    puts("sound");
    return 0;
}
