/* Copies between memory that a device reaches by itself, enqueued on a stream: whole,
 * or by the 2D and 3D copies of the copy engine. */
#include "cuda_copy.h"

#define MAX_PITCH INT64_C(0x7fffffff)

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

/* Take the longest loop out of the plan that `fits`. */
static bool take_rows(dlb_copy_plan *plan, const dlb_copy_loop *inner,
                      dlb_copy_loop *taken) {
    int32_t best = -1;
    for (int32_t i = 0; i < plan->ndim; i++) {
        const dlb_copy_loop *loop = &plan->loops[i];
        bool fits = inner ? loop->source > 0 && is_plane(loop, inner)
                          : is_pitch(loop, plan->unit);
        if (fits && (best < 0 || loop->extent > plan->loops[best].extent))
            best = i;
    }
    if (best < 0)
        return false;
    *taken = plan->loops[best];
    plan->ndim--;
    for (int32_t i = best; i < plan->ndim; i++)
        plan->loops[i] = plan->loops[i + 1];
    return true;
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

/* What is left of the loops is walked here. */
static int walk(const dlb_copy_plan *plan, const dlb_copy_loop *rows,
                const dlb_copy_loop *planes, CUstream stream) {
    int64_t index[DLB_MAX_NDIM + 1] = {0};
    int64_t forth = plan->source_start, back = plan->destination_start;
    int status;
    do {
        CUdeviceptr to = address(plan->destination, back);
        CUdeviceptr from = address(plan->source, forth);
        if (planes != NULL)
            status = copy_planes(to, from, plan->unit, rows, planes, stream);
        else if (rows != NULL)
            status = copy_rows(to, from, plan->unit, rows, stream);
        else
            status = copy_row(to, from, plan->unit, stream);
    } while (status == 0 &&
             dlb_copy_advance(plan->loops, plan->ndim, index, &back, &forth));
    return status;
}

int dlb_cuda_issue(const dlb_copy_plan *plan, dlb_stream on) {
    CUstream stream = (CUstream)on;
    dlb_copy_loop rows, planes;
    if (plan->ndim == 0)
        return copy_row(address(plan->destination, plan->destination_start),
                        address(plan->source, plan->source_start), plan->unit, stream);
    dlb_copy_plan rest = *plan;
    if (!take_rows(&rest, NULL, &rows))
        return walk(plan, NULL, NULL, stream);
    bool has_planes = take_rows(&rest, &rows, &planes);
    return walk(&rest, &rows, has_planes ? &planes : NULL, stream);
}
