/* Copies of CUDA memory: which way, in which order, on which streams. */
#include "cuda/copy.h"
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

/* Without an account of the work on it, pinned memory might be freed while it is read.
 */
static dlb_cuda_end end_of(const dlb_cuda_operand *side) {
    DLDevice device = side->dl->device;
    bool is_on_device =
        device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
    bool is_pinned = device.device_type == kDLCUDAHost && side->work != NULL;
    return (dlb_cuda_end){is_on_device ? DLB_ON_DEVICE
                          : is_pinned  ? DLB_PINNED
                                       : DLB_HOST,
                          device.device_id, device.device_type == kDLCUDAManaged,
                          side->work};
}

/* ---- order ---- */

/* Memory is accounted for on streams of its own device: work of another goes by the
 * current one there. */
static dlb_stream own_stream(const dlb_cuda_end *side, const dlb_cuda_route *on) {
    return dlb_work_device(side->work) == on->device
               ? on->stream
               : dlb_cuda_current_stream(dlb_work_device(side->work));
}

static int begin(const dlb_cuda_end *side, const dlb_cuda_route *on, bool writes) {
    if (side->work == NULL)
        return 0;
    dlb_stream own = own_stream(side, on);
    int32_t device = dlb_work_device(side->work);
    int status =
        writes ? dlb_work_write(side->work, own) : dlb_work_read(side->work, own);
    if (status == 0 && device != on->device)
        status = dlb_cuda_join(device, own, on->device, on->stream);
    return status;
}

/* The host waits for an event where it reads pinned memory. */
static int finish(const dlb_cuda_end *side, const dlb_cuda_route *on, bool writes) {
    if (side->work == NULL)
        return 0;
    dlb_stream own = own_stream(side, on);
    int32_t device = dlb_work_device(side->work);
    if (device != on->device && dlb_cuda_join(on->device, on->stream, device, own) < 0)
        return -1;
    return side->where == DLB_PINNED ? dlb_work_finish(side->work, own, writes) : 0;
}

/* ---- one place after the other ---- */

static int move(const dlb_cuda_route *on, const dlb_copy_plan *plan) {
    if (on->to.where == DLB_HOST || on->from.where == DLB_HOST)
        return dlb_cuda_stage(plan, on->from.where == DLB_HOST, on->device, on->stream);
    bool is_near = on->to.where != DLB_ON_DEVICE || on->from.where != DLB_ON_DEVICE ||
                   on->to.device == on->from.device || on->to.is_managed ||
                   on->from.is_managed;
    return is_near ? dlb_cuda_issue(plan, on->stream) : dlb_cuda_send(on, plan);
}

/* Fill a loop whose first position is there by doubling what is there. */
static int repeat(const dlb_cuda_route *on, dlb_copy_plan *filled,
                  const dlb_copy_loop *loop) {
    for (int64_t done = 1; done < loop->extent; done *= 2) {
        int64_t left = loop->extent - done;
        dlb_copy_plan more = *filled;
        more.destination_start += done * loop->destination;
        more.loops[more.ndim++] = (dlb_copy_loop){left < done ? left : done,
                                                  loop->destination, loop->destination};
        dlb_copy_arrange(&more);
        if (dlb_cuda_issue(&more, on->stream) < 0)
            return -1;
    }
    filled->loops[filled->ndim++] =
        (dlb_copy_loop){loop->extent, loop->destination, loop->destination};
    dlb_copy_arrange(filled);
    return 0;
}

