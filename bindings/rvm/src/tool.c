/* What the tools do with RVM, each in a life of its own. */
#include <rvm/rds.h>

#include <stdio.h>

int rvm_tool_make_log(const char *log, unsigned long length);
int rvm_tool_zap(const char *log, const char *data, unsigned long length, unsigned long start,
                 unsigned long static_length, unsigned long heap_length, unsigned long lists, unsigned long chunk);

/* Makes a log. */
int rvm_tool_make_log(const char *log, unsigned long length)
{
    rvm_options_t options;
    rvm_offset_t size = RVM_MK_OFFSET(0, length);
    rvm_init_options(&options);
    options.log_dev = (char *)log;
    rvm_return_t code = RVM_INIT(NULL);
    if (code != RVM_SUCCESS)
        return code;
    code = rvm_create_log(&options, &size, 0600);
    rvm_terminate();
    return code;
}

/* Makes a file a segment with a heap. */
int rvm_tool_zap(const char *log, const char *data, unsigned long length, unsigned long start,
                 unsigned long static_length, unsigned long heap_length, unsigned long lists, unsigned long chunk)
{
    rvm_options_t options;
    int err;
    rvm_init_options(&options);
    options.log_dev = (char *)log;
    rvm_return_t code = RVM_INIT(&options);
    if (code != RVM_SUCCESS)
        return code;
    printf("rvm_initialize succeeded.\n");
    if (rds_zap_heap((char *)data, RVM_MK_OFFSET(0, length), (char *)start, static_length, heap_length, lists, chunk,
                     &err) != 0)
        code = err;
    else
        printf("rds_zap_heap completed successfully.\n");
    rvm_return_t ended = rvm_terminate();
    if (ended == RVM_SUCCESS)
        printf("rvm_terminate succeeded.\n");
    fflush(stdout);
    return code != RVM_SUCCESS ? code : ended;
}
