/* Converter. The C paths through: one argument and no policy goes from one
 * framework to the other without a Python frame. Whatever is out of the ordinary goes
 * to Python, which also makes the errors. */
#include "exchange/exchange.h"
#include "exchange/policy.h"
#include "exchange/receipt.h"
#include "python/numpy.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

/* ---- Converter ---- */

typedef enum {
    CLOSED,
    TO_TENSOR,
    TO_NUMPY,
    TO_TABLE,
    TO_CAPSULE,
    TO_PLACED,  /* takes a capsule; there are several CPU devices */
    TO_ARRAY,   /* takes a NumPy array */
    TO_COPYING, /* takes a capsule, and copies */
    TO_OBJECT,  /* takes a Tensor, and asks it with its own stream */
    KINDS,
} give_kind;

/* How tensors are given to a framework; immutable. */
typedef struct route {
    give_kind kind;
    PyTypeObject *own_type; /* its objects are returned as they are */
    dlb_limits limits;
    PyObject *needed_by; /* alignment and layout hold once this module is imported */
    const DLPackExchangeAPI *table;
    PyObject *consumer;
    PyObject *extra;              /* tuple: further arguments of the consumer */
    PyObject *streams;            /* see `give_in_order`; or NULL */
    PyObject *settings, *setting; /* NULL: there are no wider limits */
    dlb_limits wider;       /* while the attribute `setting` of `settings` is true */
    PyObject *construct;    /* takes a NumPy array; or NULL */
    dlb_limits constructed; /* what it makes a copy of */
    struct route *before;
} route;

static const route closed_route = {.kind = CLOSED};

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name, *doc, *qualified_name;
    _Atomic(const route *) route; /* NULL: closed */
    route *routes; /* all there were: calls may be on their way along an older one */
} converter;

static inline const route *route_of(const converter *self) {
    const route *found = atomic_load_explicit(&self->route, memory_order_acquire);
    return found != NULL ? found : &closed_route;
}

/* The limits that hold now, in this thread, as the view has a dtype that the narrower
 * ones lack; those where the setting cannot be read, so that Python decides. */
static const dlb_limits *limits_now(const route *along) {
    PyObject *value = PyObject_GetAttr(along->settings, along->setting);
    int is_on = value != NULL ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    dlb_drop_error();
    return is_on == 1 ? &along->wider : &along->limits;
}

/* Why the consumer cannot represent the view, or NULL. */
static const char *find_refusal(const void *consumer, const dlb_view *view) {
    const route *along = consumer;
    const char *reason = dlb_limits_refusal(&along->limits, &view->dl, view->flags);
    if (reason != NULL && along->settings != NULL && strcmp(reason, "dtype") == 0)
        reason = dlb_limits_refusal(limits_now(along), &view->dl, view->flags);
    if (reason == NULL || along->needed_by == NULL || !dlb_is_cured_by_copy(reason))
        return reason;
    PyObject *module = PyImport_GetModule(along->needed_by);
    if (module == NULL && !PyErr_Occurred())
        return NULL;
    Py_XDECREF(module);
    dlb_drop_error();
    return reason;
}

/* ---- giving ---- */

/* The argument of the consumer. Some look at strides also where there is but one
 * element: these get the sign of the others. */
static PyObject *make_argument(dlb_view *view, const route *along) {
    if (along->kind > TO_PLACED) {
        for (int32_t i = 0; i < view->dl.ndim; i++)
            view->scratch[i] = /* of a single element, any number */
                view->dl.shape[i] == 1 ? 1 : llabs(view->dl.strides[i]);
        view->dl.strides = view->scratch;
    }
    return along->kind == TO_ARRAY ? dlb_give_numpy(view, NULL)
                                   : dlb_capsule_of_view(view, false, 0);
}

enum { MAX_EXTRA = 7 };

/* Call the consumer with the argument, which this takes, and those in the tuple `extra`
 * from `first` on. */
