/* Copies of CUDA memory: which way, in which order, on which streams. */
#include "cuda/cuda.h"
#include "layout/layout.h"
#include "memory/lock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A copy on its way. */
enum where { HOST, PINNED, ON_DEVICE };

typedef struct {
    enum where where;
    int32_t device;
    bool is_managed; /* within the reach of every device */
    dlb_access *access;
} side_t;

typedef struct {
    side_t to, from;
    int32_t device; /* the one that copies; of two, the one that is read */
    dlb_stream stream;
} route;

/* ---- within the reach of a device: linear, 2D and 3D copies ---- */

#define MAX_PITCH INT64_C(0x7fffffff)
#define ENGINE_ROW 64   /* bytes from which on the copy engine moves rows well */
#define ENGINE_COPIES 4 /* that one launch of a kernel is worth */

static CUdeviceptr address(const void *base, int64_t offset) {
    return (CUdeviceptr)((uintptr_t)base + (uintptr_t)offset);
}

static bool is_pitch(const dlb_copy_loop *loop, int64_t width) {
    return loop->destination >= width && loop->source >= width &&
           loop->destination <= MAX_PITCH && loop->source <= MAX_PITCH;
}

/* Whether `outer` steps over whole planes of rows that `inner` steps over. */
static bool is_plane(const dlb_copy_loop *outer, const dlb_copy_loop *inner) {
    return outer->destination % inner->destination == 0 &&
           outer->source % inner->source == 0 &&
           outer->destination / inner->destination >= inner->extent &&
           outer->source / inner->source >= inner->extent;
}

/* The loops that one copy walks; NULL: it walks none. */
typedef struct {
    const dlb_copy_loop *rows, *planes;
    int64_t count;
} choice;

static const dlb_copy_loop *find_planes(const dlb_copy_plan *plan,
                                        const dlb_copy_loop *rows) {
    const dlb_copy_loop *best = NULL;
    for (int32_t i = 0; i < plan->ndim; i++) {
        const dlb_copy_loop *loop = &plan->loops[i];
        if (loop != rows && loop->source > 0 && is_plane(loop, rows) &&
            (best == NULL || loop->extent > best->extent))
            best = loop;
    }
    return best;
}

/* Those that leave the fewest copies to make. */
static choice choose(const dlb_copy_plan *plan) {
    choice best = {NULL, NULL, 1};
    for (int32_t i = 0; i < plan->ndim; i++) {
        const dlb_copy_loop *rows = &plan->loops[i];
        if (!is_pitch(rows, plan->unit))
            continue;
        const dlb_copy_loop *planes = find_planes(plan, rows);
        int64_t count = rows->extent * (planes ? planes->extent : 1);
        if (best.rows == NULL || count > best.count)
            best = (choice){rows, planes, count};
    }
    return best;
}

static int copy_row(CUdeviceptr to, CUdeviceptr from, int64_t nbytes, CUstream stream) {
    return dlb_cuda_check(
        dlb_cuda_get()->cuMemcpyAsync(to, from, (size_t)nbytes, stream),
        "cuMemcpyAsync");
}

static int copy_rows(CUdeviceptr to, CUdeviceptr from, int64_t width,
                     const dlb_copy_loop *rows, CUstream stream) {
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .srcDevice = from,
                          .srcPitch = (size_t)rows->source,
                          .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .dstDevice = to,
                          .dstPitch = (size_t)rows->destination,
                          .WidthInBytes = (size_t)width,
                          .Height = (size_t)rows->extent};
    return dlb_cuda_check(dlb_cuda_get()->cuMemcpy2DAsync(&copy, stream),
                          "cuMemcpy2DAsync");
}

static int copy_planes(CUdeviceptr to, CUdeviceptr from, int64_t width,
                       const dlb_copy_loop *rows, const dlb_copy_loop *planes,
                       CUstream stream) {
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .srcDevice = from,
                          .srcPitch = (size_t)rows->source,
                          .srcHeight = (size_t)(planes->source / rows->source),
                          .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .dstDevice = to,
                          .dstPitch = (size_t)rows->destination,
                          .dstHeight =
                              (size_t)(planes->destination / rows->destination),
                          .WidthInBytes = (size_t)width,
                          .Height = (size_t)rows->extent,
                          .Depth = (size_t)planes->extent};
    return dlb_cuda_check(dlb_cuda_get()->cuMemcpy3DAsync(&copy, stream),
                          "cuMemcpy3DAsync");
}

