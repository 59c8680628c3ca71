/* The inside of libtorch: its functions and words, and the two decisions that they
 * serve.
 *
 * May the exchange table export a torch.Tensor? torch's table hands out conjugate,
 * negative and gradient-tracking tensors as if they were plain memory, and asking
 * Python costs more than the export itself.
 *
 * May a kernel be called with a torch.Tensor without torch's dispatcher? The dispatcher
 * chooses by the keys of the tensors and of the thread. A tensor whose word of keys
 * equals that of a plain tensor of the CPU is dense, real, not wrapped and not lazy; a
 * thread whose two words are untouched has no mode and no transform; what keys do not
 * say (gradients, torch-function modes, profilers) is asked of libtorch.
 *
 * The Python side tries all of it on tensors and modes of every kind, and closes it on
 * any surprise. */
#include "torch/torch.h"
#include "layout/layout.h"
#include "memory/lock.h"

#include <dlfcn.h>
#include <string.h>

/* ---- what was proved ---- */

/* Where words lie, in bytes from the beginning of their object. */
static struct {
    Py_ssize_t tensor; /* in a torch.Tensor: the at::Tensor; 0: nothing is proved */
    Py_ssize_t keys, storage; /* in a TensorImpl: the keys, the StorageImpl */
    /* In a StorageImpl; `resizable` is a byte. */
    Py_ssize_t data, deleter, context, nbytes, resizable;
} places;

Py_ssize_t dlb_torch_word;
dlb_torch_internals dlb_internals;

static const struct {
    const char *name;
    void *target; /* where the address goes */
} symbols[] = {
    {"_ZN2at6native6is_negERKNS_6TensorE", &dlb_internals.is_neg},
    {"_ZN2at6native7is_conjERKNS_6TensorE", &dlb_internals.is_conj},
    {"_ZN2at6native14_is_zerotensorERKNS_6TensorE", &dlb_internals.is_zerotensor},
    {"_ZN2at6native12is_inferenceERKNS_6TensorE", &dlb_internals.is_inference},
    {"_ZNK3c1010TensorImpl13requires_gradEv", &dlb_internals.requires_grad},
    {"_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE", &dlb_internals.forward_grad},
    {"_ZN3c1019UndefinedTensorImpl10_singletonE", &dlb_internals.undefined},
    {"_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
     &dlb_internals.bump_version},
    {"_ZN3c108GradMode10is_enabledEv", &dlb_internals.grad_enabled},
    {"_ZN3c1013InferenceMode10is_enabledEv", &dlb_internals.inference_enabled},
    {"_ZN2at4impl27torch_function_mode_enabledEv", &dlb_internals.function_mode},
    {"_ZN2at12hasCallbacksEv", &dlb_internals.has_callbacks},
    {"_ZN2at27getStepCallbacksUnlessEmptyENS_11RecordScopeE",
     &dlb_internals.find_callbacks},
    {"_ZdlPv", &dlb_internals.delete_value},
};

const char *dlb_internals_load(const char *path, const char *hidden) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return path;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        bool is_hidden = hidden != NULL && strcmp(hidden, symbols[i].name) == 0;
        void *found = is_hidden ? NULL : dlsym(library, symbols[i].name);
        if (found == NULL)
            return symbols[i].name;
        memcpy(symbols[i].target, &found, sizeof found);
    }
    return NULL;
}

const char *dlb_internals_find(const char *path, const char *hidden) {
    return places.tensor == 0 ? "places" : dlb_internals_load(path, hidden);
}

static uint64_t word_at(const void *address, Py_ssize_t at) {
    uint64_t word;
    memcpy(&word, (const char *)address + at, sizeof word);
    return word;
}

/* ---- may a kernel be called with it directly? ---- */

typedef struct {
    uint64_t included, excluded;
} thread_keys;

typedef struct { /* words of tensors */
    uint64_t plain, inference;
} tensor_keys;

typedef enum { UNTRIED, CLOSED, OPEN } cuda_state;

static struct {
    bool open, knows_inference;
    tensor_keys cpu, cuda; /* 0: not known */
    cuda_state cuda_is;
    PyObject *try_cuda; /* (tensor) -> whether it all holds for CUDA; None: not now */
    thread_keys inference_thread;
    void *c10;
    PyTypeObject *tensor_type, *parameter_type;
    Py_ssize_t callbacks_at; /* in the optional: whether there are any; -1: unknown */
} direct;

static const char thread_symbol[] = "_ZN3c104impl26raw_local_dispatch_key_setE";

#define CALLBACKS_BYTES 1024

/* Where torch's own operators look costs a third of the public question, which takes a
 * lock. Of an empty optional only the byte is written that says so. */
