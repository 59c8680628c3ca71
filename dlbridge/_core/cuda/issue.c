/* Copies between memory that a device reaches by itself, enqueued on a stream: whole,
 * or by the 2D and 3D copies of the copy engine. */
#include "cuda/copy.h"

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

/* What is left of the loops is walked here. */
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

int dlb_cuda_issue(const dlb_copy_plan *plan, dlb_stream on) {
    if (plan->ndim == 0)
        return copy_row(address(plan->destination, plan->destination_start),
                        address(plan->source, plan->source_start), plan->unit,
                        (CUstream)on);
    choice chosen = choose(plan);
    return walk(plan, &chosen, (CUstream)on);
}
