/* The direct call of a kernel: arguments, results, the run, what comes back. */
#include "call/call.h"
#include "exchange/exchange.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ARGUMENTS (DLB_MAX_TENSORS + DLB_MAX_SCALARS)
#define CACHES 4

/* Names and defaults are borrowed from dlb_kernel_object.arguments. */
typedef struct {
    PyObject *name, *fallback; /* NULL: no default */
    bool is_tensor;
    int16_t index; /* among the tensors, or among the scalars */
} argument;

struct dlb_call_plan {
    int32_t count, positional_count; /* 0 without a schema */
    bool has_results;
    bool is_plain; /* tensors only, in their order */
    /* Of calls that differ in shapes or dtypes, NULL behind the last one. */
    _Atomic(dlb_call_cache *) caches[CACHES];
    int32_t oldest;           /* is replaced when all are full */
    dlb_call_cache *replaced; /* see put_cache */
    int32_t replaced_count;
    argument arguments[];
};

static _Atomic(PyObject *) out_name; /* "out", interned */

/* ---- the plan, made with the kernel ---- */

static int refuse(const char *what, PyObject *item) {
    PyErr_Format(PyExc_ValueError, "KernelBase: %s, got %R", what, item);
    return -1;
}

/* (name, kind, index, keyword_only, has_default, default) */
static int read_row(const dlb_signature *signature, PyObject *row, argument *read,
                    int *keyword_only) {
    PyObject *kind;
    int index, has_default;
    if (!PyTuple_Check(row))
        return refuse("an argument must be a tuple", row);
    if (!PyArg_ParseTuple(row, "UUippO;KernelBase: an argument has six items",
                          &read->name, &kind, &index, keyword_only, &has_default,
                          &read->fallback))
        return -1;
    read->is_tensor = PyUnicode_CompareWithASCIIString(kind, "tensor") == 0;
    if (index < 0 ||
        index >= (read->is_tensor ? signature->input_count : signature->scalar_count))
        return refuse("the index of an argument is wrong", row);
    read->index = (int16_t)index;
    if (!has_default)
        read->fallback = NULL;
    return 0;
}

/* Each tensor and each scalar once: calls rely on it. */
static int read_rows(dlb_kernel *kernel, PyObject *rows, dlb_call_plan *plan) {
    const dlb_signature *signature = kernel->signature;
    uint32_t seen[2][DLB_MOST_TENSORS / 32] = {{0}};
    kernel->order = calloc((size_t)plan->count + (size_t)signature->result_count + 1,
                           sizeof *kernel->order);
    if (kernel->order == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int32_t i = 0; i < plan->count; i++) {
        argument *read = &plan->arguments[i];
        int keyword_only;
        if (read_row(signature, PyTuple_GET_ITEM(rows, i), read, &keyword_only) < 0)
            return -1;
        if (dlb_set_has(seen[read->is_tensor], read->index))
            return refuse("an argument stands twice", rows);
        dlb_set_add(seen[read->is_tensor], read->index);
        plan->positional_count += !keyword_only;
        plan->is_plain &= read->is_tensor && read->index == i;
        kernel->order[kernel->order_count++] =
            (int16_t)(read->is_tensor ? read->index : -1 - read->index);
    }
    for (int32_t i = 0; i < signature->result_count; i++)
        kernel->order[kernel->order_count++] = (int16_t)(signature->input_count + i);
    return 0;
}

dlb_call_plan *dlb_make_call_plan(dlb_kernel *kernel, PyObject *rows) {
    const dlb_signature *signature = kernel->signature;
    int32_t count = signature ? signature->input_count + signature->scalar_count : 0;
    if (dlb_kept_name(&out_name, "out") == NULL)
        return NULL;
    if (rows != NULL && PyTuple_GET_SIZE(rows) != count) {
        refuse("arguments do not match the signature", rows);
        return NULL;
    }
    dlb_call_plan *plan = calloc(1, sizeof *plan + (size_t)count * sizeof(argument));
    if (plan == NULL)
        return (dlb_call_plan *)PyErr_NoMemory();
    dlb_count_object(plans, 1);
    if (rows == NULL)
        return plan;
    plan->count = count;
    plan->is_plain = true;
    plan->has_results = signature->result_count > 0;
    if (read_rows(kernel, rows, plan) == 0)
        return plan;
    dlb_free_call_plan(plan);
    return NULL;
}

void dlb_free_call_plan(dlb_call_plan *plan) {
    if (plan == NULL)
        return;
    for (int32_t i = 0; i < CACHES; i++)
        free(plan->caches[i]);
    while (plan->replaced != NULL) {
        dlb_call_cache *cache = plan->replaced;
        plan->replaced = cache->before;
        free(cache);
    }
    dlb_count_object(plans, -1);
    free(plan);
}

static inline dlb_call_cache *cache_at(const dlb_call_plan *plan, int32_t i) {
    return i < CACHES ? atomic_load_explicit(&plan->caches[i], memory_order_acquire)
                      : NULL;
}

/* Whether it is like a call before, or was interrupted: an exception is set. */
static bool is_cached(const dlb_kernel *kernel, const dlb_call_plan *plan,
                      dlb_call *call, PyObject *const *tensors, Py_ssize_t count,
                      PyObject *out) {
    const dlb_call_cache *cache;
    for (int32_t i = 0; (cache = cache_at(plan, i)) != NULL; i++)
        if (cache->input_count == count &&
            (dlb_use_cache(kernel, cache, call, tensors, out) || PyErr_Occurred()))
            return true;
    return false;
}