static PyObject *call_with(const route *along, PyObject *argument, PyObject *extra,
                           Py_ssize_t first) {
    PyObject *arguments[1 + MAX_EXTRA];
    if (argument == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(extra) - first;
    arguments[0] = argument;
    for (Py_ssize_t i = 0; i < count; i++)
        arguments[i + 1] = PyTuple_GET_ITEM(extra, first + i);
    PyObject *result =
        PyObject_Vectorcall(along->consumer, arguments, (size_t)count + 1, NULL);
    Py_DECREF(argument);
    return result;
}

/* Takes the argument. */
static PyObject *call_consumer(const route *along, PyObject *argument) {
    return call_with(along, argument, along->extra, 0);
}

static PyObject *give(dlb_view *view, const route *along) {
    switch (along->kind) {
    case TO_TENSOR:
        return dlb_tensor_new(dlb.tensor_type, view);
    case TO_NUMPY:
        return dlb_give_numpy(view, NULL);
    case TO_TABLE:
        return dlb_give_table(view, along->table, NULL);
    case TO_CAPSULE:
    case TO_PLACED:
    case TO_ARRAY:
    case TO_COPYING:
        return call_consumer(along, make_argument(view, along));
    case TO_OBJECT:
        return call_consumer(along, dlb_tensor_new(dlb.tensor_type, view));
    case CLOSED:
    case KINDS:
        break;
    }
    dlb_buffer_drop(view->buffer);
    PyErr_SetString(PyExc_SystemError, "converter without a way out");
    return NULL;
}

/* Whether x is a NumPy array that its consumer takes as it is. */
static bool is_argument(const route *along, PyObject *x, const dlb_view *view) {
    bool is_array = along->kind == TO_ARRAY && dlb_is_numpy(x);
    for (int32_t i = 0; is_array && i < view->dl.ndim; i++)
        is_array = view->dl.shape[i] != 1 && view->dl.strides[i] >= 0;
    return is_array;
}

/* A consumer of capsules says in Python only which stream it works on. */
static bool needs_stream(const route *along, const dlb_view *view) {
    return along->kind >= TO_CAPSULE && view->buffer->access != NULL;
}

/* Takes the view. The answer is (stream, worker, *arguments): the streams of
 * `dlb_lend_to_worker`, and what follows the capsule in the call of the consumer. */
static PyObject *give_lent(dlb_view *view, const route *along, PyObject *answer) {
    Py_ssize_t count = PyTuple_Check(answer) ? PyTuple_GET_SIZE(answer) : 0;
    dlb_stream to = 0, worker = 0;
    if (count >= 2 && count <= 2 + MAX_EXTRA) {
        to = (dlb_stream)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(answer, 0));
        worker = (dlb_stream)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(answer, 1));
    } else
        PyErr_SetString(PyExc_TypeError, "streams must return (stream, worker, ...)");
    if (PyErr_Occurred() || dlb_lend_to_worker(view, to, worker, "convert") < 0) {
        dlb_buffer_drop(view->buffer);
        return NULL;
    }
    return call_with(along, dlb_capsule_of_view(view, false, 0), answer, 2);
}

/* Give memory of a CUDA device to a consumer that says by `streams(device)` which
 * stream it works on, or that it asks itself, by an empty tuple. DLB_DECLINED, and the
 * view is still the caller's: Python decides. */
static int give_in_order(dlb_view *view, const route *along, PyObject **result) {
    DLDeviceType type = view->dl.device.device_type;
    if (along->streams == NULL || (type != kDLCUDA && type != kDLCUDAManaged) ||
        dlb_element_count(&view->dl) == 0)
        return DLB_DECLINED;
    PyObject *answer =
        PyObject_CallFunction(along->streams, "i", (int)view->dl.device.device_id);
    if (answer == NULL) {
        dlb_buffer_drop(view->buffer);
        return -1;
    }
    int status = answer == Py_None ? DLB_DECLINED : 0;
    if (status == 0)
        *result = along->kind == TO_OBJECT ? give(view, along)
                                           : give_lent(view, along, answer);
    Py_DECREF(answer);
    return status == 0 && *result == NULL ? -1 : status;
}

/* ---- with policies ---- */

static const dlb_decision shared, left_to_python = {.refused = "python"};

/* Whether a tensor is shared as it is without any policy, as most are. */
static inline bool is_plain(const route *along, const dlb_policy *with,
                            dlb_view *view) {
    return with->is_default &&
           !dlb_settle_immutable(with, along->limits.protects_readonly, view) &&
           find_refusal(along, view) == NULL;
}

