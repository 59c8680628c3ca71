/* The calling convention of tvm-ffi: any packed function, without its headers. The
 * structs and functions below are its stable C ABI; the library is the one that the
 * process has loaded already, since a second copy would know nothing of the first's
 * objects. */
#include <Python.h> /* first: it asks for all that the C library has */

#include "abi/abi.h"
#include "layout/layout.h"
#include "memory/copy.h"
#include "memory/lock.h"
#include "peers/peers.h"
#include "python/python.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TYPE_NONE, TYPE_INT, TYPE_BOOL, TYPE_FLOAT, TYPE_DTYPE = 5, TYPE_STRING = 8 };
enum { FIRST_OBJECT_TYPE = 64, PYTHON_ERROR_IS_SET = -2 };
enum { MAX_ARGUMENTS = DLB_MAX_TENSORS + DLB_MAX_SCALARS };

typedef struct {
    int32_t type;
    uint32_t padding;
    union {
        int64_t i;
        double f;
        const void *pointer;
    } value;
} any;

typedef struct {
    const char *data;
    size_t size;
} text;

typedef struct { /* follows the header of an error object */
    text kind, message;
} error_cell;

/* tvm-ffi's own functions; immutable once `is_open`. */
typedef struct {
    int (*call)(void *function, const any *arguments, int32_t count, any *result);
    void (*take_error)(void **error);
    int (*make)(DLManagedTensor *from, int32_t alignment, int32_t contiguous,
                void **object);
    int (*drop)(void *object);
    int (*set_stream)(int32_t type, int32_t id, void *stream, void **old); /* or NULL */
} functions;
static functions api;
static _Atomic bool is_open;
DLB_LOCK(opening)

/* ---- finding the library ---- */

static bool find_functions(void *library) {
    void *call = dlsym(library, "TVMFFIFunctionCall");
    void *take_error = dlsym(library, "TVMFFIErrorMoveFromRaised");
    void *make = dlsym(library, "TVMFFITensorFromDLPack");
    void *drop = dlsym(library, "TVMFFIObjectDecRef");
    if (call == NULL || take_error == NULL || make == NULL || drop == NULL)
        return false;
    functions found;
    *(void **)&found.call = call;
    *(void **)&found.take_error = take_error;
    *(void **)&found.make = make;
    *(void **)&found.drop = drop;
    *(void **)&found.set_stream = dlsym(library, "TVMFFIEnvSetStream");
    pthread_mutex_lock(&opening); /* others may look for it as well */
    if (!atomic_load(&is_open))
        api = found;
    atomic_store_explicit(&is_open, true, memory_order_release);
    pthread_mutex_unlock(&opening);
    return true;
}

bool dlb_tvm_ffi_open(void) {
    void *library;
    return atomic_load_explicit(&is_open, memory_order_acquire) ||
           (dlb_tvm_ffi_library(&library) && find_functions(library));
}

/* ---- borrowed tensors ----
 *
 * Real objects, since much of tvm-ffi cannot take a bare DLTensor, over memory that is
 * the caller's. */

typedef struct {
    DLManagedTensor managed;
    atomic_flag is_busy;
    bool is_over;    /* the object is gone */
    bool is_kept;    /* it outlives the call: `release` frees this */
    PyObject *owner; /* of the memory, or NULL */
    dlb_buffer *copy;
    int64_t numbers[]; /* shape, strides */
} borrowed_tensor;

static void lock(borrowed_tensor *borrowed) {
    while (atomic_flag_test_and_set_explicit(&borrowed->is_busy, memory_order_acquire))
        sched_yield();
}

static void unlock(borrowed_tensor *borrowed) {
    atomic_flag_clear_explicit(&borrowed->is_busy, memory_order_release);
}

static void free_borrowed(borrowed_tensor *borrowed) {
    dlb_count_live(loans, -1);
    free(borrowed);
}

static void let_go(borrowed_tensor *borrowed) {
    int state;
    if (borrowed->owner != NULL && dlb_enter_python(&state)) {
        Py_DECREF(borrowed->owner);
        dlb_leave_python(state);
    }
    if (borrowed->copy != NULL)
        dlb_buffer_drop(borrowed->copy);
    free_borrowed(borrowed);
}