/* Walk the other loops here. */
static int walk(const dlb_copy_plan *plan, const choice *chosen, CUstream stream) {
    dlb_copy_loop rest[DLB_MAX_NDIM + 1];
    int64_t index[DLB_MAX_NDIM + 1] = {0};
    int64_t forth = plan->source_start, back = plan->destination_start;
    int32_t left = 0;
    int status;
    for (int32_t i = 0; i < plan->ndim; i++)
        if (&plan->loops[i] != chosen->rows && &plan->loops[i] != chosen->planes)
            rest[left++] = plan->loops[i];
    do {
        CUdeviceptr to = address(plan->destination, back);
        CUdeviceptr from = address(plan->source, forth);
        if (chosen->planes != NULL)
            status =
                copy_planes(to, from, plan->unit, chosen->rows, chosen->planes, stream);
        else if (chosen->rows != NULL)
            status = copy_rows(to, from, plan->unit, chosen->rows, stream);
        else
            status = copy_row(to, from, plan->unit, stream);
    } while (status == 0 && dlb_copy_advance(rest, left, index, &back, &forth));
    return status;
}

/* Whether the copy engine is faster than the gather kernels: rows are long, and one
 * copy, or a few, take them all. */
static bool is_for_engine(const dlb_copy_plan *plan) {
    if (plan->ndim == 0)
        return true;
    int64_t rows = dlb_copy_count(plan) / plan->unit;
    return plan->unit >= ENGINE_ROW && rows / choose(plan).count <= ENGINE_COPIES;
}

/* In the context of the device. Only the copy engine reaches pageable memory. */
static int enqueue_on_engine(const dlb_copy_plan *plan, dlb_stream on) {
    if (plan->ndim == 0)
        return copy_row(address(plan->destination, plan->destination_start),
                        address(plan->source, plan->source_start), plan->unit,
                        (CUstream)on);
    choice chosen = choose(plan);
    return walk(plan, &chosen, (CUstream)on);
}

/* Within a device, the copy engine may refuse pitches that cuMemAllocPitch has not
 * computed. */
static bool has_refused_pitch(int status, const dlb_copy_plan *plan) {
    const dlb_cuda_failure_t *failure = dlb_cuda_failure();
    return status < 0 && plan->ndim > 0 && failure->kind == DLB_CUDA_CALL &&
           failure->code == CUDA_ERROR_INVALID_VALUE;
}

/* Where kernels of the device reach both sides: what the copy engine refuses, they
 * take, and rows one by one need no pitch. */
static int enqueue(const dlb_copy_plan *plan, dlb_stream on) {
    static const choice one_by_one = {NULL, NULL, 1};
    int status = 1;
    if (is_for_engine(plan)) {
        status = enqueue_on_engine(plan, on);
        if (!has_refused_pitch(status, plan))
            return status;
    }
    int gathered = dlb_cuda_gather(plan, on);
    if (gathered != 1)
        return gathered;
    if (status == 1)
        status = enqueue_on_engine(plan, on);
    return has_refused_pitch(status, plan) ? walk(plan, &one_by_one, (CUstream)on)
                                           : status;
}

/* ---- from one device to another ---- */

/* Make later work on `after` wait for earlier work on `before`, of another device. */
static int join(int32_t before_device, dlb_stream before, int32_t after_device,
                dlb_stream after) {
    CUevent event;
    if (dlb_cuda_mark(before_device, dlb_stream_identify(before), &event) < 0)
        return -1;
    if (event == NULL)
        return dlb_cuda_fail(DLB_CUDA_CAPTURE);
    int status = dlb_cuda_wait(after_device, dlb_stream_identify(after), event);
    dlb_cuda_reuse_event(before_device, event);
    return status < 0 ? -1 : 0;
}

DLB_LOCK_RENEWED(peer_lock)
static uint64_t was_peer_tried[DLB_MAX_DEVICES]; /* bit k: with device k it was tried */
_Static_assert(DLB_MAX_DEVICES <= 64, "a bit for each device");

