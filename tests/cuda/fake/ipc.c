/* Memory and events for other processes. Here they are offsets into the file of the
 * process that has them; its head says what is open elsewhere, and how far events have
 * come.
 *
 * Another process is a timeline: what it exports was written by it, and is there for
 * streams that have waited for an event that it recorded. */
#include "fake.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROWS 4096
#define HOLDERS 8
#define FILE_BYTES (1ull << 40)
#define MAP_FAILED_HERE 205 /* CUDA_ERROR_MAP_FAILED */

typedef struct {
    _Atomic uint32_t recorded; /* events of this process, so far */
    _Atomic int32_t memory_rows, event_rows;
    _Atomic int32_t holders[ROWS][HOLDERS]; /* processes that have it; 0: none */
    _Atomic uint32_t events[ROWS];          /* `recorded` when it was recorded last */
} head;

typedef struct {
    char mark[8];
    int32_t process, file, row, device;
    uint64_t offset, nbytes;
    uint32_t recorded;
} ticket;
_Static_assert(sizeof(ticket) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");

static head *own(void) {
    return (head *)arena_head();
}

/* ---- other processes ---- */

typedef struct {
    int32_t process, timeline;
    char *base;
} neighbour;

static neighbour neighbours[64];
static int32_t neighbour_count;

static neighbour *meet(const ticket *from) {
    for (int32_t i = 0; i < neighbour_count; i++)
        if (neighbours[i].process == from->process)
            return &neighbours[i];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", from->process, from->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || neighbour_count == 64)
        return NULL;
    char *base = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (base == MAP_FAILED)
        return NULL;
    neighbours[neighbour_count] = (neighbour){from->process, timeline_new(), base};
    return &neighbours[neighbour_count++];
}

static const neighbour *owner_of(uint64_t address) {
    for (int32_t i = 0; i < neighbour_count; i++) {
        uint64_t base = (uint64_t)(uintptr_t)neighbours[i].base;
        if (address >= base && address < base + FILE_BYTES)
            return &neighbours[i];
    }
    return NULL;
}

/* ---- memory ---- */

static CUresult export_memory(ticket *out, CUdeviceptr pointer) {
    block *memory = block_find(pointer);
    if (memory == NULL || memory->is_freed || memory->kind != DEVICE_MEMORY)
        return INVALID_VALUE; /* as for memory of pools */
    if (memory->exported < 0)
        memory->exported = atomic_fetch_add(&own()->memory_rows, 1) % ROWS;
    *out = (ticket){"fakemem",      getpid(),
                    arena_file(),   memory->exported,
                    memory->device, arena_offset(memory->address),
                    memory->nbytes, atomic_load(&own()->recorded)};
    return SUCCESS;
}

API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    CALL(SAFE, "cuIpcGetMemHandle", .address = pointer)
    ticket new = {0};
    CUresult result = export_memory(&new, pointer);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &new, sizeof new);
    return call_end(&call, result);
}

static void replace(_Atomic int32_t *holders, int32_t from, int32_t to) {
    for (int i = 0; i < HOLDERS; i++) {
        int32_t expected = from;
        if (atomic_compare_exchange_strong(&holders[i], &expected, to))
            return;
    }
}

