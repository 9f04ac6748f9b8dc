/* The log: making one, opening it, and the options that belong to it. */
#include "rvm_state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Smallest log of Caliburn's. A transaction may take half of one: RVM's whole log. */
#define LOG_MIN (64 << 10)
#define STAGE_MIN (1 << 20)
#define STAGE_MAX (32 << 20)
/* File in the store's directory that has the length of the log, as its maker wanted it. */
#define LENGTH "rvm-length"
/* The log's name there: the same file. */
#define LOG "log"

/* A file in the store of a log. */
static char *beside(const char *log, const char *file, char *path)
{
    snprintf(path, MAXPATHLEN + sizeof SUFFIX + 16, "%s" SUFFIX "%s%s", log, file[0] ? "/" : "", file);
    return path;
}

typedef char wide_path[MAXPATHLEN + sizeof SUFFIX + 32];

static rvm_return_t say(const char *path, rvm_return_t code, const char *what)
{
    int cause = errno;
    fprintf(stderr, "rvm: %s: %s\n", path, what);
    errno = cause;
    return code;
}

/* A record of options, or none. */
rvm_return_t options_fault(const rvm_options_t *options)
{
    if (options->struct_id != rvm_options_id)
        return RVM_EOPTIONS;
    if (options->log_dev != NULL && strlen(options->log_dev) > MAXPATHLEN - 1)
        return RVM_ENAME_TOO_LONG;
    return RVM_SUCCESS;
}

/* The truncation threshold of a log twice as long as its maker wanted, or none. */
static uint64_t threshold(long percent)
{
    if (percent < 1 || percent > 100)
        return 90;
    return percent < 2 ? 1 : percent / 2;
}

static caliburn_options *store_options(rvm_length_t length)
{
    uint64_t stage = length < STAGE_MIN ? STAGE_MIN : length > STAGE_MAX ? STAGE_MAX : length;
    caliburn_options *options = caliburn_options_new();
    caliburn_options_set(options, CALIBURN_DECLARED_ONLY, 1);
    caliburn_options_set(options, CALIBURN_BACKGROUND, BACKGROUND);
    /* Where nothing goes on in the background, only the program forces. */
    if (!BACKGROUND)
        caliburn_options_set(options, CALIBURN_FLUSH_INTERVAL_MS, UINT64_MAX);
    caliburn_options_set(options, CALIBURN_RESERVE_BYTES, 0);
    caliburn_options_set(options, CALIBURN_STAGE_BYTES, stage);
    /* A log of RVM's names its segments wherever they are. */
    caliburn_options_add_outside(options, "/");
    return options;
}

/* The length of a log, as its maker wanted it; 0 if its store does not say. */
static rvm_length_t wanted_length(const char *log)
{
    wide_path path;
    rvm_length_t length = 0;
    int length_file = open_file(beside(log, LENGTH, path), O_RDONLY, 0);
    FILE *file = length_file < 0 ? NULL : fdopen(length_file, "r");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%lu", &length) != 1)
        length = 0;
    fclose(file);
    return length;
}

/* Why a file cannot be opened as a log; success if it looks like one. */
static rvm_return_t log_fault(const char *path)
{
    wide_path name;
    struct stat one, other;
    char magic[8] = "";
    int file = open_file(path, O_RDWR, 0);
    if (file < 0)
        return RVM_EIO;
    ssize_t got = pread(file, magic, sizeof magic, 0);
    close(file);
    if (got < 0)
        return RVM_EIO;
    if (got < (ssize_t)sizeof magic || memcmp(magic, "CALI-LOG", sizeof magic) != 0)
        return say(path, RVM_ELOG,
                   "not a log of this library. If it is one of Coda's RVM, let its own rvmutl recover it, so that its"
                   " segments have all that it holds, then initialise it anew: rvmutl, command i");
    if (stat(beside(path, LOG, name), &other) != 0)
        return say(path, RVM_ELOG, "the directory of the same name with " SUFFIX ", which belongs to it, is missing");
    if (stat(path, &one) != 0 || one.st_dev != other.st_dev || one.st_ino != other.st_ino)
        return say(path, RVM_ELOG,
                   "it is not the file named " LOG " in the directory of the same name with " SUFFIX ": link it there"
                   " if it is the right one");
    return RVM_SUCCESS;
}

