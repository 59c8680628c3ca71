/* May a kernel be called with a torch.Tensor behind the back of torch's dispatcher?
 *
 * The dispatcher chooses by the keys of the tensors and of the thread. A tensor whose
 * word of keys equals that of a plain tensor of the CPU is dense, real, not wrapped and
 * not lazy; a thread whose two words are untouched has no mode and no transform; what
 * keys do not say (gradients, torch-function modes, profilers) is asked of libtorch.
 * The places of the words are found by probing, the functions by symbol name.
 * `dlbridge.frameworks.torch.guard` tries all of it on tensors and modes of every kind
 * and closes this file on any surprise. */
#include "torch/torch.h"
#include "layout/layout.h"

#include <dlfcn.h>
#include <string.h>

typedef struct {
    uint64_t included, excluded;
} thread_keys;

#define IMPL_BYTES 192 /* of a TensorImpl that are searched for the words */
#define STORAGE_BYTES 64

typedef struct { /* words of tensors */
    uint64_t plain, inference;
} tensor_keys;

typedef enum { UNTRIED, CLOSED, OPEN } cuda_state;

static struct {
    bool open, knows_inference;
    Py_ssize_t keys_at;            /* in the TensorImpl */
    Py_ssize_t storage_at;         /* in the TensorImpl: the StorageImpl */
    Py_ssize_t data_at, nbytes_at; /* in the StorageImpl */
    tensor_keys cpu, cuda;         /* 0: not known */
    cuda_state cuda_is;
    PyObject *try_cuda; /* (tensor) -> whether it all holds for CUDA; None: not now */
    thread_keys inference_thread;
    void *c10;
    PyTypeObject *tensor_type, *parameter_type;
    const void *undefined; /* the TensorImpl of no tensor */
    bool (*function_mode)(void), (*has_callbacks)(void), (*grad_enabled)(void);
    /* Returns a std::optional of callbacks through the pointer. */
    void *(*find_callbacks)(void *callbacks, uint8_t scope);
    Py_ssize_t found_at; /* in it: whether there are any; -1: not known */
    bool (*requires_grad)(const void *impl);
    const void *const *(*forward_grad)(const void *impl, uint64_t level,
                                       const void *tensor);
    void (*bump_version)(const void *tensor);
} direct;

static const char thread_symbol[] = "_ZN3c104impl26raw_local_dispatch_key_setE";

static const struct {
    bool in_c10;
    const char *symbol;
    void *target; /* where the address goes */
} symbols[] = {
    {false, "_ZN2at4impl27torch_function_mode_enabledEv", &direct.function_mode},
    {false, "_ZN2at12hasCallbacksEv", &direct.has_callbacks},
    {false, "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
     &direct.bump_version},
    {true, "_ZN3c108GradMode10is_enabledEv", &direct.grad_enabled},
    {true, "_ZNK3c1010TensorImpl13requires_gradEv", &direct.requires_grad},
    {true, "_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE", &direct.forward_grad},
    {true, "_ZN3c1019UndefinedTensorImpl10_singletonE", &direct.undefined},
};

/* ---- profilers ---- */

#define CALLBACKS_BYTES 1024

/* Where torch's own operators look costs a third of the public question, which takes a
 * lock. Of an empty optional only the byte is written that says so. */
static void learn_callbacks(void *cpu) {
    static const char symbol[] =
        "_ZN2at27getStepCallbacksUnlessEmptyENS_11RecordScopeE";
    unsigned char callbacks[CALLBACKS_BYTES];
    int written = 0;
    direct.found_at = -1;
    *(void **)&direct.find_callbacks = dlsym(cpu, symbol);
    if (direct.find_callbacks == NULL || direct.has_callbacks())
        return;
    memset(callbacks, 0xA5, sizeof callbacks);
    direct.find_callbacks(callbacks, 0);
    for (int i = 0; i < CALLBACKS_BYTES; i++)
        if (callbacks[i] != 0xA5) {
            direct.found_at = callbacks[i] == 0 ? i : -1;
            written++;
        }
    if (written != 1)
        direct.found_at = -1;
}

static bool has_callbacks(void) {
    if (direct.found_at < 0)
        return direct.has_callbacks();
    unsigned char callbacks[CALLBACKS_BYTES];
    callbacks[direct.found_at] = 1;
    direct.find_callbacks(callbacks, 0);
    return callbacks[direct.found_at] != 0;
}

/* ---- the guard ---- */

/* The address of a thread's own copy stays the same as long as the thread lives. */
static const thread_keys *keys_of_thread(void) {
    static _Thread_local const thread_keys *own;
    if (own == NULL)
        own = dlsym(direct.c10, thread_symbol);
    return own;
}

