/* torch.Tensors without torch's headers: what may be done with one, and its memory. */
#ifndef DLBRIDGE_CORE_TORCH_TORCH_H_
#define DLBRIDGE_CORE_TORCH_TORCH_H_

#include "python/python.h"
#include "tensor/tensor.h"

/* ---- shim.c ----
 *
 * The functions of libtorch's C interface, found by name in the library that is
 * loaded: no torch headers, no Python. */

typedef struct torch_tensor
    *dlb_torch_tensor; /* AtenTensorHandle: owned by its holder */
typedef struct torch_string *dlb_torch_string;
typedef struct torch_list *dlb_torch_list;
typedef struct torch_library *dlb_torch_library;
typedef uint64_t dlb_torch_value; /* StableIValue */
typedef void (*dlb_torch_boxed)(dlb_torch_value *stack, uint64_t inputs,
                                uint64_t outputs);

/* Those that return int return 0, or something else for a C++ exception that was
 * caught. */
typedef struct {
    /* For operators; torch 2.6 lacks these five. */
    int (*library_fragment)(const char *name_space, const char *file, uint32_t line,
                            dlb_torch_library *library);
    int (*library_implementation)(const char *name_space, const char *key,
                                  const char *file, uint32_t line,
                                  dlb_torch_library *library);
    int (*define)(dlb_torch_library library, const char *schema);
    int (*implement)(dlb_torch_library library, const char *name,
                     dlb_torch_boxed function);
    int (*delete_library)(dlb_torch_library library);
    /* For tensors. */
    int (*data_ptr)(dlb_torch_tensor tensor, void **data);
    int (*ndim)(dlb_torch_tensor tensor, int64_t *ndim);
    int (*sizes)(dlb_torch_tensor tensor, int64_t **sizes);
    int (*strides)(dlb_torch_tensor tensor, int64_t **strides);
    int (*dtype)(dlb_torch_tensor tensor, int32_t *dtype);
    int (*device_type)(dlb_torch_tensor tensor, int32_t *type);
    int (*device_index)(dlb_torch_tensor tensor, int32_t *index);
    int (*storage_size)(dlb_torch_tensor tensor, int64_t *bytes);
    int (*storage_offset)(dlb_torch_tensor tensor, int64_t *elements);
    int (*empty_strided)(int64_t ndim, const int64_t *sizes, const int64_t *strides,
                         int32_t dtype, int32_t device_type, int32_t device_index,
                         dlb_torch_tensor *result);
    int (*delete_tensor)(dlb_torch_tensor tensor);
    void (*check)(bool fine, const char *function, const char *file, uint32_t line,
                  const char *text); /* throws c10::Error */
    int (*alias)(dlb_torch_tensor tensor, int64_t ndim, const int64_t *sizes,
                 const int64_t *strides, int64_t offset, dlb_torch_tensor *result);
    /* May be missing. */
    int (*const_data_ptr)(dlb_torch_tensor tensor, const void **data);
    int (*delete_boxed_value)(dlb_torch_value *value);
    int (*string_text)(dlb_torch_string string, const char **text);
    int (*delete_string)(dlb_torch_string string);
    int (*list_size)(dlb_torch_list list, size_t *size);
    int (*list_item)(dlb_torch_list list, size_t place, dlb_torch_value *value);
    int (*delete_list)(dlb_torch_list list);
    const char *(*exception_text)(void);
    int (*cuda_stream)(int32_t device_index, void **stream);
} dlb_torch_shim;
extern dlb_torch_shim dlb_shim;

/* Find them in the libtorch_cpu that is loaded, and ask for its numbers. NULL, or the
 * name of what is missing. `hidden`: a name not to find (for tests), or NULL. */
const char *dlb_shim_open(const char *path, const char *hidden);
/* The name of a function for operators that was not found, or NULL. */
const char *dlb_shim_lacks_for_operators(void);
/* Find the function for streams in libtorch_cuda; NULL: none. False: it is missing. */
bool dlb_shim_open_cuda(const char *path);
void dlb_shim_set_rocm(bool is_rocm); /* which calls itself CUDA */
#define DLB_SHIM_DTYPES 64
extern DLDataType dlb_shim_dtypes[DLB_SHIM_DTYPES];
/* Of what torch numbers `dtype`; all 0 for a dtype that DLPack does not know. */
static inline DLDataType dlb_shim_dtype(int32_t dtype) {
    bool is_number = dtype >= 0 && dtype < DLB_SHIM_DTYPES;
    return is_number ? dlb_shim_dtypes[dtype] : (DLDataType){0, 0, 0};
}
int32_t dlb_shim_dtype_number(DLDataType dtype); /* -1: torch does not know it */
int32_t dlb_shim_device_type(DLDeviceType type); /* CPU or CUDA; -1: unknown */
DLDevice dlb_shim_device(int32_t type, int32_t index);