static void learn_callbacks(void) {
    unsigned char callbacks[CALLBACKS_BYTES];
    int written = 0;
    direct.callbacks_at = -1;
    if (dlb_internals.has_callbacks())
        return;
    memset(callbacks, 0xA5, sizeof callbacks);
    dlb_internals.find_callbacks(callbacks, 0);
    for (int i = 0; i < CALLBACKS_BYTES; i++)
        if (callbacks[i] != 0xA5) {
            direct.callbacks_at = callbacks[i] == 0 ? i : -1;
            written++;
        }
    if (written != 1)
        direct.callbacks_at = -1;
}

static bool has_callbacks(void) {
    if (direct.callbacks_at < 0)
        return dlb_internals.has_callbacks();
    unsigned char callbacks[CALLBACKS_BYTES];
    callbacks[direct.callbacks_at] = 1;
    dlb_internals.find_callbacks(callbacks, 0);
    return callbacks[direct.callbacks_at] != 0;
}

/* The address of a thread's own copy stays the same as long as the thread lives. */
static const thread_keys *keys_of_thread(void) {
    static _Thread_local const thread_keys *own;
    if (own == NULL)
        own = dlsym(direct.c10, thread_symbol);
    return own;
}

/* ---- what calls of kernels need not know ---- */

static struct {
    uint64_t autocast; /* the keys of torch.autocast */
    PyTypeObject
        *device_mode; /* of torch.device as a context manager; NULL: not known */
    PyObject *count_modes, *mode_at;
} harmless;

uint64_t dlb_torch_autocast(bool casts) {
    return casts ? 0 : harmless.autocast;
}

/* Such a mode, and torch.set_default_device, which enters one, say where functions make
 * tensors that are not told a device. */
bool dlb_torch_has_device_modes_only(void) {
    PyObject *count =
        harmless.device_mode ? PyObject_CallNoArgs(harmless.count_modes) : NULL;
    Py_ssize_t size = count ? PyLong_AsSsize_t(count) : -1;
    bool are_devices = size >= 0;
    Py_XDECREF(count);
    for (Py_ssize_t i = 0; are_devices && i < size; i++) {
        PyObject *number = PyLong_FromSsize_t(i);
        PyObject *mode = number ? PyObject_CallOneArg(harmless.mode_at, number) : NULL;
        are_devices = mode != NULL && Py_IS_TYPE(mode, harmless.device_mode);
        Py_XDECREF(mode);
        Py_XDECREF(number);
    }
    dlb_drop_error();
    return are_devices;
}

/* torch_harmless(autocast, device_mode, count_modes, mode_at): the keys of autocast as
 * a word; the type, or None, and the functions that count function modes and return
 * one. */
static PyObject *learn_harmless(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long autocast;
    PyObject *type, *count, *at;
    if (!PyArg_ParseTuple(args, "KOOO:torch_harmless", &autocast, &type, &count, &at))
        return NULL;
    harmless.autocast = autocast;
    Py_XSETREF(harmless.count_modes, Py_NewRef(count));
    Py_XSETREF(harmless.mode_at, Py_NewRef(at));
    PyTypeObject *known = PyType_Check(type) ? (PyTypeObject *)Py_NewRef(type) : NULL;
    Py_XSETREF(harmless.device_mode, known);
    Py_RETURN_NONE;
}

/* `ignored`: keys that may be excluded or not. */
static dlb_torch_thread thread_state(uint64_t ignored) {
    const thread_keys *keys = keys_of_thread();
    dlb_torch_thread state = DLB_TORCH_DEFAULT;
    if (keys == NULL)
        return DLB_TORCH_OTHER;
    uint64_t excluded = keys->excluded & ~ignored;
    if ((keys->included | excluded) != 0) {
        if (!direct.knows_inference ||
            keys->included != direct.inference_thread.included ||
            excluded != (direct.inference_thread.excluded & ~ignored))
            return DLB_TORCH_OTHER;
        state = DLB_TORCH_INFERENCE;
    }
    if (dlb_internals.function_mode() && !dlb_torch_has_device_modes_only())
        return DLB_TORCH_OTHER;
    return has_callbacks() ? DLB_TORCH_OTHER : state;
}

dlb_torch_thread dlb_torch_thread_state(bool casts) {
    return direct.open ? thread_state(dlb_torch_autocast(casts)) : DLB_TORCH_OTHER;
}

bool dlb_torch_find_thread(const char *c10_path) {
    direct.c10 = dlopen(c10_path, RTLD_LAZY | RTLD_NOLOAD);
    direct.callbacks_at = -1;
    return direct.c10 != NULL && keys_of_thread() != NULL;
}

bool dlb_torch_learn_inference(void) {
    const thread_keys *keys = direct.c10 ? keys_of_thread() : NULL;
    bool is_inside = keys != NULL && dlb_internals.inference_enabled() &&
                     (keys->included | keys->excluded) != 0;
    if (is_inside)
        direct.inference_thread = *keys;
    return direct.knows_inference = is_inside;
}

