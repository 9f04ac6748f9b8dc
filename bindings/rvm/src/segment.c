/* libseg: segments whose first page says which regions they have, and at which addresses. */
#include <rvm/rvm_segment.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* What programs import, though no header declares it: of the segment loaded last. */
long rds_rvmsize;
char *rds_startaddr;

#define HEADER_ID 1
#define HEADER_VERSION "RVM Segment Loader Release 0.1  15 Nov. 1990"

/* The header as it is in the segment. */
struct header {
    int32_t id;
    char version[128];
    int32_t padding;
    uint64_t count;
    struct {
        uint64_t offset_high, offset_low, length, vmaddr;
    } regions[];
};

static int by_address(const void *a, const void *b)
{
    const rvm_region_def_t *one = a, *other = b;
    return one->vmaddr < other->vmaddr ? -1 : one->vmaddr > other->vmaddr;
}

/* Whether regions, sorted by address, lie over each other. */
static int overlapping(const rvm_region_def_t *defs, unsigned long count)
{
    for (unsigned long i = 0; i + 1 < count; i++)
        if (defs[i].length > (rvm_length_t)(defs[i + 1].vmaddr - defs[i].vmaddr))
            return 1;
    return 0;
}

static unsigned long most_regions(void)
{
    struct header *none = NULL;
    return (RVM_SEGMENT_HDR_SIZE - sizeof *none) / sizeof none->regions[0];
}

/* Maps the header's page. */
static rvm_return_t map_header(char *dev, rvm_offset_t dev_length, rvm_options_t *options, rvm_region_t *page)
{
    rvm_init_region(page);
    page->data_dev = dev;
    page->dev_length = dev_length;
    page->length = RVM_SEGMENT_HDR_SIZE;
    return rvm_map(page, options);
}

/* Unmaps the header's page, whose memory is nobody's then. The first failure counts. */
static rvm_return_t unmap_header(rvm_region_t *page, rvm_return_t code)
{
    rvm_return_t unmapped = rvm_unmap(page);
    if (unmapped == RVM_SUCCESS)
        munmap(page->vmaddr, RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(page->length));
    return code != RVM_SUCCESS ? code : unmapped;
}

static rvm_return_t write_header(struct header *header, rvm_length_t count, const rvm_region_def_t *defs)
{
    rvm_tid_t tid;
    rvm_init_tid(&tid);
    rvm_return_t code = rvm_begin_transaction(&tid, restore);
    if (code != RVM_SUCCESS)
        return code;
    code = rvm_set_range(&tid, header, sizeof *header + count * sizeof header->regions[0]);
    if (code == RVM_SUCCESS) {
        rvm_length_t offset = RVM_SEGMENT_HDR_SIZE;
        memset(header, 0, sizeof *header);
        header->id = HEADER_ID;
        strcpy(header->version, HEADER_VERSION);
        header->count = count;
        for (rvm_length_t i = 0; i < count; i++) {
            header->regions[i].offset_high = 0;
            header->regions[i].offset_low = offset;
            header->regions[i].length = defs[i].length;
            header->regions[i].vmaddr = (uint64_t)(uintptr_t)defs[i].vmaddr;
            offset += defs[i].length;
        }
        code = rvm_end_transaction(&tid, flush);
    }
    if (code != RVM_SUCCESS)
        rvm_abort_transaction(&tid);
    return code;
}

rvm_return_t rvm_create_segment(char *dev, rvm_offset_t dev_length, rvm_options_t *options, rvm_length_t count,
                                rvm_region_def_t *defs)
{
    rvm_region_t page;
    if (dev == NULL || count == 0 || defs == NULL || count > most_regions())
        return RVM_EREGION_DEF;
    rvm_region_def_t *sorted = malloc(count * sizeof *sorted);
    if (sorted == NULL)
        return RVM_ENO_MEMORY;
    memcpy(sorted, defs, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_address);
    int fits = !overlapping(sorted, count);
    for (rvm_length_t i = 0; i < count; i++) {
        /* Only the last may end within a page, or at the segment's end. */
        int whole = sorted[i].length != 0 && sorted[i].length % RVM_PAGE_SIZE == 0;
        fits = fits && (rvm_length_t)sorted[i].vmaddr % RVM_PAGE_SIZE == 0 && (whole || i + 1 == count);
    }
    rvm_return_t code = !fits ? RVM_ERANGE : map_header(dev, dev_length, options, &page);
    if (code == RVM_SUCCESS) {
        if (page.length < sizeof(struct header) + count * sizeof((struct header *)0)->regions[0])
            code = RVM_EOFFSET;
        else
            code = write_header((struct header *)page.vmaddr, count, sorted);
        code = unmap_header(&page, code);
    }
    free(sorted);
    return code;
}