void dlb_cuda_forget_peers(void) {
    for (int32_t i = 0; i < DLB_MAX_DEVICES; i++)
        was_peer_tried[i] = 0;
}

/* With access, copies go straight over the bus between the devices; without, the driver
 * sends them by way of the host. */
static void enable_peer_access(int32_t device, int32_t peer, CUcontext peer_context) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    CUdevice here, there;
    int can = 0;
    pthread_mutex_lock(&peer_lock);
    bool was_tried = was_peer_tried[device] >> peer & 1;
    was_peer_tried[device] |= UINT64_C(1) << peer;
    pthread_mutex_unlock(&peer_lock);
    if (!was_tried && driver->cuDeviceGet(&here, device) == 0 &&
        driver->cuDeviceGet(&there, peer) == 0 &&
        driver->cuDeviceCanAccessPeer(&can, here, there) == 0 && can) {
        int mode = dlb_cuda_relax();
        driver->cuCtxEnablePeerAccess(peer_context, 0);
        dlb_cuda_unrelax(mode);
    }
}

static int copy_to_peer(const route *on, void *to, const void *from, int64_t nbytes) {
    CUcontext here = dlb_cuda_context(on->from.device);
    CUcontext there = dlb_cuda_context(on->to.device);
    if (here == NULL || there == NULL)
        return -1;
    enable_peer_access(on->from.device, on->to.device, there);
    return dlb_cuda_check(
        dlb_cuda_get()->cuMemcpyPeerAsync((CUdeviceptr)(uintptr_t)to, there,
                                          (CUdeviceptr)(uintptr_t)from, here,
                                          (size_t)nbytes, (CUstream)on->stream),
        "cuMemcpyPeerAsync");
}

static int spread(const route *on, const dlb_copy_plan *out, const dlb_buffer *middle,
                  dlb_stream there) {
    dlb_cuda_scope scope;
    if (join(on->device, on->stream, on->to.device, there) < 0 ||
        dlb_access_read(middle->access, there) < 0 ||
        dlb_cuda_enter(on->to.device, &scope) < 0)
        return -1;
    int status = enqueue(out, there);
    dlb_cuda_leave(&scope);
    return status;
}

/* Packed here, sent, and spread out there; a side that is compact needs no memory. */
static int send_to_peer(const route *on, const dlb_copy_plan *plan) {
    int64_t total = dlb_copy_count(plan);
    dlb_stream there = dlb_cuda_current_stream(on->to.device);
    dlb_copy_plan in, out;
    dlb_copy_through(plan, NULL, &in, &out);
    dlb_buffer *packed = NULL, *arrived = NULL;
    char *from = (char *)(uintptr_t)in.source + in.source_start;
    char *to = out.destination + out.destination_start;
    int status = 0;
    if (in.ndim > 0) {
        packed = dlb_cuda_allocate((DLDevice){kDLCUDA, on->from.device}, total);
        status = packed == NULL ? -1 : 0;
        if (status == 0)
            in.destination = from = packed->data;
    }
    if (status == 0 && out.ndim > 0) {
        arrived = dlb_cuda_allocate((DLDevice){kDLCUDA, on->to.device}, total);
        status =
            arrived == NULL ? -1 : join(on->to.device, there, on->device, on->stream);
        if (status == 0)
            out.source = to = arrived->data;
    }
    if (status == 0 && packed != NULL)
        status = enqueue(&in, on->stream);
    if (status == 0)
        status = copy_to_peer(on, to, from, total);
    if (status == 0 && arrived != NULL)
        status = spread(on, &out, arrived, there);
    if (packed != NULL)
        dlb_buffer_drop(packed);
    if (arrived != NULL)
        dlb_buffer_drop(arrived);
    return status;
}

/* ---- between a device and pageable memory, through pinned memory ----
 *
 * The copy engine reads and writes a slot of pinned memory while the host is at the
 * next piece. Small copies go this way too: drivers may wait for the stream before they
 * read pageable memory, or read it when the copy has returned. Large copies have
 * several threads, since one does not move as much as the bus does. */

#define SMALL_SLOT (1 << 20)  /* pieces of copies up to 8 of them */
#define LARGE_SLOT (4 << 20)  /* of larger ones */
#define THREADED (32LL << 20) /* bytes from which on threads help */
#define MAX_WORKERS 4
#define SLOTS 2