bool dlb_torch_has_no_modes(bool casts) {
    return thread_state(dlb_torch_autocast(casts)) != DLB_TORCH_OTHER;
}

/* torch._C._get_tracing_state, once it was handed in */
static PyObject *tracing_state;

int dlb_torch_is_traced(void) {
    bool may_look = direct.open || dlb_torch_has_functions();
    const thread_keys *keys = may_look ? keys_of_thread() : NULL;
    /* A trace includes a key of its own, as modes and transforms do. */
    if (tracing_state == NULL ||
        (keys != NULL && (keys->included & ~direct.inference_thread.included) == 0))
        return 0;
    PyObject *state = PyObject_CallNoArgs(tracing_state);
    Py_XDECREF(state);
    return state == NULL ? -1 : state != Py_None;
}

/* torch_tracing(function): what returns None in threads that trace nothing. */
static PyObject *learn_tracing(PyObject *Py_UNUSED(module), PyObject *function) {
    Py_XSETREF(tracing_state, Py_NewRef(function));
    Py_RETURN_NONE;
}

bool dlb_torch_is_exact(PyObject *x) {
    return direct.open &&
           (Py_TYPE(x) == direct.tensor_type || Py_TYPE(x) == direct.parameter_type);
}

/* Those of a plain tensor of the CPU or of CUDA, which no lazy one has. */
static bool has_plain_keys(const char *impl) {
    uint64_t keys = direct.open ? word_at(impl, places.keys) : 0;
    return keys != 0 && (keys == direct.cpu.plain || keys == direct.cuda.plain);
}

bool dlb_torch_is_cuda(const char *impl) {
    uint64_t keys = word_at(impl, places.keys);
    return keys != 0 && (keys == direct.cuda.plain || keys == direct.cuda.inference);
}

bool dlb_torch_is_cpu(const char *impl) {
    uint64_t keys = word_at(impl, places.keys);
    return keys != 0 && (keys == direct.cpu.plain || keys == direct.cpu.inference);
}

static bool try_cuda(PyObject *tensor) {
    direct.cuda_is = CLOSED; /* for calls on the way */
    PyObject *answer = PyObject_CallOneArg(direct.try_cuda, tensor);
    if (answer == Py_None)
        direct.cuda_is = UNTRIED;
    else if (answer == Py_True)
        direct.cuda_is = OPEN;
    if (answer == NULL)
        PyErr_WriteUnraisable(direct.try_cuda);
    Py_XDECREF(answer);
    return direct.cuda_is == OPEN;
}

static bool serves_cuda(PyObject *tensor) {
    return direct.cuda_is == OPEN || (direct.cuda_is == UNTRIED && try_cuda(tensor));
}

static bool is_inference(uint64_t keys) {
    return keys == direct.cpu.inference || keys == direct.cuda.inference;
}

bool dlb_torch_may_be_written(PyObject *tensor, dlb_torch_thread state) {
    const char *impl = dlb_torch_impl(tensor);
    return state == DLB_TORCH_INFERENCE || !is_inference(word_at(impl, places.keys));
}

/* Of a tensor with one of the four words. */
static bool is_ordinary(PyObject *tensor, uint64_t keys, dlb_torch_thread state,
                        bool written) {
    if (is_inference(keys)) /* such tensors have neither gradients nor a version */
        return direct.knows_inference && (!written || state == DLB_TORCH_INFERENCE);
    return !dlb_torch_wants_gradient(dlb_torch_handle(tensor));
}

bool dlb_torch_is_ordinary(PyObject *tensor, dlb_torch_thread state, bool written) {
    const char *impl = dlb_torch_impl(tensor);
    uint64_t keys = impl ? word_at(impl, places.keys) : 0;
    if (state == DLB_TORCH_OTHER || keys == 0)
        return false;
    if (keys != direct.cpu.plain && keys != direct.cpu.inference &&
        !(dlb_torch_is_cuda(impl) && serves_cuda(tensor)))
        return false;
    return is_ordinary(tensor, keys, state, written);
}

bool dlb_torch_has_memory(PyObject *tensor, const DLTensor *dl) {
    int64_t count = dlb_torch_extent(dl);
    if (count == 0)
        return true;
    const char *impl = dlb_torch_impl(tensor);
    const void *storage = (const void *)(uintptr_t)word_at(impl, places.storage);
    uint64_t begin = word_at(storage, places.data);
    uint64_t end = begin + word_at(storage, places.nbytes);
    uint64_t data = (uint64_t)(uintptr_t)dl->data + dl->byte_offset;
    return begin != 0 && data + (uint64_t)dlb_packed_bytes(dl->dtype, 0, count) <= end;
}

