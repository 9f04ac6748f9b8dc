/* What the tests of RVM and its heap share: they end with the first thing that is not as it must be. */
#ifndef LIVES_H
#define LIVES_H

#include <rvm/rvm.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir;

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

#define IS(expected, call)                                                                              \
    do {                                                                                                \
        rvm_return_t code_ = (call);                                                                    \
        if (code_ != (expected)) {                                                                      \
            fprintf(stderr, "%s:%d: %s: %s, not %s\n", __FILE__, __LINE__, #call, rvm_return(code_),    \
                    rvm_return(expected));                                                              \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)
#define OK(call) IS(RVM_SUCCESS, call)

/* A path in the directory that the test was given. */
static inline char *in(const char *name)
{
    static char paths[8][MAXPATHLEN + 64];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

/* A file of bytes, each its offset modulo 251. */
static inline char *data_file(const char *name, long len)
{
    char *path = in(name);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    for (long i = 0; i < len; i++)
        fputc((int)(i % 251), file);
    CHECK(fclose(file) == 0);
    return path;
}

static inline int byte_of(const char *path, long offset)
{
    FILE *file = fopen(path, "r");
    CHECK(file != NULL && fseek(file, offset, SEEK_SET) == 0);
    int byte = fgetc(file);
    fclose(file);
    return byte;
}

/* Runs a part of the test in a process of its own: there is one life per process. */
static inline void lives(void (*life)(void))
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        life();
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
}

/* Begins a life with a new log. */
static inline void begin_life(const char *log, rvm_length_t bytes)
{
    rvm_options_t *options = rvm_malloc_options();
    char *name = strdup(in(log));
    options->log_dev = name;
    options->create_log_file = access(name, F_OK) != 0 ? rvm_true : rvm_false;
    options->create_log_size = RVM_MK_OFFSET(0, bytes);
    options->flags = RVM_ALL_OPTIMIZATIONS;
    OK(RVM_INIT(options));
    /* The library has copied it. */
    memset(name, 'x', strlen(name));
    free(name);
    rvm_free_options(options);
}

static inline rvm_region_t *map_file(const char *path)
{
    rvm_region_t *region = rvm_malloc_region();
    region->data_dev = strdup(path);
    OK(rvm_map(region, NULL));
    free(region->data_dev);
    region->data_dev = NULL;
    return region;
}

#endif