/* With a GIL nobody reads a cache meanwhile, which is written over. Without one a call
 * may be reading it: a new one takes its place and it is kept until the plan is freed,
 * as happens so many times at most. */
static void replace_cache(dlb_call_plan *plan, const dlb_call_cache *made) {
#ifdef Py_GIL_DISABLED
    enum { MOST = 64 };
    dlb_call_cache *old = plan->caches[plan->oldest];
    dlb_call_cache *fresh = plan->replaced_count < MOST ? malloc(sizeof *fresh) : NULL;
    if (fresh == NULL)
        return;
    *fresh = *made;
    atomic_store_explicit(&plan->caches[plan->oldest], fresh, memory_order_release);
    old->before = plan->replaced;
    plan->replaced = old;
    plan->replaced_count++;
#else
    *plan->caches[plan->oldest] = *made;
#endif
    plan->oldest = (plan->oldest + 1) % CACHES;
}

static void put_cache(const dlb_kernel *kernel, dlb_call_plan *plan,
                      const dlb_call_cache *made, const dlb_call *call) {
    const dlb_call_cache *cache;
    int32_t i = 0;
    /* One that is there was not used because of its memory. */
    for (; (cache = cache_at(plan, i)) != NULL; i++)
        if (dlb_is_same_cache(kernel, cache, made, call))
            return;
    if (i == CACHES) {
        replace_cache(plan, made);
        return;
    }
    dlb_call_cache *fresh = malloc(sizeof *fresh);
    if (fresh == NULL)
        return;
    *fresh = *made;
    atomic_store_explicit(&plan->caches[i], fresh, memory_order_release);
}

static void cache_call(const dlb_kernel_object *self, const dlb_call *call) {
    const dlb_kernel *kernel = self->kernel;
    dlb_call_cache made;
    if (!dlb_fill_cache(kernel, &made, call,
                        dlb_written_inputs(kernel, call->frame.input_count)))
        return;
    DLB_BEGIN_EXCLUSIVE(self);
    put_cache(kernel, self->plan, &made, call);
    DLB_END_EXCLUSIVE();
}

/* ---- scalars ---- */

static int parse_str(PyObject *object, dlb_scalar *scalar) {
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);
    if (text == NULL)
        return -1;
    *scalar = (dlb_scalar){DLB_STRING, {.s = text}};
    return strlen(text) == (size_t)length ? 0 : DLB_DECLINED;
}

static int parse_int(PyObject *object, dlb_scalar *scalar) {
    int overflow;
    int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
    *scalar = (dlb_scalar){DLB_INT, {.i = value}};
    return overflow ? DLB_DECLINED : 0;
}

static int parse_dtype(PyObject *object, dlb_scalar *scalar) {
    if ((PyObject *)Py_TYPE(object) != dlb_hooks.dtype)
        return DLB_DECLINED;
    PyObject *triple = PyObject_GetAttrString(object, "triple");
    DLDataType dtype;
    int status = triple == NULL ? -1 : dlb_parse_dtype(triple, &dtype);
    Py_XDECREF(triple);
    if (status == 0)
        *scalar = (dlb_scalar){DLB_INT, {.i = dlb_dtype_key(dtype)}};
    return status;
}

/* The numbers of a list or tuple; what is no plain number is left to Python. */
static int parse_list(PyObject *object, const dlb_scalar_parameter *parameter,
                      dlb_frame *frame, dlb_scalar *scalar) {
    if (!PyTuple_Check(object) && !PyList_Check(object))
        return DLB_DECLINED;
    const dlb_scalar_parameter number = {
        .kind = parameter->kind == DLB_INTS ? DLB_INT : DLB_FLOAT};
    dlb_list_room *room = dlb_frame_add_list(frame, parameter->kind, scalar);
    if (room == NULL)
        return DLB_DECLINED;
    int64_t *count = &room->list.count;
    for (; *count < PySequence_Fast_GET_SIZE(object); ++*count) {
        dlb_scalar read;
        if (*count == DLB_MAX_LISTED)
            return DLB_DECLINED;
        PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(object, *count));
        int status = dlb_parse_scalar(item, &number, frame, &read);
        Py_DECREF(item);
        if (status != 0)
            return status;
        room->values.ints[*count] = read.value.i; /* either member: both are 8 bytes */
    }
    return parameter->count < 0 || parameter->count == *count ? 0 : DLB_DECLINED;
}

int dlb_parse_scalar(PyObject *object, const dlb_scalar_parameter *parameter,
                     dlb_frame *frame, dlb_scalar *scalar) {
    dlb_scalar_kind wanted = parameter ? parameter->kind : DLB_NONE;
    bool wants_bool = parameter != NULL && parameter->is_bool;
    int status = DLB_DECLINED;
    *scalar = (dlb_scalar){DLB_NONE, {0}};
    if (object == Py_None)
        return parameter == NULL || parameter->optional ? 0 : DLB_DECLINED;
    if (parameter != NULL && parameter->is_dtype)
        return parse_dtype(object, scalar);
    if (wanted >= DLB_INTS)
        return parse_list(object, parameter, frame, scalar);
    if (PyBool_Check(object) ? parameter == NULL || wants_bool
                             : PyLong_CheckExact(object) && !wants_bool)
        status = parse_int(object, scalar);
    else if (PyFloat_CheckExact(object))
        *scalar = (dlb_scalar){DLB_FLOAT, {.f = PyFloat_AS_DOUBLE(object)}}, status = 0;
    else if (PyUnicode_CheckExact(object))
        status = parse_str(object, scalar);
    if (status == 0 && wanted == DLB_FLOAT && scalar->kind == DLB_INT)
        *scalar = (dlb_scalar){DLB_FLOAT, {.f = (double)scalar->value.i}};
    if (status == 0 && wanted != DLB_NONE && scalar->kind != (int64_t)wanted)
        return DLB_DECLINED;
    return status;
}

