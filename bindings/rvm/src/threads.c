/* What programs built for the POSIX threads flavour import, though no header declares it. */
#include "rvm_state.h"

#ifdef RVM_THREADS
pthread_t rvm_pthreadid;
void *rvm_ptstat;
int rvm_join_res;

/* Whether a lock was free. */
int rvm_lock_free(pthread_mutex_t *lock)
{
    if (pthread_mutex_trylock(lock) != 0)
        return 0;
    pthread_mutex_unlock(lock);
    return 1;
}
#else
/* No symbol of that kind in the other flavours. */
typedef int none_in_this_flavour;
#endif
