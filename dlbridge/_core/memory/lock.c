#include "memory/lock.h"

#include <stdlib.h>

enum { LOCKS = 16 };

static struct {
    pthread_mutex_t *lock;
    bool is_waited_for;
} locks[LOCKS];
static int count;

/* ---- around a fork ---- */

static void prepare(void) {
    for (int i = 0; i < count; i++)
        if (locks[i].is_waited_for)
            pthread_mutex_lock(locks[i].lock);
}

static void go_on_in_parent(void) {
    for (int i = count; i-- > 0;)
        if (locks[i].is_waited_for)
            pthread_mutex_unlock(locks[i].lock);
}

static void begin_in_child(void) {
    go_on_in_parent();
    for (int i = 0; i < count; i++)
        if (!locks[i].is_waited_for)
            pthread_mutex_init(locks[i].lock, NULL);
}

void dlb_lock_in_forks(pthread_mutex_t *lock, bool is_waited_for) {
    if (count == LOCKS ||
        (count == 0 && pthread_atfork(prepare, go_on_in_parent, begin_in_child) != 0))
        abort(); /* while the library is loaded: a developer sees it at once */
    locks[count].lock = lock;
    locks[count++].is_waited_for = is_waited_for;
}