/* ---- arguments with a schema ---- */

static int find_name(const dlb_call_plan *plan, PyObject *name) {
    for (int32_t i = 0; i < plan->count; i++)
        if (plan->arguments[i].name == name)
            return i;
    for (int32_t i = 0; i < plan->count; i++)
        if (PyUnicode_Compare(plan->arguments[i].name, name) == 0)
            return i;
    return -1;
}

static bool is_out(PyObject *name) {
    return name == out_name || PyUnicode_Compare(name, out_name) == 0;
}

/* Keywords into the slots that positional arguments left. */
static int place_keywords(const dlb_call_plan *plan, PyObject *const *args,
                          PyObject *names, PyObject **values, PyObject **out) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        int at = find_name(plan, name);
        if (at >= 0 && values[at] == NULL)
            values[at] = args[i];
        else if (at < 0 && plan->has_results && is_out(name))
            *out = args[i] == Py_None ? NULL : args[i];
        else
            return DLB_DECLINED;
    }
    return 0;
}

/* Replace a framework's dtype, or the name of one, by the DType that as_dtype returned
 * for it before; borrowed. Declined: Python has not seen it. -1: an interrupt. */
static int find_dtype(PyObject **value) {
    if ((PyObject *)Py_TYPE(*value) == dlb_hooks.dtype || *value == Py_None)
        return 0;
    PyObject *key = dlb_hooks.dtypes == NULL || PyTuple_Check(*value)
                        ? NULL
                        : PyTuple_Pack(2, (PyObject *)Py_TYPE(*value), *value);
    PyObject *found =
        key == NULL ? NULL : PyDict_GetItemWithError(dlb_hooks.dtypes, key);
    Py_XDECREF(key);
    if (found == NULL) /* or it cannot be hashed */
        return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
    *value = found; /* the dict never drops it */
    return 0;
}

static int take_scalar(const dlb_kernel *kernel, dlb_call *call, int index,
                       PyObject *value) {
    if (kernel->signature->scalars[index].is_dtype) {
        int found = find_dtype(&value);
        if (found != 0)
            return found;
    }
    int status = dlb_parse_scalar(value, &kernel->signature->scalars[index],
                                  &call->frame, &call->frame.scalars[index]);
    if (status >= 0)
        return status;
    PyErr_Clear();
    return DLB_DECLINED;
}

static int take_tensor(const dlb_kernel *kernel, dlb_call *call, int index,
                       PyObject *value) {
    if (value != Py_None)
        return dlb_borrow(call, index, value);
    call->frame.tensors[index] = (DLTensor){.ndim = -1};
    call->frame.flags[index] = 0;
    call->objects[index] = NULL;
    return kernel->signature->parameters[index].optional ? 0 : DLB_DECLINED;
}

/* Positional arguments, keywords and defaults, sorted into tensors and, already taken,
 * scalars. */
static int sort_arguments(const dlb_kernel *kernel, const dlb_call_plan *plan,
                          dlb_call *call, PyObject *const *args, Py_ssize_t count,
                          PyObject *names, PyObject **tensors, PyObject **out) {
    PyObject *few[MAX_ARGUMENTS], **values = few;
    if (call->large != NULL)
        values = call->sorted + call->frame.room;
    if (count > plan->positional_count)
        return DLB_DECLINED;
    for (int32_t i = 0; i < plan->count; i++)
        values[i] = i < count ? args[i] : NULL;
    if (names != NULL && place_keywords(plan, args + count, names, values, out) != 0)
        return DLB_DECLINED;
    for (int32_t i = 0; i < plan->count; i++) {
        const argument *taken = &plan->arguments[i];
        PyObject *value = values[i] ? values[i] : taken->fallback;
        if (value == NULL)
            return DLB_DECLINED;
        int status = 0;
        if (taken->is_tensor)
            tensors[taken->index] = value;
        else
            status = take_scalar(kernel, call, taken->index, value);
        if (status != 0)
            return status;
    }
    return 0;
}

static int take_planned(const dlb_kernel *kernel, const dlb_call_plan *plan,
                        dlb_call *call, PyObject *const *args, Py_ssize_t count,
                        PyObject *names, PyObject **out) {
    PyObject *few[DLB_MAX_TENSORS], **sorted = call->large ? call->sorted : few;
    PyObject *const *tensors = sorted;
    int32_t inputs = kernel->signature->input_count;
    int status = 0;
    if (plan->is_plain && names == NULL && count == plan->count)
        tensors = args;
    else
        status = sort_arguments(kernel, plan, call, args, count, names, sorted, out);
    call->frame.scalar_count = kernel->signature->scalar_count;
    if (status != 0)
        return status;
    bool is_array = inputs > 0 && dlb_is_numpy(tensors[0]);
    if (is_array && is_cached(kernel, plan, call, tensors, inputs, *out))
        return PyErr_Occurred() ? -1 : 0;
    call->frame.tensor_count = call->frame.input_count = inputs;
    for (int32_t i = 0; status == 0 && i < inputs; i++)
        status = take_tensor(kernel, call, i, tensors[i]);
    if (status == 0 && !is_array &&
        is_cached(kernel, plan, call, tensors, inputs, *out))
        return PyErr_Occurred() ? -1 : 0;
    return status;
}

