/* The kernel of a name. Names are found without a lock, and never freed: a compiled
 * graph may ask for one at any time.
 *
 * An entry is one word: the kernel's address in the low 48 bits, and above them how
 * many pins of it are counted here. A pin is one atomic addition, so that reading the
 * address and keeping the kernel alive are one step. Whoever replaces the kernel moves
 * the count to the kernel's own references; an unpin that no longer finds its pin in
 * the word takes it from there. While it is in an entry, a kernel has a surplus of
 * references that no number of such unpins can use up before the move is complete. */
#include "kernel/kernel.h"
#include "memory/lock.h"

#include <stdlib.h>
#include <string.h>

#define ADDRESS_BITS 48
#define ADDRESS_MASK ((UINT64_C(1) << ADDRESS_BITS) - 1)
#define ONE_PIN (UINT64_C(1) << ADDRESS_BITS)
#define SURPLUS (INT64_C(1) << 40)

struct dlb_entry {
    _Atomic uint64_t word;
    uint64_t hash;
    size_t length;
    char name[];
};

typedef struct table {      /* open addressing, at most half full */
    struct table *previous; /* smaller; someone may still be reading it */
    size_t mask;
    _Atomic(dlb_entry *) slots[];
} table;

/* Previous tables are kept for good; together they are as large as the current one. */
static _Atomic(table *) current;
static size_t entry_count;
DLB_LOCK(growth)

/* ---- names ---- */

