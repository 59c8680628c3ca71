/* Debug mode: a call on the CPU works on copies of its tensors between guard bytes,
 * which are checked after it. The call fails where the kernel wrote out of bounds or
 * into an argument that it may only read, left elements of a result unwritten, computed
 * results from such memory, or made NaN of arguments without any. The caller's memory
 * is then as it was. */
#include "kernel/kernel.h"
#include "layout/layout.h"
#include "memory/buffer.h"
#include "memory/copy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Atomic uint64_t dlb_detours = UINT64_C(1) << kDLCUDA;
static atomic_bool looks_for_nans;

/* ---- the fillings of guards and results ---- */

enum { LEAST_GUARD = 256, MOST_GUARD = 65536 };
/* They differ for results and arguments, so that a value read out of the bounds of an
 * argument shows in a result. */
enum { RESULT = 0xa5, ARGUMENT = 0x5a };

typedef struct { /* repeats; the first byte is that of the first element */
    uint8_t bytes[8];
    int32_t period; /* a power of two */
    bool is_nan;
} pattern;

/* The type code of real numbers: of the parts, if it is complex. */
static uint8_t part_code(DLDataType dtype) {
    return dtype.code == kDLComplex    ? kDLFloat
           : dtype.code == kDLBcomplex ? kDLBfloat
                                       : dtype.code;
}

/* The width of a real number in it; 0: it has none with a NaN that is looked for. */
static int32_t real_bits(DLDataType dtype) {
    uint8_t code = part_code(dtype);
    int32_t bits = code != dtype.code ? dtype.bits / 2 : dtype.bits;
    bool is_real = code == kDLFloat || code == kDLBfloat;
    return is_real && (bits == 16 || bits == 32 || bits == 64) ? bits : 0;
}

/* A signalling NaN: arithmetic makes a quiet one of it, which tells elements that were
 * read too early from those that were never written. */
static pattern find_pattern(DLDataType dtype, int fill) {
    pattern made = {.period = 1};
    memset(made.bytes, fill, sizeof made.bytes);
    int32_t bits = real_bits(dtype);
    if (bits == 0)
        return made;
    made.is_nan = true;
    made.period = bits / 8;
    made.bytes[made.period - 1] = 0x7f;
    if (part_code(dtype) == kDLBfloat || bits == 32)
        made.bytes[made.period - 2] = 0xa5;
    if (part_code(dtype) != kDLBfloat && bits == 16)
        made.bytes[1] = 0x7d;
    if (bits == 64)
        made.bytes[6] = 0xf5;
    return made;
}

static void fill(const pattern *with, char *from, const char *to, const char *first) {
    for (; from < to; from++)
        *from = (char)with->bytes[(from - first) & (with->period - 1)];
}

/* ---- copies between guard bytes ---- */

typedef struct {
    DLTensor original;
    uint64_t flags;
    dlb_buffer *memory; /* the guards and the elements; NULL: the tensor is left out */
    dlb_buffer *before; /* the same before the kernel ran */
    char *begin, *end;  /* of the elements */
    /* What was repeated (stride 0) once, since it has one place in memory. */
    DLTensor once;
    int64_t shape[DLB_MAX_NDIM];
} guarded;

typedef struct {
    int32_t count;
    const uint32_t *written;
    uint32_t *watched; /* of the frame, which meanwhile has `none` */
    void *const *objects;
    void **hidden;
    uint32_t *none;
    guarded tensors[];
} guards;

/* Where the elements begin and end, in bytes from the first one. */
static void find_span(const DLTensor *tensor, int64_t *begin, int64_t *end) {
    int64_t low = 0, high = 0, bits = dlb_element_bits(tensor->dtype, 0);
    *begin = *end = 0;
    if (dlb_element_count(tensor) == 0)
        return;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t reach = (tensor->shape[i] - 1) * tensor->strides[i];
        *(reach < 0 ? &low : &high) += reach;
    }
    *begin = low * bits >> 3; /* also of negative numbers, downwards */
    *end = ((high + 1) * bits + 7) >> 3;
}

