/* The registry alone, under threads: some replace the kernels of a few names all the
 * time, others pin them. A kernel that is pinned must be alive, and each dies once. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernel/kernel.h"

enum { PINNERS = 8, SETTERS = 2, ENTRIES = 3, ROUNDS = 40000, NAMES = 5000 };
enum { ALIVE = 0x5a5a5a, DEAD = 0x0dead0 };

static dlb_entry *entries[ENTRIES];
static _Atomic long made, dropped, wrong;

void dlb_kernel_drop(dlb_kernel *kernel) {
    int64_t before = atomic_fetch_sub(&kernel->references, 1);
    if (before != 1) {
        wrong += before < 1;
        return;
    }
    wrong += kernel->order_count != ALIVE;
    kernel->order_count = DEAD;
    dropped++;
    free(kernel);
}

static dlb_kernel *make(void) {
    dlb_kernel *kernel = calloc(1, sizeof *kernel);
    if (kernel == NULL)
        abort();
    atomic_init(&kernel->references, 1);
    kernel->order_count = ALIVE;
    made++;
    return kernel;
}

static void *set(void *seed) {
    unsigned state = (unsigned)(size_t)seed;
    dlb_kernel *own = make();
    for (int i = 0; i < ROUNDS; i++) {
        dlb_entry *entry = entries[rand_r(&state) % ENTRIES];
        if (i % 4 == 0) { /* one that comes back, in several entries */
            dlb_entry_set(entry, own);
            continue;
        }
        dlb_kernel *kernel = i % 16 == 1 ? NULL : make();
        dlb_entry_set(entry, kernel);
        if (kernel != NULL)
            dlb_kernel_drop(kernel);
    }
    dlb_kernel_drop(own);
    return NULL;
}

static void *pin(void *seed) {
    unsigned state = (unsigned)(size_t)seed;
    for (int i = 0; i < ROUNDS; i++) {
        dlb_entry *first = entries[rand_r(&state) % ENTRIES];
        dlb_entry *second = entries[rand_r(&state) % ENTRIES];
        const dlb_kernel *one = dlb_entry_pin(first), *other = dlb_entry_pin(second);
        wrong += (one != NULL && one->order_count != ALIVE) ||
                 (other != NULL && other->order_count != ALIVE);
        if (one != NULL)
            dlb_entry_unpin(first, one);
        if (other != NULL)
            dlb_entry_unpin(second, other);
    }
    return NULL;
}

/* Names found while others are added, each by two threads. */
static void *name(void *start) {
    char text[64];
    for (int i = 0; i < NAMES; i++) {
        int length = snprintf(text, sizeof text, "many::kernel_number_%d", i);
        if ((size_t)start % 2)
            wrong += dlb_registry_add(text) == NULL;
        dlb_entry *entry = dlb_registry_entry(text, (size_t)length);
        wrong += entry == NULL && (size_t)start % 2;
        wrong += entry != NULL && dlb_registry_add(text) != entry;
        wrong += dlb_registry_entry(text, (size_t)length - 1) == entry && entry != NULL;
    }
    return NULL;
}

int main(void) {
    pthread_t threads[PINNERS + SETTERS + 4];
    int count = 0;
    for (int i = 0; i < ENTRIES; i++) {
        char text[8] = {(char)('a' + i), 0};
        entries[i] = dlb_registry_add(text);
    }
    for (size_t i = 0; i < PINNERS; i++)
        pthread_create(&threads[count++], NULL, pin, (void *)(i + 1));
    for (size_t i = 0; i < SETTERS; i++)
        pthread_create(&threads[count++], NULL, set, (void *)(i + 100));
    for (size_t i = 0; i < 4; i++)
        pthread_create(&threads[count++], NULL, name, (void *)i);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < ENTRIES; i++)
        dlb_entry_set(entries[i], NULL);
    printf("%ld %ld %ld\n", (long)made, (long)dropped, (long)wrong);
    return 0;
}