void dlb_torch_bump_version(PyObject *tensor) {
    const char *impl = dlb_torch_impl(tensor);
    if (has_plain_keys(impl))
        dlb_internals.bump_version(dlb_torch_handle(tensor));
}

/* ---- who owns the memory ----
 *
 * A StorageImpl owns its memory by three words: the address, and a function and its
 * argument that free it. Storages move and grow, and go to shared memory, and tensors
 * get other ones (Tensor.set_, x.data = y), while a view of the memory lives. So what
 * is lent is the memory itself: its storage's function and argument become ours, which
 * count the storage and each view, and the last of them calls the function that was
 * there. Only memory of torch's allocator for the CPU, what torch.from_dlpack and
 * torch.from_numpy made, and parts of other storages (those of torch.load(mmap=True))
 * are lent so: torch finds out about other memory, in particular memory that processes
 * share, by comparing the function. */

typedef void (*free_function)(void *argument);

typedef struct {
    _Atomic int64_t references; /* that of the storage included */
    free_function function;
    void *argument;
} counted_memory;

static struct {
    bool open;
    free_function of_allocator, of_foreign, of_part; /* those that are known */
} lending;

static void drop_block(void *argument) {
    counted_memory *block = argument;
    if (atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) != 1)
        return;
    dlb_call_release(block->function, block->argument);
    free(block);
}

static char *storage_of(const void *handle) {
    const char *impl = *(const char *const *)handle;
    return (char *)(uintptr_t)word_at(impl, places.storage);
}

/* The function is published after its argument: an operator of torch's dispatcher looks
 * without the GIL. */
static free_function function_of(const char *storage) {
    const _Atomic(free_function) *place = (const void *)(storage + places.deleter);
    return atomic_load_explicit(place, memory_order_acquire);
}

static counted_memory *counted(const char *storage) {
    counted_memory *block;
    memcpy(&block, storage + places.context, sizeof block);
    atomic_fetch_add_explicit(&block->references, 1, memory_order_relaxed);
    return block;
}

DLB_LOCK(owning)

/* Under the lock, as two threads may want to own the memory of one storage. */
static counted_memory *own_memory(char *storage) {
    free_function function = function_of(storage);
    bool is_known = function == lending.of_allocator ||
                    function == lending.of_foreign || function == lending.of_part;
    if (function == drop_block)
        return counted(storage);
    counted_memory *block = NULL;
    if (is_known && word_at(storage, places.context) != 0)
        block = malloc(sizeof *block);
    if (block == NULL)
        return NULL;
    void *argument = block;
    atomic_init(&block->references, 2);
    block->function = function;
    memcpy(&block->argument, storage + places.context, sizeof argument);
    memcpy(storage + places.context, &argument, sizeof argument);
    atomic_store_explicit((_Atomic(free_function) *)(void *)(storage + places.deleter),
                          drop_block, memory_order_release);
    return block;
}

/* NULL: the memory is of another kind. */
static counted_memory *hold_memory(char *storage) {
    if (function_of(storage) == drop_block)
        return counted(storage);
    pthread_mutex_lock(&owning);
    counted_memory *block = own_memory(storage);
    pthread_mutex_unlock(&owning);
    return block;
}

void dlb_torch_fix_size(PyObject *tensor) {
    storage_of(dlb_torch_handle(tensor))[places.resizable] = 0;
}

static void delete_alias(void *alias) {
    dlb_shim.delete_tensor(alias);
}

static void drop_alias(void *alias) {
    dlb_call_release(delete_alias, alias);
}

bool dlb_torch_hold_memory(const void *handle, const DLTensor *dl,
                           dlb_torch_hold *hold) {
    bool is_plain = lending.open && dlb_torch_is_cpu(*(const char *const *)handle);
    counted_memory *block = is_plain ? hold_memory(storage_of(handle)) : NULL;
    if (block != NULL) {
        *hold = (dlb_torch_hold){block, drop_block};
        return true;
    }
    /* Another tensor over the same storage: for memory that processes share, which
     * stays where it is, and for kernels while nothing is lent. */
    dlb_torch_tensor tensor = (dlb_torch_tensor)handle, alias;
    if (dlb_shim.alias == NULL ||
        dlb_shim.alias(tensor, dl->ndim, dl->shape, dl->strides, 0, &alias) != 0)
        return false;
    *hold = (dlb_torch_hold){alias, drop_alias};
    return true;
}

static void release_block(dlb_buffer *buffer) {
    counted_memory *block = buffer->owner;
    dlb_buffer_free(buffer);
    drop_block(block);
}

static void release_alias(dlb_buffer *buffer) {
    void *alias = buffer->owner;
    dlb_buffer_free(buffer);
    drop_alias(alias);
}

