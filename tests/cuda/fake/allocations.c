/* Memory in and out: plain, from the pool, managed, pinned. */
#include "fake.h"

/* The state of memory before any stream has touched it. */
static void begin_on_host(block *memory) {
    op op;
    op_of_host(&op);
    access_begin_life(memory, &op);
    clock_free(&op.now);
}

static CUresult allocate(memory_kind kind, CUdeviceptr *pointer, size_t nbytes) {
    struct context *context = context_current();
    block *memory;
    if (context == NULL)
        return refuse(INVALID_CONTEXT, "no current context to allocate in");
    CUresult result = block_new(kind, context->device, nbytes, NULL, &memory);
    if (result != SUCCESS)
        return result;
    begin_on_host(memory);
    *pointer = memory->address;
    return SUCCESS;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t nbytes) {
    CALL(UNSAFE, "cuMemAlloc", .nbytes = nbytes)
    return call_end(&call, allocate(DEVICE_MEMORY, pointer, nbytes));
}

API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t nbytes,
                               unsigned int flags) {
    CALL(UNSAFE, "cuMemAllocManaged", .nbytes = nbytes)
    if (flags != 1 && flags != 2)
        return call_end(&call, INVALID_VALUE);
    return call_end(&call, allocate(MANAGED, pointer, nbytes));
}

API CUresult cuMemHostAlloc(void **pointer, size_t nbytes, unsigned int flags) {
    CALL(UNSAFE, "cuMemHostAlloc", .nbytes = nbytes)
    CUdeviceptr address = 0;
    (void)flags;
    CUresult result = allocate(PINNED, &address, nbytes);
    *pointer = (void *)(uintptr_t)address;
    return call_end(&call, result);
}

API CUresult cuMemAllocHost_v2(void **pointer, size_t nbytes) {
    return cuMemHostAlloc(pointer, nbytes, 0);
}

/* ---- the way back ---- */

/* The driver waits for the device here, but for memory of pools. Programs that rely on
 * it stop the host, so what it does not know to be over is a fault. */
static CUresult free_now(CUdeviceptr address, bool is_host) {
    block *memory = block_find(address);
    if (memory == NULL || memory->address != address || memory->kind == FOREIGN ||
        memory->kind == MAPPED_MEMORY || (memory->kind == PINNED) != is_host)
        return refuse(INVALID_VALUE, "%#llx was not allocated so", address);
    op op;
    deferred_flush(NULL);
    op_of_host(&op);
    int status = access_all(&op, memory, true, "frees");
    clock_free(&op.now);
    if (status != 0)
        return INVALID_VALUE;
    CUresult result = SUCCESS;
    if (memory->kind != POOL_MEMORY)
        result = host_waits_implicitly(context_primary(memory->device));
    if (result != SUCCESS)
        return result;
    ipc_check_free(memory);
    block_free(memory);
    return SUCCESS;
}

API CUresult cuMemFree_v2(CUdeviceptr address) {
    CALL(UNSAFE, "cuMemFree", .address = address)
    return call_end(&call, address == 0 ? SUCCESS : free_now(address, false));
}

API CUresult cuMemFreeHost(void *pointer) {
    CALL(UNSAFE, "cuMemFreeHost", .address = (uintptr_t)pointer)
    return call_end(&call, free_now((uintptr_t)pointer, true));
}

/* ---- the pool ---- */

/* Seen on driver 580: once a thread has ended whose default stream still had memory to
 * allocate or to free, a later synchronisation of the context never ends. */
static void check_stream(struct stream *self) {
    if (self->thread != 0 && capture_of(self) == NULL)
        fault("thread's stream", "memory is allocated or freed in the order of the "
                                 "default stream of a thread, which may end before");
}

static CUresult alloc_run(action *self, op *op) {
    block_revive(self->memory);
    access_begin_life(self->memory, op);
    return SUCCESS;
}

static CUresult allocate_on(struct stream *stream, CUdeviceptr *pointer, size_t nbytes,
                            struct pool *pool) {
    block *memory;
    CUresult result = block_new(POOL_MEMORY, pool->device, nbytes, pool, &memory);
    if (result != SUCCESS)
        return result;
    begin_on_host(memory);
    memory->is_graphs = capture_of(stream) != NULL;
    *pointer = memory->address;
    action work = {alloc_run, "cuMemAllocAsync", .is_prompt = true, .memory = memory};
    return submit(stream, &work);
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t nbytes,
                                     CUmemoryPool pool, CUstream stream) {
    CALL(SAFE, "cuMemAllocFromPoolAsync", (uintptr_t)stream, .nbytes = nbytes)
    struct stream *self;
    CUresult result = stream_find(stream, &self);
    if (result == SUCCESS && !handle_is(pool, ANY_POOL))
        result = refuse(INVALID_HANDLE, "no memory pool");
    if (result == SUCCESS)
        result = allocate_on(self, pointer, nbytes, pool);
    return call_end(&call, result);
}

API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t nbytes, CUstream stream) {
    CALL(SAFE, "cuMemAllocAsync", (uintptr_t)stream, .nbytes = nbytes)
    struct stream *self;
    CUresult result = stream_find(stream, &self);
    if (result == SUCCESS) {
        check_stream(self);
        result =
            allocate_on(self, pointer, nbytes, pool_default(self->context->device));
    }
    return call_end(&call, result);
}

/* The free is an operation of the stream: everything on the memory has to come before.
 */
static CUresult free_run(action *self, op *op) {
    if (access_all(op, self->memory, true, "frees") != 0)
        return INVALID_VALUE;
    block_free(self->memory);
    return SUCCESS;
}

API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    CALL(SAFE, "cuMemFreeAsync", (uintptr_t)stream, .address = address)
    struct stream *self;
    CUresult result = stream_find(stream, &self);
    block *memory = block_find(address);
    if (result == SUCCESS &&
        (memory == NULL || memory->address != address || memory->kind == FOREIGN ||
         memory->kind == PINNED || memory->kind == MAPPED_MEMORY))
        result = refuse(INVALID_VALUE, "%#llx was not allocated so", address);
    if (result == SUCCESS && capture_of(self) != NULL && !memory->is_graphs)
        result = refuse(INVALID_VALUE,
                        "%#llx is freed in a capture, and was not allocated in one",
                        address);
    if (result == SUCCESS) {
        check_stream(self);
        action work = {free_run, "cuMemFreeAsync", .memory = memory};
        result = submit(self, &work);
        if (result == SUCCESS && capture_of(self) == NULL)
            block_discount(memory);
    }
    return call_end(&call, result);
}

API CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    CALL(SAFE, "cuMemGetInfo")
    struct context *context = context_current();
    if (context == NULL)
        return call_end(&call, refuse(INVALID_CONTEXT, "no current context"));
    *unused = memory_free(context->device);
    *total = memory_limit[context->device];
    return call_end(&call, SUCCESS);
}

/* ---- what tests can ask ---- */

API void fake_set_memory(int32_t device, uint64_t nbytes) {
    memory_limit[device] = nbytes;
}

API uint64_t fake_bytes_alive(int32_t device) {
    return bytes_alive(device);
}

API int64_t fake_blocks_alive(void) {
    world_lock();
    deferred_flush(NULL);
    world_unlock();
    return blocks_alive();
}
