/* What every rival can do: records under 64-bit keys, in transactions. A function that returns int says 0 when it failed,
   but get: 1 found, 0 not there, -1 failed. One thread uses a session at a time. */
#include <stddef.h>
#include <stdint.h>

struct rival {
    const char *name;
    const char *(*version)(void);
    /* A database, new or recovered, for so many bytes of data; forced: commits survive a power cut, else the process. */
    void *(*open)(const char *directory, int forced, uint64_t bytes);
    void *(*session)(void *database);
    int (*begin)(void *session);
    int (*get)(void *session, uint64_t key, void *value, size_t len);
    /* Where the bytes of a key are, declared to be changed there; null where a rival's records are no memory. */
    void *(*declare)(void *session, uint64_t key, size_t len);
    int (*put)(void *session, uint64_t key, const void *value, size_t len);
    /* Takes a record out that is there; null as above. */
    int (*take)(void *session, uint64_t key);
    /* Copies so many records out, from a key on in the order of keys, each to the same place; how many, -1 if it failed. Null
       as above. */
    int64_t (*scan)(void *session, uint64_t from, uint64_t count, void *value, size_t len);
    int (*commit)(void *session);
    void (*end)(void *session);
    void (*close)(void *database);
};