/* The decision about a tensor whose memory has no stream; refused: Python decides. */
static dlb_decision decide(const route *along, const dlb_policy *with, dlb_view *view) {
    bool is_copied = along->kind == TO_COPYING,
         is_on_cpu = view->dl.device.device_type == kDLCPU;
    if (is_on_cpu && ((along->kind >= TO_ARRAY && dlb_element_count(&view->dl) == 0) ||
                      (is_copied && with->shares)))
        return left_to_python;
    if (is_plain(along, with, view))
        return shared;
    if (!is_on_cpu)
        return left_to_python;
    dlb_decision made = dlb_decide(with, along->limits.protects_readonly, is_copied,
                                   find_refusal, along, view);
    bool is_padded = view->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    return made.copied != NULL && (with->shares || is_padded) ? left_to_python : made;
}

/* The source is kept until the end, as the view's shape may lie in it. */
static PyObject *give_copy(dlb_view *view, const route *along) {
    dlb_buffer *source = view->buffer;
    PyObject *result = NULL;
    if (dlb_copy_view(view, "convert") == 0)
        result = give(view, along);
    dlb_buffer_drop(source);
    return result;
}

/* Takes the view, which the consumer has no dtype for: a copy with 32-bit numbers.
 * NULL, perhaps without an exception: Python decides. */
__attribute__((noinline)) static PyObject *
give_narrowed(dlb_view *view, const route *along, const dlb_policy *with) {
    dlb_buffer *source = view->buffer;
    PyObject *result = NULL;
    if (along->kind < TO_ARRAY && !with->shares &&
        view->dl.device.device_type == kDLCPU &&
        dlb_narrow_view(view, "convert") == 0) {
        if (find_refusal(along, view) == NULL)
            result = give(view, along);
        else
            dlb_buffer_drop(view->buffer);
    }
    dlb_buffer_drop(source);
    return result;
}

/* Whether the consumer lacks the dtype, and the policy has it narrowed. */
static bool is_narrowed(const route *along, const dlb_policy *with,
                        const dlb_view *view) {
    DLDataType narrower;
    const char *reason =
        with->narrow == DLB_CHECKED && dlb_narrower(view->dl.dtype, &narrower)
            ? find_refusal(along, view)
            : NULL;
    return reason != NULL && strcmp(reason, "dtype") == 0;
}

/* Whether `convert` returns an object of the framework itself as it is. */
static bool returns_own(const dlb_policy *with) {
    return !with->copies && !with->on_cpu && with->layout != DLB_CONTIGUOUS;
}

/* Policies about Tensors, and about one of several devices of the CPU. */
static bool is_for_python(const route *along, const dlb_policy *with) {
    return along->kind == TO_TENSOR || (with->names_own && along->kind == TO_PLACED);
}

/* Whether x lies on one of several devices of the CPU, where a copy of it stays. */
static bool is_placed(const route *along, PyObject *x) {
    return along->kind == TO_PLACED && Py_TYPE(x) == along->own_type;
}

/* Whether one copy may be made that the policy does not ask for. */
static bool allows_copy(const dlb_policy *with) {
    return !with->copies && !with->shares;
}

/* Takes the view. What the consumer imports of no capsule its own constructor copies
 * from an array; NULL: Python decides. Not inlined, as `take_values`. */
__attribute__((noinline)) static PyObject *construct(dlb_view *view, const route *along,
                                                     const dlb_policy *with) {
    if (along->construct == NULL || with->shares || with->on_cpu || with->names_own ||
        dlb_limits_refusal(&along->constructed, &view->dl, view->flags) != NULL) {
        dlb_buffer_drop(view->buffer);
        return NULL;
    }
    PyObject *array = dlb_give_numpy(view, NULL);
    PyObject *made = array ? PyObject_CallOneArg(along->construct, array) : NULL;
    Py_XDECREF(array);
    if (made == Py_None)
        Py_CLEAR(made);
    else if (made == NULL)
        dlb_clear_error();
    return made;
}

/* A result, NULL with an error, or NULL without one: declined. No receipt is written.
 */
