/* Mapping. */
#include "rvm_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct segment *segments;

/* The segment in a file, opened at its first use. */
static rvm_return_t segment_of(const char *name, bool has_length, struct segment **found)
{
    char path[MAXPATHLEN];
    struct stat about;
    if (absolute_name(name, path) == NULL)
        return RVM_ENAME_TOO_LONG;
    for (*found = segments; *found != NULL; *found = (*found)->next)
        if (strcmp((*found)->path, path) == 0)
            return RVM_SUCCESS;
    /* It may be known by another name. */
    int file = open_file(path, O_RDWR, 0);
    if (file < 0 || fstat(file, &about) != 0) {
        int cause = errno;
        if (file >= 0)
            close(file);
        errno = cause;
        return RVM_EIO;
    }
    close(file);
    for (*found = segments; *found != NULL; *found = (*found)->next)
        if ((*found)->device == about.st_dev && (*found)->inode == about.st_ino)
            return RVM_SUCCESS;
    if (!S_ISREG(about.st_mode) && !has_length)
        return RVM_ENOT_MAPPED;
    struct segment *segment = malloc(sizeof *segment + strlen(path) + 1);
    if (segment == NULL)
        return RVM_ENO_MEMORY;
    int code = caliburn_segment_adopt(the_log.store, path, &segment->handle);
    if (code != CALIBURN_OK) {
        free(segment);
        /* Shorter than a sector. */
        return code == CALIBURN_INVALID ? RVM_EOFFSET : code == CALIBURN_DAMAGED ? RVM_EIO : code_of(code);
    }
    segment->device = about.st_dev;
    segment->inode = about.st_ino;
    segment->size = caliburn_segment_len(segment->handle);
    strcpy(segment->path, path);
    segment->next = segments;
    *found = segments = segment;
    return RVM_SUCCESS;
}

/* Memory at every page of a range that has none yet; what is there stays. */
static rvm_return_t fill(char *start, rvm_length_t length)
{
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    rvm_length_t page = rvm_page_size();
    for (char *at = start; at < start + length; at += page) {
        char *there = mmap(at, page, PROT_READ | PROT_WRITE, kind, -1, 0);
        if (there == MAP_FAILED && errno != EEXIST)
            return errno == ENOMEM ? RVM_ENO_MEMORY : RVM_ERANGE;
        /* Kernels before 4.17 take the flag for a hint. */
        if (there != MAP_FAILED && there != at)
            munmap(there, page);
    }
    return RVM_SUCCESS;
}

/* Maps at an address of the caller's: free, or with memory that it has there. */
static rvm_return_t map_at(struct region *region, bool as_it_is)
{
    caliburn_segment *segment = region->segment->handle;
    int code;
    if (as_it_is) {
        rvm_return_t filled = fill(region->vmaddr, RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(region->length));
        if (filled != RVM_SUCCESS)
            return filled;
        code = caliburn_map_unread(segment, region->offset, region->length, region->vmaddr, &region->handle);
    } else {
        code = caliburn_map_at(segment, region->offset, region->length, region->vmaddr, &region->handle);
        if (code == CALIBURN_EXISTS) {
            /* What the program has in the last page beyond the region stays. */
            static char beyond[1 << 16];
            char *end = region->vmaddr + region->length;
            size_t rest = RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(region->length) - region->length;
            memcpy(beyond, end, rest);
            code = caliburn_map_over(segment, region->offset, region->length, region->vmaddr, &region->handle);
            if (code == CALIBURN_OK)
                memcpy(end, beyond, rest);
        }
    }
    return code == CALIBURN_EXISTS ? RVM_EVM_OVERLAP : code_of(code);
}