typedef struct {
    const dlb_copy_plan *plan;
    bool to_device;
    int32_t device;
    dlb_stream stream;
    int64_t slot_bytes;
} job;

typedef struct {
    const job *of;
    int64_t first, step, next; /* the pieces that are its own, the next one it sees */
    dlb_buffer *slots[SLOTS];
    dlb_copy_plan unpacking[SLOTS]; /* from the device: where a slot's piece goes */
    bool is_full[SLOTS];
    int32_t turn;
    int status;
    dlb_cuda_failure_t failure;
} worker;

/* ---- one piece ---- */

static dlb_buffer *take_slot(worker *self) {
    dlb_buffer **slot = &self->slots[self->turn];
    if (*slot == NULL)
        *slot = dlb_cuda_allocate((DLDevice){kDLCUDAHost, self->of->device},
                                  self->of->slot_bytes);
    if (*slot != NULL && dlb_access_wait((*slot)->access, true) < 0)
        return NULL;
    return *slot;
}

/* Between the slot and the device; an event stands at its end. */
static int issue(const worker *self, const dlb_buffer *slot, const dlb_copy_plan *plan,
                 bool writes_slot) {
    dlb_stream on = self->of->stream;
    int status = writes_slot ? dlb_access_write(slot->access, on)
                             : dlb_access_read(slot->access, on);
    if (status == 0)
        status = enqueue(plan, on);
    if (status == 0)
        status = dlb_access_finish(slot->access, on, writes_slot);
    return status;
}

static int unpack(worker *self, int32_t slot) {
    if (!self->is_full[slot])
        return 0;
    self->is_full[slot] = false;
    if (dlb_access_wait(self->slots[slot]->access, true) < 0)
        return -1;
    dlb_copy_bytes(&self->unpacking[slot]);
    return 0;
}

static int move_piece(worker *self, const dlb_copy_plan *piece) {
    dlb_copy_plan in, out;
    int32_t turn = self->turn;
    dlb_buffer *slot = take_slot(self);
    if (slot == NULL)
        return -1;
    dlb_copy_through(piece, slot->data, &in, &out);
    self->turn = (turn + 1) % SLOTS;
    if (self->of->to_device) {
        dlb_copy_bytes(&in);
        return issue(self, slot, &out, false);
    }
    if (issue(self, slot, &in, true) < 0)
        return -1;
    self->unpacking[turn] = out;
    self->is_full[turn] = true;
    return unpack(self, self->turn); /* while the device fills this one */
}

static int see_piece(void *context, const dlb_copy_plan *piece) {
    worker *self = context;
    bool is_own = self->next++ % self->step == self->first;
    return is_own ? move_piece(self, piece) : 0;
}

/* ---- workers ---- */

static void *run_worker(void *context) {
    worker *self = context;
    dlb_cuda_scope scope;
    self->status = dlb_cuda_enter(self->of->device, &scope);
    if (self->status == 0) {
        self->status =
            dlb_copy_split(self->of->plan, self->of->slot_bytes, see_piece, self);
        for (int32_t i = 0; i < SLOTS && self->status == 0; i++)
            self->status = unpack(self, (self->turn + i) % SLOTS);
        dlb_cuda_leave(&scope);
    }
    self->failure = *dlb_cuda_failure();
    for (int32_t i = 0; i < SLOTS; i++)
        if (self->slots[i] != NULL)
            dlb_buffer_drop(self->slots[i]); /* kept again when its copy is through */
    return NULL;
}

/* The default stream of a thread is another one in each. */
static int64_t count_workers(const job *of, int64_t total) {
    if (total < THREADED || of->stream == DLB_STREAM_PER_THREAD)
        return 1;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return processors < 1 ? 1 : processors < MAX_WORKERS ? processors : MAX_WORKERS;
}