dlb_torch_thread dlb_torch_thread_state(void) {
    if (!direct.open)
        return DLB_TORCH_ODD;
    const thread_keys *keys = keys_of_thread();
    dlb_torch_thread state = DLB_TORCH_DEFAULT;
    if (keys == NULL)
        return DLB_TORCH_ODD;
    if ((keys->included | keys->excluded) != 0) {
        if (!direct.knows_inference ||
            keys->included != direct.inference_thread.included ||
            keys->excluded != direct.inference_thread.excluded)
            return DLB_TORCH_ODD;
        state = DLB_TORCH_INFERENCE;
    }
    return direct.function_mode() || has_callbacks() ? DLB_TORCH_ODD : state;
}

bool dlb_torch_is_exact(PyObject *x) {
    return direct.open &&
           (Py_TYPE(x) == direct.tensor_type || Py_TYPE(x) == direct.parameter_type);
}

static uint64_t word_at(const char *address, Py_ssize_t at) {
    uint64_t word;
    memcpy(&word, address + at, sizeof word);
    return word;
}

bool dlb_torch_has_plain_keys(const char *impl) {
    uint64_t keys = direct.open ? word_at(impl, direct.keys_at) : 0;
    return keys != 0 && (keys == direct.cpu.plain || keys == direct.cuda.plain);
}

bool dlb_torch_is_cuda(const char *impl) {
    uint64_t keys = word_at(impl, direct.keys_at);
    return keys != 0 && (keys == direct.cuda.plain || keys == direct.cuda.inference);
}

/* ---- CUDA ---- */

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

/* Of a tensor with one of the four words. */
static bool is_ordinary(PyObject *tensor, uint64_t keys, dlb_torch_thread state,
                        bool written) {
    const char *impl = dlb_torch_impl(tensor);
    if (keys == direct.cpu.inference || keys == direct.cuda.inference)
        /* such tensors have neither gradients nor a version */
        return direct.knows_inference && (!written || state == DLB_TORCH_INFERENCE);
    if (direct.requires_grad(impl) && direct.grad_enabled())
        return false;
    return *direct.forward_grad(impl, 0, dlb_torch_handle(tensor)) == direct.undefined;
}

bool dlb_torch_is_ordinary(PyObject *tensor, dlb_torch_thread state, bool written) {
    const char *impl = dlb_torch_impl(tensor);
    uint64_t keys = impl ? word_at(impl, direct.keys_at) : 0;
    if (state == DLB_TORCH_ODD || keys == 0)
        return false;
    if (keys != direct.cpu.plain && keys != direct.cpu.inference &&
        !(dlb_torch_is_cuda(impl) && serves_cuda(tensor)))
        return false;
    return is_ordinary(tensor, keys, state, written);
}

bool dlb_torch_has_memory(PyObject *tensor, const DLTensor *dl) {
    int64_t last = 0;
    for (int32_t i = 0; i < dl->ndim; i++) {
        if (dl->shape[i] == 0)
            return true;
        last += (dl->shape[i] - 1) * dl->strides[i];
    }
    const char *impl = dlb_torch_impl(tensor);
    const char *storage = (const char *)(uintptr_t)word_at(impl, direct.storage_at);
    uint64_t begin = word_at(storage, direct.data_at);
    uint64_t end = begin + word_at(storage, direct.nbytes_at);
    uint64_t data = (uint64_t)(uintptr_t)dl->data + dl->byte_offset;
    return begin != 0 &&
           data + (uint64_t)dlb_packed_bytes(dl->dtype, 0, last + 1) <= end;
}

void dlb_torch_bump_version(PyObject *tensor) {
    const char *impl = dlb_torch_impl(tensor);
    if (dlb_torch_has_plain_keys(impl))
        direct.bump_version(dlb_torch_handle(tensor));
}

/* ---- opening it ---- */

static bool find_symbols(const char *cpu_path, const char *c10_path) {
    void *cpu = dlopen(cpu_path, RTLD_LAZY | RTLD_NOLOAD);
    direct.c10 = dlopen(c10_path, RTLD_LAZY | RTLD_NOLOAD);
    if (cpu == NULL || direct.c10 == NULL)
        return false;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(symbols[i].in_c10 ? direct.c10 : cpu, symbols[i].symbol);
        if (found == NULL)
            return false;
        memcpy(symbols[i].target, &found, sizeof found);
    }
    learn_callbacks(cpu);
    return keys_of_thread() != NULL;
}

static Py_ssize_t find_word(const char *start, Py_ssize_t bytes, uint64_t wanted) {
    for (Py_ssize_t at = 8; at + 8 <= bytes; at += 8)
        if (word_at(start, at) == wanted)
            return at;
    return 0;
}

/* A sample is (tensor, keys, address of the StorageImpl, of the data, bytes of the
 * storage). All samples must agree on where these words lie. */