static uint64_t hash_name(const char *name, size_t length) {
    uint64_t hash = length, word;
    for (; length >= 8; name += 8, length -= 8) {
        memcpy(&word, name, 8);
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    word = 0;
    memcpy(&word, name, length);
    hash = (hash ^ word) * UINT64_C(0xBF58476D1CE4E5B9);
    return hash ^ hash >> 32;
}

/* The entry, or NULL with the place where it would go. */
static dlb_entry *find(table *in, const char *name, size_t length, uint64_t hash,
                       size_t *place) {
    for (size_t i = (size_t)hash & in->mask;; i = (i + 1) & in->mask) {
        dlb_entry *entry = atomic_load_explicit(&in->slots[i], memory_order_acquire);
        *place = i;
        if (entry == NULL || (entry->hash == hash && entry->length == length &&
                              memcmp(entry->name, name, length) == 0))
            return entry;
    }
}

/* The length of a key without the version that it ends with, "__v2"; 0: it has none. */
static size_t length_without_version(const char *name, size_t length) {
    size_t digits = 0;
    while (digits < length && name[length - digits - 1] >= '0' &&
           name[length - digits - 1] <= '9')
        digits++;
    size_t rest = length - digits;
    return digits > 0 && rest > 3 && memcmp(name + rest - 3, "__v", 3) == 0 ? rest - 3
                                                                            : 0;
}

static dlb_entry *find_known(const char *name, size_t length) {
    table *in = atomic_load_explicit(&current, memory_order_acquire);
    size_t place;
    if (in == NULL)
        return NULL;
    dlb_entry *entry = find(in, name, length, hash_name(name, length), &place);
    if (entry != NULL)
        return entry;
    length = length_without_version(name, length);
    return length ? find(in, name, length, hash_name(name, length), &place) : NULL;
}

/* Set by dlbridge.kernels: takes the GIL, and makes the kernel known if it can. */
void (*dlb_ask_for_kernel)(const char *name, size_t length);

/* Whether it is the key of a kernel that is made for the calls of another one. */
static bool is_of_another(const char *name, size_t length) {
    static const char suffixes[][10] = {"__bounded", "__tensors"};
    size_t size = sizeof suffixes[0] - 1;
    if (length > 0 && name[length - 1] == ']')
        return true;
    for (int i = 0; i < 2 && length > size; i++)
        if (memcmp(name + length - size, suffixes[i], size) == 0)
            return true;
    return false;
}

dlb_entry *dlb_registry_entry(const char *name, size_t length) {
    dlb_entry *entry = find_known(name, length);
    if (entry != NULL || !is_of_another(name, length) || dlb_ask_for_kernel == NULL)
        return entry;
    dlb_ask_for_kernel(name, length); /* a program of another process has this key */
    return find_known(name, length);
}

const char *dlb_entry_name(const dlb_entry *entry) {
    return entry->name;
}

/* ---- growth: under the lock ---- */

/* A table with room for one more; NULL: out of memory. */
static table *make_room(void) {
    table *old = atomic_load(&current);
    if (old != NULL && 2 * (entry_count + 1) <= old->mask + 1)
        return old;
    size_t size = old ? 2 * (old->mask + 1) : 64, place;
    table *new = calloc(1, sizeof *new + size * sizeof *new->slots);
    if (new == NULL)
        return NULL;
    new->previous = old;
    new->mask = size - 1;
    for (size_t i = 0; old != NULL && i <= old->mask; i++) {
        dlb_entry *entry = atomic_load(&old->slots[i]);
        if (entry == NULL)
            continue;
        find(new, entry->name, entry->length, entry->hash, &place);
        atomic_store(&new->slots[place], entry);
    }
    atomic_store_explicit(&current, new, memory_order_release);
    return new;
}

static dlb_entry *add(const char *name, size_t length, uint64_t hash) {
    size_t place;
    table *in = make_room();
    if (in == NULL)
        return NULL;
    dlb_entry *entry = find(in, name, length, hash, &place);
    if (entry != NULL)
        return entry;
    entry = calloc(1, sizeof *entry + length + 1);
    if (entry == NULL)
        return NULL;
    entry->hash = hash;
    entry->length = length;
    memcpy(entry->name, name, length);
    atomic_store_explicit(&in->slots[place], entry, memory_order_release);
    entry_count++;
    return entry;
}

dlb_entry *dlb_registry_add(const char *name) {
    size_t length = strlen(name);
    pthread_mutex_lock(&growth);
    dlb_entry *entry = add(name, length, hash_name(name, length));
    pthread_mutex_unlock(&growth);
    return entry;
}

/* ---- kernels ---- */

static dlb_kernel *kernel_of(uint64_t word) {
    return (dlb_kernel *)(uintptr_t)(word & ADDRESS_MASK);
}

void dlb_entry_set(dlb_entry *entry, dlb_kernel *kernel) {
    if (kernel != NULL)
        atomic_fetch_add_explicit(&kernel->references, SURPLUS, memory_order_relaxed);
    uint64_t old = atomic_exchange_explicit(&entry->word, (uint64_t)(uintptr_t)kernel,
                                            memory_order_acq_rel);
    dlb_kernel *replaced = kernel_of(old);
    if (replaced == NULL)
        return;
    int64_t change = (int64_t)(old >> ADDRESS_BITS) - SURPLUS;
    if (atomic_fetch_add_explicit(&replaced->references, change, memory_order_acq_rel) +
            change ==
        0) {
        atomic_store(&replaced->references, 1);
        dlb_kernel_drop(replaced);
    }
}

const dlb_kernel *dlb_entry_pin(dlb_entry *entry) {
    if (kernel_of(atomic_load_explicit(&entry->word, memory_order_relaxed)) == NULL)
        return NULL;
    return kernel_of(
        atomic_fetch_add_explicit(&entry->word, ONE_PIN, memory_order_acq_rel));
}

/* Which of the kernel's pins is taken back does not matter: they are all alike. */
void dlb_entry_unpin(dlb_entry *entry, const dlb_kernel *kernel) {
    uint64_t word = atomic_load_explicit(&entry->word, memory_order_relaxed);
    while (kernel_of(word) == kernel && word >= ONE_PIN)
        if (atomic_compare_exchange_weak_explicit(&entry->word, &word, word - ONE_PIN,
                                                  memory_order_release,
                                                  memory_order_relaxed))
            return;
    dlb_kernel_drop((dlb_kernel *)kernel);
}