/* Opens a log and recovers. */
static rvm_return_t log_open(const char *name)
{
    wide_path dir;
    char path[MAXPATHLEN], real[PATH_MAX];
    if (absolute_name(name, path) == NULL)
        return RVM_ENAME_TOO_LONG;
    /* The directory that belongs to a log stands beside the file, not beside links to it. */
    if (realpath(path, real) != NULL && strlen(real) + sizeof SUFFIX <= MAXPATHLEN)
        strcpy(path, real);
    rvm_return_t fault = log_fault(path);
    if (fault != RVM_SUCCESS)
        return fault;
    rvm_length_t length = wanted_length(path);
    caliburn_options *options = store_options(length);
    int code = caliburn_open(beside(path, "", dir), options, &the_log.store);
    caliburn_options_free(options);
    if (code != CALIBURN_OK) {
        the_log.store = NULL;
        say(path, RVM_ELOG, caliburn_message());
        if (code == CALIBURN_VERSION)
            return RVM_ELOG_VERSION_SKEW;
        return code == CALIBURN_IO || code == CALIBURN_BUSY || code == CALIBURN_NO_SPACE ? RVM_EIO : RVM_ELOG;
    }
    strcpy(the_log.path, path);
    caliburn_query query;
    caliburn_query_store(the_log.store, &query, sizeof query);
    the_log.length = length != 0 ? length : query.log_bytes / 2;
    the_log.forced = caliburn_reach(the_log.store);
    /* Programs read the segments' files. */
    bool recovered = query.log_used > 0;
    code = caliburn_truncate(the_log.store);
    if (code != CALIBURN_OK) {
        caliburn_close(the_log.store);
        the_log.store = NULL;
        return code_of(code);
    }
    count_begin_log(recovered);
    return RVM_SUCCESS;
}