/* A new tensor as torch.empty makes it: row-major, an extent of 0 counting as 1 in the
 * strides. -1: they exceed 64 bits, or torch throws. */
int dlb_shim_empty(int32_t ndim, const int64_t *shape, int32_t dtype,
                   int32_t device_type, int32_t device_index, dlb_torch_tensor *made);

/* ---- internals.c ----
 *
 * The known insides of libtorch: C++ functions by their mangled names, and
 * where words lie in its objects. No header promises any of it. All stays closed until
 * Python hands in the places that were proved for the version of torch that is loaded
 * (native.torch_places); each is compared with known tensors, never searched for. */

/* They take an at::Tensor, which is one pointer, or the TensorImpl that it points to.
 */
typedef struct {
    bool (*is_neg)(const void *tensor);
    bool (*is_conj)(const void *tensor);
    bool (*is_zerotensor)(const void *tensor);
    bool (*is_inference)(const void *tensor);
    bool (*requires_grad)(const void *impl);
    const void *const *(*forward_grad)(const void *impl, uint64_t level,
                                       const void *tensor);
    const void *undefined; /* the TensorImpl of no tensor */
    void (*bump_version)(const void *tensor);
    bool (*grad_enabled)(void);
    bool (*inference_enabled)(void);
    bool (*function_mode)(void);
    bool (*has_callbacks)(void);
    /* Returns a std::optional of callbacks through the pointer. */
    void *(*find_callbacks)(void *callbacks, uint8_t scope);
    void (*delete_value)(void *value); /* operator delete */
} dlb_torch_internals;
extern dlb_torch_internals dlb_internals;

/* Find them in the loaded libtorch_cpu and what it needs. NULL, or the name of what is
 * missing: "places" where nothing is proved. `hidden`: a name not to find, for
 * tests.
 */
const char *dlb_internals_find(const char *path, const char *hidden);
/* The same, also where nothing is proved: see functions.c. */
const char *dlb_internals_load(const char *path, const char *hidden);

/* Whether a derivative is wanted of what is done with the tensor now. */
static inline bool dlb_torch_wants_gradient(const void *tensor) {
    const void *impl = *(const void *const *)tensor;
    return (dlb_internals.requires_grad(impl) && dlb_internals.grad_enabled()) ||
           *dlb_internals.forward_grad(impl, 0, tensor) != dlb_internals.undefined;
}

/* Elements from the first to the last in memory, both included; 0: there are none. */
static inline int64_t dlb_torch_extent(const DLTensor *dl) {
    int64_t last = 0;
    for (int32_t i = 0; i < dl->ndim; i++) {
        if (dl->shape[i] == 0)
            return 0;
        last += (dl->shape[i] - 1) * dl->strides[i];
    }
    return last + 1;
}

/* Where the at::Tensor (one pointer) lies in a torch.Tensor; 0: all is closed. */
extern Py_ssize_t dlb_torch_word;

static inline const void *dlb_torch_handle(PyObject *tensor) {
    return (const char *)tensor + dlb_torch_word;
}
static inline const char *dlb_torch_impl(PyObject *tensor) {
    return *(const char *const *)dlb_torch_handle(tensor);
}

/* May the exchange table export it? */
bool dlb_torch_is_plain(PyObject *tensor);
/* Not known to reach beyond its storage. */
bool dlb_torch_fits_storage(PyObject *tensor, const DLTensor *dl);
/* int8 or uint8, not another width that looks like it */
bool dlb_torch_is_byte_type(PyObject *tensor);

/* May a kernel be called with it, without torch's dispatcher? */

/* The modes of the calling thread. Only in the first two does the dispatcher do
 * nothing but call the kernel of the CPU. */
