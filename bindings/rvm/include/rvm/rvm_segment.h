/* rvm/rvm_segment.h: segments that say themselves which regions they have, and at which addresses. */
#ifndef RVM_SEGMENT_H
#define RVM_SEGMENT_H

#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The header takes the segment's first page. */
#define RVM_SEGMENT_HDR_SIZE RVM_PAGE_SIZE

typedef struct {
    rvm_offset_t offset;
    rvm_length_t length;
    char *vmaddr;
} rvm_region_def_t;

/* Three statements: r is an lvalue. */
#define RVM_INIT_REGION(r, off, len, addr) \
    (r).length = (len);                    \
    (r).vmaddr = (addr);                   \
    (r).offset = (off);

/* The header is not one. */
#define RVM_ESEGMENT_HDR 2000

extern rvm_return_t rvm_create_segment(char *dev_name, rvm_offset_t dev_length, rvm_options_t *options,
                                       rvm_length_t nregions, rvm_region_def_t *region_defs);
extern rvm_return_t rvm_load_segment(char *dev_name, rvm_offset_t dev_length, rvm_options_t *options,
                                     unsigned long *nregions, rvm_region_def_t *regions[]);
extern rvm_return_t rvm_release_segment(unsigned long nregions, rvm_region_def_t **regions);

#ifdef __cplusplus
}
#endif
#endif