/* A value that is broadcast crosses once. */
static int move_repeating(const dlb_cuda_route *on, dlb_copy_plan *plan,
                          dlb_copy_loop *repeats, int32_t count) {
    int status = move(on, plan);
    dlb_copy_plan filled = *plan;
    dlb_cuda_route near = *on;
    filled.source = filled.destination;
    filled.source_start = filled.destination_start;
    for (int32_t i = 0; i < filled.ndim; i++)
        filled.loops[i].source = filled.loops[i].destination;
    dlb_copy_arrange(&filled);
    if (on->to.where == DLB_ON_DEVICE && on->to.device != on->device) {
        near.device = on->to.device;
        near.stream = dlb_cuda_current_stream(near.device);
        if (status == 0)
            status = dlb_cuda_join(on->device, on->stream, near.device, near.stream);
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
static int fetch_repeating(const dlb_cuda_route *on, dlb_copy_plan *plan) {
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

static int move_bytes(const dlb_cuda_route *on, dlb_copy_plan *plan) {
    dlb_copy_loop repeats[DLB_MAX_NDIM + 1];
    bool is_repeated = false;
    for (int32_t i = 0; i < plan->ndim; i++)
        is_repeated |= plan->loops[i].source == 0;
    if (!is_repeated)
        return move(on, plan);
    if (on->to.where == DLB_HOST)
        return fetch_repeating(on, plan);
    int32_t count = dlb_copy_take_repeats(plan, repeats);
    return move_repeating(on, plan, repeats, count);
}

/* ---- bits ---- */

static dlb_copy_plan plan_of_bytes(void *to, const void *from, int64_t nbytes) {
    return (dlb_copy_plan){.destination = to, .source = from, .unit = nbytes};
}

/* Fetch what the plan touches of one side, unless the host reaches it; the base moves
 * along. */
static int fetch_span(const dlb_cuda_route *on, const dlb_cuda_end *side,
                      const char *base, int64_t low, int64_t high, char **copy) {
    dlb_cuda_route back = *on;
    *copy = malloc((size_t)(high - low));
    if (*copy == NULL)
        return dlb_cuda_fail(DLB_CUDA_MEMORY);
    back.from = *side;
    back.to = (dlb_cuda_end){.where = DLB_HOST};
    dlb_copy_plan plan = plan_of_bytes(*copy, base + low, high - low);
    return move(&back, &plan);
}

/* Elements below a byte that do not lie in whole bytes are moved by the host. The bits
 * between them are written back as they were. */
static int move_bits(const dlb_cuda_route *on, dlb_copy_plan *plan) {
    int64_t from_low, from_high, to_low, to_high;
    char *from = NULL, *to = NULL, *base = plan->destination;
    bool to_host = on->to.where == DLB_HOST, from_host = on->from.where == DLB_HOST;
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
        dlb_cuda_route forth = *on;
        forth.from = (dlb_cuda_end){.where = DLB_HOST};
        dlb_copy_plan all = plan_of_bytes(base + to_low, to, to_high - to_low);
        status = move(&forth, &all);
    }
    free(from);
    free(to);
    return status;
}

/* ---- the whole ---- */

/* Memory of the host that is not pinned would be read when the graph runs. */
static int check_capture(const dlb_cuda_route *on, const dlb_copy_plan *plan) {
    uint64_t graph;
    if (dlb_cuda_capture(on->stream, &graph) < 0 ||
        dlb_cuda_check_usable(on->stream) < 0)
        return -1;
    bool is_host =
        on->to.where == DLB_HOST || on->from.where == DLB_HOST || plan->is_bits;
    return graph != 0 && is_host ? dlb_cuda_fail(DLB_CUDA_PAGEABLE) : 0;
}

static int copy_on_host(const dlb_cuda_route *on, dlb_copy_plan *plan) {
    if ((on->to.work != NULL && dlb_work_wait(on->to.work, true) < 0) ||
        (on->from.work != NULL && dlb_work_wait(on->from.work, false) < 0))
        return -1;
    dlb_copy_run(plan);
    return 0;
}

static int copy_on_device(const dlb_cuda_route *on, dlb_copy_plan *plan) {
    if (check_capture(on, plan) < 0 || begin(&on->from, on, false) < 0 ||
        begin(&on->to, on, true) < 0)
        return -1;
    int status = plan->is_bits ? move_bits(on, plan) : move_bytes(on, plan);
    if (finish(&on->from, on, false) < 0)
        status = -1;
    return finish(&on->to, on, true) < 0 ? -1 : status;
}

int dlb_cuda_copy(const dlb_cuda_operand *to, const dlb_cuda_operand *from) {
    dlb_copy_plan plan;
    dlb_cuda_scope scope;
    dlb_cuda_route on = {.to = end_of(to), .from = end_of(from)};
    if (!dlb_copy_prepare(&plan, to->dl, to->flags, from->dl, from->flags))
        return 0;
    dlb_copy_to_bytes(&plan);
    if (on.to.where != DLB_ON_DEVICE && on.from.where != DLB_ON_DEVICE)
        return copy_on_host(&on, &plan);
    on.device = on.from.where == DLB_ON_DEVICE ? on.from.device : on.to.device;
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
    dlb_cuda_route on = {.to = end_of(to), .device = to->dl->device.device_id};
    dlb_cuda_scope scope;
    if (nbytes == 0)
        return 0;
    if (on.to.where != DLB_ON_DEVICE) {
        if (on.to.work != NULL && dlb_work_wait(on.to.work, true) < 0)
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