static void find_once(guarded *made) {
    made->once = made->original;
    made->once.shape = made->shape;
    for (int32_t i = 0; i < made->once.ndim; i++) {
        bool is_repeated =
            made->original.strides[i] == 0 && made->original.shape[i] > 1;
        made->shape[i] = is_repeated ? 1 : made->original.shape[i];
    }
}

static int64_t guard_size(int64_t nbytes) {
    int64_t size = nbytes < LEAST_GUARD ? LEAST_GUARD : nbytes;
    return size > MOST_GUARD ? MOST_GUARD : size;
}

/* Memory for the elements, with a guard on either side, whose first element is aligned;
 * all of it is filled. False if it cannot be allocated. */
static bool allocate(const dlb_kernel *kernel, guarded *made, int with) {
    int64_t alignment = kernel->alignment > 64 ? kernel->alignment : 64;
    int64_t begin, end, total;
    find_span(&made->once, &begin, &end);
    int64_t guard = guard_size(end - begin);
    if (__builtin_add_overflow(end - begin, 2 * guard + alignment, &total))
        return false;
    made->memory = dlb_buffer_allocate(total, (size_t)alignment, false);
    made->before = made->memory ? dlb_buffer_allocate(total, 64, false) : NULL;
    if (made->before == NULL)
        return false;
    char *base = made->memory->data;
    uintptr_t first = (uintptr_t)base + (uintptr_t)(guard - begin);
    first = (first + (uintptr_t)alignment - 1) & ~((uintptr_t)alignment - 1);
    made->once.data = base + (first - (uintptr_t)base);
    made->begin = (char *)made->once.data + begin;
    made->end = (char *)made->once.data + end;
    pattern filled = find_pattern(made->once.dtype, with);
    fill(&filled, base, base + total, made->once.data);
    return true;
}

/* The same place in the other memory. */
static char *as_before(const guarded *each, const char *place) {
    return (char *)each->before->data + (place - (char *)each->memory->data);
}

static int guard(const dlb_kernel *kernel, dlb_frame *frame, int32_t i, guards *all,
                 int with) {
    guarded *made = &all->tensors[i];
    DLTensor *tensor = &frame->tensors[i];
    made->memory = made->before = NULL;
    made->original = *tensor;
    made->flags = frame->flags[i];
    if (tensor->ndim < 0)
        return 0;
    find_once(made);
    if (!allocate(kernel, made, with))
        return dlb_frame_fail(frame, DLB_ERROR_MEMORY,
                              "%s: debug_kernels: no memory for a copy of tensor %d "
                              "between guard bytes",
                              kernel->name, (int)i);
    DLTensor from = made->once;
    from.data = made->original.data;
    if (i < frame->input_count)
        dlb_copy(&made->once, made->flags, &from, made->flags);
    memcpy(made->before->data, made->memory->data, (size_t)made->memory->nbytes);
    tensor->data = made->once.data;
    tensor->device = (DLDevice){kDLCPU, 0};
    all->hidden[i] = NULL;
    return 0;
}

/* What lies behind the extents that the kernel said is nobody's. After its call. */
static void limit_to_extents(const dlb_kernel *kernel, const dlb_frame *frame,
                             guards *all) {
    if (kernel->says_extents)
        for (int32_t i = frame->input_count; i < all->count; i++)
            if (all->tensors[i].memory != NULL && all->tensors[i].once.ndim > 0)
                all->tensors[i].shape[0] = dlb_frame_said(kernel, frame, i);
}

static void restore(dlb_frame *frame, const guards *all) {
    for (int32_t i = 0; i < all->count; i++)
        frame->tensors[i] = all->tensors[i].original;
    frame->watched = all->watched;
    frame->objects = all->objects;
}

static void drop(guards *all) {
    for (int32_t i = 0; i < all->count; i++) {
        if (all->tensors[i].memory != NULL)
            dlb_buffer_drop(all->tensors[i].memory);
        if (all->tensors[i].before != NULL)
            dlb_buffer_drop(all->tensors[i].before);
    }
    free(all);
}