static PyObject *try_unwatched(const route *along, PyObject *call, PyObject *x,
                               const dlb_policy *with) {
    dlb_view view;
    if (along->kind == CLOSED)
        return NULL;
    if (Py_TYPE(x) == along->own_type && returns_own(with))
        return Py_NewRef(x);
    if (!with->is_default && (is_for_python(along, with) || is_placed(along, x)))
        return NULL;
    if (dlb_take_for(call, with->grad == DLB_DETACH, allows_copy(with), x, &view) != 0)
        return NULL;
    PyObject *result = NULL;
    if (needs_stream(along, &view)) {
        int status = is_plain(along, with, &view) ? give_in_order(&view, along, &result)
                                                  : DLB_DECLINED;
        if (status == DLB_DECLINED)
            dlb_buffer_drop(view.buffer);
        else if (status < 0)
            dlb_clear_error(); /* as below */
        return result;
    }
    dlb_decision made = decide(along, with, &view);
    if (made.refused != NULL && is_narrowed(along, with, &view))
        result = give_narrowed(&view, along, with);
    else if (made.refused != NULL)
        return construct(&view, along, with);
    else if (made.copied != NULL)
        result = give_copy(&view, along);
    else if (!made.is_opened && is_argument(along, x, &view)) {
        dlb_buffer_drop(view.buffer);
        result = call_consumer(along, Py_NewRef(x));
    } else
        result = give(&view, along);
    if (result == NULL)
        dlb_clear_error(); /* Python tries again and explains */
    return result;
}

/* ---- with receipts ---- */

/* The receipt of what was taken; NULL with an error. */
static PyObject *begin_receipt(PyObject *x, PyObject *target, const dlb_view *view) {
    const char *taken;
    PyObject *source = dlb_take_source(x, view, &taken);
    PyObject *receipt =
        source ? dlb_receipt_new(source, taken, target, &view->dl) : NULL;
    Py_XDECREF(source);
    return receipt;
}

/* Where the memory of the result is, if C can read that. */
static int see_result(PyObject *receipt, const route *along, PyObject *result) {
    const void *address;
    if (along->kind == TO_TENSOR)
        dlb_receipt_seen(receipt, ((dlb_tensor *)result)->dl.data);
    else if (along->kind == TO_NUMPY)
        dlb_receipt_seen(receipt, PyArray_DATA((PyArrayObject *)result));
    else {
        int status = dlb_look_address(result, &address);
        if (status < 0)
            return -1;
        if (status == 0)
            dlb_receipt_seen(receipt, address);
    }
    return 0;
}

/* A consumer that copies by itself, or needs a stream, is left to Python. */
static bool is_recordable(const route *along, const dlb_policy *with) {
    return along->kind != CLOSED && along->kind < TO_ARRAY &&
           (with->is_default || !is_for_python(along, with));
}

static bool is_plain_memory(const dlb_view *view) {
    return view->buffer->access == NULL && view->dl.device.device_type == kDLCPU;
}

/* Takes the view. */
static PyObject *give_recorded(dlb_view *view, const route *along,
                               const dlb_policy *with, PyObject *receipt) {
    dlb_decision made = decide(along, with, view);
    if (made.refused != NULL) {
        dlb_buffer_drop(view->buffer);
        return NULL;
    }
    if (made.copied == NULL)
        return give(view, along);
    if (!dlb_is_cured_by_copy(made.copied) || dlb_element_count(&view->dl) != 0)
        dlb_receipt_copied(receipt, made.copied); /* fresh memory without elements is
                                                     none */
    return give_copy(view, along);
}

/* x itself, where it is the framework's own and C can read it. */
static PyObject *keep_recorded(PyObject *x, PyObject *target, PyObject *logs) {
    dlb_view view;
    if (dlb_look(x, &view) != 0)
        return NULL;
    PyObject *receipt = is_plain_memory(&view) ? begin_receipt(x, target, &view) : NULL;
    dlb_buffer_drop(view.buffer);
    if (receipt == NULL)
        return NULL;
    dlb_receipt_is_identity(receipt);
    int failed = dlb_receipt_write(receipt, logs, x);
    Py_DECREF(receipt);
    return failed ? NULL : Py_NewRef(x);
}

/* As `try_unwatched`. Python reads what has no plain memory, and explains what fails.
 */
