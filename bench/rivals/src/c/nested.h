/* Transactions with parts that can be undone, of records of eight bytes under 64-bit keys. A function that returns int says 0 when
   it failed. One thread uses one. */
#include <stdint.h>

struct nested {
    const char *name;
    void *(*open)(const char *directory);
    int (*begin)(void *of);
    /* Begins a part. */
    int (*part)(void *of);
    int (*put)(void *of, uint64_t key, uint64_t value);
    /* Ends the part: it stays, or is undone. */
    int (*end)(void *of, int stays);
    int (*commit)(void *of);
    void (*close)(void *of);
};

#define NESTED 3
extern const struct nested nested[NESTED];
