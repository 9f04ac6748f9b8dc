/* What the files of librvm share, and what all of them call. */
#include "rvm_state.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

long rvm_no_yield;
pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
_Atomic(enum phase) phase = NEVER;
struct open_log the_log;
rvm_options_t settings;
atomic_ulong optimizations;
pthread_rwlock_t regions_lock = PTHREAD_RWLOCK_INITIALIZER;
struct region *regions;
atomic_ulong transactions_open;

/* The code that RVM has for one of Caliburn's. */
rvm_return_t code_of(int code)
{
    switch (code) {
    case CALIBURN_OK:
        return RVM_SUCCESS;
    case CALIBURN_NO_SPACE:
        return errno == ENOSPC ? RVM_EIO : RVM_ENO_MEMORY;
    case CALIBURN_INHERITED:
        return RVM_EINIT;
    case CALIBURN_TOO_BIG:
        return RVM_ETOO_BIG;
    case CALIBURN_RANGE:
        return RVM_ENOT_MAPPED;
    case CALIBURN_IO:
    case CALIBURN_FAILED:
    case CALIBURN_BUSY:
    case CALIBURN_READ_ONLY:
        return RVM_EIO;
    default:
        return RVM_EINTERNAL;
    }
}

/* The absolute name of a file, by the current directory. Null if it is too long. */
char *absolute_name(const char *name, char *path)
{
    size_t len = 0;
    if (name[0] != '/') {
        if (getcwd(path, MAXPATHLEN) == NULL)
            return NULL;
        len = strlen(path);
        path[len++] = '/';
    }
    if (len + strlen(name) + sizeof SUFFIX > MAXPATHLEN)
        return NULL;
    strcpy(path + len, name);
    return path;
}

/* Opens a file, under a number that is none of the standard streams', so that nothing the program prints gets there.
   Numbers that are free are taken first, and stay taken, as libcaliburn does. */
int open_file(const char *path, int flags, mode_t mode)
{
    int null = 0;
    while (null >= 0 && null < 3 && (fcntl(0, F_GETFD) < 0 || fcntl(1, F_GETFD) < 0 || fcntl(2, F_GETFD) < 0))
        null = open("/dev/null", O_RDWR);
    if (null > 2)
        close(null);
    int file = open(path, flags | O_CLOEXEC, mode);
    if (file < 0 || file > 2)
        return file;
    int moved = fcntl(file, F_DUPFD_CLOEXEC, 3), cause = errno;
    close(file);
    errno = cause;
    return moved;
}