__attribute__((noinline)) static PyObject *
try_recorded(const converter *self, const route *along, PyObject *call, PyObject *x,
             const dlb_policy *with, PyObject *logs) {
    dlb_view view;
    if (!is_recordable(along, with))
        return NULL;
    if (Py_TYPE(x) == along->own_type && returns_own(with))
        return keep_recorded(x, self->name, logs);
    if (is_placed(along, x))
        return NULL;
    if (dlb_take_for(call, with->grad == DLB_DETACH, false, x, &view) != 0)
        return NULL;
    PyObject *receipt =
        is_plain_memory(&view) ? begin_receipt(x, self->name, &view) : NULL;
    PyObject *result = NULL;
    if (receipt == NULL)
        dlb_buffer_drop(view.buffer);
    else
        result = give_recorded(&view, along, with, receipt);
    if (result != NULL && (see_result(receipt, along, result) < 0 ||
                           dlb_receipt_write(receipt, logs, result) < 0))
        Py_CLEAR(result);
    Py_XDECREF(receipt);
    if (result == NULL)
        dlb_clear_error();
    return result;
}

static inline PyObject *try_fast(const converter *self, PyObject *call, PyObject *x,
                                 const dlb_policy *with) {
    PyObject *logs = dlb_receipts_open();
    if (logs == NULL)
        return try_unwatched(route_of(self), call, x, with);
    PyObject *result = try_recorded(self, route_of(self), call, x, with, logs);
    Py_DECREF(logs);
    return result;
}

PyObject *dlb_converter_try(PyObject *object, bool is_called, PyObject *x,
                            PyObject *const *values, PyObject *names) {
    const converter *self = (converter *)object;
    PyObject *call = is_called ? self->qualified_name : NULL;
    dlb_policy with;
    if (names == NULL)
        return try_fast(self, call, x, &dlb_no_policy);
    return dlb_read_policy(values, names, DLB_POLICIES, &with)
               ? try_fast(self, call, x, &with)
               : NULL;
}

