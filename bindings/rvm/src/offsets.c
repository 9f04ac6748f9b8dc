/* Offsets of two words, and pages. */
#include "rvm_state.h"

#include <unistd.h>

rvm_offset_t rvm_mk_offset(rvm_length_t high, rvm_length_t low)
{
    rvm_offset_t offset = {high, low};
    return offset;
}

rvm_offset_t rvm_add_offsets(rvm_offset_t *x, rvm_offset_t *y)
{
    rvm_length_t low = x->low + y->low;
    return rvm_mk_offset(x->high + y->high + (low < x->low), low);
}

rvm_offset_t rvm_sub_offsets(rvm_offset_t *x, rvm_offset_t *y)
{
    return rvm_mk_offset(x->high - y->high - (x->low < y->low), x->low - y->low);
}

rvm_offset_t rvm_add_length_to_offset(rvm_offset_t *offset, rvm_length_t length)
{
    rvm_offset_t other = {0, length};
    return rvm_add_offsets(offset, &other);
}

rvm_offset_t rvm_sub_length_from_offset(rvm_offset_t *offset, rvm_length_t length)
{
    rvm_offset_t other = {0, length};
    return rvm_sub_offsets(offset, &other);
}

rvm_length_t rvm_page_size(void)
{
    return (rvm_length_t)sysconf(_SC_PAGESIZE);
}

rvm_length_t rvm_page_mask(void)
{
    return ~(rvm_page_size() - 1);
}

rvm_offset_t rvm_rnd_offset_dn_to_page(rvm_offset_t *x)
{
    return rvm_mk_offset(x->high, x->low & rvm_page_mask());
}

rvm_offset_t rvm_rnd_offset_up_to_page(rvm_offset_t *x)
{
    rvm_offset_t up = rvm_add_length_to_offset(x, rvm_page_size() - 1);
    return rvm_rnd_offset_dn_to_page(&up);
}