dlb_buffer *dlb_torch_keep(PyObject *tensor, const DLTensor *dl) {
    dlb_torch_hold hold;
    if (!dlb_torch_is_cpu(dlb_torch_impl(tensor)))
        return NULL;
    if (dlb_torch_extent(dl) == 0)
        return dlb_buffer_of_object(tensor);
    if (!dlb_torch_hold_memory(dlb_torch_handle(tensor), dl, &hold))
        return NULL;
    bool is_alias = hold.let_go == drop_alias;
    dlb_buffer *buffer =
        dlb_buffer_new(is_alias ? release_alias : release_block, hold.owner, NULL, 0);
    if (buffer == NULL) {
        hold.let_go(hold.owner);
        PyErr_NoMemory();
    }
    return buffer;
}

int dlb_torch_take(PyObject *tensor, dlb_view *view) {
    DLTensor *dl = &view->dl;
    if (!lending.open || !dlb_torch_is_cpu(dlb_torch_impl(tensor)) ||
        dlb_torch_borrow(tensor, dl) != 0 || !dlb_torch_has_memory(tensor, dl) ||
        !dlb_torch_copy_dims(view))
        return DLB_DECLINED;
    view->flags = 0;
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view->borrowed = (dlb_stream_id){0};
    view->buffer = dlb_torch_keep(tensor, dl);
    if (view->buffer == NULL)
        return PyErr_Occurred() ? -1 : DLB_DECLINED;
    if (dlb_torch_extent(dl) != 0)
        dlb_torch_fix_size(tensor);
    return 0;
}

/* ---- may the exchange table export it? ---- */

static struct {
    PyTypeObject *type; /* torch.Tensor */
    PyObject *int8, *uint8, *dtype_name;
} guard;

bool dlb_torch_is_plain(PyObject *tensor) {
    if (dlb_torch_word == 0)
        return false;
    const char *impl = dlb_torch_impl(tensor);
    const void *handle = dlb_torch_handle(tensor);
    if (impl == NULL || dlb_internals.requires_grad(impl))
        return false;
    return has_plain_keys(impl) ||
           (!dlb_internals.is_neg(handle) && !dlb_internals.is_conj(handle) &&
            !dlb_internals.is_zerotensor(handle));
}

bool dlb_torch_fits_storage(PyObject *tensor, const DLTensor *dl) {
    return !has_plain_keys(dlb_torch_impl(tensor)) || dlb_torch_has_memory(tensor, dl);
}

bool dlb_torch_is_byte_type(PyObject *tensor) {
    PyObject *dtype = PyObject_GetAttr(tensor, guard.dtype_name);
    bool known = dtype != NULL && (dtype == guard.int8 || dtype == guard.uint8);
    Py_XDECREF(dtype);
    PyErr_Clear();
    return known;
}

/* ---- opening it, for Python ---- */

/* torch_places(places): where words lie in the loaded version of torch, if that was
 * proved; None: it was not, and all stays closed. */
static PyObject *hand_in_places(PyObject *Py_UNUSED(module), PyObject *given) {
    places.tensor = dlb_torch_word = 0;
    direct.open = lending.open = false;
#ifdef Py_GIL_DISABLED
    given = Py_None; /* another thread may change or free what they lead to */
#endif
    if (given == Py_None)
        Py_RETURN_NONE;
    if (!PyTuple_Check(given))
        return PyErr_Format(PyExc_TypeError, "torch_places: %R is no tuple", given);
    if (!PyArg_ParseTuple(given, "nnnnnnnn;torch_places: eight places", &places.tensor,
                          &places.keys, &places.storage, &places.data, &places.deleter,
                          &places.context, &places.nbytes, &places.resizable))
        return NULL;
    const Py_ssize_t all[] = {
        places.tensor,  places.keys,    places.storage, places.data,
        places.deleter, places.context, places.nbytes,  places.resizable & ~7,
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] < 8 || all[i] > 256 || all[i] % 8 != 0) {
            places.tensor = 0;
            return PyErr_Format(PyExc_ValueError, "torch_places: %R", given);
        }
    Py_RETURN_NONE;
}

/* `_cdata` is the value of the at::Tensor, which is one pointer. */
static bool holds_tensor(PyObject *sample) {
    PyObject *address = PyObject_GetAttrString(sample, "_cdata");
    void *impl = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    PyErr_Clear();
    return impl != NULL &&
           places.tensor + (Py_ssize_t)sizeof impl <= Py_TYPE(sample)->tp_basicsize &&
           word_at(sample, places.tensor) == (uint64_t)(uintptr_t)impl;
}

/* torch_guard_open(libtorch_cpu, libc10, sample, int8, uint8) -> whether the guard can
 * answer */
