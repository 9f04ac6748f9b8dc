/* Vista's calls follow sections 3 and 4 of the paper: each store survives, each transaction is undone until its end. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>
#include <vista.h>

struct message {
    char text[64];
    uint64_t number;
};

static void first_life(const char *path)
{
    OK(vista_init(path));
    int64_t *words = vista_map("words", 65536);
    CHECK(words != NULL && words[0] == 0);
    vista_tid tid = VISTA_TID;
    OK(vista_begin_transaction(&tid));
    OK(vista_set_range(&tid, words, 16));
    words[0] = 1;
    words[1] = 2;
    struct message *kept = vista_malloc(&tid, sizeof *kept);
    CHECK(kept != NULL);
    strcpy(kept->text, "kept");
    kept->number = 7;
    OK(vista_set_root(&tid, "message", kept));
    OK(vista_end_transaction(&tid));

    /* Memory that was allocated goes back, what was freed stays, when a transaction aborts. */
    OK(vista_begin_transaction(&tid));
    struct message *gone = vista_malloc(&tid, sizeof *gone);
    OK(vista_free(&tid, kept));
    OK(vista_set_range(&tid, words, 8));
    words[0] = 3;
    OK(vista_abort_transaction(&tid));
    CHECK(words[0] == 1 && vista_root("message") == kept);
    OK(vista_begin_transaction(&tid));
    FAILS(CALIBURN_NOT_ALLOCATED, vista_free(&tid, gone));
    FAILS(CALIBURN_NOT_ALLOCATED, vista_free(&tid, words));
    OK(vista_set_range(&tid, words, 8));
    words[0] = 4;
    raise(SIGKILL);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    char *path = in(argv[1], "store");
    pid_t child = fork();
    if (child == 0)
        first_life(path);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    OK(vista_init(path));
    int64_t *words = vista_map("words", 65536);
    struct message *kept = vista_root("message");
    CHECK(words[0] == 1 && words[1] == 2 && kept != NULL && strcmp(kept->text, "kept") == 0 && kept->number == 7);
    vista_tid tid = VISTA_TID;
    OK(vista_begin_transaction(&tid));
    OK(vista_free(&tid, kept));
    OK(vista_set_root(&tid, "message", NULL));
    OK(vista_end_transaction(&tid));
    CHECK(vista_root("message") == NULL);
    OK(vista_exit());

    /* Nothing is declared. */
    char *found = in(argv[1], "found");
    OK(vista_init_tracking(found, CALIBURN_FAULTS));
    words = vista_map("words", 65536);
    CHECK(words != NULL);
    for (int turn = 0; turn < 4; turn++) {
        tid = (vista_tid)VISTA_TID;
        OK(vista_begin_transaction(&tid));
        for (int i = 0; i < 8000; i += 100)
            words[i] = turn;
        kept = vista_malloc(&tid, sizeof *kept);
        CHECK(kept != NULL);
        kept->number = turn;
        OK(vista_set_root(&tid, "message", kept));
        OK(turn < 3 ? vista_end_transaction(&tid) : vista_abort_transaction(&tid));
    }
    for (int i = 0; i < 8000; i += 100)
        CHECK(words[i] == 2);
    CHECK(((struct message *)vista_root("message"))->number == 2);
    OK(vista_exit());
    free(found);
    free(path);
    puts("sound");
    return 0;
}