/* `with`: the filling of results. NULL: no memory. */
static guards *guard_all(const dlb_kernel *kernel, dlb_frame *frame, int with) {
    size_t count = (size_t)frame->tensor_count;
    size_t words = (size_t)dlb_set_words(frame->tensor_count);
    guards *all = malloc(sizeof *all + count * sizeof *all->tensors +
                         count * sizeof *all->hidden + words * sizeof *all->none);
    if (all == NULL) {
        dlb_frame_fail(frame, DLB_ERROR_MEMORY, "%s: debug_kernels: no memory",
                       kernel->name);
        return NULL;
    }
    all->hidden = (void **)(all->tensors + count);
    all->none = (uint32_t *)(all->hidden + count);
    dlb_set_clear(all->none, frame->tensor_count);
    all->count = 0;
    all->watched = frame->watched;
    dlb_mark_written(kernel, frame);
    all->written = frame->written;
    all->objects = frame->objects;
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        all->hidden[i] = all->objects ? all->objects[i] : NULL;
        all->count = i + 1;
        if (guard(kernel, frame, i, all, i < frame->input_count ? ARGUMENT : with) <
            0) {
            restore(frame, all);
            drop(all);
            return NULL;
        }
    }
    frame->watched = all->none;
    if (frame->objects != NULL)
        frame->objects = all->hidden;
    return all;
}

/* ---- elements ---- */

typedef struct {
    const DLTensor *tensor;
    int64_t index[DLB_MAX_NDIM];
    int64_t offset; /* in elements */
    bool is_over;
} cursor;

static void start(cursor *at, const DLTensor *tensor) {
    at->tensor = tensor;
    at->offset = 0;
    at->is_over = dlb_element_count(tensor) == 0;
    memset(at->index, 0, (size_t)tensor->ndim * sizeof *at->index);
}

static void advance(cursor *at) {
    const DLTensor *tensor = at->tensor;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        at->offset += tensor->strides[i];
        if (++at->index[i] < tensor->shape[i])
            return;
        at->offset -= tensor->strides[i] * tensor->shape[i];
        at->index[i] = 0;
    }
    at->is_over = true;
}

/* In row-major order of the tensor as the caller sees it. */
static int64_t position(const cursor *at, const DLTensor *seen) {
    int64_t found = 0;
    for (int32_t i = 0; i < seen->ndim; i++)
        found = found * seen->shape[i] + at->index[i];
    return found;
}

static int bit(const char *data, int64_t place) {
    return data[place >> 3] >> (place & 7) & 1;
}

/* Whether the element has the value that it had before. */
static bool is_same(const guarded *each, const cursor *at) {
    const char *now = each->once.data, *before = as_before(each, now);
    int64_t bits = dlb_element_bits(each->once.dtype, 0), place = at->offset * bits;
    if (bits % 8 == 0)
        return memcmp(now + place / 8, before + place / 8, (size_t)bits / 8) == 0;
    for (int64_t i = place; i < place + bits; i++)
        if (bit(now, i) != bit(before, i))
            return false;
    return true;
}

/* ---- findings ---- */

typedef struct {
    const char *reason; /* NULL: nothing; else as in errors.FINDINGS */
    int32_t index;
    int64_t count, place;
} finding;

/* Bytes that changed outside of [begin, end), by how far the nearest is away. */
static finding look_beside(const guarded *each, int32_t index) {
    finding found = {NULL, index, 0, 0};
    const char *base = each->memory->data, *limit = base + each->memory->nbytes;
    for (const char *at = base; at < each->begin; at++)
        if (*at != *as_before(each, at)) {
            found.count++;
            found.place = at - each->begin;
        }
    if (found.count == 0)
        for (const char *at = limit - 1; at >= each->end; at--)
            if (*at != *as_before(each, at)) {
                found.count++;
                found.place = at - each->end;
            }
    found.reason = found.count ? "out_of_bounds" : NULL;
    return found;
}

/* Bytes that changed between elements with strides: those that differ once the elements
 * before are as they are now. */