static PyObject *open_guard(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *cpu_path, *c10_path;
    PyObject *sample, *int8, *uint8;
    dlb_torch_word = 0;
    if (!PyArg_ParseTuple(args, "zzOOO:torch_guard_open", &cpu_path, &c10_path, &sample,
                          &int8, &uint8))
        return NULL;
    if (cpu_path == NULL || c10_path == NULL ||
        dlopen(c10_path, RTLD_LAZY | RTLD_NOLOAD) == NULL ||
        dlb_internals_find(cpu_path, NULL) != NULL || !holds_tensor(sample))
        Py_RETURN_FALSE;
    Py_XSETREF(guard.type, (PyTypeObject *)Py_NewRef(Py_TYPE(sample)));
    Py_XSETREF(guard.int8, Py_NewRef(int8));
    Py_XSETREF(guard.uint8, Py_NewRef(uint8));
    if (guard.dtype_name == NULL &&
        (guard.dtype_name = PyUnicode_InternFromString("dtype")) == NULL)
        return NULL;
    dlb_torch_word = places.tensor;
    Py_RETURN_TRUE;
}

/* torch_is_observed(libtorch_cpu) -> whether a profiler or another observer sees every
 * operator of this thread; False if torch has no function that says so. */
static PyObject *is_observed(PyObject *Py_UNUSED(module), PyObject *path) {
    const char *cpu_path = PyUnicode_AsUTF8(path);
    if (cpu_path == NULL)
        return NULL;
    return PyBool_FromLong(dlb_internals_load(cpu_path, NULL) == NULL &&
                           dlb_internals.has_callbacks());
}

static PyObject *guard_allows(PyObject *Py_UNUSED(module), PyObject *tensor) {
    if (dlb_torch_word == 0 || !PyObject_TypeCheck(tensor, guard.type))
        Py_RETURN_FALSE;
    return PyBool_FromLong(dlb_torch_is_plain(tensor));
}

/* A sample is (tensor, keys, address of the StorageImpl, of the data, bytes of the
 * storage), as torch says. -1 with an exception. */
static int agrees(PyObject *sample, uint64_t *keys_of_first) {
    PyObject *tensor;
    unsigned long long keys, storage, data, nbytes;
    if (!PyArg_ParseTuple(sample, "OKKKK", &tensor, &keys, &storage, &data, &nbytes))
        return -1;
    const char *impl = dlb_torch_impl(tensor);
    const void *memory = (const void *)(uintptr_t)storage;
    if (*keys_of_first == 0)
        *keys_of_first = keys;
    return word_at(impl, places.keys) == keys &&
           word_at(impl, places.storage) == storage &&
           word_at(memory, places.data) == data &&
           word_at(memory, places.nbytes) == nbytes;
}

/* torch_direct_open(libtorch_cpu, libc10, Tensor, Parameter, samples) -> whether all
 * is as it was proved; the first sample is a plain tensor. */
static PyObject *open_direct(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *cpu_path, *c10_path;
    PyObject *tensor_type, *parameter_type, *samples;
    direct.open = direct.knows_inference = false;
    direct.cpu = direct.cuda = (tensor_keys){0};
    direct.cuda_is = CLOSED;
    if (!PyArg_ParseTuple(args, "ssO!O!O!:torch_direct_open", &cpu_path, &c10_path,
                          &PyType_Type, &tensor_type, &PyType_Type, &parameter_type,
                          &PyTuple_Type, &samples))
        return NULL;
    if (dlb_torch_word == 0 || !dlb_torch_find_thread(c10_path) ||
        dlb_internals_find(cpu_path, NULL) != NULL)
        Py_RETURN_FALSE;
    learn_callbacks();
    int status = PyTuple_GET_SIZE(samples) > 0;
    for (Py_ssize_t i = 0; status == 1 && i < PyTuple_GET_SIZE(samples); i++)
        status = agrees(PyTuple_GET_ITEM(samples, i), &direct.cpu.plain);
    if (status < 0)
        return NULL;
    Py_XSETREF(direct.tensor_type, (PyTypeObject *)Py_NewRef(tensor_type));
    Py_XSETREF(direct.parameter_type, (PyTypeObject *)Py_NewRef(parameter_type));
    direct.open = status == 1;
    return PyBool_FromLong(direct.open);
}

/* torch_lending_open(own, foreign, part) -> whether the memory of storages can be lent:
 * three tensors of the CPU, one of torch's allocator, one over memory of another
 * library, one over a part of the storage of the first. */
