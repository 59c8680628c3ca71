/* A fresh driver for each test. Nothing of the one before may be in use. */
#include "fake.h"

#include <stdlib.h>

API void fake_reset(void) {
    world_lock();
    holds_reset();
    deferred_reset();
    captures_reset();
    ipc_reset();
    handles_reset();
    contexts_reset();
    streams_reset();
    timelines_reset();
    memory_reset();
    reservations_reset();
    launches_reset();
    world_reset();
    world_unlock();
}

/* Also until the first reset. A process that does not know that the driver is a fake
 * one has as many devices as its environment says. */
__attribute__((constructor)) static void start(void) {
    const char *count = getenv("FAKE_CUDA_DEVICES");
    if (count != NULL)
        fake_set_devices(atoi(count), 1);
    fake_reset();
}

/* Handles that nobody has destroyed: "stream", "event", "module", "graph", "exec". */
API int64_t fake_handles_alive(int32_t kind) {
    return kind > 0 && kind < HANDLE_KINDS ? handle_count((handle_kind)kind) : -1;
}
