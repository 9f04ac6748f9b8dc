/* Blocks and the lists of free ones. Everything here is called under the heap's lock, with an open transaction. */
#include "rds_state.h"

#include <string.h>

/* Where blocks begin: at the first multiple of the chunk's size behind the header. */
struct block *first_block(void)
{
    uintptr_t at = (uintptr_t)&heap->lists[heap->lists_count + 1];
    return (struct block *)((at + heap->chunk - 1) / heap->chunk * heap->chunk);
}

/* Where no block can begin any more. */
struct block *end_of_heap(void)
{
    return (struct block *)((char *)heap + heap->length);
}

static int declare(rvm_tid_t *tid, void *start, rvm_length_t length)
{
    return rvm_set_range(tid, start, length);
}

int change_stats(rvm_tid_t *tid)
{
    return declare(tid, &heap->stats, sizeof heap->stats);
}

/* Declares the words of a block that say what it is, its end guard if it moves, too. */
static int declare_block(rvm_tid_t *tid, struct block *block, int links)
{
    return declare(tid, block, links ? sizeof *block : 2 * sizeof(uint64_t));
}

/* Whether there is room for a block at an address: what is in a heap may point anywhere. */
int is_inside(const struct block *block)
{
    return block >= first_block() && block < end_of_heap() && (uintptr_t)block % sizeof(uint64_t) == 0 &&
           (uint64_t)((char *)end_of_heap() - (char *)block) >= heap->chunk;
}

/* Whether a block is whole: within the heap, its guards as they must be. */
static int is_sound(const struct block *block, uint64_t type)
{
    if (!is_inside(block))
        return 0;
    uint64_t room = (uint64_t)((char *)end_of_heap() - (char *)block);
    return block->type == type && block->size > 0 && block->size <= room / heap->chunk &&
           (uint32_t)*end_guard(block) == END_GUARD;
}

/* Makes the largest list that may have blocks known. */
static int set_largest(uint64_t list, rvm_tid_t *tid)
{
    if (heap->largest == list)
        return SUCCESS;
    int code = declare(tid, &heap->largest, sizeof heap->largest);
    if (code == RVM_SUCCESS)
        heap->largest = list;
    return code;
}

/* The list that begins with a block; null if none does. The original puts a block that is larger than the largest list with
   any on that one, so that it may be on a list of smaller ones. */
static struct list *list_of(const struct block *block)
{
    if (heap->lists[list_for(block->size)].head == block)
        return &heap->lists[list_for(block->size)];
    for (uint64_t number = 1; number <= heap->lists_count; number++)
        if (heap->lists[number].head == block)
            return &heap->lists[number];
    return NULL;
}

/* Takes a free block off its list. */
static int unlink_block(struct block *block, rvm_tid_t *tid)
{
    struct list *list = block->previous == NULL ? list_of(block) : NULL;
    if (block->previous == NULL && (list == NULL || list->guard != LIST_GUARD))
        return EBAD_LIST;
    if ((block->previous != NULL && !is_inside(block->previous)) || (block->next != NULL && !is_inside(block->next)))
        return ECORRUPT;
    struct block **before = list != NULL ? &list->head : &block->previous->next;
    if (*before != block)
        return EBAD_LIST;
    int code = declare(tid, before, sizeof *before);
    if (code == RVM_SUCCESS && block->next != NULL)
        code = declare(tid, &block->next->previous, sizeof block->next->previous);
    if (code != RVM_SUCCESS)
        return code;
    *before = block->next;
    if (block->next != NULL)
        block->next->previous = block->previous;
    if (block->size >= heap->lists_count)
        heap->stats.large_list--;
    uint64_t largest = heap->largest;
    while (largest > 1 && heap->lists[largest].head == NULL)
        largest--;
    return set_largest(largest, tid);
}

/* Puts a block of so many chunks on its list, as a free one with both guards. */
static int link_block(struct block *block, uint64_t chunks, rvm_tid_t *tid)
{
    uint64_t number = list_for(chunks);
    struct list *list = &heap->lists[number];
    if (list->guard != LIST_GUARD)
        return EBAD_LIST;
    if (list->head != NULL && !is_inside(list->head))
        return ECORRUPT;
    int code = declare_block(tid, block, 1);
    if (code == RVM_SUCCESS)
        code = declare(tid, (char *)block + chunks * heap->chunk - sizeof(uint64_t), sizeof(uint64_t));
    if (code == RVM_SUCCESS)
        code = declare(tid, &list->head, sizeof list->head);
    if (code == RVM_SUCCESS && list->head != NULL)
        code = declare(tid, &list->head->previous, sizeof list->head->previous);
    if (code != RVM_SUCCESS)
        return code;
    block->type = FREE_TYPE;
    block->size = chunks;
    *end_guard(block) = END_GUARD;
    block->previous = NULL;
    block->next = list->head;
    if (list->head != NULL)
        list->head->previous = block;
    list->head = block;
    if (number == heap->lists_count)
        heap->stats.large_list++;
    return number > heap->largest ? set_largest(number, tid) : SUCCESS;
}

/* The smallest free block of at least so many chunks on the lists from a number on; null if there is none. A list that
   is not one is an error. */
static int look_from(uint64_t number, uint64_t chunks, struct block **found)
{
    /* No list has more blocks than there is room for: it goes round in a circle. */
    uint64_t most = heap->length / heap->chunk;
    *found = NULL;
    for (; number <= heap->largest && *found == NULL; number++) {
        if (heap->lists[number].guard != LIST_GUARD)
            return EBAD_LIST;
        for (struct block *block = heap->lists[number].head; block != NULL; block = block->next) {
            if (!is_sound(block, FREE_TYPE) || most-- == 0)
                return ECORRUPT;
            if (block->size >= chunks && (*found == NULL || block->size < (*found)->size))
                *found = block;
            if (*found != NULL && (*found)->size <= (number > chunks ? number : chunks))
                break;
        }
    }
    return SUCCESS;
}

