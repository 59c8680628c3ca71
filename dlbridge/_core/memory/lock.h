/* Locks of the core, in a process that forks. No Python here.
 *
 * A forked child has one thread. A lock that another thread of its parent held would
 * stay locked in it for good, and the child would hang at the first call that takes it.
 * So every lock with static storage is made by one of these two.
 *
 * DLB_LOCK: fork() waits until it is free, so that what it guards is whole in the
 * child. It is held for a moment only; under it no other lock, no GIL and no function
 * of a driver is waited for.
 *
 * DLB_LOCK_RENEWED: the child gets it free, as a new one. For what is of no use in the
 * child, which is all that concerns CUDA's driver; that driver may itself fork. */
#ifndef DLBRIDGE_CORE_MEMORY_LOCK_H_
#define DLBRIDGE_CORE_MEMORY_LOCK_H_

#include <pthread.h>
#include <stdbool.h>

#define DLB_LOCK(name) DLB_LOCK_IN_FORKS_(name, true)
#define DLB_LOCK_RENEWED(name) DLB_LOCK_IN_FORKS_(name, false)

/* When the library is loaded, before there is a second thread in it. */
#define DLB_LOCK_IN_FORKS_(name, is_waited_for)                                        \
    static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                           \
    __attribute__((constructor)) static void name##_in_forks(void) {                   \
        dlb_lock_in_forks(&name, is_waited_for);                                       \
    }

void dlb_lock_in_forks(pthread_mutex_t *lock, bool is_waited_for);

#endif
