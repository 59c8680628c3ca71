/* The tensors of a direct call, of any framework: which lender they are of, what they
 * are compared with, and new ones for results. */
#include "call/call.h"
#include "layout/layout.h"
#include "python/numpy.h"

#include <string.h>

static const dlb_lender *const lenders[] = {
    [DLB_FAMILY_NUMPY] = &dlb_numpy_lender, [DLB_FAMILY_TORCH] = &dlb_torch_lender,
    [DLB_FAMILY_JAX] = &dlb_jax_lender,     [DLB_FAMILY_OWN] = &dlb_own_lender,
    [DLB_FAMILY_CUPY] = &dlb_cupy_lender,
};
#define FAMILIES (dlb_family)(sizeof lenders / sizeof *lenders)

/* An unknown type may only not have been met: its adapter opens the guard
 * of torch, or the way of jax. Asked once, or once more after a clash. */
static int meet(PyTypeObject *type) {
    static _Atomic(const void *) met[16];
    _Atomic(const void *) *slot = &met[((uintptr_t)type >> 4) % 16];
    if (atomic_load_explicit(slot, memory_order_relaxed) == type)
        return 0;
    atomic_store_explicit(slot, type, memory_order_relaxed);
    return dlb_meet_type(type);
}

static dlb_family family_of(PyObject *x) {
    for (dlb_family family = DLB_FAMILY_NONE + 1; family < FAMILIES; family++)
        if (lenders[family]->owns(x))
            return family;
    return DLB_FAMILY_NONE;
}

dlb_family dlb_family_of_framework(PyObject *framework) {
    if (framework == NULL)
        return DLB_FAMILY_NONE;
    for (dlb_family family = DLB_FAMILY_NONE + 1; family < FAMILIES; family++)
        if (PyUnicode_CompareWithASCIIString(framework, lenders[family]->framework) ==
            0)
            return family;
    return DLB_FAMILY_OTHER;
}

static int choose_family(dlb_call *call, PyObject *x) {
    dlb_family family = family_of(x);
    if (family == DLB_FAMILY_NONE) {
        if (meet(Py_TYPE(x)) < 0)
            return -1;
        family = family_of(x);
    }
    if (family == DLB_FAMILY_NONE ||
        (call->wanted != DLB_FAMILY_NONE && call->wanted != family))
        return DLB_DECLINED;
    const dlb_lender *lender = lenders[family];
    call->family = family;
    call->frame.source = lender->source;
    return lender->begin != NULL ? lender->begin(call, x) : 0;
}

int dlb_borrow(dlb_call *call, int index, PyObject *x) {
    if (call->family == DLB_FAMILY_NONE) {
        int status = choose_family(call, x);
        if (status != 0)
            return status;
    }
    bool is_given = call->give != NULL && index >= call->frame.input_count;
    call->objects[index] = x;
    return lenders[is_given ? DLB_FAMILY_OWN : call->family]->borrow(call, index, x);
}

int dlb_borrow_to_write(const dlb_call *call, int index) {
    if (call->frame.tensors[index].ndim < 0)
        return 0;
    if (call->frame.flags[index] & DLPACK_FLAG_BITMASK_READ_ONLY)
        return DLB_DECLINED;
    const dlb_lender *lender = lenders[call->family];
    return lender->may_write == NULL || lender->may_write(call, index) ? 0
                                                                       : DLB_DECLINED;
}

void dlb_give_back(dlb_call *call) {
    for (int32_t i = 0; i < call->borrowed_count; i++) {
        dlb_borrowed *borrowed = &call->borrowed[i];
        if (borrowed->is_buffer)
            PyBuffer_Release(&borrowed->memory.protocol);
        else
            dlb_buffer_drop(borrowed->memory.core);
    }
    call->borrowed_count = 0;
}

/* ---- results ---- */

PyObject *dlb_allocate_result(const dlb_call *call, int32_t ndim, const int64_t *shape,
                              DLDataType dtype, DLDevice device) {
    dlb_family family = call->give ? DLB_FAMILY_OWN : call->family;
    bool is_known = family > DLB_FAMILY_NONE && family < FAMILIES;
    if (!is_known || lenders[family]->allocate == NULL)
        return NULL;
    return lenders[family]->allocate(ndim, shape, dtype, device);
}

PyObject *dlb_out_item(PyObject *out, int32_t count, int index) {
    if (count == 1)
        return out;
    bool fits = PyTuple_CheckExact(out) && PyTuple_GET_SIZE(out) == count;
    return fits ? PyTuple_GET_ITEM(out, index) : NULL;
}

void dlb_drop_results(dlb_call *call) {
    for (int32_t i = 0; i < call->made_count; i++)
        Py_DECREF(call->objects[call->frame.input_count + i]);
    call->made_count = 0;
}

/* ---- a call as the one before ---- */