static finding look_between(const guarded *each, int32_t index) {
    finding found = {NULL, index, 0, INT64_MIN};
    DLTensor before = each->once;
    before.data = as_before(each, each->once.data);
    dlb_copy(&before, each->flags, &each->once, each->flags);
    for (const char *at = each->begin; at < each->end; at++)
        found.count += *at != *as_before(each, at);
    found.reason = found.count ? "out_of_bounds" : NULL;
    return found;
}

static finding look_for_changes(const guarded *each, int32_t index) {
    finding found = {NULL, index, 0, 0};
    cursor at;
    for (start(&at, &each->once); !at.is_over; advance(&at))
        if (!is_same(each, &at) && found.count++ == 0)
            found.place = position(&at, &each->original);
    found.reason = found.count ? "changed_input" : NULL;
    return found;
}

/* ---- results that were not written ----
 *
 * A number may by chance be the filling. Then the kernel runs again,
 * with another filling; a Python function, which may do more than compute, does not. */

/* Whether no result can be this by chance. */
static bool is_certain(const dlb_kernel *kernel, DLDataType dtype) {
    return find_pattern(dtype, 0).is_nan || dtype.code == kDLBool ||
           (kernel->needs_gil && dtype.bits >= 32);
}

/* `suspects`: a byte for each element, of those that are still as they were filled, or
 * NULL. */
static finding look_for_unwritten(const guarded *each, int32_t index, char *suspects) {
    finding found = {NULL, index, 0, 0};
    int64_t number = 0;
    cursor at;
    for (start(&at, &each->once); !at.is_over; advance(&at), number++) {
        bool is_suspect = (suspects == NULL || suspects[number]) && is_same(each, &at);
        if (suspects != NULL)
            suspects[number] = is_suspect;
        if (is_suspect && found.count++ == 0)
            found.place = position(&at, &each->original);
    }
    found.reason = found.count ? "unwritten" : NULL;
    return found;
}

/* -1 if the kernel fails this time, or memory cannot be allocated. */
static int look_again(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, const guarded *first, int with, char *suspects,
                      finding *found) {
    guards *all = guard_all(kernel, frame, with);
    if (all == NULL)
        return -1;
    int status = dlb_frame_call(kernel, target, frame);
    guarded *each = &all->tensors[found->index];
    if (status == 0) {
        limit_to_extents(kernel, frame, all);
        if (each->once.ndim > 0 && each->shape[0] > first->shape[0])
            each->shape[0] = first->shape[0]; /* it said less the first time */
    }
    restore(frame, all);
    if (status == 0)
        *found = look_for_unwritten(each, found->index, suspects);
    drop(all);
    return status;
}

static int make_certain(const dlb_kernel *kernel, const dlb_target *target,
                        dlb_frame *frame, const guarded *each, finding *found) {
    static const int others[] = {0x69, 0x3c, 0xc3};
    int64_t count = dlb_element_count(&each->once);
    char *suspects = malloc((size_t)count);
    if (suspects == NULL)
        return dlb_frame_fail(frame, DLB_ERROR_MEMORY, "%s: debug_kernels: no memory",
                              kernel->name);
    memset(suspects, 1, (size_t)count);
    look_for_unwritten(each, found->index, suspects);
    int status = 0;
    for (size_t i = 0;
         status == 0 && found->reason && i < sizeof others / sizeof *others; i++)
        status = look_again(kernel, target, frame, each, others[i], suspects, found);
    free(suspects);
    return status;
}

/* ---- NaN ---- */

typedef enum { NUMBER, PLAIN_NAN, READ_BESIDE, READ_UNWRITTEN } value_kind;

/* Whether a NaN is that of a filling; or, `made`, one that was computed from it. */
static bool is_filling(uint64_t value, DLDataType dtype, int32_t bits, int with,
                       uint64_t quiet, bool made) {
    pattern filled = find_pattern(dtype, with);
    uint64_t filling = 0;
    memcpy(&filling, filled.bytes, (size_t)bits / 8);
    uint64_t sign = UINT64_C(1) << (bits - 1);
    return ((value ^ filling) & ~sign) == (made ? quiet : 0);
}