/* The object's deleter: any thread, during the call or long after it. */
static void release(DLManagedTensor *managed) {
    borrowed_tensor *borrowed = managed->manager_ctx;
    lock(borrowed);
    borrowed->is_over = true;
    bool is_kept = borrowed->is_kept;
    unlock(borrowed);
    if (is_kept)
        let_go(borrowed);
}

/* A new tensor object in `object`, one reference. With `is_compact` its strides are
 * those of compact memory also where there is but one element. NULL: out of memory. */
static borrowed_tensor *make_borrowed(const DLTensor *tensor, bool is_compact,
                                      void **object) {
    size_t rank = (size_t)tensor->ndim, size = rank * sizeof(int64_t);
    borrowed_tensor *borrowed = malloc(sizeof *borrowed + 2 * size);
    if (borrowed == NULL)
        return NULL;
    dlb_count_live(loans, 1);
    DLTensor *own = &borrowed->managed.dl_tensor;
    *own = *tensor;
    own->shape = borrowed->numbers;
    own->strides = borrowed->numbers + rank;
    if (rank > 0)
        memcpy(own->shape, tensor->shape, size);
    if (is_compact)
        dlb_row_major_strides(own->ndim, own->shape, own->strides);
    else if (rank > 0)
        memcpy(own->strides, tensor->strides, size);
    borrowed->managed.manager_ctx = borrowed;
    borrowed->managed.deleter = release;
    atomic_flag_clear(&borrowed->is_busy);
    borrowed->is_over = borrowed->is_kept = false;
    borrowed->owner = NULL;
    borrowed->copy = NULL;
    if (api.make(&borrowed->managed, 0, 0, object) == 0)
        return borrowed;
    free_borrowed(borrowed);
    return NULL;
}

/* Values for an object that outlives its memory. Memory of a device is cut off. */
static void give_copy(borrowed_tensor *borrowed, DLTensor *seen) {
    DLTensor original = *seen;
    int64_t nbytes = dlb_packed_bytes(seen->dtype, 0, dlb_element_count(seen));
    if (dlb_is_host(seen->device))
        borrowed->copy = dlb_buffer_allocate(nbytes, 64, false);
    seen->data = borrowed->copy ? borrowed->copy->data : NULL;
    if (borrowed->copy == NULL)
        return;
    int64_t strides[DLB_MAX_NDIM];
    memcpy(strides, original.strides, (size_t)original.ndim * sizeof *strides);
    original.strides = strides;
    dlb_row_major_strides(seen->ndim, seen->shape, seen->strides);
    dlb_copy(seen, 0, &original, 0);
}

/* Whether the object was gone by now. Whoever has the GIL may wait for the lock in
 * `release`, so that the GIL comes first here. */
static bool keep(borrowed_tensor *borrowed, void *object, PyObject *owner) {
    int state;
    bool has_gil = owner != NULL && dlb_enter_python(&state);
    lock(borrowed);
    bool is_over = borrowed->is_over;
    if (!is_over && has_gil)
        borrowed->owner = Py_NewRef(owner);
    else if (!is_over)
        give_copy(borrowed, (DLTensor *)((char *)object + DLB_TVM_HEADER_SIZE));
    borrowed->is_kept = !is_over;
    unlock(borrowed);
    if (has_gil)
        dlb_leave_python(state);
    return is_over;
}

/* Drop our reference. Whoever kept the object has `owner` (a PyObject, or NULL) kept
 * alive for it; without an owner it is given a copy of the values. False: it was kept,
 * and there was no owner. */
static bool return_one(borrowed_tensor *borrowed, void *object, void *owner) {
    api.drop(object);
    lock(borrowed);
    bool is_over = borrowed->is_over;
    unlock(borrowed);
    is_over = is_over || keep(borrowed, object, owner);
    if (is_over)
        free_borrowed(borrowed);
    return is_over || owner != NULL;
}

/* ---- one call ---- */