static rvm_return_t map_anywhere(struct region *region, bool as_it_is)
{
    if (as_it_is) {
        region->vmaddr = mmap(NULL, region->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (region->vmaddr == MAP_FAILED)
            return RVM_ENO_MEMORY;
        rvm_return_t code = map_at(region, true);
        if (code != RVM_SUCCESS)
            munmap(region->vmaddr, region->length);
        return code;
    }
    int code = caliburn_map(region->segment->handle, region->offset, region->length, &region->handle);
    region->vmaddr = caliburn_region_address(region->handle);
    return code_of(code);
}

/* Which bytes of its segment a region is to have. */
static rvm_return_t extent(const rvm_region_t *wanted, rvm_length_t size, struct region *region)
{
    rvm_length_t most = wanted->dev_length.low / SECTOR * SECTOR;
    if (wanted->dev_length.high == 0 && wanted->dev_length.low != 0 && most < size)
        size = most;
    if (wanted->offset.high != 0 || wanted->offset.low > size)
        return RVM_EOFFSET;
    rvm_length_t end = wanted->offset.low + wanted->length;
    if (end < wanted->offset.low)
        return RVM_EOFFSET;
    rvm_length_t up = RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(end);
    if (wanted->length == 0 || up < end || up > size)
        up = size;
    region->offset = RVM_ROUND_LENGTH_DOWN_TO_PAGE_SIZE(wanted->offset.low);
    if (up <= region->offset)
        return RVM_EOFFSET;
    region->length = up - region->offset;
    return RVM_SUCCESS;
}

/* Whether a region would lie over another one: in memory, or in its segment. */
static rvm_return_t overlap(const struct region *region)
{
    rvm_length_t span = RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(region->length);
    if (region->vmaddr != NULL)
        for (const struct region *other = regions; other != NULL; other = other->next)
            if (region->vmaddr < other->vmaddr + RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(other->length) &&
                other->vmaddr < region->vmaddr + span)
                return RVM_EVM_OVERLAP;
    for (const struct region *other = regions; other != NULL; other = other->next)
        if (other->segment == region->segment && region->offset < other->offset + other->length &&
            other->offset < region->offset + region->length)
            return RVM_EOVERLAP;
    return RVM_SUCCESS;
}

static rvm_return_t map(rvm_region_t *wanted, struct region *region)
{
    bool has_length = wanted->dev_length.high != 0 || wanted->dev_length.low != 0;
    rvm_return_t code = segment_of(wanted->data_dev, has_length, &region->segment);
    if (code == RVM_SUCCESS)
        code = extent(wanted, region->segment->size, region);
    if (code != RVM_SUCCESS)
        return code;
    region->vmaddr = wanted->vmaddr;
    if ((rvm_length_t)region->vmaddr % rvm_page_size() != 0 ||
        (rvm_length_t)region->vmaddr + region->length < region->length)
        return RVM_ERANGE;
    code = overlap(region);
    if (code != RVM_SUCCESS)
        return code;
    bool as_it_is = wanted->no_copy != rvm_false;
    return region->vmaddr != NULL ? map_at(region, as_it_is) : map_anywhere(region, as_it_is);
}

rvm_return_t rvm_map(rvm_region_t *wanted, rvm_options_t *options)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    if (wanted == NULL || wanted->struct_id != rvm_region_id || wanted->data_dev == NULL)
        return RVM_EREGION;
    if (strlen(wanted->data_dev) > MAXPATHLEN - 1)
        return RVM_ENAME_TOO_LONG;
    struct region *region = calloc(1, sizeof *region);
    if (region == NULL)
        return RVM_ENO_MEMORY;
    pthread_mutex_lock(&gate);
    rvm_return_t code = phase == RUNNING ? RVM_SUCCESS : RVM_EINIT;
    if (code == RVM_SUCCESS && options != NULL) {
        if (options->struct_id != rvm_options_id)
            code = RVM_EOPTIONS;
        else if (options->log_dev != NULL && strlen(options->log_dev) > MAXPATHLEN - 1)
            code = RVM_ENAME_TOO_LONG;
        else
            code = options_apply(options);
    }
    if (code == RVM_SUCCESS && the_log.store == NULL)
        code = RVM_ELOG;
    if (code == RVM_SUCCESS && options != NULL && options->pager != NULL)
        code = RVM_EPAGER;
    if (code == RVM_SUCCESS)
        code = map(wanted, region);
    if (code == RVM_SUCCESS) {
        pthread_rwlock_wrlock(&regions_lock);
        region->next = regions;
        regions = region;
        pthread_rwlock_unlock(&regions_lock);
        wanted->offset = rvm_mk_offset(0, region->offset);
        wanted->length = region->length;
        wanted->vmaddr = region->vmaddr;
        region = NULL;
    }
    pthread_mutex_unlock(&gate);
    free(region);
    return code;
}

/* Makes memory that shows a file the program's own: it stays as it is, whatever becomes of the file. */
static void detach(char *start, rvm_length_t length)
{
    rvm_length_t span = RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(length);
    char *copy = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return;
    memcpy(copy, start, span);
    if (mremap(copy, span, span, MREMAP_MAYMOVE | MREMAP_FIXED, start) == MAP_FAILED)
        munmap(copy, span);
}

static rvm_return_t unmap(const rvm_region_t *asked)
{
    for (struct region **link = &regions; *link != NULL; link = &(*link)->next) {
        struct region *region = *link;
        rvm_length_t into = (rvm_length_t)(asked->vmaddr - region->vmaddr);
        if (asked->vmaddr < region->vmaddr || into >= region->length || asked->length > region->length - into)
            continue;
        if (transactions_in(region, NULL, 0) > 0)
            return RVM_EUNCOMMIT;
        if (into != 0 || asked->length != region->length)
            return RVM_ERANGE;
        int code = caliburn_leave(region->handle);
        if (code != CALIBURN_OK)
            return code == CALIBURN_BUSY ? RVM_EUNCOMMIT : code_of(code);
        detach(region->vmaddr, region->length);
        /* Leaving a region truncates. */
        count_truncation();
        pthread_rwlock_wrlock(&regions_lock);
        *link = region->next;
        pthread_rwlock_unlock(&regions_lock);
        free(region);
        return RVM_SUCCESS;
    }
    return RVM_ENOT_MAPPED;
}

rvm_return_t rvm_unmap(rvm_region_t *region)
{
    if (phase != RUNNING)
        return RVM_EINIT;
    if (region == NULL || region->struct_id != rvm_region_id)
        return RVM_EREGION;
    pthread_mutex_lock(&gate);
    rvm_return_t code = phase == RUNNING ? unmap(region) : RVM_EINIT;
    pthread_mutex_unlock(&gate);
    return code;
}

/* Leaves all memory to the program, when the store is closed. */
void map_forget(void)
{
    pthread_rwlock_wrlock(&regions_lock);
    while (regions != NULL) {
        struct region *region = regions;
        regions = region->next;
        caliburn_leave(region->handle);
        free(region);
    }
    pthread_rwlock_unlock(&regions_lock);
    while (segments != NULL) {
        struct segment *segment = segments;
        segments = segment->next;
        caliburn_segment_release(segment->handle);
        free(segment);
    }
}