static PyObject *open_lending(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *own, *foreign, *part;
    lending.open = false;
    if (!PyArg_ParseTuple(args, "OOO:torch_lending_open", &own, &foreign, &part))
        return NULL;
    if (!dlb_torch_is_exact(own) || !dlb_torch_is_exact(foreign) ||
        !dlb_torch_is_exact(part))
        Py_RETURN_FALSE;
    const char *ours = storage_of(dlb_torch_handle(own));
    const char *theirs = storage_of(dlb_torch_handle(foreign));
    const char *of_ours = storage_of(dlb_torch_handle(part));
    lending.of_allocator = function_of(ours);
    lending.of_foreign = function_of(theirs);
    lending.of_part = function_of(of_ours);
    uint64_t context = word_at(theirs, places.context);
    lending.open = lending.of_allocator != NULL && lending.of_foreign != NULL &&
                   lending.of_part != NULL &&
                   lending.of_allocator != lending.of_foreign &&
                   lending.of_part != lending.of_allocator &&
                   lending.of_part != lending.of_foreign && context != 0 &&
                   word_at(ours, places.context) == word_at(ours, places.data) &&
                   context != word_at(theirs, places.data) &&
                   word_at(of_ours, places.context) == (uint64_t)(uintptr_t)ours &&
                   ours[places.resizable] == 1 && theirs[places.resizable] == 0;
    return PyBool_FromLong(lending.open);
}

/* torch_lend(tensor) -> a Tensor over its memory, or None: not by this way */
static PyObject *lend(PyObject *Py_UNUSED(module), PyObject *tensor) {
    dlb_view view;
    int status =
        dlb_torch_is_exact(tensor) ? dlb_torch_take(tensor, &view) : DLB_DECLINED;
    if (status == 0)
        return dlb_tensor_new(dlb.tensor_type, &view);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Whether x is a torch.Tensor of the dtype and the shape of `like`. */
static bool is_alike(PyObject *x, PyObject *like) {
    int32_t dtypes[2] = {-1, -1};
    int64_t ndims[2] = {-1, -1}, *sizes[2];
    if (!direct.open || dlb_shim.sizes == NULL || Py_TYPE(x) != direct.tensor_type ||
        !dlb_torch_is_exact(like))
        return false;
    for (int i = 0; i < 2; i++) {
        PyObject *tensor = i == 0 ? x : like;
        dlb_torch_tensor handle = (dlb_torch_tensor)dlb_torch_handle(tensor);
        if (dlb_torch_impl(tensor) == NULL || dlb_shim.dtype(handle, &dtypes[i]) != 0 ||
            dlb_shim.ndim(handle, &ndims[i]) != 0 ||
            dlb_shim.sizes(handle, &sizes[i]) != 0)
            return false;
    }
    return dtypes[0] == dtypes[1] && ndims[0] == ndims[1] &&
           (ndims[0] == 0 ||
            memcmp(sizes[0], sizes[1], (size_t)ndims[0] * sizeof *sizes[0]) == 0);
}

/* torch_alike(tensors, others) -> whether the tensors, a tuple, are of the dtypes and
 * shapes of as many first others; also false where C cannot determine that. */
static PyObject *alike(PyObject *Py_UNUSED(module), PyObject *const *args,
                       Py_ssize_t count) {
    if (count != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "torch_alike: expected two tuples");
    Py_ssize_t size = PyTuple_GET_SIZE(args[0]);
    bool are_alike = size <= PyTuple_GET_SIZE(args[1]);
    for (Py_ssize_t i = 0; are_alike && i < size; i++)
        are_alike =
            is_alike(PyTuple_GET_ITEM(args[0], i), PyTuple_GET_ITEM(args[1], i));
    return PyBool_FromLong(are_alike);
}

static PyObject *close_lending(PyObject *Py_UNUSED(module),
                               PyObject *Py_UNUSED(unused)) {
    lending.open = false;
    Py_RETURN_NONE;
}

/* torch_direct_learn(tensor): called under torch.inference_mode with a tensor made
 * there. */
static PyObject *learn_inference(PyObject *Py_UNUSED(module), PyObject *sample) {
    if (!direct.open)
        Py_RETURN_NONE;
    direct.cpu.inference = word_at(dlb_torch_impl(sample), places.keys);
    direct.knows_inference =
        dlb_torch_learn_inference() && direct.cpu.inference != direct.cpu.plain;
    Py_RETURN_NONE;
}

/* torch_direct_cuda(plain, inference, try_cuda): the words that tensors of CUDA should
 * have, and what tries them. */
static PyObject *expect_cuda(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long plain, inference;
    PyObject *function;
    if (!PyArg_ParseTuple(args, "KKO:torch_direct_cuda", &plain, &inference, &function))
        return NULL;
    direct.cuda = (tensor_keys){plain, inference};
    direct.cuda_is = UNTRIED;
    Py_XSETREF(direct.try_cuda, Py_NewRef(function));
    Py_RETURN_NONE;
}

/* The guard's answer, here and now; `trying`: as if CUDA had been tried. */
static PyObject *allows(PyObject *tensor, bool casts, bool written, bool trying) {
    if (!direct.open) {
        int is_allowed = dlb_torch_query_allows(tensor, casts);
        return is_allowed < 0 ? NULL : PyBool_FromLong(is_allowed);
    }
    if (!dlb_torch_is_exact(tensor))
        Py_RETURN_FALSE;
    dlb_torch_thread state = dlb_torch_thread_state(casts);
    const char *impl = dlb_torch_impl(tensor);
    if (trying && state != DLB_TORCH_OTHER && dlb_torch_is_cuda(impl))
        return PyBool_FromLong(
            is_ordinary(tensor, word_at(impl, places.keys), state, written));
    return PyBool_FromLong(dlb_torch_is_ordinary(tensor, state, written));
}

/* torch_direct_allows(tensor, written=False, trying=False): for what autocast casts */
static PyObject *direct_allows(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor;
    int written = 0, trying = 0;
    if (PyTuple_GET_SIZE(args) == 1)
        tensor = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTuple(args, "O|pp:torch_direct_allows", &tensor, &written,
                               &trying))
        return NULL;
    return allows(tensor, true, written, trying);
}

