/* Python in the core: the state that the package sets, refusals, arguments, memory of
 * producers and of Python objects, the GIL. */
#ifndef DLBRIDGE_CORE_PYTHON_PYTHON_H_
#define DLBRIDGE_CORE_PYTHON_PYTHON_H_

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#if defined(Py_GIL_DISABLED) != defined(DLB_FREE_THREADED)
#error "build.py and pyconfig.h disagree about the GIL"
#endif

#include "memory/buffer.h"

/* Set once by the Python package (module.c: set_hooks). */
typedef struct {
    PyTypeObject *tensor_type;
    PyObject *make_dtype, *make_device, *classify, *slow_from_dlpack, *slow_convert,
        *refusal, *numpy_descr, *numpy_fields, *converters, *cuda_failure, *slow_empty,
        *slow_zeros, *slow_ones, *slow_full, *slow_equal, *slow_copied, *slow_stream,
        *is_from_handler, *receipt_logs, *exported,
        *type_source;                    /* (type) -> its name in receipts */
    PyObject *dtypes, *devices, *descrs; /* caches by packed number */
    _Atomic long watchers;               /* receipt logs that are open in any thread */
} dlb_state;
extern dlb_state dlb;

/* Whether a receipt log is open in this thread or task: the C paths decline. */
bool dlb_is_recorded(void);

/* ---- memory of producers and of Python objects, and the GIL ---- */

/* Released without the GIL or with it; an exception that is on its way stays. */
dlb_buffer *dlb_buffer_of_managed(DLManagedTensorVersioned *managed);
bool dlb_buffer_is_managed(const dlb_buffer *buffer);
dlb_buffer *dlb_buffer_of_legacy(DLManagedTensor *managed);
dlb_buffer *dlb_buffer_of_object(PyObject *object);
/* The Py_buffer is moved out of `view`, and released where this fails. */
dlb_buffer *dlb_buffer_of_pybuffer(Py_buffer *view);
PyObject *dlb_buffer_object(const dlb_buffer *buffer); /* borrowed, or NULL */
/* Whether the memory is kept by an object that can be part of a reference cycle. */
void dlb_release_collectable(dlb_buffer *buffer);
static inline bool dlb_is_collectable(const dlb_buffer *buffer) {
    return buffer->release == dlb_release_collectable;
}
bool dlb_interpreter_is_gone(void);
/* Call a function that frees memory and may run Python. */
void dlb_call_release(void (*function)(void *), void *argument);

/* Take the GIL, unless this thread holds it. False: there is no interpreter any more,
 * and nothing may touch Python. */
bool dlb_enter_python(int *state);
void dlb_leave_python(int state);

/* ---- without a GIL: see core.h ---- */

/* Exclusive use of the state of an object, for a block of code that it does not leave
 * by return, goto or break; nothing where there is a GIL. */
#if PY_VERSION_HEX >= 0x030d0000
#define DLB_BEGIN_EXCLUSIVE(object) Py_BEGIN_CRITICAL_SECTION(object)
#define DLB_END_EXCLUSIVE() Py_END_CRITICAL_SECTION()
#else
#define DLB_BEGIN_EXCLUSIVE(object) {
#define DLB_END_EXCLUSIVE() }
#endif

/* Define exclusive_<name>: `function(object, argument)`, which has the object to
 * itself. */
#define DLB_EXCLUSIVE(name, function, type)                                            \
    static PyObject *exclusive_##name(PyObject *object, type argument) {               \
        PyObject *result;                                                              \
        DLB_BEGIN_EXCLUSIVE(object);                                                   \
        result = function(object, argument);                                           \
        DLB_END_EXCLUSIVE();                                                           \
        return result;                                                                 \
    }

/* A dict as a cache: what it has, a new reference; NULL, perhaps with an exception. */
PyObject *dlb_cache_get(PyObject *cache, PyObject *key);
/* Put `value`, whose reference is stolen, into the cache, unless another thread was
 * first. Returns a new reference to what the cache has, or NULL with an exception. */
PyObject *dlb_cache_put(PyObject *cache, PyObject *key, PyObject *value);
/* Whether this is the only reference, so that nobody else can have the object. Without
 * a GIL only the thread that made it can know; for others the answer is no. */
