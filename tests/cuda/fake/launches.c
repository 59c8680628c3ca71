/* Launches, with what a driver checks before them. */
#include "fake.h"

static void *align(void *at, size_t size) {
    return (void *)(((uintptr_t)at + size - 1) / size * size);
}

/* ---- how often each kernel was launched ---- */

#define COUNTED 256

static struct {
    const kernel_entry *kernel;
    int64_t launches;
} counts[COUNTED];

static void count(const kernel_entry *kernel) {
    for (int i = 0; i < COUNTED; i++)
        if (counts[i].kernel == NULL || counts[i].kernel == kernel) {
            counts[i].kernel = kernel;
            counts[i].launches++;
            return;
        }
}

API int64_t fake_launches(const char *name) {
    int64_t found = 0;
    world_lock();
    for (int i = 0; i < COUNTED && counts[i].kernel != NULL; i++)
        if (strcmp(counts[i].kernel->name, name) == 0)
            found += counts[i].launches;
    world_unlock();
    return found;
}

void launches_reset(void) {
    memset(counts, 0, sizeof counts);
}

/* ---- launches ---- */

/* The lock is let go: a body may be Python. */
CUresult kernel_run(action *self, op *op) {
    kernel_work *work = self->kernel;
    const kernel_entry *kernel = work->function->kernel;
    void *parameters[MAX_PARAMETERS];
    unsigned char *at = work->bytes;
    launch running = {.shared = work->shared, .op = op};
    memcpy(running.grid, work->grid, sizeof running.grid);
    memcpy(running.block, work->block, sizeof running.block);
    for (int i = 0; kernel->sizes[i] != 0; i++) {
        parameters[i] = at = align(at, parameter_alignment(kernel->sizes[i]));
        at += parameter_size(kernel->sizes[i]);
    }
    world_unlock();
    kernel->body(&running, parameters);
    world_lock();
    return SUCCESS;
}

static void pack(kernel_work *work, const char *sizes, void **parameters) {
    unsigned char *at = work->bytes;
    for (int i = 0; sizes[i] != 0; i++) {
        size_t size = parameter_size(sizes[i]);
        at = align(at, parameter_alignment(sizes[i]));
        memcpy(at, parameters[i], size);
        at += size;
    }
}

/* CU_LAUNCH_PARAM_BUFFER_POINTER 1, …_SIZE 2, …_END 0 */
static void pack_buffer(kernel_work *work, void **extra) {
    const void *buffer = NULL;
    size_t size = 0;
    for (; *extra != NULL; extra += 2)
        if ((uintptr_t)*extra == 1)
            buffer = extra[1];
        else
            size = *(size_t *)extra[1];
    memcpy(work->bytes, buffer, size < PARAMETER_BYTES ? size : PARAMETER_BYTES);
}

static CUresult check_launch(const struct function *function,
                             const struct stream *stream, const kernel_work *work) {
    const unsigned int *grid = work->grid, *block = work->block;
    const struct context *current = context_current();
    if (current != stream->context ||
        (function->context != NULL && function->context != stream->context))
        return refuse(INVALID_HANDLE,
                      "%s launched on a stream of device %d while device %d is "
                      "current",
                      function->kernel->name, stream->context->device,
                      current ? current->device : -1);
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2] ||
        (uint64_t)block[0] * block[1] * block[2] > 1024 || grid[1] > 65535 ||
        grid[2] > 65535)
        return refuse(INVALID_VALUE, "%s: no such grid or block",
                      function->kernel->name);
    if (work->shared > (unsigned int)function->shared_limit)
        return refuse(INVALID_VALUE,
                      "%s: %u bytes of shared memory beside %d static ones, at most %d",
                      function->kernel->name, work->shared, function->kernel->statics,
                      function->shared_limit);
    return SUCCESS;
}

static CUresult launch_on(CUfunction function, kernel_work *work, CUstream handle,
                          void **parameters, void **extra) {
    struct stream *stream;
    if (!function_is(function))
        return refuse(INVALID_HANDLE, "%p is no kernel, or its module was unloaded",
                      (void *)function);
    CUresult result = stream_find(handle, &stream);
    if (result == SUCCESS)
        result = check_launch(function, stream, work);
    if (result != SUCCESS)
        return result;
    work->function = function;
    count(function->kernel);
    if (parameters != NULL)
        pack(work, function->kernel->sizes, parameters);
    else if (extra != NULL)
        pack_buffer(work, extra);
    else if (function->kernel->sizes[0] != 0)
        return refuse(INVALID_VALUE, "%s without parameters", function->kernel->name);
    action task = {kernel_run, function->kernel->name, .kernel = work};
    task.is_slow = kernel_spins(function->kernel, work->bytes);
    return submit(stream, &task);
}

API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x,
                            unsigned int grid_y, unsigned int grid_z,
                            unsigned int block_x, unsigned int block_y,
                            unsigned int block_z, unsigned int shared, CUstream stream,
                            void **parameters, void **extra) {
    CALL(SAFE, "cuLaunchKernel", (uintptr_t)stream)
    kernel_work work;
    work.shared = shared;
    memcpy(work.grid, (unsigned int[]){grid_x, grid_y, grid_z}, sizeof work.grid);
    memcpy(work.block, (unsigned int[]){block_x, block_y, block_z}, sizeof work.block);
    return call_end(&call, launch_on(function, &work, stream, parameters, extra));
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                              void **parameters, void **extra) {
    CALL(SAFE, "cuLaunchKernelEx", (uintptr_t)config->hStream)
    kernel_work work;
    work.shared = config->sharedMemBytes;
    memcpy(work.grid, &config->gridDimX, sizeof work.grid);
    memcpy(work.block, &config->blockDimX, sizeof work.block);
    return call_end(&call,
                    launch_on(function, &work, config->hStream, parameters, extra));
}