/* The row of a block of another process is the one there. */
static CUresult import_memory(CUdeviceptr *pointer, const ticket *from) {
    if (strcmp(from->mark, "fakemem") != 0)
        return refuse(INVALID_HANDLE, "this is no handle of memory");
    if (from->process == getpid())
        return INVALID_CONTEXT;
    const neighbour *there = meet(from);
    if (there == NULL)
        return MAP_FAILED_HERE;
    uint64_t address = (uint64_t)(uintptr_t)there->base + from->offset;
    block *known = block_find(address);
    if (known != NULL && known->address == address && !known->is_freed) {
        known->opens++;
        *pointer = address;
        return SUCCESS;
    }
    block *memory = block_adopt(address, from->nbytes, from->device);
    op writer = {.timeline = there->timeline, .time = 1, .call = call_number()};
    if (from->recorded > writer.time)
        writer.time = from->recorded;
    access_begin_life(memory, &writer);
    memory->exported = from->row;
    memory->opens = 1;
    replace(((head *)there->base)->holders[from->row], 0, getpid());
    *pointer = address;
    return SUCCESS;
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle,
                                   unsigned int flags) {
    CALL(UNSAFE, "cuIpcOpenMemHandle")
    ticket from;
    memcpy(&from, &handle, sizeof from);
    CUresult result = flags == 1 ? import_memory(pointer, &from) : INVALID_VALUE;
    return call_end(&call, result);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    CALL(UNSAFE, "cuIpcCloseMemHandle", .address = pointer)
    block *memory = block_find(pointer);
    const neighbour *there = owner_of(pointer);
    if (memory == NULL || there == NULL || memory->is_freed ||
        memory->address != pointer)
        return call_end(&call, refuse(INVALID_VALUE, "%#llx is not open", pointer));
    if (--memory->opens > 0)
        return call_end(&call, SUCCESS);
    op op;
    op_of_host(&op);
    clock_set(&op.now, there->timeline, UINT32_MAX); /* what they do is their affair */
    access_all(&op, memory, true, "closes");
    clock_free(&op.now);
    block_free(memory);
    replace(((head *)there->base)->holders[memory->exported], getpid(), 0);
    return call_end(&call, SUCCESS);
}

/* Processes that have died have nothing. */
void ipc_check_free(block *memory) {
    for (int i = 0; memory->exported >= 0 && i < HOLDERS; i++) {
        int32_t holder = atomic_load(&own()->holders[memory->exported][i]);
        if (holder != 0 && kill(holder, 0) == 0)
            fault("use after free", "memory at %#llx is freed while process %d has it",
                  (unsigned long long)memory->address, holder);
    }
}

/* ---- events ---- */

API CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    CALL(SAFE, "cuIpcGetEventHandle", .event = (uintptr_t)event)
    if (!handle_is(event, ANY_EVENT) || !(event->flags & EVENT_INTERPROCESS))
        return call_end(&call, refuse(INVALID_HANDLE, "no event for other processes"));
    if (event->exported < 0) {
        event->exported = atomic_fetch_add(&own()->event_rows, 1) % ROWS;
        atomic_store(&own()->events[event->exported], 0);
        if (event->is_recorded)
            ipc_record(event);
    }
    ticket new = {"fakeevt", getpid(), arena_file(), event->exported, 0, 0, 0, 0};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &new, sizeof new);
    return call_end(&call, SUCCESS);
}

static CUresult import_event(CUevent *event, const ticket *from) {
    struct context *context = context_current();
    if (strcmp(from->mark, "fakeevt") != 0)
        return refuse(INVALID_HANDLE, "this is no handle of an event");
    if (context == NULL || from->process == getpid())
        return INVALID_CONTEXT;
    const neighbour *there = meet(from);
    if (there == NULL)
        return MAP_FAILED_HERE;
    *event = handle_new(ANY_EVENT, sizeof **event);
    (*event)->context = context;
    (*event)->flags = EVENT_INTERPROCESS | EVENT_NO_TIMING;
    (*event)->is_foreign = true;
    (*event)->process = (int32_t)(there - neighbours);
    (*event)->exported = from->row;
    return SUCCESS;
}

API CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    CALL(SAFE, "cuIpcOpenEventHandle")
    ticket from;
    memcpy(&from, &handle, sizeof from);
    return call_end(&call, import_event(event, &from));
}

void ipc_record(struct event *event) {
    if (event->exported < 0 || event->is_foreign)
        return;
    deferred_flush(&event->now); /* they do not say when they look */
    atomic_store(&own()->events[event->exported],
                 atomic_fetch_add(&own()->recorded, 1) + 1);
}

/* How far the other process had come when it recorded the event last. */
void ipc_refresh(struct event *event) {
    const neighbour *there = &neighbours[event->process];
    uint32_t recorded = atomic_load(&((head *)there->base)->events[event->exported]);
    event->is_recorded |= recorded > 0;
    if (recorded > clock_get(&event->now, there->timeline))
        clock_set(&event->now, there->timeline, recorded);
}

void ipc_reset(void) {
    for (int32_t i = 0; i < neighbour_count; i++)
        munmap(neighbours[i].base, FILE_BYTES);
    neighbour_count = 0;
}
