/* dlbridge's own kernels: loaded into each context that makes a strided copy. */
#include "cuda/cuda.h"
#include "cuda/gather.h"
#include "memory/lock.h"

#define SIZES 5

typedef struct {
    CUcontext context;
    CUmodule module; /* NULL: it cannot be loaded here */
    CUfunction gather[SIZES], transpose[SIZES];
} loaded_t;

static const char *const gather_names[SIZES] = {
    "dlb_gather_1", "dlb_gather_2", "dlb_gather_4", "dlb_gather_8", "dlb_gather_16"};
static const char *const transpose_names[SIZES] = {"dlb_transpose_1", "dlb_transpose_2",
                                                   "dlb_transpose_4", "dlb_transpose_8",
                                                   "dlb_transpose_16"};

DLB_LOCK_RENEWED(lock)
static loaded_t known[DLB_MAX_DEVICES];
static int32_t known_count;

/* All functions at once: where modules are loaded lazily, a kernel is loaded when it is
 * first asked for, and that may wait for the device. */
static CUresult get_functions(loaded_t *loaded) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    CUresult code = 0;
    for (int32_t i = 0; i < SIZES && code == 0; i++) {
        code = driver->cuModuleGetFunction(&loaded->gather[i], loaded->module,
                                           gather_names[i]);
        if (code == 0)
            code = driver->cuModuleGetFunction(&loaded->transpose[i], loaded->module,
                                               transpose_names[i]);
    }
    return code;
}

/* Into the current context. A stream that is being captured takes no harm from it in
 * the relaxed mode. */
static CUresult load(loaded_t *loaded) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    int mode = dlb_cuda_relax();
    CUresult code = driver->cuModuleLoadData(&loaded->module, dlb_gather_ptx);
    if (code != 0) {
        loaded->module = NULL;
    } else if ((code = get_functions(loaded)) != 0) {
        driver->cuModuleUnload(loaded->module);
        loaded->module = NULL;
    }
    dlb_cuda_unrelax(mode);
    return code;
}

/* Under the lock. A device that is too old for the kernels is not asked again. */
static const loaded_t *find(CUcontext context) {
    for (int32_t i = 0; i < known_count; i++)
        if (known[i].context == context)
            return &known[i];
    if (known_count == DLB_MAX_DEVICES)
        return NULL;
    loaded_t *new = &known[known_count];
    *new = (loaded_t){.context = context};
    if (load(new) != CUDA_ERROR_OUT_OF_MEMORY)
        known_count++;
    return new;
}

typedef struct {
    const loaded_t *kernels;
    CUstream stream;
} target;

static int launch(void *context, const dlb_gather_launch *one) {
    const target *on = context;
    int32_t row = __builtin_ctz(one->size);
    CUfunction kernel =
        one->is_transposed ? on->kernels->transpose[row] : on->kernels->gather[row];
    void *parameters[] = {(void *)&one->parameters};
    return dlb_cuda_check(dlb_cuda_get()->cuLaunchKernel(kernel, one->blocks, 1, 1,
                                                         DLB_GATHER_THREADS, 1, 1, 0,
                                                         on->stream, parameters, NULL),
                          "cuLaunchKernel");
}

int dlb_cuda_gather(const dlb_copy_plan *plan, dlb_stream on) {
    CUcontext context;
    if (dlb_cuda_check(dlb_cuda_get()->cuCtxGetCurrent(&context), "cuCtxGetCurrent") <
        0)
        return -1;
    pthread_mutex_lock(&lock);
    const loaded_t *kernels = find(context);
    bool is_there = kernels != NULL && kernels->module != NULL;
    pthread_mutex_unlock(&lock);
    target to = {kernels, (CUstream)on};
    return is_there ? dlb_gather_plan(plan, launch, &to) : 1;
}

void dlb_cuda_forget_kernels(void) {
    CUcontext popped;
    for (int32_t i = 0; i < known_count; i++)
        if (known[i].module != NULL &&
            dlb_cuda_get()->cuCtxPushCurrent(known[i].context) == 0) {
            dlb_cuda_get()->cuModuleUnload(known[i].module);
            dlb_cuda_get()->cuCtxPopCurrent(&popped);
        }
    known_count = 0;
}
