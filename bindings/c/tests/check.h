/* What the tests share: they end with the first thing that is not as it must be. */
#ifndef CHECK_H
#define CHECK_H

#include <caliburn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                            \
    do {                                                                                       \
        if (!(what)) {                                                                         \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, caliburn_message()); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define OK(call)                                                                               \
    do {                                                                                       \
        int code_ = (call);                                                                    \
        if (code_ != CALIBURN_OK) {                                                            \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call,                  \
                    caliburn_code_name(code_), caliburn_message());                            \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define FAILS(expected, call)                                                                  \
    do {                                                                                       \
        int code_ = (call);                                                                    \
        if (code_ != (expected)) {                                                             \
            fprintf(stderr, "%s:%d: %s: %s, expected %s\n", __FILE__, __LINE__, #call,         \
                    caliburn_code_name(code_), caliburn_code_name(expected));                  \
            exit(1);                                                                           \
        }                                                                                      \
        CHECK(caliburn_message()[0] != 0);                                                     \
    } while (0)

/* A path in the directory that the test was given. */
static inline char *in(const char *dir, const char *name)
{
    char *path = malloc(strlen(dir) + strlen(name) + 2);
    sprintf(path, "%s/%s", dir, name);
    return path;
}

/* Options for small stores. */
static inline caliburn_options *small(void)
{
    caliburn_options *options = caliburn_options_new();
    OK(caliburn_options_set(options, CALIBURN_CREATE, 1));
    OK(caliburn_options_set(options, CALIBURN_LOG_BYTES, 1 << 20));
    OK(caliburn_options_set(options, CALIBURN_STAGE_BYTES, 1 << 20));
    OK(caliburn_options_set(options, CALIBURN_RESERVE_BYTES, 1 << 24));
    OK(caliburn_options_set(options, CALIBURN_MEMORY_BUDGET, 1 << 26));
    return options;
}

static inline caliburn_store *opened(const char *path, int policy)
{
    caliburn_options *options = small();
    caliburn_store *store = NULL;
    OK(caliburn_options_set(options, CALIBURN_RECOVERY_POLICY, policy));
    OK(caliburn_open(path, options, &store));
    caliburn_options_free(options);
    return store;
}

static inline caliburn_region *mapped(caliburn_store *store, const char *name, uint64_t len)
{
    caliburn_segment *segment = NULL;
    caliburn_region *region = NULL;
    OK(caliburn_segment_open_or_create(store, name, len, &segment));
    OK(caliburn_map(segment, 0, 0, &region));
    caliburn_segment_release(segment);
    return region;
}

#endif