/* The kind of a real number. The filling of a result, unchanged, is left to the search
 * for unwritten elements. */
static value_kind find_kind(const char *at, DLDataType dtype, int32_t bits) {
    static const struct {
        int32_t code, bits;
        uint64_t exponent;
    } rows[] = {{kDLBfloat, 16, 0x7f80},
                {kDLFloat, 16, 0x7c00},
                {kDLFloat, 32, 0x7f800000},
                {kDLFloat, 64, UINT64_C(0x7ff) << 52}};
    int32_t code = part_code(dtype);
    uint64_t value = 0, exponent = 0;
    memcpy(&value, at, (size_t)bits / 8);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].code == code && rows[i].bits == bits)
            exponent = rows[i].exponent;
    uint64_t lowest = exponent & -exponent, quiet = lowest >> 1;
    if ((value & exponent) != exponent || (value & (lowest - 1)) == 0)
        return NUMBER;
    if (is_filling(value, dtype, bits, RESULT, quiet, true))
        return READ_UNWRITTEN;
    bool is_beside = is_filling(value, dtype, bits, ARGUMENT, quiet, true) ||
                     is_filling(value, dtype, bits, ARGUMENT, quiet, false);
    return is_beside ? READ_BESIDE : PLAIN_NAN;
}

/* Elements at `data` of which a part is of that kind or, for PLAIN_NAN, is any NaN. */
static finding look_for_kind(const guarded *each, const char *data, int32_t index,
                             value_kind kind) {
    static const char *const reasons[] = {
        [PLAIN_NAN] = "nan",
        [READ_BESIDE] = "read_beside",
        [READ_UNWRITTEN] = "read_unwritten",
    };
    finding found = {NULL, index, 0, 0};
    const DLDataType dtype = each->once.dtype;
    int32_t bits = real_bits(dtype);
    int64_t size = dlb_element_bits(dtype, 0) / 8;
    cursor at;
    if (bits == 0)
        return found;
    for (start(&at, &each->once); !at.is_over; advance(&at)) {
        const char *element = data + at.offset * size;
        bool is_it = false;
        for (int64_t part = 0; part < size; part += bits / 8) {
            value_kind own = find_kind(element + part, dtype, bits);
            is_it |= own == kind || (kind == PLAIN_NAN && own != NUMBER);
        }
        if (is_it && found.count++ == 0)
            found.place = position(&at, &each->original);
    }
    found.reason = found.count ? reasons[kind] : NULL;
    return found;
}

static finding look_at_results(const guards *all, value_kind kind) {
    finding found = {NULL, 0, 0, 0};
    for (int32_t i = 0; i < all->count && found.reason == NULL; i++)
        if (dlb_set_has(all->written, i) && all->tensors[i].memory != NULL)
            found = look_for_kind(&all->tensors[i], all->tensors[i].once.data, i, kind);
    return found;
}

static bool has_nan(const dlb_scalar *scalar) {
    if (scalar->kind == DLB_FLOATS)
        for (int64_t i = 0; i < scalar->value.list->count; i++)
            if (isnan(scalar->value.list->floats[i]))
                return true;
    return scalar->kind == DLB_FLOAT && isnan(scalar->value.f);
}

static bool takes_nans(const dlb_frame *frame, const guards *all) {
    for (int32_t i = 0; i < frame->scalar_count; i++)
        if (has_nan(&frame->scalars[i]))
            return true;
    for (int32_t i = 0; i < frame->input_count; i++) {
        const guarded *each = &all->tensors[i];
        if (each->memory == NULL)
            continue;
        const char *before = as_before(each, each->once.data);
        if (look_for_kind(each, before, i, PLAIN_NAN).reason != NULL)
            return true;
    }
    return false;
}

