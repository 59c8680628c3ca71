/* Which argument of a call is which tensor or scalar of the kernel. */
#include "call/call.h"

#include <stdlib.h>

#define MAX_ARGUMENTS (DLB_MAX_TENSORS + DLB_MAX_SCALARS)

/* Names and defaults are borrowed from dlb_kernel_object.arguments. */
typedef struct {
    PyObject *name, *fallback; /* NULL: no default */
    bool is_tensor;
    int8_t index; /* among the tensors, or among the scalars */
} argument;

struct dlb_call_plan {
    int32_t count, positional_count;
    bool has_results;
    bool is_plain; /* tensors only, in their order */
    dlb_memory memory;
    argument arguments[];
};

static PyObject *out_name; /* "out", interned */

/* ---- the plan, made with the kernel ---- */

/* (name, kind, index, keyword_only, has_default, default) */
static int read_row(PyObject *row, argument *read, bool *keyword_only) {
    const char *kind;
    int index, is_keyword_only, has_default;
    PyObject *fallback;
    if (!PyArg_ParseTuple(row,
                          "Usipp"
                          "O:KernelBase",
                          &read->name, &kind, &index, &is_keyword_only, &has_default,
                          &fallback))
        return -1;
    read->is_tensor = kind[0] == 't';
    read->index = (int8_t)index;
    read->fallback = has_default ? fallback : NULL;
    *keyword_only = is_keyword_only;
    if (index >= 0 && index < (read->is_tensor ? DLB_MAX_TENSORS : DLB_MAX_SCALARS))
        return 0;
    PyErr_SetString(PyExc_ValueError, "KernelBase: an argument's index is wrong");
    return -1;
}

int dlb_call_plan_make(dlb_kernel_object *self) {
    PyObject *rows = self->arguments;
    if (out_name == NULL && (out_name = PyUnicode_InternFromString("out")) == NULL)
        return -1;
    if (rows == NULL || self->kernel->signature == NULL)
        return 0;
    Py_ssize_t count = PyTuple_GET_SIZE(rows);
    dlb_call_plan *plan = malloc(sizeof *plan + (size_t)count * sizeof(argument));
    if (plan == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    plan->count = (int32_t)count;
    plan->positional_count = 0;
    plan->is_plain = true;
    plan->memory.family = DLB_FAMILY_NONE;
    plan->has_results = self->kernel->signature->result_count > 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        bool keyword_only;
        if (read_row(PyTuple_GET_ITEM(rows, i), &plan->arguments[i], &keyword_only) <
            0) {
            free(plan);
            return -1;
        }
        plan->positional_count += !keyword_only;
        plan->is_plain &= plan->arguments[i].is_tensor && plan->arguments[i].index == i;
    }
    self->call = plan;
    return 0;
}

/* ---- with a schema ---- */

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

static int take_scalar(const dlb_kernel *kernel, dlb_call *call, int index,
                       PyObject *value) {
    int status = dlb_parse_scalar(value, &kernel->signature->scalars[index],
                                  &call->frame.scalars[index]);
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
    PyObject *values[MAX_ARGUMENTS];
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
        if (taken->is_tensor)
            tensors[taken->index] = value;
        else if (take_scalar(kernel, call, taken->index, value) != 0)
            return DLB_DECLINED;
    }
    return 0;
}

static int take_planned(const dlb_kernel *kernel, const dlb_call_plan *plan,
                        dlb_call *call, PyObject *const *args, Py_ssize_t count,
                        PyObject *names, PyObject **out) {
    PyObject *sorted[DLB_MAX_TENSORS], *const *tensors = sorted;
    int32_t inputs = kernel->signature->input_count;
    int status = 0;
    if (plan->is_plain && names == NULL && count == plan->count)
        tensors = args;
    else
        status = sort_arguments(kernel, plan, call, args, count, names, sorted, out);
    call->frame.scalar_count = kernel->signature->scalar_count;
    if (status != 0 || dlb_recall(kernel, &plan->memory, call, tensors, *out))
        return status;
    call->frame.tensor_count = call->frame.input_count = inputs;
    for (int32_t i = 0; status == 0 && i < inputs; i++)
        status = take_tensor(kernel, call, i, tensors[i]);
    return status;
}

void dlb_call_remember(const dlb_kernel_object *self, const dlb_call *call,
                       uint32_t written) {
    dlb_call_plan *plan = self->call;
    if (plan != NULL)
        dlb_remember(self->kernel, &plan->memory, call, written);
}

/* ---- without a schema: tensors, numbers and texts in any order ---- */

static bool is_scalar(PyObject *x) {
    return PyLong_CheckExact(x) || PyFloat_CheckExact(x) || PyBool_Check(x) ||
           PyUnicode_CheckExact(x);
}

static int take_unplanned(dlb_call *call, PyObject *const *args, Py_ssize_t count) {
    dlb_frame *frame = &call->frame;
    if (count > MAX_ARGUMENTS)
        return DLB_DECLINED;
    for (Py_ssize_t i = 0; i < count; i++) {
        int status = DLB_DECLINED;
        if (!is_scalar(args[i])) {
            if (frame->tensor_count < DLB_MAX_TENSORS)
                status = dlb_borrow(call, frame->tensor_count, args[i]);
            call->order[i] = (int8_t)frame->tensor_count++;
        } else {
            if (frame->scalar_count < DLB_MAX_SCALARS)
                status = dlb_parse_scalar(args[i], NULL,
                                          &frame->scalars[frame->scalar_count]);
            if (status < 0)
                PyErr_Clear();
            call->order[i] = (int8_t)(-1 - frame->scalar_count++);
        }
        if (status != 0)
            return DLB_DECLINED;
    }
    frame->input_count = frame->tensor_count;
    frame->order = call->order;
    frame->order_count = (int32_t)count;
    return 0;
}

int dlb_call_arguments(const dlb_kernel_object *self, dlb_call *call,
                       PyObject *const *args, Py_ssize_t count, PyObject *names,
                       PyObject **out) {
    if (self->call != NULL && self->arguments != NULL)
        return take_planned(self->kernel, self->call, call, args, count, names, out);
    if (self->kernel->signature != NULL ||
        (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return DLB_DECLINED;
    return take_unplanned(call, args, count);
}