/* slow_convert(x, name, **policies) */
static PyObject *go_slow(converter *self, PyObject *const *args, Py_ssize_t count,
                         PyObject *names) {
    Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
    if (count != 1)
        return PyErr_Format(
            PyExc_TypeError,
            "%U() takes exactly one positional argument (%zd given); pass "
            "policies by name, such as device=\"cpu\"",
            self->qualified_name, count);
    if (dlb.slow_convert == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge is not initialised");
    PyObject *stack[16] = {args[0], self->name};
    if (keywords > 14)
        return PyErr_Format(PyExc_TypeError, "%U(): too many keyword arguments",
                            self->qualified_name);
    for (Py_ssize_t i = 0; i < keywords; i++)
        stack[i + 2] = args[i + 1];
    return PyObject_Vectorcall(dlb.slow_convert, stack, 2, names);
}

static PyObject *converter_vectorcall(PyObject *callable, PyObject *const *args,
                                      size_t flags, PyObject *names) {
    converter *self = (converter *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (count == 1) {
        PyObject *result = dlb_converter_try(callable, true, args[0], args + 1, names);
        if (result != NULL || PyErr_Occurred())
            return result;
    }
    return go_slow(self, args, count, names);
}

/* ---- for kernels ---- */

const char *dlb_converter_refusal(PyObject *object, const dlb_view *view) {
    const route *along = route_of((converter *)object);
    return along->kind == CLOSED ? NULL : find_refusal(along, view);
}

/* slow_convert(tensor, name, copy=False): writes would not reach a copied tensor.
 */
static PyObject *give_slowly(const converter *self, dlb_view *view) {
    PyObject *tensor = dlb_tensor_new(dlb.tensor_type, view);
    PyObject *names = tensor ? Py_BuildValue("(s)", "copy") : NULL;
    PyObject *stack[] = {tensor, self->name, Py_False};
    PyObject *result =
        names ? PyObject_Vectorcall(dlb.slow_convert, stack, 2, names) : NULL;
    Py_XDECREF(names);
    Py_XDECREF(tensor);
    return result;
}

PyObject *dlb_converter_give(PyObject *object, dlb_view *view) {
    const route *along = route_of((converter *)object);
    PyObject *result = NULL;
    if (along->kind == CLOSED || find_refusal(along, view) != NULL)
        return give_slowly((converter *)object, view);
    if (!needs_stream(along, view))
        return give(view, along);
    int status = give_in_order(view, along, &result);
    return status == DLB_DECLINED ? give_slowly((converter *)object, view) : result;
}

bool dlb_converter_makes_numpy(PyObject *object) {
    return object != Py_None && route_of((converter *)object)->kind == TO_NUMPY;
}

/* ---- the type ---- */

static PyObject *converter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name", "doc", NULL};
    PyObject *name, *doc;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UU:Converter", names, &name, &doc))
        return NULL;
    converter *self = (converter *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = converter_vectorcall;
    self->name = Py_NewRef(name);
    self->doc = Py_NewRef(doc);
    self->qualified_name = PyUnicode_FromFormat("to_%U", name);
    if (self->qualified_name == NULL)
        Py_CLEAR(self);
    else
        dlb_share((PyObject *)self);
    return (PyObject *)self;
}

/* The keywords of `activate`, which follow any number of other arguments; NULL for
 * those that are not there. */
typedef struct {
    PyObject *streams, *settings, *setting, *construct;
    dlb_limits_object *wider, *constructed;
} activation;

static int read_keywords(PyObject *kwargs, activation *out) {
    static char *names[] = {"streams", "wider", "construct", NULL};
    PyObject *nothing = PyTuple_New(0), *wider = NULL, *construct = NULL;
    *out = (activation){.streams = Py_None};
    int parsed = nothing != NULL &&
                 PyArg_ParseTupleAndKeywords(nothing, kwargs, "|$OO!O!:activate", names,
                                             &out->streams, &PyTuple_Type, &wider,
                                             &PyTuple_Type, &construct);
    Py_XDECREF(nothing);
    if (parsed && out->streams == Py_None)
        out->streams = NULL;
    if (parsed && wider != NULL)
        parsed = PyArg_ParseTuple(wider, "O!OU:activate", &dlb_LimitsType, &out->wider,
                                  &out->settings, &out->setting);
    if (parsed && construct != NULL)
        parsed = PyArg_ParseTuple(construct, "O!O:activate", &dlb_LimitsType,
                                  &out->constructed, &out->construct);
    return parsed ? 0 : -1;
}

/* activate(kind, limits, consumer=None, own_type=None, *extra, streams=None,
 * wider=..., construct=...) */
static PyObject *converter_activate(PyObject *object, PyObject *args,
                                    PyObject *kwargs) {
    static const char *const kinds[] = {"closed", "tensor",  "numpy",
                                        "table",  "capsule", "placed",
                                        "array",  "copying", "object"};
    converter *self = (converter *)object;
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    PyObject *kind, *limits, *consumer = Py_None, *own_type = Py_None, *extra;
    activation keywords;
    if (read_keywords(kwargs, &keywords) < 0)
        return NULL;
    PyObject *fixed = PyTuple_GetSlice(args, 0, count < 4 ? count : 4);
    int parsed =
        fixed && PyArg_ParseTuple(fixed, "UO!|OO:activate", &kind, &dlb_LimitsType,
                                  &limits, &consumer, &own_type);
    Py_XDECREF(fixed);
    extra = parsed ? PyTuple_GetSlice(args, 4, count) : NULL;
    if (extra == NULL)
        return NULL;
    int index = 0;
    while (index < KINDS && PyUnicode_CompareWithASCIIString(kind, kinds[index]) != 0)
        index++;
    const DLPackExchangeAPI *table = NULL;
    if (index == TO_TABLE)
        table = dlb_parse_giving_table(consumer);
    if (index == KINDS || PyTuple_GET_SIZE(extra) > MAX_EXTRA ||
        (index == TO_TABLE && table == NULL)) {
        Py_DECREF(extra);
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError,
                         "activate: kind %R or its arguments are wrong", kind);
        return NULL;
    }
    route *made = PyMem_Malloc(sizeof *made);
    if (made == NULL) {
        Py_DECREF(extra);
        return PyErr_NoMemory();
    }
    *made = (route){
        .kind = (give_kind)index,
        .limits = ((dlb_limits_object *)limits)->limits,
        .table = table,
        .needed_by = Py_XNewRef(((dlb_limits_object *)limits)->needed_by),
        .own_type = own_type == Py_None ? NULL : (PyTypeObject *)Py_NewRef(own_type),
        .consumer = Py_NewRef(consumer),
        .extra = extra,
        .streams = Py_XNewRef(keywords.streams),
        .settings = Py_XNewRef(keywords.settings),
        .setting = Py_XNewRef(keywords.setting),
        .construct = Py_XNewRef(keywords.construct),
    };
    if (keywords.wider != NULL)
        made->wider = keywords.wider->limits;
    if (keywords.constructed != NULL)
        made->constructed = keywords.constructed->limits;
    DLB_BEGIN_EXCLUSIVE(object);
    made->before = self->routes;
    self->routes = made;
    atomic_store_explicit(&self->route, made, memory_order_release);
    DLB_END_EXCLUSIVE();
    Py_RETURN_NONE;
}

static PyObject *converter_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
    atomic_store(&((converter *)object)->route, NULL);
    Py_RETURN_NONE;
}