static any from_scalar(const dlb_kernel *kernel, const dlb_frame *frame, int index) {
    static const int32_t types[] = {TYPE_NONE, TYPE_INT, TYPE_FLOAT, TYPE_STRING};
    const dlb_scalar *scalar = &frame->scalars[index];
    any value = {.type = types[scalar->kind & 3]};
    if (scalar->kind != DLB_NONE)
        value.value.i = scalar->value.i; /* any member: all are 8 bytes */
    if (value.type == TYPE_INT && kernel->signature != NULL) {
        const dlb_scalar_parameter *parameter = &kernel->signature->scalars[index];
        if (parameter->is_bool)
            value.type = TYPE_BOOL;
        if (parameter->is_dtype) /* a DLDataType has the bits of its key */
            value.type = TYPE_DTYPE;
    }
    return value;
}

typedef struct {
    any arguments[MAX_ARGUMENTS];
    int32_t count, borrowed_count;
    struct {
        borrowed_tensor *memory;
        void *object;
        int tensor;
    } borrowed[DLB_MAX_TENSORS];
} packed_call;

/* A tensor as a real object. Compiled functions check the strides of compact tensors
 * with rules of their own for dimensions of one element. */
static int add_tensor(const dlb_kernel *kernel, dlb_frame *frame, packed_call *call,
                      int index) {
    const DLTensor *tensor = &frame->tensors[index];
    any *argument = &call->arguments[call->count++];
    *argument = (any){.type = TYPE_NONE};
    if (tensor->ndim < 0)
        return 0;
    void *object;
    borrowed_tensor *borrowed = make_borrowed(tensor, kernel->contiguous, &object);
    if (borrowed == NULL)
        return dlb_frame_fail(frame, DLB_ERROR_MEMORY, "%s: no memory for a tensor",
                              kernel->name);
    int32_t i = call->borrowed_count++;
    call->borrowed[i].memory = borrowed;
    call->borrowed[i].object = object;
    call->borrowed[i].tensor = index;
    memcpy(&argument->type, (char *)object + DLB_TVM_TYPE_AT, sizeof argument->type);
    argument->value.pointer = object;
    return 0;
}

static int add_arguments(const dlb_kernel *kernel, dlb_frame *frame,
                         packed_call *call) {
    if (frame->tensor_count > DLB_MAX_TENSORS) {
        call->borrowed_count = 0;
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                              "%s: a TVM function takes at most %d tensors",
                              kernel->name, DLB_MAX_TENSORS);
    }
    const int16_t *order = frame->order ? frame->order : kernel->order;
    int32_t count = frame->order ? frame->order_count : kernel->order_count;
    int status = 0;
    call->count = call->borrowed_count = 0;
    if (count == 0) { /* without a schema: tensors, then scalars */
        for (int32_t i = 0; i < frame->tensor_count && status == 0; i++)
            status = add_tensor(kernel, frame, call, i);
        for (int32_t i = 0; i < frame->scalar_count; i++)
            call->arguments[call->count++] = from_scalar(kernel, frame, i);
        return status;
    }
    for (int32_t i = 0; i < count && status == 0; i++)
        if (order[i] < 0)
            call->arguments[call->count++] = from_scalar(kernel, frame, -1 - order[i]);
        else
            status = add_tensor(kernel, frame, call, order[i]);
    return status;
}

/* Take the tensors back. Who keeps one of a Python call also keeps its owner, or a copy
 * where the kernel was given a copy. Of other calls nothing may be kept. */
static int return_all(const dlb_kernel *kernel, dlb_frame *frame, packed_call *call,
                      int status) {
    for (int32_t i = 0; i < call->borrowed_count; i++) {
        int tensor = call->borrowed[i].tensor;
        void *owner = frame->objects ? frame->objects[tensor] : NULL;
        bool is_fine =
            return_one(call->borrowed[i].memory, call->borrowed[i].object, owner);
        if (!is_fine && frame->objects == NULL && status == 0)
            status = dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                                    "%s: the function kept tensor %d, which is on loan "
                                    "for the call; it must copy what it keeps",
                                    kernel->name, tensor);
    }
    return status;
}

