/* A program that goes to the background closes its standard streams, at any time, and prints all the same: nothing
   that it prints gets into a store. */
#include "check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Closes the streams. */
static void leave_terminal(void)
{
    for (int stream = 0; stream < 3; stream++)
        close(stream);
}

/* What is printed goes nowhere. */
static void print_all(void)
{
    struct stat about;
    for (int stream = 0; stream < 3; stream++) {
        CHECK(fstat(stream, &about) != 0 || about.st_rdev == makedev(1, 3));
        dprintf(stream, "a warning of the program's, of which there are many in a day\n");
    }
}

static void run(const char *path, int policy)
{
    int forced = policy == CALIBURN_UNDO ? CALIBURN_PROCESS : CALIBURN_POWER;
    leave_terminal();
    caliburn_store *store = opened(path, policy);
    print_all();
    leave_terminal();
    caliburn_region *first = mapped(store, "first", 1 << 20);
    print_all();
    leave_terminal();
    caliburn_region *second = mapped(store, "second", 1 << 20);
    long *word = caliburn_region_address(second);
    for (long i = 0; i < 100; i++) {
        caliburn_tx tx = CALIBURN_TX_INITIALIZER;
        OK(caliburn_begin(store, CALIBURN_RESTORE, &tx));
        OK(caliburn_set_range(&tx, word, sizeof *word));
        *word = i;
        OK(caliburn_commit(&tx, forced));
        print_all();
    }
    OK(caliburn_unmap(first));
    OK(caliburn_unmap(second));
    OK(caliburn_close(store));
    leave_terminal();
    store = opened(path, policy);
    second = mapped(store, "second", 1 << 20);
    CHECK(*(long *)caliburn_region_address(second) == 99);
    OK(caliburn_unmap(second));
    OK(caliburn_close(store));
}

int main(int count, char **arguments)
{
    const int policies[] = {CALIBURN_REDO, CALIBURN_UNDO, CALIBURN_SHADOW};
    const char *dir = count > 1 ? arguments[1] : ".";
    /* Where it says what is wrong. */
    int says = fcntl(2, F_DUPFD_CLOEXEC, 100);
    if (says < 0 || (stderr = fdopen(says, "w")) == NULL)
        return 1;
    for (int i = 0; i < 3; i++) {
        char name[8];
        sprintf(name, "s%d", i);
        char *path = in(dir, name);
        run(path, policies[i]);
        free(path);
    }
    return 0;
}
