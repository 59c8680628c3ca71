/* Kernels by name: those below, and what tests add. */
#include "fake.h"

#include <stdio.h>

static kernel_entry *added;

/* ---- what a body calls ---- */

/* The memory, after the access is checked; NULL: it must not be touched. */
static void *touch(launch *self, uint64_t address, uint64_t nbytes, bool writes) {
    world_lock();
    int status = access_memory(self->op, address, nbytes, writes);
    world_unlock();
    return status == 0 ? (void *)(uintptr_t)address : NULL;
}

API const void *fake_read(launch *self, uint64_t address, uint64_t nbytes) {
    return touch(self, address, nbytes, false);
}

API void *fake_write(launch *self, uint64_t address, uint64_t nbytes) {
    return touch(self, address, nbytes, true);
}

/* ---- kernels that are always there ---- */

#define ARGUMENT(type, i) (*(type *)parameters[i])
#define FLOATS(n) ((uint64_t)(n) * sizeof(float))

/* Every kernel has a thread for each element: a grid that is too small leaves some
 * undone. */
static int64_t covered(const launch *self, int64_t n) {
    int64_t threads = (int64_t)self->grid[0] * self->block[0];
    return n < threads ? n : threads;
}

/* add_one(const float *x, float *out, int64_t n) */
static void add_one(launch *self, void **parameters) {
    int64_t n = covered(self, ARGUMENT(int64_t, 2));
    const float *x = fake_read(self, ARGUMENT(uint64_t, 0), FLOATS(n));
    float *out = fake_write(self, ARGUMENT(uint64_t, 1), FLOATS(n));
    for (int64_t i = 0; x && out && i < n; i++)
        out[i] = x[i] + 1;
}

/* scale(const float *x, float *out, float factor, int64_t n) */
static void scale(launch *self, void **parameters) {
    int64_t n = covered(self, ARGUMENT(int64_t, 3));
    const float *x = fake_read(self, ARGUMENT(uint64_t, 0), FLOATS(n));
    float *out = fake_write(self, ARGUMENT(uint64_t, 1), FLOATS(n));
    for (int64_t i = 0; x && out && i < n; i++)
        out[i] = x[i] * ARGUMENT(float, 2);
}

/* saxpy(float a, const float *x, const float *y, float *out, int64_t n) */
static void saxpy(launch *self, void **parameters) {
    int64_t n = covered(self, ARGUMENT(int64_t, 4));
    const float *x = fake_read(self, ARGUMENT(uint64_t, 1), FLOATS(n));
    const float *y = fake_read(self, ARGUMENT(uint64_t, 2), FLOATS(n));
    float *out = fake_write(self, ARGUMENT(uint64_t, 3), FLOATS(n));
    for (int64_t i = 0; x && y && out && i < n; i++)
        out[i] = ARGUMENT(float, 0) * x[i] + y[i];
}

/* dlb_touch(source, source_size, target, target_size, nanoseconds, value, copies):
 * reads the one range, fills the other with the value or with what it read; see
 * touch.ptx. With nanoseconds it takes until somebody waits for it. */
static void dlb_touch(launch *self, void **parameters) {
    uint64_t source_size = ARGUMENT(uint64_t, 1), target_size = ARGUMENT(uint64_t, 3);
    const char *in = NULL;
    char *out = NULL;
    if (source_size > 0)
        in = fake_read(self, ARGUMENT(uint64_t, 0), source_size);
    if (target_size > 0)
        out = fake_write(self, ARGUMENT(uint64_t, 2), target_size);
    if (out != NULL && !ARGUMENT(uint32_t, 6))
        memset(out, (int)ARGUMENT(uint32_t, 5), target_size);
    else if (out != NULL && in != NULL && target_size <= source_size)
        memmove(out, in, target_size);
}

bool kernel_spins(const kernel_entry *kernel, const unsigned char *parameters) {
    uint64_t nanoseconds = 0;
    if (kernel->body == dlb_touch)
        memcpy(&nanoseconds, parameters + 32, sizeof nanoseconds);
    return nanoseconds > 0;
}

/* turned(unsigned *out): thread i writes (i + 1) % block */
static void turned(launch *self, void **parameters) {
    uint32_t count = self->block[0];
    uint32_t *out = fake_write(self, ARGUMENT(uint64_t, 0), count * sizeof *out);
    for (uint32_t i = 0; out && i < count; i++)
        out[i] = (i + 1) % count;
}

/* nothing() */
static void nothing(launch *self, void **parameters) {
    (void)self;
    (void)parameters;
}

static const kernel_entry built_in[] = {
    {NULL, "add_one", "888", add_one}, {NULL, "scale", "8848", scale},
    {NULL, "saxpy", "48888", saxpy},   {NULL, "dlb_touch", "8888844", dlb_touch},
    {NULL, "nothing", "", nothing},    {NULL, "turned", "8", turned, 16384},
};

const kernel_entry *kernel_find(const char *name) {
    for (const kernel_entry *at = added; at != NULL; at = at->next)
        if (strcmp(at->name, name) == 0)
            return at;
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        if (strcmp(built_in[i].name, name) == 0)
            return &built_in[i];
    for (size_t i = 0; i < GATHER_KERNELS; i++)
        if (strcmp(gather_kernels[i].name, name) == 0)
            return &gather_kernels[i];
    return NULL;
}

/* Every module loaded from now on also has it, with so many bytes of static shared
 * memory. */
API void fake_add_kernel(const char *name, const char *sizes, kernel_body body,
                         int32_t statics) {
    world_lock();
    kernel_entry *new = calloc(1, sizeof *new);
    snprintf(new->name, sizeof new->name, "%s", name);
    snprintf(new->sizes, sizeof new->sizes, "%s", sizes);
    new->body = body;
    new->statics = statics;
    new->next = added;
    added = new;
    world_unlock();
}
