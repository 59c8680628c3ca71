/* The native module: its hot functions, its hooks, its start. */
#include "abi/abi.h"
#include "call/call.h"
#include "torch/torch.h"
#include "cuda/cuda.h"
#include "engine/engine.h"
#include "exchange/exchange.h"
#include "exchange/policy.h"
#include "exchange/receipt.h"
#include "mpi/mpi.h"
#include "onnxruntime/onnxruntime.h"
#include "tensorflow/tensorflow.h"
#include "torch_op/op.h"
#include "xla/xla.h"

/* ---- hooks ---- */

static PyObject *set_hooks(PyObject *Py_UNUSED(module), PyObject *args,
                           PyObject *kwargs) {
    static char *names[] = {"tensor_type",      "make_dtype",
                            "make_device",      "classify",
                            "slow_from_dlpack", "slow_convert",
                            "refusal",          "numpy_descr",
                            "converters",       "cuda_failure",
                            "slow_empty",       "slow_zeros",
                            "slow_ones",        "slow_full",
                            "slow_equal",       "slow_copied",
                            "slow_stream",      "is_from_handler",
                            "receipt_logs",     "exported",
                            "numpy_fields",     NULL};
    PyObject **targets[] = {
        &dlb.make_dtype,       &dlb.make_device,     &dlb.classify,
        &dlb.slow_from_dlpack, &dlb.slow_convert,    &dlb.refusal,
        &dlb.numpy_descr,      &dlb.converters,      &dlb.cuda_failure,
        &dlb.slow_empty,       &dlb.slow_zeros,      &dlb.slow_ones,
        &dlb.slow_full,        &dlb.slow_equal,      &dlb.slow_copied,
        &dlb.slow_stream,      &dlb.is_from_handler, &dlb.receipt_logs,
        &dlb.exported,         &dlb.numpy_fields};
    enum { HOOKS = sizeof targets / sizeof *targets };
    PyObject *type = NULL, *values[HOOKS] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$O!OOOOOOOOOOOOOOOOOOOO:set_hooks", names, &PyType_Type,
            &type, &values[0], &values[1], &values[2], &values[3], &values[4],
            &values[5], &values[6], &values[7], &values[8], &values[9], &values[10],
            &values[11], &values[12], &values[13], &values[14], &values[15],
            &values[16], &values[17], &values[18], &values[19]))
        return NULL;
    if (type != NULL) {
        if (!PyType_IsSubtype((PyTypeObject *)type, &dlb_TensorType))
            return PyErr_Format(PyExc_TypeError, "set_hooks: %R is no TensorBase",
                                type);
        PyObject *old = (PyObject *)dlb.tensor_type;
        dlb.tensor_type = (PyTypeObject *)Py_NewRef(type);
        dlb_tensor_adopt(dlb.tensor_type);
        Py_DECREF(old);
    }
    for (int i = 0; i < HOOKS; i++)
        if (values[i] != NULL && values[i] != *targets[i]) /* see core.h */
            Py_XSETREF(*targets[i], Py_NewRef(values[i]));
    Py_RETURN_NONE;
}

static PyObject *watch(PyObject *Py_UNUSED(module), PyObject *change) {
    long value = PyLong_AsLong(change);
    if (value == -1 && PyErr_Occurred())
        return NULL;
    dlb.watchers += value;
    Py_RETURN_NONE;
}

#define FAST(function) (PyCFunction)(void (*)(void)) function
/* The state of the core is one for the process, and deleters take the main GIL. */
static bool is_main_interpreter(void) {
    if (PyInterpreterState_Get() == PyInterpreterState_Main())
        return true;
    PyErr_SetString(PyExc_ImportError,
                    "dlbridge does not support subinterpreters; import it in the main "
                    "interpreter, or use processes (multiprocessing, with \"spawn\")");
    return false;
}

static PyObject *share(PyObject *Py_UNUSED(module), PyObject *object) {
    dlb_share(object);
    Py_RETURN_NONE;
}