/* ---- without a schema: tensors, numbers and texts in any order ---- */

static bool is_scalar(PyObject *x) {
    return PyLong_CheckExact(x) || PyFloat_CheckExact(x) || PyBool_Check(x) ||
           PyUnicode_CheckExact(x);
}

static int take_unplanned(const dlb_kernel *kernel, const dlb_call_plan *plan,
                          dlb_call *call, PyObject *const *args, Py_ssize_t count) {
    dlb_frame *frame = &call->frame;
    bool is_array = count > 0 && dlb_is_numpy(args[0]);
    if (count > MAX_ARGUMENTS)
        return DLB_DECLINED;
    if (is_array && is_cached(kernel, plan, call, args, count, NULL))
        return PyErr_Occurred() ? -1 : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int status = DLB_DECLINED;
        if (!is_scalar(args[i])) {
            if (frame->tensor_count < DLB_MAX_TENSORS)
                status = dlb_borrow(call, frame->tensor_count, args[i]);
            call->order[i] = (int16_t)frame->tensor_count++;
        } else {
            if (frame->scalar_count < DLB_MAX_SCALARS)
                status = dlb_parse_scalar(args[i], NULL, frame,
                                          &frame->scalars[frame->scalar_count]);
            if (status < 0) {
                PyErr_Clear();
                status = DLB_DECLINED;
            }
            call->order[i] = (int16_t)(-1 - frame->scalar_count++);
        }
        if (status != 0)
            return status;
    }
    frame->input_count = frame->tensor_count;
    frame->order = call->order;
    frame->order_count = (int32_t)count;
    if (!is_array && frame->scalar_count == 0 &&
        is_cached(kernel, plan, call, args, count, NULL))
        return PyErr_Occurred() ? -1 : 0;
    return 0;
}