/* The errors that Python knows by the same name keep their class. */
static int fail(const dlb_kernel *kernel, dlb_frame *frame) {
    static const struct {
        const char *kind;
        dlb_error_class class;
    } kinds[] = {{"TypeError", DLB_ERROR_TYPE},
                 {"ValueError", DLB_ERROR_VALUE},
                 {"MemoryError", DLB_ERROR_MEMORY}};
    void *error = NULL;
    api.take_error(&error);
    if (error == NULL)
        return -1;
    const error_cell *cell = (const error_cell *)((char *)error + DLB_TVM_HEADER_SIZE);
    dlb_error_class class = DLB_ERROR_KERNEL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strlen(kinds[i].kind) == cell->kind.size &&
            memcmp(kinds[i].kind, cell->kind.data, cell->kind.size) == 0)
            class = kinds[i].class;
    if (class == DLB_ERROR_KERNEL)
        dlb_frame_fail(frame, class, "%s: %.*s: %.*s", kernel->name,
                       (int)cell->kind.size, cell->kind.data, (int)cell->message.size,
                       cell->message.data);
    else
        dlb_frame_fail(frame, class, "%s: %.*s", kernel->name, (int)cell->message.size,
                       cell->message.data);
    api.drop(error);
    return -1;
}

/* A Python exception, an interrupt say, is left set in this thread. */
static int fail_with_python(const dlb_kernel *kernel, dlb_frame *frame) {
    int state;
    if (!dlb_enter_python(&state))
        return -1;
    if (PyErr_Occurred())
        dlb_error_catch(&frame->error, kernel->name);
    dlb_leave_python(state);
    return -1;
}

/* Only tvm-ffi's own Python package knows every type of value. So `receiver` has the
 * handle of a function that is called with the value and keeps it for `take()`. */
static int return_value(const dlb_kernel *kernel, PyObject *receiver, const any *value,
                        dlb_frame *frame) {
    int state;
    any nothing = {.type = TYPE_NONE};
    if (!dlb_enter_python(&state))
        return 0;
    PyObject *address = PyObject_GetAttrString(receiver, "handle");
    void *handle = address ? PyLong_AsVoidPtr(address) : NULL;
    if (handle != NULL && api.call(handle, value, 1, &nothing) != 0)
        fail(kernel, frame);
    else if (handle != NULL)
        frame->returned = PyObject_CallMethod(receiver, "take", NULL);
    Py_XDECREF(address);
    if (PyErr_Occurred())
        dlb_error_catch(&frame->error, kernel->name);
    dlb_leave_python(state);
    return frame->error.kind == DLB_ERROR_NONE ? 0 : -1;
}

static int call_function(const dlb_kernel *kernel, const dlb_target *target,
                         dlb_frame *frame, const packed_call *call) {
    any result = {.type = TYPE_NONE};
    int status = api.call(target->function, call->arguments, call->count, &result);
    if (status == PYTHON_ERROR_IS_SET)
        return fail_with_python(kernel, frame);
    if (status != 0)
        return fail(kernel, frame);
    if (kernel->signature == NULL && result.type != TYPE_NONE && target->user != NULL)
        status = return_value(kernel, target->user, &result, frame);
    if (result.type >= FIRST_OBJECT_TYPE)
        api.drop((void *)result.value.pointer);
    return status;
}

static int call(const dlb_kernel *kernel, const dlb_target *target, dlb_frame *frame) {
    packed_call call;
    int status = add_arguments(kernel, frame, &call);
    if (status == 0)
        status = call_function(kernel, target, frame, &call);
    return return_all(kernel, frame, &call, status);
}

int dlb_invoke_tvm_ffi(const dlb_kernel *kernel, const dlb_target *target,
                       dlb_frame *frame, dlb_context *context) {
    void *old = NULL;
    int32_t first = 0;
    while (first < frame->tensor_count && frame->tensors[first].ndim < 0)
        first++;
    if (first == frame->tensor_count || context->stream == NULL ||
        api.set_stream == NULL)
        return call(kernel, target, frame);
    DLDevice device = frame->tensors[first].device;
    if (api.set_stream(device.device_type, device.device_id, context->stream, &old) !=
        0)
        return fail(kernel, frame);
    int status = call(kernel, target, frame);
    api.set_stream(device.device_type, device.device_id, old, NULL);
    return status;
}