/* For a second import: then PyInit__native is not called again. */
static PyObject *check_interpreter(PyObject *Py_UNUSED(module),
                                   PyObject *Py_UNUSED(none)) {
    if (!is_main_interpreter())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"from_dlpack", FAST(dlb_from_dlpack), METH_FASTCALL | METH_KEYWORDS,
     "from_dlpack($module, x, /, *, device=None, copy=None, stream=None)\n--\n\n"
     "Return a Tensor over the memory of `x`, any object that exports DLPack.\n\n"
     "Follows the array API 2024.12: `copy=None` shares the memory and copies only "
     "where it must\n"
     "(a lazy conjugate, say), `copy=False` refuses instead, `copy=True` always "
     "copies. `device`\n"
     "(a Device or what makes one) asks for that device. `stream` is the one on which "
     "CUDA memory\n"
     "will be used: None or 'current' for dlbridge's current one, a number as in "
     "`__dlpack__` or a\n"
     "framework's stream, which must live as long as the Tensor; 'none' for no order "
     "at all. The\n"
     "memory stays valid as long as the Tensor, a view or an export of it lives.\n\n"
     "Raises UnsupportedTypeError for an object that exports nothing and "
     "ExchangeError, with its\n"
     "`reason`, for a tensor that cannot be had."},
    {"convert", FAST(dlb_convert), METH_FASTCALL | METH_KEYWORDS,
     "convert($module, x, /, to, *, device=None, copy=None, readonly='respect',\n"
     "        immutable='share', grad='refuse', layout=None, narrow=None, "
     "dtype=None, stream=None)\n--\n\n"
     "Return `x` as a tensor of the framework `to`: a name, a module or an array "
     "type.\n\n"
     "The memory is shared unless a policy or the consumer demands a copy; `explain` "
     "says which\n"
     "beforehand, `receipts` afterwards. copy: None, False (zero-copy or error), True. "
     "readonly:\n"
     "what to do with read-only memory that the consumer cannot protect: 'respect' "
     "(refuse),\n"
     "'share', 'copy'. immutable: the same for values of JAX and TensorFlow: 'share', "
     "'respect',\n"
     "or 'copy' for memory that may be written. grad: 'refuse' a tensor that requires "
     "a\n"
     "gradient, or 'detach' it. layout: 'any',\n"
     "or 'contiguous' for row-major memory, copied if it must. narrow: 'checked' "
     "copies "
     "64-bit\n"
     "numbers to 32 bits where the consumer has no others; integers must fit. dtype: "
     "that of\n"
     "the result, by a copy that only widens the kind of number (integers must "
     "fit).\n\n"
     "Raises ExchangeError with its `reason`, UnsupportedTypeError, "
     "FrameworkMissingError."},
    {"empty", FAST(dlb_empty), METH_FASTCALL | METH_KEYWORDS,
     "empty($module, shape, dtype=None, *, device='cpu', allocator=None, "
     "alignment=64)\n--\n\n"
     "Make a writable, compact row-major Tensor with undefined values.\n\n"
     "Args:\n"
     "    shape: extents, none negative; an integer for one dimension.\n"
     "    dtype: anything that `dlbridge.DType` takes; None is float64, as of Python's "
     "floats.\n"
     "    device: where: \"cpu\", \"cuda:1\", \"cuda_host\" (pinned) or "
     "\"cuda_managed\"; elsewhere an\n"
     "        allocator of yours must have the memory. Memory of a CUDA device belongs "
     "to the current\n"
     "        stream of the device (`dlbridge.cuda.stream`), in whose order it is "
     "freed.\n"
     "    allocator: where from; None is the native allocator, or what `set_allocator` "
     "set.\n"
     "    alignment: bytes that the address is a multiple of, a power of two.\n\n"
     "Raises:\n"
     "    ArgumentError: the shape is negative or overflows 64 bits, or the alignment "
     "is no power of\n"
     "        two.\n"
     "    AllocationError: there is no memory.\n"
     "    CUDAError: there is no CUDA driver, or no such device."},
    {"zeros", FAST(dlb_zeros), METH_FASTCALL | METH_KEYWORDS,
     "zeros($module, shape, dtype=None, *, device='cpu', allocator=None, "
     "alignment=64)\n--\n\n"
     "Make a Tensor as `empty` does, all bits zero; large ones cost nothing until "
     "touched."},
    {"ones", FAST(dlb_ones), METH_FASTCALL | METH_KEYWORDS,
     "ones($module, shape, dtype=None, *, device='cpu', allocator=None, "
     "alignment=64)\n--\n\n"
     "Make a Tensor as `empty` does, each element equal to 1.\n\n"
     "Example:\n"
     "    >>> import dlbridge\n"
     "    >>> dlbridge.ones(3, dlbridge.int8).tolist()\n"
     "    [1, 1, 1]"},
    {"full", FAST(dlb_full), METH_FASTCALL | METH_KEYWORDS,
     "full($module, shape, fill_value, dtype=None, *, device='cpu', allocator=None, "
     "alignment=64)\n--\n\n"
     "Make a Tensor as `empty` does, each element equal to `fill_value`.\n\n"
     "Without `dtype`, it has that of `fill_value`; Python's numbers have 64 bits "
     "(complex: 128).\n\n"
     "Example:\n"
     "    >>> import dlbridge\n"
     "    >>> dlbridge.full((2, 2), 1.5, \"bfloat16\").tolist()\n"
     "    [[1.5, 1.5], [1.5, 1.5]]"},
    {"equal", FAST(dlb_equal), METH_FASTCALL | METH_KEYWORDS,
     "equal($module, a, b)\n--\n\n"
     "Return whether two tensors have one shape, one dtype and equal values.\n\n"
     "`==` on Tensors asks for identity instead, so that they can be keys and members "
     "of sets. NaN\n"
     "differs from NaN, as in NumPy. Both must be in the CPU's reach.\n\n"
     "Args:\n"
     "    a: a Tensor, or anything that `from_dlpack` takes.\n"
     "    b: the other one.\n\n"
     "Raises:\n"
     "    UnsupportedTypeError: one is not a tensor.\n"
     "    ExchangeError: the values of one cannot be read."},
    {"join", dlb_join, METH_O,
     "join($module, buffers, /)\n--\n\nOne bytes object of a list of buffers."},
    {"inside_xla", dlb_inside_xla, METH_NOARGS,
     "inside_xla($module, /)\n--\n\nWhether a kernel runs on one of XLA's threads."},
    {"have_items", dlb_have_items, METH_VARARGS,
     "have_items($module, objects, dicts, contents, /)\n--\n\n"
     "Whether each dict has the items of its contents, the same objects in order; the "
     "first\nof the dicts of each object, all of which have as many, is its "
     "`__dict__`."},
    {"set_hooks", FAST(set_hooks), METH_VARARGS | METH_KEYWORDS,
     "set_hooks($module, /, *, tensor_type=None, make_dtype=None, make_device=None, "
     "classify=None, slow_from_dlpack=None, slow_convert=None, refusal=None, "
     "numpy_descr=None, converters=None, cuda_failure=None, "
     "slow_empty=None, slow_zeros=None, slow_ones=None, slow_full=None, "
     "slow_equal=None, slow_copied=None, slow_stream=None, "
     "is_from_handler=None, receipt_logs=None, exported=None, "
     "numpy_fields=None)\n--\n\nConnect the "
     "Python "
     "package."},
    {"set_kernel_hooks", FAST(dlb_set_kernel_hooks), METH_VARARGS | METH_KEYWORDS,
     "set_kernel_hooks($module, /, *, explain=..., slow_call=..., type_error=..., "
     "value_error=..., kernel_error=..., memory_error=..., dtype=..., find=..., "
     "dtypes=...)\n--\n\nConnect dlbridge.kernels."},
    {"debug_kernels", dlb_debug_kernels, METH_VARARGS,
     "debug_kernels($module, enabled, nans, /)\n--\n\nSwitch debug mode of kernels on "
     "or off."},
    {"xla_handler", dlb_xla_handler, METH_O,
     "xla_handler($module, platform, /)\n--\n\nThe handler for a platform of XLA, a "
     "capsule."},
    {"xla_stream", dlb_xla_stream, METH_O,
     "xla_stream($module, device, /)\n--\n\nThe stream that the handler \"stream\" has "
     "noted, or 0."},
    {"xla_call", FAST(dlb_xla_call_eagerly), METH_FASTCALL,
     "xla_call($module, function, /, *args)\n--\n\nIts result; failures in XLA as what "
     "failed there."},
    {"check_interpreter", check_interpreter, METH_NOARGS,
     "check_interpreter($module, /)\n--\n\nRaise ImportError in a subinterpreter."},
    {"share", share, METH_O,
     "share($module, made, /)\n--\n\nTell that many threads will hold an object "
     "that was just made, until the process ends."},
    {"watch", watch, METH_O,
     "watch($module, active, /)\n--\n\nCount an open receipt log in (1) or out (-1)."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "dlbridge._core._native",
    "The CPython half of dlbridge's core.",
    -1,
    methods,
    NULL,
    NULL,
    NULL,
    NULL,
};