typedef enum {
    DLB_TORCH_DEFAULT,
    DLB_TORCH_INFERENCE, /* torch.inference_mode */
    DLB_TORCH_QUERIED,   /* the default, by queries of torch: see queries.c */
    DLB_TORCH_OTHER,     /* a mode, a transform, autocast, a profiler, tracing, … */
} dlb_torch_thread;

/* `casts`: whether autocast may cast the arguments of the call. If not, autocast does
 * not count as a mode. A default device never does. */
dlb_torch_thread dlb_torch_thread_state(bool casts);
uint64_t dlb_torch_autocast(bool casts); /* keys that such a call need not know */
bool dlb_torch_has_device_modes_only(void);
/* The same by functions alone, once libc10 was found: whether it is the default. */
bool dlb_torch_find_thread(const char *c10_path);
bool dlb_torch_has_no_modes(bool casts);
/* Called under torch.inference_mode: whether the thread shows that. */
bool dlb_torch_learn_inference(void);
/* Whether torch.jit traces in this thread; -1 with an exception. */
int dlb_torch_is_traced(void);
/* torch.Tensor or torch.nn.Parameter, no other subclass. */
bool dlb_torch_is_exact(PyObject *x);
/* A dense tensor of the CPU or, once that was tried on one, of CUDA, whose memory is
 * its values, that needs no gradient now. `written`: that may also be written in this
 * state. Trying runs Python. */
bool dlb_torch_is_ordinary(PyObject *tensor, dlb_torch_thread state, bool written);
/* Whether one that is ordinary in this state may also be written. */
bool dlb_torch_may_be_written(PyObject *tensor, dlb_torch_thread state);
/* One of CUDA, or of the CPU, of those that are ordinary. */
bool dlb_torch_is_cuda(const char *impl);
bool dlb_torch_is_cpu(const char *impl);
/* Whether the storage still reaches as far as the tensor does; of ordinary ones only.
 */
bool dlb_torch_has_memory(PyObject *tensor, const DLTensor *dl);
void dlb_torch_bump_version(PyObject *tensor);

/* What keeps the memory of a tensor: to be given to `let_go` at the end. */
typedef struct {
    void *owner;
    void (*let_go)(void *owner);
} dlb_torch_hold;
/* Hold the memory of a tensor of the CPU that has elements, whatever becomes of the
 * tensor and its storage. Needs no GIL. False: it cannot be held so. */
bool dlb_torch_hold_memory(const void *handle, const DLTensor *dl,
                           dlb_torch_hold *hold);
/* A buffer that keeps the memory of a plain tensor of the CPU, whatever becomes of the
 * tensor and its storage. NULL without an exception: it cannot be kept so. */
dlb_buffer *dlb_torch_keep(PyObject *tensor, const DLTensor *dl);
/* The storage cannot be resized any more, as after Tensor.numpy(). */
void dlb_torch_fix_size(PyObject *tensor);
/* A plain tensor of the CPU, by holding its memory; its size is fixed. 0, DLB_DECLINED,
 * or -1 with an exception. */
int dlb_torch_take(PyObject *tensor, dlb_view *view);

extern PyMethodDef dlb_torch_functions[];

/* Have the shape and strides of a view's tensor lie in the view. False: no room. */
static inline bool dlb_torch_copy_dims(dlb_view *view) {
    DLTensor *dl = &view->dl;
    int32_t ndim = dl->ndim;
    if (2 * ndim > DLB_MAX_NDIM)
        return false;
    for (int32_t i = 0; i < ndim; i++) {
        view->scratch[i] = dl->strides[i];
        view->scratch[ndim + i] = dl->shape[i];
    }
    dl->strides = view->scratch;
    dl->shape = view->scratch + ndim;
    return true;
}

/* ---- memory.c ---- */

/* The tensor as it lies in memory, which stays torch's: 0, or DLB_DECLINED. */
int dlb_torch_borrow(PyObject *tensor, DLTensor *borrowed);
/* A new tensor as torch.empty makes it. NULL without an exception: ask torch.empty. */
PyObject *dlb_torch_allocate(DLDevice device, int32_t ndim, const int64_t *shape,
                             DLDataType dtype);
/* The calling thread's current stream on a CUDA device, as a dlb_stream; 0: unknown. */
uintptr_t dlb_torch_stream(int32_t device);

extern PyMethodDef dlb_torch_memory_functions[];

/* ---- functions.c: C++ functions of torch, where no place is proved ---- */

