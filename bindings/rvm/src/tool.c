/* What the tools do with RVM, each in a life of its own. */
#include <rvm/rds.h>

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

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

/* Makes a file of so many zeros, allocated, so that no later store finds the disk full. */
static int make_file(const char *path, unsigned long length)
{
    static const char zeros[1 << 16];
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int made = file >= 0;
    while (made && length > 0) {
        ssize_t written = write(file, zeros, length < sizeof zeros ? length : sizeof zeros);
        made = written > 0;
        length -= made ? (unsigned long)written : 0;
    }
    made = made && fsync(file) == 0;
    if (file >= 0)
        made = close(file) == 0 && made;
    return made;
}

/* Makes a file a segment with a heap. What the log holds for it is applied before it is made anew. */
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
    /* Before the file is lost. */
    if (chunk < 40 || chunk % 8 != 0 || lists == 0) {
        rvm_terminate();
        return EBAD_ARGS;
    }
    if (!make_file(data, length)) {
        perror(data);
        rvm_terminate();
        return RVM_EIO;
    }
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