static int start_types(PyObject *module) {
    dlb_receipt_prepare();
    PyTypeObject *const types[] = {
        &dlb_TensorType,       &dlb_BufferType,      &dlb_LimitsType,
        &dlb_ConverterType,    &dlb_TreeMemoType,    &dlb_KernelType,
        &dlb_BoundCallType,    &dlb_JaxCallerType,   &dlb_PythonFunctionType,
        &dlb_ProgramType,      &dlb_FeedType,        &dlb_FetchType,
        &dlb_LoopsType,        &dlb_QuietType,       &dlb_LookupType,
        &dlb_LaunchType,       &dlb_CCallType,       &dlb_AlignedNumpyType,
        &dlb_LimitedNumpyType, &dlb_HeldBufferType,  &dlb_CollectableBufferType,
        &dlb_RecordingType,    &dlb_TransportType,   &dlb_RecordType,
        &dlb_InArenaType,      &dlb_LoanType,        &dlb_RendezvousType,
        &dlb_EdgeType,         &dlb_StepNumbersType, &dlb_ClusterCallType,
        &dlb_PeersType,        &dlb_BallotType,      &dlb_ReductionType,
        &dlb_QuickType,        &dlb_PostedType,      &dlb_CollectiveType,
        &dlb_BegunType,        &dlb_TorchMemoryType, &dlb_TorchHoldType,
        &dlb_TreePlanType,     &dlb_TreeBallotType,  &dlb_FormsType,
        &dlb_LoansType};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (PyModule_AddType(module, types[i]) < 0)
            return -1;
    dlb.tensor_type = (PyTypeObject *)Py_NewRef(&dlb_TensorType);
    return dlb_add_exchange_table(&dlb_TensorType);
}