/* torch_call_allows(tensor): for a call that autocast leaves alone */
static PyObject *call_allows(PyObject *Py_UNUSED(module), PyObject *tensor) {
    return allows(tensor, false, false, false);
}

static PyObject *close_direct(PyObject *Py_UNUSED(module),
                              PyObject *Py_UNUSED(unused)) {
    direct.open = lending.open = false;
    Py_RETURN_NONE;
}

PyMethodDef dlb_torch_functions[] = {
    {"torch_places", hand_in_places, METH_O,
     "torch_places($module, places, /)\n--\n\nHand in where words lie in this version "
     "of torch, or None."},
    {"torch_guard_open", open_guard, METH_VARARGS,
     "torch_guard_open($module, libtorch_cpu, libc10, sample, int8, uint8, "
     "/)\n--\n\nFind libtorch's predicates."},
    {"torch_guard_allows", guard_allows, METH_O,
     "torch_guard_allows($module, tensor, /)\n--\n\nWhether a torch.Tensor is plain."},
    {"torch_is_observed", is_observed, METH_O,
     "torch_is_observed($module, libtorch_cpu, /)\n--\n\nWhether profilers or other "
     "observers see every operator of this thread."},
    {"torch_direct_open", open_direct, METH_VARARGS,
     "torch_direct_open($module, libtorch_cpu, libc10, tensor_type, parameter_type, "
     "samples, /)\n--\n\nFind what the guard of direct calls reads."},
    {"torch_lending_open", open_lending, METH_VARARGS,
     "torch_lending_open($module, own, foreign, part, /)\n--\n\nLearn which functions "
     "free the memory of these three tensors."},
    {"torch_lending_close", close_lending, METH_NOARGS,
     "torch_lending_close($module, /)\n--\n\nLend the memory of storages no more."},
    {"torch_alike", (PyCFunction)(void (*)(void))alike, METH_FASTCALL,
     "torch_alike($module, tensors, others, /)\n--\n\nWhether tensors are of the "
     "dtypes and shapes of as many first others."},
    {"torch_lend", lend, METH_O,
     "torch_lend($module, tensor, /)\n--\n\nA Tensor over the memory of a "
     "torch.Tensor, or None."},
    {"torch_tracing", learn_tracing, METH_O,
     "torch_tracing($module, function, /)\n--\n\nHand in what returns None in threads "
     "where torch.jit traces nothing."},
    {"torch_direct_learn", learn_inference, METH_O,
     "torch_direct_learn($module, tensor, /)\n--\n\nLearn what inference mode looks "
     "like."},
    {"torch_direct_allows", direct_allows, METH_VARARGS,
     "torch_direct_allows($module, tensor, written=False, trying=False, "
     "/)\n--\n\nWhether a kernel may be called directly with this torch.Tensor."},
    {"torch_call_allows", call_allows, METH_O,
     "torch_call_allows($module, tensor, /)\n--\n\nWhether a kernel without an "
     "autocast rule may be called directly with this torch.Tensor."},
    {"torch_harmless", learn_harmless, METH_VARARGS,
     "torch_harmless($module, autocast, device_mode, count_modes, mode_at, "
     "/)\n--\n\nSay which modes of torch leave calls of kernels alone."},
    {"torch_direct_cuda", expect_cuda, METH_VARARGS,
     "torch_direct_cuda($module, plain, inference, try_cuda, /)\n--\n\nSay what "
     "tensors of CUDA should look like."},
    {"torch_direct_close", close_direct, METH_NOARGS,
     "torch_direct_close($module, /)\n--\n\nEvery torch.Tensor takes the Python path."},
    {NULL, NULL, 0, NULL},
};
