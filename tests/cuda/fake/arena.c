/* Address space for all memory of the fake: one file, so that other processes can map
 * it. Addresses only go up: what is freed is never handed out again. */
#include "fake.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA_BYTES (1ull << 40)
#define APART 512 /* between two pieces, so that an overrun meets nobody */

static char *base;
static int file = -1;
static uint64_t used;

static void open_arena(void) {
    file = memfd_create("fake_cuda", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)ARENA_BYTES) != 0)
        abort();
    base = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                file, 0);
    if (base == MAP_FAILED)
        abort();
    used = 1 << 20; /* its head is for ipc.c */
}

/* 0: there is no more. Pieces of more than a page start on one, so that their pages can
 * be given back. */
uint64_t arena_take(uint64_t nbytes) {
    if (base == NULL)
        open_arena();
    uint64_t unit = nbytes >= 65536 ? 4096 : APART;
    uint64_t start = (used + unit - 1) / unit * unit;
    if (nbytes > ARENA_BYTES - start - 2 * APART)
        return 0;
    used = (start + nbytes + 2 * APART - 1) / APART * APART;
    return (uint64_t)(uintptr_t)base + start;
}

void arena_give(uint64_t address, uint64_t nbytes) {
    if (nbytes >= 65536)
        fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)arena_offset(address), (off_t)nbytes);
    else
        memset((void *)(uintptr_t)address, 0xDD, nbytes);
}

void arena_reset(void) {
    if (base == NULL)
        return;
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)used);
    if (used > ARENA_BYTES / 2)
        used = 1 << 20;
}

int arena_file(void) {
    if (base == NULL)
        open_arena();
    return file;
}

char *arena_head(void) {
    if (base == NULL)
        open_arena();
    return base;
}

uint64_t arena_offset(uint64_t address) {
    return address - (uint64_t)(uintptr_t)base;
}