static int add_functions(PyObject *module) {
    PyMethodDef *const tables[] = {
        dlb_policy_functions, dlb_take_functions,           dlb_table_functions,
        dlb_numpy_functions,  dlb_receipt_functions,        dlb_numpy_memory_functions,
        dlb_type_functions,   dlb_cuda_functions,           dlb_memory_functions,
        dlb_call_functions,   dlb_tensorflow_functions,     dlb_torch_op_functions,
        dlb_torch_functions,  dlb_torch_memory_functions,   dlb_tree_functions,
        dlb_signal_functions, dlb_onnxruntime_functions,    dlb_torch_query_functions,
        dlb_begun_functions,  dlb_torch_function_functions, dlb_torch_sharing_functions,
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (PyModule_AddFunctions(module, tables[i]) < 0)
            return -1;
    return 0;
}

__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void) {
    if (!is_main_interpreter())
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
#ifdef Py_GIL_DISABLED
    if (PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED) < 0) {
        Py_DECREF(module);
        return NULL;
    }
#endif
    dlb.dtypes = PyDict_New();
    dlb.devices = PyDict_New();
    dlb.descrs = PyDict_New();
    if (dlb.dtypes == NULL || dlb.devices == NULL || dlb.descrs == NULL ||
        dlb_numpy_start() < 0 || dlb_signals_start() < 0 || dlb_loops_start() < 0 ||
        dlb_policy_start(module) < 0 || dlb_loans_start() < 0 ||
        start_types(module) < 0 || dlb_ufuncs_start(module) < 0 ||
        dlb_mpi_start(module) < 0 || add_functions(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    dlb_buffer_release_tracked = dlb_buffer_release_later;
    dlb_ledger_start();
    dlb_cuda_wake = dlb_cuda_collect_soon; /* C may also open the driver */
    return module;
}