/* Whether all were found and agree with what torch says. */
bool dlb_torch_has_functions(void);
/* The TensorImpl of a torch.Tensor, which is what an at::Tensor points to. Runs Python
 * code in a torch-function mode. NULL with an exception. */
const void *dlb_torch_query_impl(PyObject *x);
/* Whether its memory is its values. */
bool dlb_torch_holds_values(const void *impl);
/* Whether a kernel may be called with it, in a thread without modes. */
bool dlb_torch_is_usual(const void *impl);
/* Whether kernels may get its dtype: it has eight bits or more, and looks like no
 * other. */
bool dlb_torch_has_known_dtype(const void *impl);
/* Whether the storage reaches as far as the tensor does. */
bool dlb_torch_is_reached(const void *impl, const DLTensor *dl);
/* Whether it lies in the CPU's memory as `dl` says, and its storage reaches so far. */
bool dlb_torch_lies_at(const void *impl, const DLTensor *dl);

extern PyMethodDef dlb_torch_function_functions[];

/* ---- queries.c: queries of torch, where its internals are not proved ----
 *
 * Those that return int return 1, 0, or -1 with an exception, unless they say
 * otherwise. All may run Python code but for `dlb_torch_query_memory`. */

/* Whether a result, which this takes, is `wanted`; NULL: an exception. */
int dlb_torch_is_result(PyObject *result, PyObject *wanted);
/* Whether kernels are called by queries, and memory is found so. */
bool dlb_torch_may_query(void);
/* Whether the thread has no mode, no transform, no profiler. */
int dlb_torch_query_thread(bool casts);
/* torch.Tensor or torch.nn.Parameter, no other subclass, where kernels are. */
bool dlb_torch_is_queried(PyObject *x);
/* Whether its memory, on the CPU, may be lent: it is its values, of a dtype that
 * kernels may get, and nothing is traced, nor, unless the view `detaches` it, a
 * gradient required. */
int dlb_torch_query_lendable(PyObject *x, bool detaches);
/* The same in two parts: that it requires no gradient, and nothing is traced; and that
 * its memory is its values, of such a dtype. */
int dlb_torch_query_untracked(PyObject *x);
int dlb_torch_query_plain(PyObject *x);
/* May a kernel be called with it, in a thread that was queried? Its memory, on the CPU,
 * is its values, and no gradient is recorded of it. Of any dtype: see
 * `dlb_torch_query_byte`. */
int dlb_torch_query_ordinary(PyObject *x);
/* The tensor as it lies in memory, until Python code runs: 0, DLB_DECLINED, or -1. */
int dlb_torch_query_memory(PyObject *x, DLTensor *dl);
/* Whether it is not of narrow integers, which look like bytes. */
int dlb_torch_query_byte(PyObject *x, const DLTensor *dl);
/* Whether the storage, an object, reaches as far as the tensor does. */
int dlb_torch_query_reach(PyObject *x, PyObject *storage, const DLTensor *dl);
/* Whether the tensor, whose dims were copied, still lies where it lay, and the storage
 * reaches so far. No Python code runs after the last query. */
int dlb_torch_is_where(PyObject *x, PyObject *storage, const DLTensor *dl);
/* Whether the tensors, whose dims were copied, still lie where they lay, in storages
 * that reach so far. No Python code runs after the last query. `storages`: room for as
 * many. */
int dlb_torch_is_unchanged(PyObject *const *objects, const DLTensor *tensors,
                           int32_t count, PyObject **storages);
/* torch.empty; NULL, perhaps without an exception: torch has no such dtype. */
PyObject *dlb_torch_query_empty(int32_t ndim, const int64_t *shape, DLDataType dtype);
int dlb_torch_query_version(PyObject *x); /* count one more: 0, or -1 */
/* Whether a kernel may be called with it, here and now. */
int dlb_torch_query_allows(PyObject *x, bool casts);

extern PyMethodDef dlb_torch_query_functions[];

/* ---- sharing.c ---- */

/* What a view of a storage keeps, a new reference; NULL, perhaps without an exception:
 * sharing.py never met the storage. The size of one that it met is fixed. */
PyObject *dlb_torch_hold_storage(PyObject *storage);

extern PyTypeObject dlb_TorchMemoryType, dlb_TorchHoldType;
extern PyMethodDef dlb_torch_sharing_functions[];

#endif /* DLBRIDGE_CORE_TORCH_TORCH_H_ */
