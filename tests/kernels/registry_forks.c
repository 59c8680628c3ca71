/* A thread adds names of kernels without a pause while the process forks; each child adds
 * one. Prints how many children there were, and how many ended well. */
#include "kernel/kernel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKS 200

static atomic_bool is_over;

/* What the registry needs of the core; no kernel is made here. */
void dlb_kernel_drop(dlb_kernel *kernel) {
    (void)kernel;
}

static void *add_names(void *argument) {
    char name[32];
    for (int i = 0; !atomic_load(&is_over); i++) {
        snprintf(name, sizeof name, "name %d", i);
        if (dlb_registry_add(name) == NULL)
            break;
    }
    return argument;
}

int main(void) {
    pthread_t thread;
    int forks = 0, ended_well = 0, status;
    if (pthread_create(&thread, NULL, add_names, NULL) != 0)
        return 1;
    for (; forks < FORKS; forks++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(5);
            dlb_entry *entry = dlb_registry_add("of the child");
            _exit(entry == NULL || strcmp(dlb_entry_name(entry), "of the child") != 0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child)
            break;
        ended_well += status == 0;
        if (status != 0)
            break;
    }
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    printf("%d %d\n", forks, ended_well);
    return 0;
}