/* What a header says; a code if it is none. */
static rvm_return_t read_header(const rvm_region_t *page, unsigned long *count, rvm_region_def_t **defs)
{
    const struct header *header = (const struct header *)page->vmaddr;
    if (page->length < sizeof *header || header->id != HEADER_ID)
        return RVM_ESEGMENT_HDR;
    if (strncmp(header->version, HEADER_VERSION, sizeof header->version) != 0)
        return RVM_EVERSION_SKEW;
    if (header->count == 0 || header->count > (page->length - sizeof *header) / sizeof header->regions[0])
        return RVM_ESEGMENT_HDR;
    *count = header->count;
    *defs = malloc(*count * sizeof **defs);
    rvm_region_def_t *sorted = malloc(*count * sizeof *sorted);
    rvm_return_t code = *defs == NULL || sorted == NULL ? RVM_ENO_MEMORY : RVM_SUCCESS;
    if (code == RVM_SUCCESS) {
        for (unsigned long i = 0; i < *count; i++) {
            (*defs)[i].offset = rvm_mk_offset(header->regions[i].offset_high, header->regions[i].offset_low);
            (*defs)[i].length = header->regions[i].length;
            (*defs)[i].vmaddr = (char *)(uintptr_t)header->regions[i].vmaddr;
        }
        memcpy(sorted, *defs, *count * sizeof *sorted);
        qsort(sorted, *count, sizeof *sorted, by_address);
        if (overlapping(sorted, *count))
            code = RVM_EVM_OVERLAP;
    }
    free(sorted);
    if (code != RVM_SUCCESS) {
        free(*defs);
        *defs = NULL;
    }
    return code;
}

static rvm_return_t unmap_defs(unsigned long count, const rvm_region_def_t *defs)
{
    rvm_return_t code = RVM_SUCCESS;
    for (unsigned long i = 0; i < count; i++) {
        rvm_region_t region;
        rvm_init_region(&region);
        region.vmaddr = defs[i].vmaddr;
        region.length = defs[i].length;
        code = rvm_unmap(&region);
        if (code == RVM_SUCCESS)
            munmap(region.vmaddr, RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(region.length));
    }
    return code;
}

/* Bytes from an offset to the end of a segment. */
static rvm_length_t to_the_end(const char *dev, rvm_offset_t dev_length, rvm_offset_t offset)
{
    struct stat about;
    rvm_length_t end = RVM_OFFSET_TO_LENGTH(dev_length), from = RVM_OFFSET_TO_LENGTH(offset);
    if (stat(dev, &about) == 0 && S_ISREG(about.st_mode))
        end = (rvm_length_t)about.st_size;
    return end > from ? end - from : 0;
}

/* Whether nothing is in an address range of this process. */
static int is_free(char *start, rvm_length_t length)
{
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    length = RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(length);
    /* Kernels before 4.17 take the flag for a hint. */
    char *there = mmap(start, length, PROT_NONE, kind, -1, 0);
    if (there != MAP_FAILED)
        munmap(there, length);
    return there == start;
}

rvm_return_t rvm_load_segment(char *dev, rvm_offset_t dev_length, rvm_options_t *options, unsigned long *count,
                              rvm_region_def_t *defs[])
{
    rvm_region_t page;
    rvm_region_def_t *found = NULL;
    unsigned long mapped = 0, n = 0;
    if (dev == NULL || count == NULL || defs == NULL)
        return RVM_EREGION_DEF;
    rvm_return_t code = map_header(dev, dev_length, options, &page);
    if (code != RVM_SUCCESS)
        return code;
    code = read_header(&page, &n, &found);
    code = unmap_header(&page, code);
    for (; code == RVM_SUCCESS && mapped < n; mapped++) {
        rvm_region_t region;
        rvm_init_region(&region);
        region.data_dev = dev;
        region.dev_length = dev_length;
        region.offset = found[mapped].offset;
        region.length = found[mapped].length;
        region.vmaddr = found[mapped].vmaddr;
        /* What the program has there is not given up for it. */
        rvm_length_t taken = region.length != 0 ? region.length : to_the_end(dev, dev_length, region.offset);
        code = is_free(region.vmaddr, taken) ? rvm_map(&region, NULL) : RVM_EINTERNAL;
        if (code != RVM_SUCCESS)
            break;
        found[mapped].length = region.length;
    }
    if (code != RVM_SUCCESS) {
        unmap_defs(mapped, found);
        free(found);
        return code;
    }
    rds_rvmsize = 0;
    for (unsigned long i = 0; i < n; i++)
        rds_rvmsize += (long)found[i].length;
    rds_startaddr = found[0].vmaddr;
    *count = n;
    *defs = found;
    return RVM_SUCCESS;
}

rvm_return_t rvm_release_segment(unsigned long count, rvm_region_def_t **defs)
{
    if (defs == NULL || *defs == NULL)
        return RVM_EREGION_DEF;
    rvm_return_t code = unmap_defs(count, *defs);
    free(*defs);
    *defs = NULL;
    return code;
}
