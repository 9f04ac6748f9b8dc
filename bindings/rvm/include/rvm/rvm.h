/*
 * rvm/rvm.h: the interface of RVM 1.3, provided by Caliburn.
 *
 * Programs written for RVM compile against this header unchanged. What the calls do is in the section 3 manual
 * pages; the mapping to Caliburn is in the C tutorial. The library keeps, beside a log LOG, a directory LOG.caliburn.
 */
#ifndef RVM_VERSION
#define RVM_VERSION "RVM Interface Version 1.3  7 Mar 1994"
#define RVM_VERSION_MAX 128

#include <sys/param.h>
#include <sys/time.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef _PARALLEL_LIBRARIES
#define _PARALLEL_LIBRARIES 1
#endif
#ifndef TRUE
#define TRUE 1
#endif
#ifndef FALSE
#define FALSE 0
#endif

/* Lengths, offsets, truth. */
typedef unsigned long rvm_length_t;

typedef struct {
    rvm_length_t high; /* the more significant word */
    rvm_length_t low;
} rvm_offset_t;

typedef enum { rvm_false = 0, rvm_true = 1 } rvm_bool_t;

/* What a structure is. */
typedef enum {
    rvm_first_struct_id = 39,
    rvm_region_id = 40,
    rvm_options_id = 41,
    rvm_tid_id = 42,
    rvm_statistics_id = 43,
    rvm_last_struct_id = 44
} rvm_struct_id_t;

/* How transactions begin and end. */
typedef enum {
    rvm_first_mode = 139,
    restore = 140,
    no_restore = 141,
    flush = 142,
    no_flush = 143,
    rvm_last_mode = 144
} rvm_mode_t;

/* Return codes. */
typedef int rvm_return_t;

#define RVM_SUCCESS 0
#define rvm_first_code 199
#define RVM_EINIT 200             /* not initialised, or terminated */
#define RVM_EINTERNAL 201         /* internal error */
#define RVM_EIO 202               /* errno has the cause */
#define RVM_ELOG 204              /* no log, or not a log */
#define RVM_ELOG_VERSION_SKEW 205 /* log of another format version */
#define RVM_EMODE 206             /* not a mode for this call */
#define RVM_ENAME_TOO_LONG 207    /* file name too long */
#define RVM_ENO_MEMORY 208        /* no memory */
#define RVM_ENOT_MAPPED 209       /* not in a mapped region */
#define RVM_EOFFSET 210           /* offset or length beyond the device */
#define RVM_EOPTIONS 211          /* not an options record */
#define RVM_EOVERLAP 212          /* part of the segment is mapped already */
#define RVM_EPAGER 213            /* no external pagers */
#define RVM_ERANGE 214            /* not the range of a region, or not page-aligned */
#define RVM_EREGION 215           /* not a region record */
#define RVM_EREGION_DEF 216       /* not a region definition */
#define RVM_ESRC 217              /* address range out of bounds */
#define RVM_ESTATISTICS 218       /* not a statistics record */
#define RVM_ESTAT_VERSION_SKEW 219 /* statistics of another version */
#define RVM_ETERMINATED 220       /* terminated by an earlier error */
#define RVM_ETHREADS 221          /* wrong thread package */
#define RVM_ETID 222              /* not a transaction, or not begun */
#define RVM_ETOO_BIG 223          /* larger than the log */
#define RVM_EUNCOMMIT 224         /* uncommitted transactions */
#define RVM_EVERSION_SKEW 225     /* compiled with another version's header */
#define RVM_EVM_OVERLAP 226       /* the address range is a region's already */
#define rvm_last_code 227

/* A transaction. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    struct timeval uname; /* its name, unique within the process */
    void *tid;            /* the library's */
    rvm_length_t reserved;
} rvm_tid_t;