static int look(uint64_t chunks, struct block **found)
{
    uint64_t number = list_for(chunks);
    return look_from(number < heap->largest ? number : heap->largest, chunks, found);
}

/* Whether a block of that size can be had as things are. */
int is_there(uint64_t chunks)
{
    struct block *found;
    return look(chunks, &found) == SUCCESS && found != NULL;
}

/* Merges neighbours that are free. */
static int coalesce(rvm_tid_t *tid)
{
    heap->stats.coalesce++;
    struct block *block = first_block();
    while (block < end_of_heap() && (is_sound(block, FREE_TYPE) || is_sound(block, ALLOCATED_TYPE))) {
        uint64_t size = block->size;
        if (block->type == FREE_TYPE) {
            struct block *next = after(block);
            int merged = 0;
            while (next < end_of_heap() && is_sound(next, FREE_TYPE)) {
                int code = unlink_block(next, tid);
                if (code != SUCCESS)
                    return code;
                size += next->size;
                next = after(next);
                heap->stats.merged++;
                merged = 1;
            }
            if (merged) {
                int code = unlink_block(block, tid);
                if (code == SUCCESS)
                    code = link_block(block, size, tid);
                if (code != SUCCESS)
                    return code;
            } else {
                heap->stats.unmerged++;
            }
        }
        block = (struct block *)((char *)block + size * heap->chunk);
    }
    return SUCCESS;
}

/* Takes so many chunks from a free block, whose rest stays free. */
static int cut(struct block *block, uint64_t chunks, rvm_tid_t *tid)
{
    int code = unlink_block(block, tid);
    if (code == SUCCESS && block->size > chunks) {
        struct block *rest = (struct block *)((char *)block + chunks * heap->chunk);
        code = link_block(rest, block->size - chunks, tid);
        if (code == SUCCESS)
            code = declare(tid, (uint64_t *)rest - 1, sizeof(uint64_t));
        if (code == SUCCESS)
            code = declare_block(tid, block, 0);
        if (code == SUCCESS) {
            block->size = chunks;
            *end_guard(block) = END_GUARD;
        }
    }
    return code;
}

/* Takes a block of so many chunks, allocated. The statistics are declared. */
int take_block(uint64_t chunks, rvm_tid_t *tid, struct block **taken)
{
    int code = look(chunks, taken);
    if (code == SUCCESS && *taken == NULL) {
        code = coalesce(tid);
        /* Also on lists of smaller ones. */
        if (code == SUCCESS)
            code = look_from(1, chunks, taken);
    }
    if (code != SUCCESS)
        return code;
    if (*taken == NULL)
        return ENO_ROOM;
    int exact = (*taken)->size == chunks;
    if (chunks < heap->lists_count)
        *(exact ? &heap->stats.hits : &heap->stats.misses) += 1;
    else
        *(exact ? &heap->stats.large_hits : &heap->stats.large_misses) += 1;
    code = cut(*taken, chunks, tid);
    if (code == SUCCESS)
        code = declare_block(tid, *taken, 0);
    if (code != SUCCESS)
        return code;
    (*taken)->type = ALLOCATED_TYPE;
    heap->stats.freebytes -= (unsigned)(chunks * heap->chunk);
    heap->stats.mallocbytes += (unsigned)(chunks * heap->chunk);
    return SUCCESS;
}

/* Cuts free blocks of so many chunks, which stay free. */
int make_blocks(uint64_t chunks, unsigned long count, rvm_tid_t *tid)
{
    struct block *made = NULL, *block;
    int code = SUCCESS;
    /* Nobody has asked for these. */
    unsigned hits = heap->stats.hits, misses = heap->stats.misses;
    unsigned large_hits = heap->stats.large_hits, large_misses = heap->stats.large_misses;
    /* Off the lists until there are enough, or the same would be found again. */
    for (; code == SUCCESS && count > 0; count--) {
        code = take_block(chunks, tid, &block);
        if (code == SUCCESS)
            code = declare_block(tid, block, 1);
        if (code == SUCCESS) {
            block->next = made;
            made = block;
        }
    }
    heap->stats.hits = hits;
    heap->stats.misses = misses;
    heap->stats.large_hits = large_hits;
    heap->stats.large_misses = large_misses;
    /* Also if there were not: the transaction may be the caller's, who goes on. */
    while (made != NULL) {
        block = made;
        made = made->next;
        int put = put_block(block, tid);
        if (code == SUCCESS)
            code = put;
    }
    return code;
}

/* Puts an allocated block back. */
int put_block(struct block *block, rvm_tid_t *tid)
{
    heap->stats.freebytes += (unsigned)(block->size * heap->chunk);
    heap->stats.mallocbytes -= (unsigned)(block->size * heap->chunk);
    return link_block(block, block->size, tid);
}

/* The allocated block of data at an address. */
int find_block(const char *data, struct block **found)
{
    struct block *block = (struct block *)(data - 2 * sizeof(uint64_t));
    if (data == NULL || !is_inside(block))
        return EBAD_ARGS;
    if (block->type == FREE_TYPE)
        return EFREED_TWICE;
    if (!is_sound(block, ALLOCATED_TYPE))
        return ECORRUPT;
    *found = block;
    return SUCCESS;
}