/* All addresses are as the kernel wants them, and nothing that is written overlaps. */
static inline bool is_apart(const dlb_kernel *kernel, const dlb_call_cache *cache,
                            const dlb_frame *frame) {
    dlb_span spans[DLB_CACHED_TENSORS];
    const DLTensor *tensors = frame->tensors;
    uintptr_t addresses = 0;
    int32_t count = cache->input_count + cache->result_count;
    for (int32_t i = 0; i < count; i++) {
        uintptr_t low = (uintptr_t)tensors[i].data;
        spans[i] = (dlb_span){low, low + cache->tensors[i].nbytes};
        addresses |= low;
    }
    return dlb_is_aligned(kernel, addresses) &&
           dlb_spans_are_apart(kernel, spans, count, cache->written);
}

/* Whether tensors `first` and following, which were borrowed, are as in the cache. */
static bool match_borrowed(const dlb_call *call, const dlb_call_cache *cache,
                           int32_t first, int32_t count) {
    for (int32_t i = first; i < first + count; i++) {
        const DLTensor *tensor = &call->frame.tensors[i];
        bool is_written = cache->written >> i & 1;
        uint64_t allowed = is_written ? 0 : (uint64_t)DLPACK_FLAG_BITMASK_READ_ONLY;
        if (!dlb_is_as_cached(&cache->tensors[i], tensor) ||
            !dlb_is_same_device(tensor->device, cache->device) ||
            tensor->data == NULL || (call->frame.flags[i] & ~allowed) ||
            (is_written && dlb_borrow_to_write(call, i) != 0))
            return false;
    }
    return true;
}

/* The inputs: arrays of NumPy are compared as they are, others were borrowed. */
static bool match_inputs(dlb_call *call, const dlb_call_cache *cache,
                         PyObject *const *tensors) {
    int32_t inputs = cache->input_count;
    if (call->family != DLB_FAMILY_NONE)
        return call->family == cache->family && match_borrowed(call, cache, 0, inputs);
    if (cache->family != DLB_FAMILY_NUMPY)
        return false;
    memcpy(call->objects, tensors, (size_t)inputs * sizeof *tensors);
    if (!dlb_match_numpy(call, cache->tensors, 0, inputs))
        return false;
    call->family = DLB_FAMILY_NUMPY;
    return true;
}

/* Result `i` of the call: given, or made. */
static bool match_result(dlb_call *call, const dlb_call_cache *cache, int32_t i,
                         PyObject *x) {
    if (call->family != DLB_FAMILY_NUMPY)
        return dlb_borrow(call, i, x) == 0 && match_borrowed(call, cache, i, 1);
    call->objects[i] = x;
    return dlb_match_numpy(call, &cache->tensors[i], i, 1);
}

static bool match_new(dlb_call *call, const dlb_call_cache *cache, int32_t i) {
    const dlb_cached_tensor *cached = &cache->tensors[i];
    PyObject *made = dlb_allocate_result(call, cached->dl.ndim, cached->shape,
                                         cached->dl.dtype, cache->device);
    if (made == NULL)
        return false;
    call->objects[i] = made;
    call->made_count++;
    return match_result(call, cache, i, made);
}

static bool match_results(dlb_call *call, const dlb_call_cache *cache, PyObject *out) {
    int32_t count = cache->result_count;
    for (int32_t i = 0; i < count; i++) {
        int32_t place = cache->input_count + i;
        PyObject *given = out != NULL ? dlb_out_item(out, count, i) : NULL;
        bool is_matched =
            out == NULL ? match_new(call, cache, place)
                        : given != NULL && match_result(call, cache, place, given);
        if (!is_matched)
            return false;
    }
    return true;
}

/* The shapes and strides of a call like the one in the cache are those. */
static void use_all_dims(dlb_call *call, const dlb_call_cache *cache) {
    int32_t count = cache->input_count + cache->result_count;
    for (int32_t i = 0; i < count; i++)
        dlb_use_dims(&call->frame.tensors[i], &cache->tensors[i],
                     call->kept_dims + (size_t)i * DLB_ROOM);
}

static bool has_same_sizes(const dlb_signature *signature, const dlb_call_cache *cache,
                           const dlb_scalar *scalars) {
    if (signature == NULL || !signature->has_sizes)
        return true;
    for (int32_t i = 0; i < signature->scalar_count; i++)
        if ((signature->scalars[i].name >= 0 || signature->scalars[i].dtype >= 0) &&
            scalars[i].value.i != cache->sizes[i])
            return false;
    return true;
}

/* The inputs, and what is known of them, are as before. */
static void forget_results(dlb_call *call, int32_t inputs, int32_t dim_count) {
    dlb_frame *frame = &call->frame;
    dlb_clear_error(); /* the general path meets it again; an interrupt comes only once
                        */
    dlb_drop_results(call);
    for (int32_t i = inputs; i < frame->tensor_count; i++)
        dlb_set_remove(frame->watched, i);
    call->dim_count = dim_count;
    if (call->family == DLB_FAMILY_NUMPY) { /* its inputs were not borrowed */
        call->family = DLB_FAMILY_NONE;
        inputs = 0;
    }
    frame->tensor_count = frame->input_count = inputs;
}