static int run_workers(const job *of, int64_t count) {
    worker *workers = calloc((size_t)count, sizeof *workers);
    pthread_t threads[MAX_WORKERS];
    bool is_started[MAX_WORKERS] = {false};
    int status = 0;
    if (workers == NULL)
        return dlb_cuda_fail(DLB_CUDA_MEMORY);
    for (int64_t i = 0; i < count; i++) {
        workers[i].of = of;
        workers[i].first = i;
        workers[i].step = count;
        is_started[i] =
            i > 0 && pthread_create(&threads[i], NULL, run_worker, &workers[i]) == 0;
    }
    for (int64_t i = 0; i < count; i++)
        if (!is_started[i])
            run_worker(&workers[i]);
    for (int64_t i = 0; i < count; i++) {
        if (is_started[i])
            pthread_join(threads[i], NULL);
        if (workers[i].status < 0) {
            status = -1;
            *dlb_cuda_failure() = workers[i].failure;
        }
    }
    free(workers);
    return status;
}

/* One side is pageable memory; the device's earlier work is ordered before `on`. */
static int stage(const dlb_copy_plan *plan, bool to_device, int32_t device,
                 dlb_stream on) {
    int64_t total = dlb_copy_count(plan);
    dlb_copy_plan ordered = *plan;
    if (!to_device) /* the host is better at changing the order than the copy engine */
        dlb_copy_order_by_source(&ordered);
    int64_t slot = total <= 8 * SMALL_SLOT ? SMALL_SLOT : LARGE_SLOT;
    job of = {&ordered, to_device, device, on, total < slot ? total : slot};
    return run_workers(&of, count_workers(&of, total));
}

/* ---- the way of a copy ---- */

/* Pinned memory without an access tracker might be freed while it is read.
 */
static side_t end_of(const dlb_cuda_operand *side) {
    DLDevice device = side->dl->device;
    bool is_on_device = dlb_is_cuda(device);
    bool is_pinned = device.device_type == kDLCUDAHost && side->access != NULL;
    return (side_t){is_on_device ? ON_DEVICE
                    : is_pinned  ? PINNED
                                 : HOST,
                    device.device_id, device.device_type == kDLCUDAManaged,
                    side->access};
}

/* ---- order ---- */

/* Accesses are tracked on streams of the memory's own device: work of another device is
 * ordered through the current stream there. */
static dlb_stream own_stream(const side_t *side, const route *on) {
    return dlb_access_device(side->access) == on->device
               ? on->stream
               : dlb_cuda_current_stream(dlb_access_device(side->access));
}

static int begin(const side_t *side, const route *on, bool writes) {
    if (side->access == NULL)
        return 0;
    dlb_stream own = own_stream(side, on);
    int32_t device = dlb_access_device(side->access);
    int status = writes ? dlb_access_write(side->access, own)
                        : dlb_access_read(side->access, own);
    if (status == 0 && device != on->device)
        status = join(device, own, on->device, on->stream);
    return status;
}

/* The host waits for an event where it reads pinned memory. */
static int finish(const side_t *side, const route *on, bool writes) {
    if (side->access == NULL)
        return 0;
    dlb_stream own = own_stream(side, on);
    int32_t device = dlb_access_device(side->access);
    if (device != on->device && join(on->device, on->stream, device, own) < 0)
        return -1;
    return side->where == PINNED ? dlb_access_finish(side->access, own, writes) : 0;
}

/* ---- one value after the other ---- */

/* Whether the device that copies reaches both sides. */
static bool is_near(const route *on) {
    return on->to.where != ON_DEVICE || on->from.where != ON_DEVICE ||
           on->to.device == on->from.device || on->to.is_managed || on->from.is_managed;
}

static int move(const route *on, const dlb_copy_plan *plan) {
    if (on->to.where == HOST || on->from.where == HOST)
        return stage(plan, on->from.where == HOST, on->device, on->stream);
    return is_near(on) ? enqueue(plan, on->stream) : send_to_peer(on, plan);
}

/* Fill a loop whose first position is filled, doubling it each time. */
static int repeat(const route *on, dlb_copy_plan *filled, const dlb_copy_loop *loop) {
    for (int64_t done = 1; done < loop->extent; done *= 2) {
        int64_t left = loop->extent - done;
        dlb_copy_plan more = *filled;
        more.destination_start += done * loop->destination;
        more.loops[more.ndim++] = (dlb_copy_loop){left < done ? left : done,
                                                  loop->destination, loop->destination};
        dlb_copy_arrange(&more);
        if (enqueue(&more, on->stream) < 0)
            return -1;
    }
    filled->loops[filled->ndim++] =
        (dlb_copy_loop){loop->extent, loop->destination, loop->destination};
    dlb_copy_arrange(filled);
    return 0;
}