static int learn_places(PyObject *sample, bool is_first) {
    PyObject *tensor;
    unsigned long long keys, storage, data, nbytes;
    if (!PyArg_ParseTuple(sample, "OKKKK", &tensor, &keys, &storage, &data, &nbytes))
        return -1;
    const char *impl = dlb_torch_impl(tensor);
    const char *memory = (const char *)(uintptr_t)storage;
    Py_ssize_t places[] = {find_word(impl, IMPL_BYTES, keys),
                           find_word(impl, IMPL_BYTES, storage),
                           find_word(memory, STORAGE_BYTES, data),
                           find_word(memory, STORAGE_BYTES, nbytes)};
    Py_ssize_t *const known[] = {&direct.keys_at, &direct.storage_at, &direct.data_at,
                                 &direct.nbytes_at};
    for (int i = 0; i < 4; i++) {
        if (places[i] == 0 || (!is_first && *known[i] != places[i]))
            return 0;
        *known[i] = places[i];
    }
    if (is_first)
        direct.cpu.plain = keys;
    return 1;
}

/* torch_direct_open(libtorch_cpu, libc10, Tensor, Parameter, samples) -> whether all
 * was found; the first sample is a plain tensor. */
PyObject *dlb_torch_direct_open(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *cpu_path, *c10_path;
    PyObject *tensor_type, *parameter_type, *samples;
    direct.open = direct.knows_inference = false;
    direct.cpu = direct.cuda = (tensor_keys){0};
    direct.cuda_is = CLOSED;
    if (!PyArg_ParseTuple(args, "ssO!O!O!:torch_direct_open", &cpu_path, &c10_path,
                          &PyType_Type, &tensor_type, &PyType_Type, &parameter_type,
                          &PyTuple_Type, &samples))
        return NULL;
    if (dlb_torch_word == 0 || !find_symbols(cpu_path, c10_path))
        Py_RETURN_FALSE;
    int status = PyTuple_GET_SIZE(samples) > 0;
    for (Py_ssize_t i = 0; status == 1 && i < PyTuple_GET_SIZE(samples); i++)
        status = learn_places(PyTuple_GET_ITEM(samples, i), i == 0);
    if (status < 0)
        return NULL;
    Py_XSETREF(direct.tensor_type, (PyTypeObject *)Py_NewRef(tensor_type));
    Py_XSETREF(direct.parameter_type, (PyTypeObject *)Py_NewRef(parameter_type));
    direct.open = status == 1;
    return PyBool_FromLong(direct.open);
}

/* torch_direct_learn(tensor): called under torch.inference_mode with a tensor made
 * there. */
PyObject *dlb_torch_direct_learn(PyObject *Py_UNUSED(module), PyObject *sample) {
    if (!direct.open)
        Py_RETURN_NONE;
    direct.inference_thread = *keys_of_thread();
    direct.cpu.inference = word_at(dlb_torch_impl(sample), direct.keys_at);
    direct.knows_inference =
        direct.cpu.inference != direct.cpu.plain &&
        (direct.inference_thread.included | direct.inference_thread.excluded) != 0;
    Py_RETURN_NONE;
}

/* torch_direct_cuda(plain, inference, try_cuda): the words that tensors of CUDA should
 * have, and what tries them. */
PyObject *dlb_torch_direct_cuda(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long plain, inference;
    PyObject *function;
    if (!PyArg_ParseTuple(args, "KKO:torch_direct_cuda", &plain, &inference, &function))
        return NULL;
    direct.cuda = (tensor_keys){plain, inference};
    direct.cuda_is = UNTRIED;
    Py_XSETREF(direct.try_cuda, Py_NewRef(function));
    Py_RETURN_NONE;
}

/* torch_direct_allows(tensor, written=False, trying=False): the guard's answer, here
 * and now; `trying`: as if CUDA had been tried. */
PyObject *dlb_torch_direct_allows(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor;
    int written = 0, trying = 0;
    if (!PyArg_ParseTuple(args, "O|pp:torch_direct_allows", &tensor, &written, &trying))
        return NULL;
    if (!dlb_torch_is_exact(tensor))
        Py_RETURN_FALSE;
    dlb_torch_thread state = dlb_torch_thread_state();
    const char *impl = dlb_torch_impl(tensor);
    if (trying && state != DLB_TORCH_ODD && dlb_torch_is_cuda(impl))
        return PyBool_FromLong(
            is_ordinary(tensor, word_at(impl, direct.keys_at), state, written));
    return PyBool_FromLong(dlb_torch_is_ordinary(tensor, state, written));
}

PyObject *dlb_torch_direct_close(PyObject *Py_UNUSED(module),
                                 PyObject *Py_UNUSED(unused)) {
    direct.open = false;
    Py_RETURN_NONE;
}