static bool use_cache(const dlb_kernel *kernel, const dlb_call_cache *cache,
                      dlb_call *call, PyObject *out) {
    int32_t dim_count = call->dim_count, inputs = cache->input_count;
    call->frame.input_count = inputs;
    call->frame.tensor_count = inputs + cache->result_count;
    if (match_results(call, cache, out) && is_apart(kernel, cache, &call->frame)) {
        if (call->family != DLB_FAMILY_NUMPY)
            use_all_dims(call, cache);
        call->target = cache->target;
        call->holds_gil = cache->holds_gil;
        *call->frame.written = cache->written;
        return true;
    }
    forget_results(call, inputs, dim_count);
    return false;
}

bool dlb_use_cache(const dlb_kernel *kernel, const dlb_call_cache *cache,
                   dlb_call *call, PyObject *const *tensors, PyObject *out) {
    if ((call->wanted != DLB_FAMILY_NONE && call->wanted != cache->family) ||
        !has_same_sizes(kernel->signature, cache, call->frame.scalars) ||
        !match_inputs(call, cache, tensors))
        return false;
    const dlb_lender *lender = lenders[call->family];
    bool runs_python =
        out == NULL || (lender->runs_python != NULL && lender->runs_python(call));
    if (cache->result_count == 0 || !runs_python)
        return use_cache(kernel, cache, call, out);
    /* To allocate a result, or to borrow it so, lets other code run: it may call this
     * very kernel, and replace the cache. */
    dlb_call_cache before;
    size_t count = (size_t)(cache->input_count + cache->result_count);
    memcpy(&before, cache,
           offsetof(dlb_call_cache, tensors) + count * sizeof *cache->tensors);
    return use_cache(kernel, &before, call, out);
}

bool dlb_use_array_cache(const dlb_kernel *kernel, const dlb_call_cache *cache,
                         dlb_frame *frame, PyObject *const *arrays, int64_t *room) {
    if (!dlb_match_arrays(cache, frame, arrays, room))
        return false;
    frame->tensor_count = frame->input_count = cache->input_count;
    *frame->written = cache->written;
    return is_apart(kernel, cache, frame);
}

/* ---- filling the cache ---- */

static bool cache_tensor(dlb_cached_tensor *cached, const DLTensor *tensor,
                         DLDevice device) {
    if (tensor->ndim < 0 || tensor->ndim > DLB_CACHED_NDIM ||
        !dlb_is_same_device(tensor->device, device))
        return false;
    cached->dl = *tensor;
    for (int32_t i = 0; i < tensor->ndim; i++) /* `shape` may be NULL for none */
        cached->shape[i] = tensor->shape[i];
    dlb_row_major_strides(tensor->ndim, cached->shape, cached->strides);
    if (!dlb_is_as_cached(cached, tensor)) /* strided: it would never be met again */
        return false;
    cached->descr = NULL;
    cached->nbytes =
        (uint64_t)dlb_packed_bytes(tensor->dtype, 0, dlb_element_count(tensor));
    return cached->nbytes > 0;
}

bool dlb_fill_cache(const dlb_kernel *kernel, dlb_call_cache *cache,
                    const dlb_call *call, uint32_t written) {
    const dlb_frame *frame = &call->frame;
    int32_t count = frame->tensor_count;
    if (count == 0 || count > DLB_CACHED_TENSORS ||
        (kernel->signature == NULL ? frame->scalar_count > 0
                                   : kernel->signature->has_packs))
        return false;
    cache->device = frame->tensors[0].device;
    cache->target = dlb_kernel_target(kernel, cache->device);
    for (int32_t i = 0; i < count; i++)
        if (!cache_tensor(&cache->tensors[i], &frame->tensors[i], cache->device) ||
            (call->family == DLB_FAMILY_NUMPY &&
             !dlb_cache_numpy(call->objects[i], &cache->tensors[i])))
            return false;
    for (int32_t i = 0; i < frame->scalar_count; i++)
        cache->sizes[i] = frame->scalars[i].value.i;
    cache->input_count = frame->input_count;
    cache->result_count = count - frame->input_count;
    cache->holds_gil = call->holds_gil;
    cache->is_simple = call->family == DLB_FAMILY_NUMPY && cache->result_count == 0 &&
                       frame->scalar_count == 0;
    cache->written =
        written | (((UINT32_C(1) << cache->result_count) - 1) << frame->input_count);
    for (int32_t i = 0; i < count; i++)
        cache->tensors[i].needed = NPY_ARRAY_C_CONTIGUOUS |
                                   (cache->written >> i & 1 ? NPY_ARRAY_WRITEABLE : 0);
    cache->family = call->family;
    return true;
}

bool dlb_is_same_cache(const dlb_kernel *kernel, const dlb_call_cache *a,
                       const dlb_call_cache *b, const dlb_call *call) {
    if (a->family != b->family || a->input_count != b->input_count ||
        a->result_count != b->result_count || a->written != b->written ||
        !dlb_is_same_device(a->device, b->device) ||
        !has_same_sizes(kernel->signature, a, call->frame.scalars))
        return false;
    for (int32_t i = 0; i < a->input_count + a->result_count; i++)
        if (a->tensors[i].descr != b->tensors[i].descr ||
            !dlb_is_as_cached(&a->tensors[i], &b->tensors[i].dl))
            return false;
    return true;
}