/* A value that is broadcast crosses once. */
static int move_repeating(const route *on, dlb_copy_plan *plan, dlb_copy_loop *repeats,
                          int32_t count) {
    int status = move(on, plan);
    dlb_copy_plan filled = *plan;
    route near = *on;
    filled.source = filled.destination;
    filled.source_start = filled.destination_start;
    for (int32_t i = 0; i < filled.ndim; i++)
        filled.loops[i].source = filled.loops[i].destination;
    dlb_copy_arrange(&filled);
    if (on->to.where == ON_DEVICE && on->to.device != on->device) {
        near.device = on->to.device;
        near.stream = dlb_cuda_current_stream(near.device);
        if (status == 0)
            status = join(on->device, on->stream, near.device, near.stream);
    }
    dlb_cuda_scope scope;
    if (status < 0 || dlb_cuda_enter(near.device, &scope) < 0)
        return -1;
    for (int32_t i = count - 1; i >= 0 && status == 0; i--)
        status = repeat(&near, &filled, &repeats[i]);
    dlb_cuda_leave(&scope);
    return status;
}

/* On the host by way of compact memory there. */
static int fetch_repeating(const route *on, dlb_copy_plan *plan) {
    dlb_copy_loop repeats[DLB_MAX_NDIM + 1];
    dlb_copy_plan single = *plan, in, out;
    dlb_copy_take_repeats(&single, repeats);
    void *middle = malloc((size_t)dlb_copy_count(&single));
    if (middle == NULL)
        return dlb_cuda_fail(DLB_CUDA_MEMORY);
    dlb_copy_through(&single, middle, &in, &out);
    int status = move(on, &in);
    if (status == 0) {
        dlb_copy_plan all = out;
        for (int32_t i = 0; i < plan->ndim; i++)
            if (plan->loops[i].source == 0)
                all.loops[all.ndim++] = plan->loops[i];
        dlb_copy_arrange(&all);
        dlb_copy_bytes(&all);
    }
    free(middle);
    return status;
}

static int move_bytes(const route *on, dlb_copy_plan *plan) {
    dlb_copy_loop repeats[DLB_MAX_NDIM + 1];
    bool is_repeated = false;
    for (int32_t i = 0; i < plan->ndim; i++)
        is_repeated |= plan->loops[i].source == 0;
    if (!is_repeated)
        return move(on, plan);
    if (on->to.where == HOST)
        return fetch_repeating(on, plan);
    if (on->from.where == ON_DEVICE && is_near(on)) {
        int status = dlb_cuda_gather(plan, on->stream);
        if (status != 1)
            return status;
    }
    int32_t count = dlb_copy_take_repeats(plan, repeats);
    return move_repeating(on, plan, repeats, count);
}

/* ---- bits ---- */

static dlb_copy_plan plan_of_bytes(void *to, const void *from, int64_t nbytes) {
    return (dlb_copy_plan){.destination = to, .source = from, .unit = nbytes};
}

/* Fetch the memory that the plan touches of one side. The base moves with it. */
static int fetch_span(const route *on, const side_t *side, const char *base,
                      int64_t low, int64_t high, char **copy) {
    route back = *on;
    *copy = malloc((size_t)(high - low));
    if (*copy == NULL)
        return dlb_cuda_fail(DLB_CUDA_MEMORY);
    back.from = *side;
    back.to = (side_t){.where = HOST};
    dlb_copy_plan plan = plan_of_bytes(*copy, base + low, high - low);
    return move(&back, &plan);
}

/* Elements below a byte that do not lie in whole bytes are moved by the host. The bits
 * between them are written back as they were. */
static int move_bits(const route *on, dlb_copy_plan *plan) {
    int64_t from_low, from_high, to_low, to_high;
    char *from = NULL, *to = NULL, *base = plan->destination;
    bool to_host = on->to.where == HOST, from_host = on->from.where == HOST;
    int status = 0;
    dlb_copy_span(plan, false, &from_low, &from_high);
    dlb_copy_span(plan, true, &to_low, &to_high);
    if (!from_host)
        status = fetch_span(on, &on->from, plan->source, from_low, from_high, &from);
    if (status == 0 && !to_host)
        status = fetch_span(on, &on->to, base, to_low, to_high, &to);
    if (status == 0) {
        plan->source = from_host ? plan->source : from - from_low;
        plan->destination = to_host ? base : to - to_low;
        dlb_copy_bits(plan);
    }
    if (status == 0 && !to_host) {
        route forth = *on;
        forth.from = (side_t){.where = HOST};
        dlb_copy_plan all = plan_of_bytes(base + to_low, to, to_high - to_low);
        status = move(&forth, &all);
    }
    free(from);
    free(to);
    return status;
}