static finding look_at_values(const dlb_frame *frame, const guards *all) {
    finding found = look_at_results(all, READ_UNWRITTEN);
    if (found.reason == NULL)
        found = look_at_results(all, READ_BESIDE);
    if (found.reason == NULL && atomic_load(&looks_for_nans) && !takes_nans(frame, all))
        found = look_at_results(all, PLAIN_NAN);
    return found;
}

/* ---- the call ---- */

static finding look_at_bounds(const guards *all) {
    finding found = {NULL, 0, 0, 0};
    for (int32_t i = 0; i < all->count && found.reason == NULL; i++)
        if (all->tensors[i].memory != NULL)
            found = look_beside(&all->tensors[i], i);
    return found;
}

/* -1 if the kernel fails when it runs again. */
static int look_at_elements(const dlb_kernel *kernel, const dlb_target *target,
                            dlb_frame *frame, const guards *all, finding *found) {
    for (int32_t i = 0; i < all->count; i++) {
        const guarded *each = &all->tensors[i];
        if (each->memory == NULL)
            continue;
        if (!dlb_set_has(all->written, i)) {
            *found = look_for_changes(each, i);
        } else if (i >= frame->input_count) {
            bool is_sure = is_certain(kernel, each->once.dtype);
            if (!is_sure && kernel->needs_gil)
                continue;
            *found = look_for_unwritten(each, i, NULL);
            if (found->reason != NULL && !is_sure &&
                make_certain(kernel, target, frame, each, found) < 0)
                return -1;
        }
        if (found->reason != NULL)
            return 0;
    }
    return 0;
}

static finding look_at_gaps(const guards *all) {
    finding found = {NULL, 0, 0, 0};
    for (int32_t i = 0; i < all->count && found.reason == NULL; i++)
        if (all->tensors[i].memory != NULL && !dlb_is_row_major(&all->tensors[i].once))
            found = look_between(&all->tensors[i], i);
    return found;
}

/* -1 if the kernel fails when it runs again. The frame has the caller's memory. */
static int look(const dlb_kernel *kernel, const dlb_target *target, dlb_frame *frame,
                const guards *all, finding *found) {
    *found = look_at_bounds(all);
    if (found->reason == NULL &&
        look_at_elements(kernel, target, frame, all, found) < 0)
        return -1;
    if (found->reason == NULL)
        *found = look_at_values(frame, all);
    if (found->reason == NULL)
        *found = look_at_gaps(all);
    return 0;
}

/* The values of the call into the caller's memory. */
static void give_back(const guards *all) {
    for (int32_t i = 0; i < all->count; i++) {
        const guarded *each = &all->tensors[i];
        if (dlb_set_has(all->written, i) && each->memory != NULL) {
            DLTensor copy = each->original;
            copy.data = each->once.data;
            dlb_copy(&each->original, each->flags, &copy, each->flags);
        }
    }
}

int dlb_debug_invoke(const dlb_kernel *kernel, const dlb_target *target,
                     dlb_frame *frame) {
    finding found = {NULL, 0, 0, 0};
    guards *all = guard_all(kernel, frame, RESULT);
    if (all == NULL)
        return -1;
    int status = dlb_frame_call(kernel, target, frame);
    if (status == 0)
        limit_to_extents(kernel, frame, all);
    restore(frame, all);
    if (status == 0)
        status = look(kernel, target, frame, all, &found);
    if (status == 0 && found.reason == NULL)
        give_back(all);
    drop(all);
    return found.reason == NULL
               ? status
               : dlb_frame_report(kernel, frame, found.index, found.reason, found.count,
                                  found.place);
}

/* ---- the switch ---- */

PyObject *dlb_debug_kernels(PyObject *Py_UNUSED(module), PyObject *args) {
    int enabled, nans;
    if (!PyArg_ParseTuple(args, "pp:debug_kernels", &enabled, &nans))
        return NULL;
    atomic_store(&looks_for_nans, nans != 0);
    if (enabled)
        atomic_fetch_or(&dlb_detours, UINT64_C(1) << kDLCPU);
    else
        atomic_fetch_and(&dlb_detours, ~(UINT64_C(1) << kDLCPU));
    Py_RETURN_NONE;
}