static inline bool dlb_is_only_reference(PyObject *object) {
#if defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030e0000
    return PyUnstable_Object_IsUniquelyReferenced(object);
#elif defined(Py_GIL_DISABLED)
    return object->ob_tid == _Py_ThreadId() &&
           _Py_atomic_load_uint32_relaxed(&object->ob_ref_local) == 1 &&
           _Py_atomic_load_ssize_relaxed(&object->ob_ref_shared) == 0;
#else
    return Py_REFCNT(object) == 1;
#endif
}
/* Many threads will hold this object, which lives about as long as the process
 * (kernels, functions, dtypes): without a GIL each of them would count its references
 * in one place, which takes three times as long as the rest of a call. 3.14t counts
 * them at a collection instead; 3.13t can only make the object immortal, as it does
 * with functions and classes. To be called by the thread that made it. Nothing with a
 * GIL. */
void dlb_share(PyObject *object);
/* How many Python kernels this thread is in; their tensors may be on loan until they
 * return. */
extern _Thread_local int dlb_kernel_depth;
/* An interned str, made once and kept; borrowed. NULL with an exception. */
PyObject *dlb_kept_name(_Atomic(PyObject *) *kept, const char *text);
/* have_items(objects, dicts, contents), three tuples. */
PyObject *dlb_have_items(PyObject *module, PyObject *args);
/* The item of a list that others may change, a new reference; NULL with IndexError. */
PyObject *dlb_list_item(PyObject *list, Py_ssize_t index);

/* ---- refusals ---- */
PyObject *dlb_refuse(const char *reason, const char *format, ...);
/* An exception of dlbridge.errors, by its name. */
PyObject *dlb_raise_error(const char *error, const char *format, ...);
/* With an exception of Python's own parser of arguments set: the same in the name of
 * the call, with the nearest of `names`, which end with NULL. */
PyObject *dlb_refuse_arguments(const char *call, char *const *names);
/* For a reason out of layout/layout.c: the sentence of errors.REASONS and the numbers
 * of the tensor. */
PyObject *dlb_refuse_layout(const char *reason, const char *call,
                            const DLTensor *tensor);
/* The same for a reason out of dlb_take_*, which may also be "memory" or "version". */
PyObject *dlb_refuse_take(const char *reason, const char *call, const DLTensor *tensor,
                          DLPackVersion version);
/* The exception that is set, as an object with its traceback; a new reference. */
PyObject *dlb_take_exception(void);
/* The exception of the last failure of the CUDA driver in this thread; NULL. */
PyObject *dlb_cuda_raise(const char *call);

/* ---- signals ---- */

/* Whether the exception that is set has to reach the caller, whoever tries what: no
 * Exception, as KeyboardInterrupt, or raised by the handler of a signal. */
bool dlb_is_interrupt(void);
/* Clear the exception that is set, if any, which another path meets again. -1: it is an
 * interrupt, and stays. */
int dlb_clear_error(void);
/* Clear the exception that is set, if any, where nobody is told of a failure. An
 * interrupt is raised again at the next instruction of Python in the main thread. */
void dlb_drop_error(void);

/* Call a function like PyObject_Vectorcall; handlers of signals that come meanwhile run
 * when it is over, and what they raise is raised then. The function is always called.
 */
PyObject *dlb_defer_signals(PyObject *function, PyObject *const *args, size_t count,
                            PyObject *names);
extern PyMethodDef dlb_signal_functions[];
int dlb_signals_start(void);

/* NumPy's table, for numpy.h. */
int dlb_numpy_start(void);

/* ---- Python values to C ---- */
int dlb_parse_dims(PyObject *sequence, int64_t *dims,
                   const char *name); /* -1, or the length */
int dlb_parse_dtype(PyObject *triple, DLDataType *dtype);
int dlb_parse_device(PyObject *pair, DLDevice *device);
PyObject *dlb_dims_tuple(const int64_t *dims, int32_t ndim);
const DLPackExchangeAPI *dlb_parse_table(PyObject *capsule);
/* Like dlb_parse_table, for a table that only makes objects: the allocator and
 * managed_tensor_from_py_object_no_sync may be missing. */
const DLPackExchangeAPI *dlb_parse_giving_table(PyObject *capsule);

#endif /* DLBRIDGE_CORE_PYTHON_PYTHON_H_ */