/* ---- the whole ---- */

/* Memory of the host that is not pinned would be read, or written, by each launch of
 * the graph; it may be gone by then. Whether a driver would capture such a copy is
 * another matter. */
static int check_capture(const route *on, const dlb_copy_plan *plan) {
    uint64_t graph;
    if (dlb_cuda_capture(on->stream, &graph) < 0 ||
        dlb_cuda_check_usable(on->stream) < 0)
        return -1;
    bool is_host = on->to.where == HOST || on->from.where == HOST || plan->is_bits;
    return graph != 0 && is_host ? dlb_cuda_fail(DLB_CUDA_PAGEABLE) : 0;
}

static int copy_on_host(const route *on, dlb_copy_plan *plan) {
    if ((on->to.access != NULL && dlb_access_wait(on->to.access, true) < 0) ||
        (on->from.access != NULL && dlb_access_wait(on->from.access, false) < 0))
        return -1;
    dlb_copy_run(plan);
    return 0;
}

static int copy_on_device(const route *on, dlb_copy_plan *plan) {
    if (check_capture(on, plan) < 0 || begin(&on->from, on, false) < 0 ||
        begin(&on->to, on, true) < 0)
        return -1;
    int status = plan->is_bits ? move_bits(on, plan) : move_bytes(on, plan);
    if (finish(&on->from, on, false) < 0)
        status = -1;
    return finish(&on->to, on, true) < 0 ? -1 : status;
}

/* One that reaches both sides, if there is one: every device reaches managed memory. */
static int32_t device_of(const route *on) {
    bool is_from_host = on->from.where != ON_DEVICE ||
                        (on->from.is_managed && on->to.where == ON_DEVICE);
    return is_from_host ? on->to.device : on->from.device;
}

int dlb_cuda_copy(const dlb_cuda_operand *to, const dlb_cuda_operand *from) {
    dlb_copy_plan plan;
    dlb_cuda_scope scope;
    route on = {.to = end_of(to), .from = end_of(from)};
    if (!dlb_copy_prepare(&plan, to->dl, to->flags, from->dl, from->flags))
        return 0;
    dlb_copy_to_bytes(&plan);
    if (on.to.where != ON_DEVICE && on.from.where != ON_DEVICE)
        return copy_on_host(&on, &plan);
    on.device = device_of(&on);
    on.stream = dlb_cuda_current_stream(on.device);
    if (dlb_cuda_enter(on.device, &scope) < 0)
        return -1;
    int status = copy_on_device(&on, &plan);
    dlb_cuda_leave(&scope);
    return status;
}

int dlb_cuda_fill(const dlb_cuda_operand *to, int value) {
    int64_t nbytes =
        dlb_packed_bytes(to->dl->dtype, to->flags, dlb_element_count(to->dl));
    route on = {.to = end_of(to), .device = to->dl->device.device_id};
    dlb_cuda_scope scope;
    if (nbytes == 0)
        return 0;
    if (on.to.where != ON_DEVICE) {
        if (on.to.access != NULL && dlb_access_wait(on.to.access, true) < 0)
            return -1;
        memset(to->dl->data, value, (size_t)nbytes);
        return 0;
    }
    on.stream = dlb_cuda_current_stream(on.device);
    if (dlb_cuda_enter(on.device, &scope) < 0)
        return -1;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)to->dl->data;
    int status = dlb_cuda_check_usable(on.stream);
    if (status == 0)
        status = begin(&on.to, &on, true);
    if (status == 0)
        status = dlb_cuda_check(
            dlb_cuda_get()->cuMemsetD8Async(address, (unsigned char)value,
                                            (size_t)nbytes, (CUstream)on.stream),
            "cuMemsetD8Async");
    dlb_cuda_leave(&scope);
    return status;
}