/* Options: of the library, of a log to be made, of a mapping. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    char *log_dev;                 /* name of the log */
    long truncate;                 /* percentage of the log in use at which truncation begins */
    rvm_length_t recovery_buf_len; /* bytes of buffers, for old programs */
    rvm_length_t flush_buf_len;
    rvm_length_t max_read_len;
    rvm_bool_t log_empty;          /* out: nothing in the log is to be applied */
    char *pager;
    long n_uncommit;               /* out: open transactions */
    rvm_tid_t *tid_array;          /* out: these */
    rvm_length_t flags;
    rvm_bool_t create_log_file;    /* in: make the log first */
    rvm_offset_t create_log_size;
    long create_log_mode;
} rvm_options_t;

#define TRUNCATE 50
#define RECOVERY_BUF_LEN 262144
#define MIN_RECOVERY_BUF_LEN 65536
#define FLUSH_BUF_LEN 262144
#define MIN_FLUSH_BUF_LEN 65536
#define MAX_READ_LEN 524288

/* Flags. */
#define RVM_COALESCE_RANGES 1
#define RVM_COALESCE_TRANS 2
#define RVM_ALL_OPTIMIZATIONS (RVM_COALESCE_RANGES | RVM_COALESCE_TRANS)
#define RVM_MAP_PRIVATE 8

/* A part of a segment, and where it is mapped. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    char *data_dev;          /* name of the segment's file or device */
    rvm_offset_t dev_length; /* of a device */
    rvm_offset_t offset;
    char *vmaddr;
    rvm_length_t length;
    rvm_bool_t no_copy;      /* leave the memory as it is */
} rvm_region_t;

/* Programs set it for threads that must not give way within RVM. Here they may: nothing reads it. */
extern long rvm_no_yield;

/* Starting and stopping. */
extern rvm_return_t rvm_initialize(const char *rvm_version, rvm_options_t *rvm_options);
extern rvm_return_t rvm_terminate(void);
extern rvm_return_t rvm_set_options(rvm_options_t *rvm_options);
extern rvm_return_t rvm_query(rvm_options_t *rvm_options, rvm_region_t *region);
extern rvm_return_t rvm_create_log(rvm_options_t *rvm_options, rvm_offset_t *log_len, long mode);

#define RVM_INIT(options) rvm_initialize(RVM_VERSION, (options))

/* Mapping. */
extern rvm_return_t rvm_map(rvm_region_t *region, rvm_options_t *rvm_options);
extern rvm_return_t rvm_unmap(rvm_region_t *region);

/* Transactions. */
extern rvm_return_t rvm_begin_transaction(rvm_tid_t *tid, rvm_mode_t mode);
extern rvm_return_t rvm_set_range(rvm_tid_t *tid, void *dest, rvm_length_t length);
extern rvm_return_t rvm_modify_bytes(rvm_tid_t *tid, void *dest, const void *src, rvm_length_t length);
extern rvm_return_t rvm_abort_transaction(rvm_tid_t *tid);
extern rvm_return_t rvm_end_transaction(rvm_tid_t *tid, rvm_mode_t mode);
extern rvm_return_t rvm_flush(void);
extern rvm_return_t rvm_truncate(void);

/* Names of codes, modes and structures. */
extern char *rvm_return(rvm_return_t code);
extern char *rvm_mode(rvm_mode_t mode);
extern char *rvm_type(rvm_struct_id_t id);

/* Records: made, initialised, copied, freed. */
extern rvm_region_t *rvm_malloc_region(void);
extern void rvm_init_region(rvm_region_t *region);
extern rvm_region_t *rvm_copy_region(rvm_region_t *region);
extern void rvm_free_region(rvm_region_t *region);

extern rvm_options_t *rvm_malloc_options(void);
extern void rvm_init_options(rvm_options_t *rvm_options);
extern rvm_options_t *rvm_copy_options(rvm_options_t *rvm_options);
extern void rvm_free_options(rvm_options_t *rvm_options);

extern rvm_tid_t *rvm_malloc_tid(void);
extern void rvm_init_tid(rvm_tid_t *tid);
extern rvm_tid_t *rvm_copy_tid(rvm_tid_t *tid);
extern void rvm_free_tid(rvm_tid_t *tid);