static int take_arguments(const dlb_kernel_object *self, dlb_call *call,
                          PyObject *const *args, Py_ssize_t count, PyObject *names,
                          PyObject **out) {
    if (self->arguments != NULL)
        return take_planned(self->kernel, self->plan, call, args, count, names, out);
    if (self->kernel->signature != NULL ||
        (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return DLB_DECLINED;
    return take_unplanned(self->kernel, self->plan, call, args, count);
}

/* ---- results: new ones of the framework, or those that are given ---- */

/* Results are where the arguments are; those in pinned or managed memory leave the
 * choice to Python. */
static DLDevice find_device(const dlb_frame *frame) {
    for (int32_t i = 0; i < frame->input_count; i++)
        if (frame->tensors[i].ndim >= 0)
            return frame->tensors[i].device;
    return (DLDevice){kDLCPU, 0};
}

static int add_new(const dlb_kernel *kernel, dlb_call *call, int result) {
    int64_t shape[DLB_MAX_NDIM];
    DLDataType dtype;
    int32_t index = call->frame.tensor_count;
    int32_t ndim = dlb_signature_result(kernel->signature, result,
                                        &call->frame.bindings, &dtype, shape);
    PyObject *made = ndim < 0 ? NULL
                              : dlb_allocate_result(call, ndim, shape, dtype,
                                                    find_device(&call->frame));
    if (made == NULL) {
        /* The framework itself says why. */
        return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
    }
    call->objects[index] = made;
    call->made_count++;
    call->frame.tensor_count++;
    return dlb_borrow(call, index, made);
}

static int add_given(const dlb_kernel *kernel, dlb_call *call, int result,
                     PyObject *given) {
    int32_t index = call->frame.tensor_count;
    int status = dlb_borrow(call, index, given);
    if (status != 0)
        return status;
    call->frame.tensor_count++;
    return dlb_signature_fits_result(kernel->signature, result,
                                     &call->frame.tensors[index], &call->frame.bindings)
               ? dlb_borrow_to_write(call, index)
               : DLB_DECLINED;
}

static int take_results(const dlb_kernel *kernel, dlb_call *call, PyObject *out) {
    int32_t count = kernel->signature ? kernel->signature->result_count : 0;
    if (count == 0)
        return 0;
    if (call->family == DLB_FAMILY_NONE ||
        (call->family == DLB_FAMILY_JAX && call->give == NULL))
        return DLB_DECLINED;
    for (int32_t i = 0; i < count; i++) {
        PyObject *given = out ? dlb_out_item(out, count, i) : NULL;
        if (out != NULL && given == NULL)
            return DLB_DECLINED;
        int status =
            given ? add_given(kernel, call, i, given) : add_new(kernel, call, i);
        if (status != 0)
            return status;
    }
    return 0;
}

/* The new Tensors, which nobody else has, as tensors of the framework. */
static int give_results(dlb_call *call) {
    for (int32_t i = call->frame.input_count; i < call->frame.tensor_count; i++) {
        PyObject *given = PyObject_CallOneArg(call->give, call->objects[i]);
        if (given == NULL)
            return -1;
        Py_DECREF(call->objects[i]);
        call->objects[i] = given;
    }
    return 0;
}

static PyObject *return_results(dlb_call *call, PyObject *out) {
    int32_t first = call->frame.input_count;
    int32_t count = call->frame.tensor_count - first;
    if (out != NULL)
        return Py_NewRef(out);
    if (call->give != NULL && give_results(call) < 0)
        return NULL;
    if (count == 0)
        return call->frame.returned ? call->frame.returned : Py_NewRef(Py_None);
    if (count == 1)
        return call->objects[first];
    PyObject *all = PyTuple_New(count);
    if (all == NULL)
        return NULL;
    for (int32_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(all, i, call->objects[first + i]);
    return all;
}

/* ---- the run ---- */

static int prepare(const dlb_kernel_object *self, dlb_call *call, PyObject *const *args,
                   Py_ssize_t count, PyObject *names, PyObject **out) {
    const dlb_kernel *kernel = self->kernel;
    int status = take_arguments(self, call, args, count, names, out);
    if (status != 0 || call->target != NULL)
        return status;
    if (call->family == DLB_FAMILY_NONE)
        return DLB_DECLINED;
    int32_t inputs = call->frame.input_count;
    for (int32_t i = 0; i < inputs; i++)
        if (dlb_writes_input(kernel, inputs, i) && dlb_borrow_to_write(call, i) != 0)
            return DLB_DECLINED;
    call->is_understood = true;
    if (kernel->signature == NULL)
        return 0;
    int refused = dlb_signature_bind(kernel->signature, call->frame.tensors,
                                     call->frame.scalars, &call->frame.bindings);
    return refused < 0 ? take_results(kernel, call, *out) : DLB_DECLINED;
}

/* False: too many dimensions. A cached call has done it. */
static bool keep_dims(dlb_call *call) {
    if (call->target != NULL)
        return true;
    int64_t *room = call->kept_dims, *end = room + call->dim_room;
    for (int32_t i = 0; i < call->frame.tensor_count; i++) {
        DLTensor *tensor = &call->frame.tensors[i];
        if (tensor->ndim <= 0)
            continue;
        if (!dlb_copy_dims(tensor, room, end - room))
            return false;
        room += 2 * tensor->ndim;
    }
    return true;
}

/* torch's current stream, if the call is on CUDA. False: it is not known. */
static bool find_stream(dlb_call *call) {
    dlb_frame *frame = &call->frame;
    int32_t i = 0;
    if (call->family != DLB_FAMILY_TORCH)
        return true;
    while (i < frame->tensor_count && frame->tensors[i].ndim < 0)
        i++;
    if (i == frame->tensor_count || frame->tensors[i].device.device_type != kDLCUDA)
        return true;
    frame->stream = (void *)dlb_torch_stream(frame->tensors[i].device.device_id);
    return frame->stream != NULL;
}

static inline int run_now(const dlb_kernel *kernel, const dlb_target *target,
                          dlb_frame *frame) {
    return target ? dlb_frame_invoke(kernel, target, frame)
                  : dlb_frame_run(kernel, frame);
}

/* `target`: of a cached call, or NULL. */
static inline int run(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, bool holds_gil) {
    if (holds_gil)
        return run_now(kernel, target, frame);
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = run_now(kernel, target, frame);
    Py_END_ALLOW_THREADS
    return status;
}

/* A kernel that failed may have written all the same; new results have no past. -1: an
 * exception is set. */
static int bump_versions(const dlb_kernel *kernel, dlb_call *call, bool are_given) {
    const dlb_frame *frame = &call->frame;
    int32_t count = are_given ? frame->tensor_count : frame->input_count;
    for (int i = 0; i < count; i++) {
        bool is_written =
            i >= frame->input_count || dlb_writes_input(kernel, frame->input_count, i);
        if (!is_written || frame->tensors[i].ndim < 0)
            continue;
        if (call->thread != DLB_TORCH_QUERIED)
            dlb_torch_bump_version(call->objects[i]);
        else if (dlb_torch_query_version(call->objects[i]) < 0)
            return -1;
    }
    return 0;
}

static PyObject *finish(const dlb_kernel_object *self, dlb_call *call, int status,
                        PyObject *out) {
    const dlb_kernel *kernel = self->kernel;
    int failed = 0;
    if (call->family == DLB_FAMILY_TORCH &&
        (status == 0 || call->frame.error.kind != DLB_ERROR_BUFFER))
        failed = bump_versions(kernel, call, out != NULL);
    if (status != 0 || failed) {
        Py_XDECREF((PyObject *)call->frame.returned);
        if (!failed)
            return dlb_raise(&call->frame.error);
        dlb_error_clear(&call->frame.error);
        return NULL;
    }
    if (call->target == NULL)
        cache_call(self, call);
    return return_results(call, out);
}

/* As an exchange keeps it. NULL, perhaps with an exception: it cannot be kept. */
static dlb_buffer *keep_queried(PyObject *x, const DLTensor *tensor) {
    dlb_view view;
    int status = dlb_take_for(NULL, true, false, x, &view);
    if (status != 0)
        return NULL;
    if (view.dl.data == tensor->data)
        return view.buffer;
    dlb_buffer_drop(view.buffer);
    return NULL;
}

/* While the kernel runs without the GIL, another thread may give a tensor of torch
 * other memory (x.data = y, x.set_, x.resize_): what the kernel has must stay. Nobody
 * else knows new results yet, and memory of CUDA is used again in the order of the
 * stream. DLB_DECLINED: it cannot be kept this way, as while another thread still tries
 * the paths of torch. */
static int keep_torch_memory(dlb_call *call, bool are_new) {
    dlb_frame *frame = &call->frame;
    int32_t count = are_new ? frame->input_count : frame->tensor_count;
    for (int32_t i = 0; i < count; i++) {
        if (frame->tensors[i].ndim < 0)
            continue;
        dlb_buffer *buffer = call->thread == DLB_TORCH_QUERIED
                                 ? keep_queried(call->objects[i], &frame->tensors[i])
                                 : dlb_torch_keep(call->objects[i], &frame->tensors[i]);
        if (buffer != NULL)
            call->borrowed[call->borrowed_count++] =
                (dlb_borrowed){.is_buffer = false, .memory.core = buffer};
        else if (PyErr_Occurred())
            return -1;
        else if (frame->tensors[i].device.device_type == kDLCPU)
            return DLB_DECLINED;
    }
    return 0;
}

/* Of torch that was queried: it must still lie where it lay. */
static int keep_memory(dlb_call *call, bool holds_gil, bool are_new) {
    if (call->family != DLB_FAMILY_TORCH)
        return 0;
    PyObject *few[DLB_MAX_TENSORS], **storages = call->large ? call->sorted : few;
    int status = holds_gil ? 0 : keep_torch_memory(call, are_new);
    if (status != 0 || call->thread != DLB_TORCH_QUERIED)
        return status;
    int is_unchanged = dlb_torch_is_unchanged(call->objects, call->frame.tensors,
                                              call->frame.tensor_count, storages);
    if (is_unchanged == 1)
        return 0;
    return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
}

static inline void start(dlb_call *call, const dlb_kernel *kernel, dlb_family wanted) {
    dlb_frame_start(&call->frame, NULL);
    call->give = NULL;
    call->casts = kernel->casts;
    call->family = DLB_FAMILY_NONE;
    call->wanted = wanted;
    call->is_understood = false;
    call->target = NULL;
    call->dim_count = call->borrowed_count = call->made_count = 0;
    call->objects = call->own_objects;
    call->dims = call->own_dims;
    call->kept_dims = call->own_kept_dims;
    call->borrowed = call->own_borrowed;
    call->dim_room = DLB_CALL_DIMS;
    call->large = NULL;
}

/* For a large kernel: one block for all arrays. */
__attribute__((noinline)) static int make_room(const dlb_kernel_object *self,
                                               dlb_call *call) {
    if (dlb_frame_make_room(self->kernel, &call->frame) < 0)
        return DLB_DECLINED;
    size_t tensors = (size_t)call->frame.room, dims = tensors * DLB_EACH_DIMS;
    size_t arguments = tensors + DLB_MAX_SCALARS;
    call->large = malloc(tensors * sizeof *call->borrowed + 2 * dims * sizeof(int64_t) +
                         (2 * tensors + arguments) * sizeof(PyObject *));
    if (call->large == NULL)
        return DLB_DECLINED;
    call->borrowed = call->large;
    call->dims = (int64_t *)(call->borrowed + tensors);
    call->kept_dims = call->dims + dims;
    call->objects = (PyObject **)(call->kept_dims + dims);
    call->sorted = call->objects + tensors;
    call->dim_room = (int32_t)dims;
    return 0;
}

static inline int fit(const dlb_kernel_object *self, dlb_call *call) {
    const dlb_signature *signature = self->kernel->signature;
    return signature != NULL && signature->is_large ? make_room(self, call) : 0;
}

static inline void end(dlb_call *call) {
    if (call->made_count > 0)
        dlb_drop_results(call);
    if (call->borrowed_count > 0)
        dlb_give_back(call);
    if (call->large != NULL)
        free(call->large);
    dlb_frame_end(&call->frame);
}

static PyObject *call_directly(const dlb_kernel_object *self, dlb_family *family,
                               PyObject *give, PyObject *const *args, Py_ssize_t count,
                               PyObject *names) {
    dlb_call call;
    PyObject *out = NULL, *result = NULL;
    start(&call, self->kernel, *family);
    call.give = give;
    int status = fit(self, &call);
    if (status == 0)
        status = prepare(self, &call, args, count, names, &out);
    if (status == 0 && find_stream(&call) && keep_dims(&call)) {
        if (call.target == NULL)
            call.holds_gil = dlb_frame_holds_gil(self->kernel, &call.frame);
        call.frame.objects = (void *const *)call.objects;
        if (keep_memory(&call, call.holds_gil, call.made_count > 0) == 0) {
            status = run(self->kernel, call.target, &call.frame, call.holds_gil);
            result = finish(self, &call, status, out);
        }
    }
    if (result != NULL)
        call.made_count = 0; /* the result has them */
    end(&call);
    *family = call.is_understood && out == NULL ? call.family : DLB_FAMILY_NONE;
    return result;
}

PyObject *dlb_call_directly(const dlb_kernel_object *self, dlb_family *family,
                            PyObject *const *args, Py_ssize_t count, PyObject *names) {
    return call_directly(self, family, NULL, args, count, names);
}

PyObject *dlb_call_giving(PyObject *Py_UNUSED(module), PyObject *const *args,
                          Py_ssize_t count) {
    if (count < 2 || !dlb_is_kernel(args[0]) || !PyCallable_Check(args[1]))
        return PyErr_Format(PyExc_TypeError,
                            "call_giving: a kernel and a function are required");
    dlb_family family = DLB_FAMILY_JAX;
    PyObject *result = NULL;
    if (!dlb_is_recorded()) /* of the exchanges only the program's would be seen */
        result = call_directly((const dlb_kernel_object *)args[0], &family, args[1],
                               args + 2, count - 2, NULL);
    if (result == NULL && !PyErr_Occurred())
        Py_RETURN_NOTIMPLEMENTED;
    return result;
}

/* ---- a batch: the same call over and over, further on in memory ---- */

#define FAIR 1024 /* calls with the GIL held, after which other threads may run */

static bool is_on_host(const dlb_frame *frame) {
    for (int32_t i = 0; i < frame->tensor_count; i++)
        if (frame->tensors[i].ndim >= 0 &&
            frame->tensors[i].device.device_type != kDLCPU)
            return false;
    return true;
}

static bool writes_inputs(const dlb_kernel *kernel) {
    const dlb_signature *signature = kernel->signature;
    return signature != NULL ? signature->has_mutated : kernel->writes_last;
}

/* Run the call, which is that of the first element, for all elements, with every check
 * of a call of its own. -1: failed, with an exception or frame->error. */
static int run_batch(const dlb_kernel *kernel, dlb_call *call, const int64_t *steps,
                     Py_ssize_t size) {
    dlb_frame *frame = &call->frame;
    int status = 0;
    for (Py_ssize_t i = 0; status == 0 && i < size; i++) {
        for (int32_t k = 0; i > 0 && k < frame->tensor_count; k++)
            frame->tensors[k].data = (char *)frame->tensors[k].data + steps[k];
        status = run(kernel, NULL, frame, call->holds_gil);
        if (status == 0 && (!call->holds_gil || i % FAIR == FAIR - 1)) {
            if (call->holds_gil) {
                Py_BEGIN_ALLOW_THREADS
                Py_END_ALLOW_THREADS
            }
            if (PyErr_CheckSignals() < 0)
                return -1;
        }
    }
    return status;
}

int dlb_call_batch(const dlb_kernel_object *self, const int64_t *steps,
                   Py_ssize_t step_count, Py_ssize_t size, PyObject *const *args,
                   Py_ssize_t count, PyObject *names) {
    dlb_call call;
    PyObject *out = NULL;
    const dlb_kernel *kernel = self->kernel;
    start(&call, kernel, DLB_FAMILY_TORCH);
    int status = fit(self, &call);
    if (status == 0)
        status = prepare(self, &call, args, count, names, &out);
    if (status == 0 &&
        (out == NULL || call.frame.tensor_count != step_count ||
         writes_inputs(kernel) || !is_on_host(&call.frame) || !keep_dims(&call)))
        status = DLB_DECLINED;
    if (status == 0) {
        if (call.target == NULL)
            call.holds_gil = dlb_frame_holds_gil(kernel, &call.frame);
        call.frame.objects = NULL; /* of the first element only */
        /* the results are new, and other threads run after each FAIR calls */
        status = keep_memory(&call, call.holds_gil && size <= FAIR, true);
    }
    if (status == 0) {
        if (run_batch(kernel, &call, steps, size) < 0) {
            status = -1;
            if (!PyErr_Occurred())
                dlb_raise(&call.frame.error);
        }
        if (!PyErr_Occurred() && bump_versions(kernel, &call, true) < 0)
            status = -1;
    }
    end(&call);
    return status;
}

/* The usual call in few instructions: one as before, with NumPy arrays alone. False:
 * nothing happened. */
static inline bool call_again(const dlb_kernel_object *self, dlb_family wanted,
                              PyObject *const *args, Py_ssize_t count, PyObject *names,
                              PyObject **result) {
    const dlb_call_plan *plan = self->plan;
    const dlb_call_cache *cache = cache_at(plan, 0);
    if (cache == NULL || names != NULL ||
        (wanted != DLB_FAMILY_NONE && wanted != DLB_FAMILY_NUMPY))
        return false;
    dlb_frame frame;
    int64_t room[2 * DLB_CACHED_TENSORS * DLB_CACHED_NDIM];
    dlb_frame_start(&frame, "numpy.ndarray");
    for (int32_t i = 0; cache != NULL; cache = cache_at(plan, ++i)) {
        if (!cache->is_simple || count != cache->input_count ||
            !dlb_use_array_cache(self->kernel, cache, &frame, args, room))
            continue;
        frame.objects = (void *const *)args;
        if (run(self->kernel, cache->target, &frame, cache->holds_gil) == 0) {
            *result = frame.returned ? frame.returned : Py_NewRef(Py_None);
        } else {
            Py_XDECREF((PyObject *)frame.returned);
            *result = dlb_raise(&frame.error);
        }
        return true;
    }
    return false;
}

/* ---- calls that C declines ---- */

int dlb_pack_arguments(PyObject *const *args, Py_ssize_t count, PyObject *names,
                       PyObject **positional, PyObject **keywords) {
    Py_ssize_t name_count = names ? PyTuple_GET_SIZE(names) : 0;
    *positional = PyTuple_New(count);
    *keywords = PyDict_New();
    bool failed = *positional == NULL || *keywords == NULL;
    for (Py_ssize_t i = 0; !failed && i < count; i++)
        PyTuple_SET_ITEM(*positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; !failed && i < name_count; i++)
        failed =
            PyDict_SetItem(*keywords, PyTuple_GET_ITEM(names, i), args[count + i]) < 0;
    if (failed) {
        Py_CLEAR(*positional);
        Py_CLEAR(*keywords);
    }
    return failed ? -1 : 0;
}

/* slow_call(kernel, framework or None, args, kwargs) */
static PyObject *call_slowly(PyObject *self, PyObject *framework, PyObject *const *args,
                             Py_ssize_t count, PyObject *names) {
    PyObject *positional, *keywords;
    if (dlb_hooks.slow_call == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge.kernels is not initialised");
    if (dlb_pack_arguments(args, count, names, &positional, &keywords) < 0)
        return NULL;
    PyObject *stack[] = {self, framework ? framework : Py_None, positional, keywords};
    PyObject *result = PyObject_Vectorcall(dlb_hooks.slow_call, stack, 4, NULL);
    Py_DECREF(positional);
    Py_DECREF(keywords);
    return result;
}

/* The function `kernel.jax` keeps compiled programs, and finds them sooner than the
 * hook. */
static PyObject *call_jax(PyObject *self, PyObject *const *args, Py_ssize_t count,
                          PyObject *names) {
    static _Atomic(PyObject *) kept;
    PyObject *name = dlb_kept_name(&kept, "jax");
    if (name == NULL)
        return NULL;
    PyObject *function = PyObject_GetAttr(self, name);
    if (function == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError) || dlb_clear_error() < 0)
            return NULL;
        return call_slowly(self, NULL, args, count, names);
    }
    PyObject *result = PyObject_Vectorcall(function, args, (size_t)count, names);
    Py_DECREF(function);
    return result;
}

/* ---- results that are numbers; kernels/numbers.py serves all other calls ---- */

/* Tensors of all families have a method for it. */
static PyObject *read_numbers(PyObject *found, PyObject *are_numbers) {
    static _Atomic(PyObject *) kept;
    PyObject *item = dlb_kept_name(&kept, "item");
    if (item == NULL)
        return NULL;
    if (!PyTuple_CheckExact(found))
        return PyObject_CallMethodNoArgs(found, item);
    Py_ssize_t size = PyTuple_GET_SIZE(found);
    PyObject *all = PyTuple_New(size);
    for (Py_ssize_t i = 0; all != NULL && i < size; i++) {
        PyObject *value = PyTuple_GET_ITEM(found, i);
        bool is_number = PyTuple_GET_ITEM(are_numbers, i) == Py_True;
        value = is_number ? PyObject_CallMethodNoArgs(value, item) : Py_NewRef(value);
        if (value == NULL)
            Py_CLEAR(all);
        else
            PyTuple_SET_ITEM(all, i, value);
    }
    return all;
}

/* NULL without an exception: declined. */
static PyObject *call_numbers(PyObject *numbers, dlb_family family,
                              PyObject *const *args, Py_ssize_t count,
                              PyObject *names) {
    const dlb_kernel_object *tensors =
        (const dlb_kernel_object *)PyTuple_GET_ITEM(numbers, 0);
    PyObject *found;
    if (family == DLB_FAMILY_OTHER || tensors->kernel->needs_gil || dlb_has_out(names))
        return NULL;
    if (!call_again(tensors, family, args, count, names, &found))
        found = dlb_call_directly(tensors, &family, args, count, names);
    if (found == NULL)
        return NULL;
    PyObject *result = read_numbers(found, PyTuple_GET_ITEM(numbers, 1));
    Py_DECREF(found);
    return result;
}

PyObject *dlb_call_as(PyObject *self, dlb_family family, PyObject *framework,
                      PyObject *const *args, Py_ssize_t count, PyObject *names) {
    const dlb_kernel_object *object = (const dlb_kernel_object *)self;
    PyObject *result;
    if (family == DLB_FAMILY_OTHER || object->kernel->needs_gil) {
        /* Kernels with either have no function of their own. */
        PyObject *numbers =
            atomic_load_explicit(&object->numbers, memory_order_acquire);
        result = object->list_places
                     ? dlb_call_lists(object, family, args, count, names)
                 : numbers ? call_numbers(numbers, family, args, count, names)
                           : NULL;
        return result != NULL || PyErr_Occurred()
                   ? result
                   : call_slowly(self, framework, args, count, names);
    }
    if (call_again(object, family, args, count, names, &result))
        return result;
    result = dlb_call_directly(object, &family, args, count, names);
    if (result != NULL || PyErr_Occurred())
        return result;
    if (family == DLB_FAMILY_JAX && framework == NULL && object->arguments != NULL)
        return call_jax(self, args, count, names);
    return call_slowly(self, framework, args, count, names);
}

PyObject *dlb_kernel_vectorcall(PyObject *self, PyObject *const *args, size_t flags,
                                PyObject *names) {
    PyObject *jax =
        atomic_load_explicit(&((dlb_kernel_object *)self)->jax, memory_order_acquire);
    Py_ssize_t positional = PyVectorcall_NARGS(flags);
    Py_ssize_t count = positional + (names ? PyTuple_GET_SIZE(names) : 0);
    if (jax != NULL && dlb_jax_serves(jax, args, count))
        return dlb_jax_call(jax, args, positional, names);
    return dlb_call_as(self, DLB_FAMILY_NONE, NULL, args, PyVectorcall_NARGS(flags),
                       names);
}
