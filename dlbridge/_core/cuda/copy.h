/* Inside the copies of CUDA memory. No Python here. */
#ifndef DLBRIDGE_CORE_CUDA_COPY_H_
#define DLBRIDGE_CORE_CUDA_COPY_H_

#include "memory/copy.h"
#include "cuda/memory.h"

/* One tensor of a copy. */
typedef struct {
    const DLTensor *dl;
    uint64_t flags;
    dlb_work *work; /* of CUDA and pinned memory */
} dlb_cuda_operand;

/* ---- copy.c ---- */

/* Copy element by element, in the order of streams: shapes and dtypes are equal, both
 * layouts were checked, at least one side is in CUDA memory, pinned or not. The copy is
 * enqueued on the current stream of the device (between two: of both), behind all work
 * that is known on either side. From memory of the host that is not pinned the values
 * are taken before this returns; in memory of the host that is not pinned they are
 * there when it returns. */
int dlb_cuda_copy(const dlb_cuda_operand *to, const dlb_cuda_operand *from);
/* All bytes of compact CUDA memory become `value`. */
int dlb_cuda_fill(const dlb_cuda_operand *to, int value);

/* A copy on its way. */
enum dlb_cuda_where { DLB_HOST, DLB_PINNED, DLB_ON_DEVICE };

typedef struct {
    enum dlb_cuda_where where;
    int32_t device;
    bool is_managed; /* within the reach of every device */
    dlb_work *work;
} dlb_cuda_end;

typedef struct {
    dlb_cuda_end to, from;
    int32_t device; /* the one that copies; between two, the one that is read */
    dlb_stream stream;
} dlb_cuda_route;

/* ---- peer.c ---- */

/* Work on `after` from now on waits for what is on `before` now, of another device. */
int dlb_cuda_join(int32_t before_device, dlb_stream before, int32_t after_device,
                  dlb_stream after);
/* Both sides are device memory, of two devices; both are in order on the route. */
int dlb_cuda_send(const dlb_cuda_route *on, const dlb_copy_plan *plan);

/* ---- issue.c ---- */

/* Both sides are within the device's reach; in the context of the device. */
int dlb_cuda_issue(const dlb_copy_plan *plan, dlb_stream on);

/* ---- staging.c ---- */

/* One side is the host's pageable memory, the other the device's, whose earlier work is
 * ordered before `on`. */
int dlb_cuda_stage(const dlb_copy_plan *plan, bool to_device, int32_t device,
                   dlb_stream on);

#endif /* DLBRIDGE_CORE_CUDA_COPY_H_ */