static bool same_log(const char *name)
{
    struct stat one, other;
    char path[MAXPATHLEN];
    if (absolute_name(name, path) != NULL && strcmp(path, the_log.path) == 0)
        return true;
    return stat(name, &one) == 0 && stat(the_log.path, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

static rvm_length_t buffer_length(rvm_length_t length, rvm_length_t least)
{
    return RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(length < least ? least : length);
}

/* What rvm_set_options does, under the gate, with options that are a record. */
rvm_return_t options_apply(rvm_options_t *options)
{
    options->max_read_len = options->max_read_len / SECTOR * SECTOR;
    if (options->max_read_len < SECTOR)
        options->max_read_len = MAX_READ_LEN;
    if (options->log_dev != NULL) {
        if (the_log.store == NULL) {
            rvm_return_t code = log_open(options->log_dev);
            if (code != RVM_SUCCESS)
                return code;
        } else if (!same_log(options->log_dev)) {
            return RVM_ELOG;
        }
        settings.truncate = options->truncate;
        settings.recovery_buf_len = buffer_length(options->recovery_buf_len, MIN_RECOVERY_BUF_LEN);
        settings.flush_buf_len = buffer_length(options->flush_buf_len, MIN_FLUSH_BUF_LEN);
        caliburn_tune(the_log.store, CALIBURN_TRUNCATE_PERCENT, threshold(options->truncate));
    }
    settings.max_read_len = options->max_read_len;
    settings.flags = options->flags & (RVM_ALL_OPTIMIZATIONS | RVM_MAP_PRIVATE);
    if (settings.flags & RVM_COALESCE_TRANS)
        settings.flags |= RVM_COALESCE_RANGES;
    atomic_store(&optimizations, settings.flags & RVM_ALL_OPTIMIZATIONS);
    return RVM_SUCCESS;
}

/* Makes names in the directory of a file durable. */
static bool force_names(const char *path)
{
    char above[MAXPATHLEN];
    strcpy(above, path);
    strrchr(above, '/')[1] = 0;
    int directory = open_file(above, O_RDONLY | O_DIRECTORY, 0);
    bool forced = directory >= 0 && fsync(directory) == 0;
    if (directory >= 0)
        close(directory);
    return forced;
}

/* Clears the directory of a log that was removed. Not one whose log was only renamed, or that somebody has open. */
static rvm_return_t clear_directory(const char *path)
{
    const char *const left[] = {"catalog", "generations", LOG, "stage", "lock", LENGTH};
    wide_path dir, file;
    struct stat about;
    caliburn_store *store;
    caliburn_options *options = caliburn_options_new();
    if (stat(beside(path, LOG, file), &about) == 0 && about.st_nlink > 1) {
        caliburn_options_free(options);
        return say(path, RVM_ELOG, "the directory of the same name with " SUFFIX " belongs to a log of another name");
    }
    caliburn_options_set(options, CALIBURN_OPEN_READ_ONLY, 1);
    caliburn_options_add_outside(options, "/");
    int code = caliburn_open(beside(path, "", dir), options, &store);
    caliburn_options_free(options);
    if (code == CALIBURN_OK)
        caliburn_close(store);
    if (code == CALIBURN_BUSY)
        return say(path, RVM_ELOG, caliburn_message());
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        unlink(beside(path, left[i], file));
    rmdir(dir);
    return RVM_SUCCESS;
}

/* Keeps the length that is wanted, durably, in a file whose mode tells which permissions the process lets files have. */
static bool keep_length(const char *path, rvm_length_t length, long mode, mode_t *permitted)
{
    wide_path name;
    struct stat about;
    char text[32];
    int len = snprintf(text, sizeof text, "%lu\n", length);
    int file = open_file(beside(path, LENGTH, name), O_WRONLY | O_CREAT | O_EXCL, (mode_t)mode & 0777);
    bool kept = file >= 0 && write(file, text, (size_t)len) == len && fsync(file) == 0 && fstat(file, &about) == 0;
    if (file >= 0)
        close(file);
    *permitted = kept ? about.st_mode & 0777 : 0;
    return kept && force_names(name);
}

/* What rvm_create_log does, under the gate. */
rvm_return_t log_create(rvm_options_t *options, rvm_offset_t *length, long mode)
{
    struct stat there;
    wide_path dir, file;
    char path[MAXPATHLEN];
    if (options == NULL || options->struct_id != rvm_options_id || options->log_dev == NULL)
        return RVM_EOPTIONS;
    if (strlen(options->log_dev) > MAXPATHLEN - 1 || absolute_name(options->log_dev, path) == NULL)
        return RVM_ENAME_TOO_LONG;
    if (length == NULL)
        return RVM_EOPTIONS;
    if (length->high != 0 || length->low > (1ul << 62))
        return RVM_ETOO_BIG;
    if (lstat(path, &there) == 0)
        return RVM_ELOG;
    /* The directory must be there. */
    if (!force_names(path))
        return RVM_EIO;
    rvm_return_t cleared = clear_directory(path);
    if (cleared != RVM_SUCCESS)
        return cleared;
    beside(path, "", dir);

    caliburn_store *store;
    caliburn_options *store_with = store_options(length->low);
    rvm_length_t least = 2 * length->low + LOG_MIN;
    caliburn_options_set(store_with, CALIBURN_CREATE, 1);
    caliburn_options_set(store_with, CALIBURN_LOG_BYTES, (least + 4095) / 4096 * 4096);
    int code = caliburn_open(dir, store_with, &store);
    caliburn_options_free(store_with);
    if (code != CALIBURN_OK) {
        say(path, RVM_EIO, caliburn_message());
        return RVM_EIO;
    }
    caliburn_close(store);
    mode_t permitted;
    bool made = keep_length(path, length->low, mode, &permitted) && chmod(beside(path, LOG, file), permitted) == 0;
    /* Who may read a file of the store may search its directory. */
    made = made && chmod(dir, permitted | (permitted & 0444) >> 2) == 0;
    if (made && link(file, path) != 0)
        return errno == EEXIST ? RVM_ELOG : RVM_EIO;
    return made && force_names(path) ? RVM_SUCCESS : RVM_EIO;
}

rvm_return_t rvm_create_log(rvm_options_t *options, rvm_offset_t *length, long mode)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    pthread_mutex_lock(&gate);
    rvm_return_t code = log_create(options, length, mode);
    pthread_mutex_unlock(&gate);
    return code;
}
