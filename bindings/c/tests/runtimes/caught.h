/* See caught.c. */
void caught_open(const char *dir, int kind);
void caught_begin(int turn);
void caught_end(int turn);
void caught_close(void);