/* Pickled by name, as functions are. */
static PyObject *converter_reduce(PyObject *object, PyObject *Py_UNUSED(unused)) {
    return Py_NewRef(((converter *)object)->qualified_name);
}

static PyObject *converter_module(PyObject *Py_UNUSED(object),
                                  void *Py_UNUSED(closure)) {
    return PyUnicode_FromString("dlbridge");
}

/* Made in Python, and only when asked for: importing `inspect` takes long. */
static PyObject *converter_signature(PyObject *Py_UNUSED(object),
                                     void *Py_UNUSED(closure)) {
    PyObject *module = PyImport_ImportModule("dlbridge.frameworks.conversions");
    PyObject *signature =
        module ? PyObject_CallMethod(module, "signature", NULL) : NULL;
    Py_XDECREF(module);
    return signature;
}

static PyObject *converter_repr(PyObject *object) {
    return PyUnicode_FromFormat("<dlbridge converter %U>",
                                ((converter *)object)->qualified_name);
}

static void converter_dealloc(PyObject *object) {
    converter *self = (converter *)object;
    Py_XDECREF(self->name);
    Py_XDECREF(self->doc);
    Py_XDECREF(self->qualified_name);
    while (self->routes != NULL) {
        route *last = self->routes;
        self->routes = last->before;
        Py_XDECREF(last->needed_by);
        Py_XDECREF(last->own_type);
        Py_DECREF(last->consumer);
        Py_DECREF(last->extra);
        Py_XDECREF(last->streams);
        Py_XDECREF(last->settings);
        Py_XDECREF(last->setting);
        Py_XDECREF(last->construct);
        PyMem_Free(last);
    }
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef converter_members[] = {
    {"__name__", T_OBJECT, offsetof(converter, qualified_name), READONLY, NULL},
    {"__qualname__", T_OBJECT, offsetof(converter, qualified_name), READONLY, NULL},
    {"__doc__", T_OBJECT, offsetof(converter, doc), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef converter_attributes[] = {
    {"__module__", converter_module, NULL, NULL, NULL},
    {"__signature__", converter_signature, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef converter_methods[] = {
    {"__reduce__", converter_reduce, METH_NOARGS, "Pickle by name."},
    {"activate", (PyCFunction)(void (*)(void))converter_activate,
     METH_VARARGS | METH_KEYWORDS,
     "activate($self, kind, limits, consumer=None, own_type=None, /, "
     "*extra, streams=None, wider=..., construct=...)\n--\n\nOpen the C path."},
    {"close", converter_close, METH_NOARGS,
     "close($self, /)\n--\n\nClose the C path: everything goes through Python."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_ConverterType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Converter",
    .tp_basicsize = sizeof(converter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(converter, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = converter_new,
    .tp_dealloc = converter_dealloc,
    .tp_repr = converter_repr,
    .tp_members = converter_members,
    .tp_methods = converter_methods,
    .tp_getset = converter_attributes,
};

/* ---- from_dlpack and convert ---- */

/* Takes the view. A Tensor, NULL with an error, or NULL without one: declined. */
static PyObject *make_tensor(dlb_view *view, const dlb_policy *with) {
    if (with->is_default)
        return dlb_tensor_new(dlb.tensor_type, view);
    bool is_padded = view->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    dlb_buffer *source = view->buffer;
    PyObject *tensor = NULL;
    if (view->dl.device.device_type != kDLCPU || (with->copies && is_padded))
        goto end;
    if (!with->copies)
        return dlb_tensor_new(dlb.tensor_type, view);
    if (dlb_copy_view(view, "from_dlpack") == 0)
        tensor = dlb_tensor_new(dlb.tensor_type, view);
end:
    dlb_buffer_drop(source);
    return tensor;
}

/* Takes the view. */
__attribute__((noinline)) static PyObject *
make_recorded(PyObject *x, dlb_view *view, const dlb_policy *with, PyObject *logs) {
    static PyObject *target;
    PyObject *receipt = NULL, *tensor = NULL;
    if (target == NULL)
        target = PyUnicode_InternFromString("dlbridge");
    if (target != NULL && is_plain_memory(view))
        receipt = begin_receipt(x, target, view);
    if (receipt == NULL) {
        dlb_buffer_drop(view->buffer);
        return NULL;
    }
    if (with->copies)
        dlb_receipt_copied(receipt, "requested");
    tensor = make_tensor(view, with);
    if (tensor != NULL) {
        dlb_receipt_seen(receipt, ((dlb_tensor *)tensor)->dl.data);
        if (dlb_receipt_write(receipt, logs, tensor) < 0)
            Py_CLEAR(tensor);
    }
    Py_DECREF(receipt);
    return tensor;
}

/* As `make_tensor`. */
static PyObject *take_fast(PyObject *x, const dlb_policy *with) {
    static PyObject *call;
    dlb_view view;
    if (call == NULL && (call = PyUnicode_InternFromString("from_dlpack")) == NULL)
        return NULL;
    PyObject *logs = dlb_receipts_open(), *tensor = NULL;
    bool may_copy = logs == NULL && allows_copy(with);
    if (dlb_take_for(call, false, may_copy, x, &view) == 0)
        tensor = logs == NULL ? make_tensor(&view, with)
                              : make_recorded(x, &view, with, logs);
    Py_XDECREF(logs);
    return tensor;
}

PyObject *dlb_from_dlpack(PyObject *Py_UNUSED(module), PyObject *const *args,
                          Py_ssize_t count, PyObject *names) {
    dlb_policy with = dlb_no_policy;
    if (count == 1 &&
        (names == NULL ||
         dlb_read_policy(args + 1, names, DLB_POLICIES_OF_FROM_DLPACK, &with))) {
        PyObject *tensor = take_fast(args[0], &with);
        if (tensor != NULL || PyErr_Occurred())
            return tensor;
    }
    if (dlb.slow_from_dlpack == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge is not initialised");
    return PyObject_Vectorcall(dlb.slow_from_dlpack, args, (size_t)count, names);
}

/* convert(x, to="torch", ...) as convert(x, "torch", ...); NULL without an exception:
 * it does not say where to. */
static PyObject *convert_by_keyword(PyObject *const *args, PyObject *names) {
    PyObject *stack[16] = {args[0], NULL};
    Py_ssize_t count = PyTuple_GET_SIZE(names), kept = 0;
    if (count > 14)
        return NULL;
    PyObject *others = PyList_New(0), *result = NULL;
    for (Py_ssize_t i = 0; others != NULL && i < count; i++) {
        if (dlb_is_word(PyTuple_GET_ITEM(names, i), "to"))
            stack[1] = args[i + 1];
        else if (PyList_Append(others, PyTuple_GET_ITEM(names, i)) < 0)
            Py_CLEAR(others);
        else
            stack[2 + kept++] = args[i + 1];
    }
    PyObject *left = others != NULL && kept > 0 ? PyList_AsTuple(others) : NULL;
    if (others != NULL && stack[1] != NULL && (kept == 0 || left != NULL))
        result = dlb_convert(NULL, stack, 2, left);
    Py_XDECREF(left);
    Py_XDECREF(others);
    return result;
}

/* convert(x, /, to, **policies): a name that has a converter takes its C path. */
PyObject *dlb_convert(PyObject *Py_UNUSED(module), PyObject *const *args,
                      Py_ssize_t count, PyObject *names) {
    if (dlb.slow_convert == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge is not initialised");
    if (count == 2 && PyUnicode_Check(args[1]) && dlb.converters != NULL) {
        PyObject *found = dlb_cache_get(dlb.converters, args[1]);
        bool known = found != NULL && Py_TYPE(found) == &dlb_ConverterType;
        PyObject *result =
            known ? dlb_converter_try(found, true, args[0], args + 2, names) : NULL;
        Py_XDECREF(found);
        if (result != NULL || PyErr_Occurred())
            return result;
    }
    if (count == 1 && names != NULL) {
        PyObject *result = convert_by_keyword(args, names);
        if (result != NULL || PyErr_Occurred())
            return result;
    }
    return PyObject_Vectorcall(dlb.slow_convert, args, (size_t)count, names);
}