/* Offsets of two words, and pages. */
extern rvm_offset_t rvm_mk_offset(rvm_length_t high, rvm_length_t low);
extern rvm_offset_t rvm_add_offsets(rvm_offset_t *x, rvm_offset_t *y);
extern rvm_offset_t rvm_sub_offsets(rvm_offset_t *x, rvm_offset_t *y);
extern rvm_offset_t rvm_add_length_to_offset(rvm_offset_t *offset, rvm_length_t length);
extern rvm_offset_t rvm_sub_length_from_offset(rvm_offset_t *offset, rvm_length_t length);
extern rvm_length_t rvm_page_size(void);
extern rvm_length_t rvm_page_mask(void);
extern rvm_offset_t rvm_rnd_offset_up_to_page(rvm_offset_t *x);
extern rvm_offset_t rvm_rnd_offset_dn_to_page(rvm_offset_t *x);

#define RVM_MK_OFFSET(x, y) (rvm_mk_offset((rvm_length_t)(x), (rvm_length_t)(y)))
#define RVM_OFFSET_INITIALIZER(x, y) { (rvm_length_t)(x), (rvm_length_t)(y) }
#define RVM_ZERO_OFFSET(x) ((x).high = 0, (x).low = 0)
#define RVM_OFFSET_TO_LENGTH(x) ((x).low)
#define RVM_OFFSET_HIGH_BITS_TO_LENGTH(x) ((x).high)
#define RVM_LENGTH_TO_OFFSET(length) (RVM_MK_OFFSET(0, (length)))
#define RVM_ADD_OFFSETS(x, y) (rvm_add_offsets(&(x), &(y)))
#define RVM_SUB_OFFSETS(x, y) (rvm_sub_offsets(&(x), &(y)))
#define RVM_ADD_LENGTH_TO_OFFSET(x, length) (rvm_add_length_to_offset(&(x), (rvm_length_t)(length)))
#define RVM_SUB_LENGTH_FROM_OFFSET(x, length) (rvm_sub_length_from_offset(&(x), (rvm_length_t)(length)))
#define RVM_ADD_LENGTH_TO_ADDR(length, addr) ((char *)((rvm_length_t)(length) + (rvm_length_t)(addr)))
#define RVM_SUB_LENGTH_FROM_ADDR(addr, length) ((char *)((rvm_length_t)(addr) - (rvm_length_t)(length)))

#define RVM_OFFSET_LSS(x, y) (((x).high < (y).high) || (((x).high == (y).high) && ((x).low < (y).low)))
#define RVM_OFFSET_GTR(x, y) (((x).high > (y).high) || (((x).high == (y).high) && ((x).low > (y).low)))
#define RVM_OFFSET_LEQ(x, y) (!RVM_OFFSET_GTR((x), (y)))
#define RVM_OFFSET_GEQ(x, y) (!RVM_OFFSET_LSS((x), (y)))
#define RVM_OFFSET_EQL(x, y) (((x).high == (y).high) && ((x).low == (y).low))
#define RVM_OFFSET_EQL_ZERO(x) (((x).high == 0) && ((x).low == 0))

#define RVM_PAGE_SIZE (rvm_page_size())
#define RVM_ROUND_LENGTH_DOWN_TO_PAGE_SIZE(length) ((rvm_length_t)(length) & rvm_page_mask())
#define RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(length) \
    (((rvm_length_t)(length) + rvm_page_size() - 1) & rvm_page_mask())
#define RVM_ROUND_ADDR_DOWN_TO_PAGE_SIZE(addr) ((char *)RVM_ROUND_LENGTH_DOWN_TO_PAGE_SIZE(addr))
#define RVM_ROUND_ADDR_UP_TO_PAGE_SIZE(addr) ((char *)RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(addr))
#define RVM_ROUND_OFFSET_DOWN_TO_PAGE_SIZE(x) (rvm_rnd_offset_dn_to_page(&(x)))
#define RVM_ROUND_OFFSET_UP_TO_PAGE_SIZE(x) (rvm_rnd_offset_up_to_page(&(x)))

#ifdef __cplusplus
}
#endif
#endif /* RVM_VERSION */
