/* Operators of torch's dispatcher whose body is a kernel: the body, and what Python
 * calls to define and implement them.
 *
 * torch's boxed functions carry no data. Each operator gets a function of its own out
 * of a pool, which knows nothing but its number. A number stays with its name for good,
 * as compiled graphs may call it until the process ends; which kernel it runs is looked
 * up in the registry on every call. Schemas that libtorch cannot express are served by
 * torch.library, in Python. */
#include "call/call.h"
#include "cuda/cuda.h"
#include "layout/layout.h"
#include "torch/torch.h"
#include "torch_op/op.h"

#include <stdlib.h>
#include <string.h>

/* ---- the pool of boxed functions ----
 *
 * Each passes its number on and knows nothing else.
 *
 * Thousands of C functions take a compiler ten seconds and half a megabyte. So where
 * the machine's code is known, one is two instructions, 16 bytes apart: the fourth
 * argument, and a jump, which leaves no frame that an exception would have to cross.
 * Other machines have a small pool in C. */

#define DLB_TORCH_OPS 8192 /* the size of the pool, at most */

void dlb_torch_run(dlb_torch_value *stack, uint64_t inputs, uint64_t outputs,
                   int number);

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#ifdef __x86_64__
#define FUNCTION "endbr64\n movl $number, %ecx\n jmp dlb_torch_run\n"
#else
#define FUNCTION "hint 34\n mov w3, #number\n b dlb_torch_run\n"
#endif

__asm__(".pushsection .text\n"
        ".balign 16\n"
        ".type dlb_torch_pool, %function\n"
        "dlb_torch_pool:\n"
        ".set number, 0\n"
        ".rept " TEXT(DLB_TORCH_OPS) "\n" FUNCTION ".balign 16\n"
                                     ".set number, number + 1\n"
                                     ".endr\n"
                                     ".size dlb_torch_pool, . - dlb_torch_pool\n"
                                     ".popsection\n");

void dlb_torch_pool(dlb_torch_value *stack, uint64_t inputs, uint64_t outputs);

static const int pool_size = DLB_TORCH_OPS;

static dlb_torch_boxed trampoline(int number) {
    return (dlb_torch_boxed)((uintptr_t)dlb_torch_pool + 16 * (uintptr_t)number);
}

#else

/* Two hexadecimal digits are put together to a number. */
/* clang-format off */
#define ROW(h) \
    FUNCTION(h##0) FUNCTION(h##1) FUNCTION(h##2) FUNCTION(h##3) \
    FUNCTION(h##4) FUNCTION(h##5) FUNCTION(h##6) FUNCTION(h##7) \
    FUNCTION(h##8) FUNCTION(h##9) FUNCTION(h##a) FUNCTION(h##b) \
    FUNCTION(h##c) FUNCTION(h##d) FUNCTION(h##e) FUNCTION(h##f)
#define ALL \
    ROW(0) ROW(1) ROW(2) ROW(3) ROW(4) ROW(5) ROW(6) ROW(7) \
    ROW(8) ROW(9) ROW(a) ROW(b) ROW(c) ROW(d) ROW(e) ROW(f)

#define FUNCTION(h) \
    static void operator_##h(dlb_torch_value *stack, uint64_t inputs, \
                             uint64_t outputs) { \
        dlb_torch_run(stack, inputs, outputs, 0x##h); \
    }
ALL
#undef FUNCTION
#define FUNCTION(h) operator_##h,
    /* clang-format on */

    static const dlb_torch_boxed pool[] = {ALL};
static const int pool_size = sizeof pool / sizeof *pool;

static dlb_torch_boxed trampoline(int number) {
    return pool[number];
}

#endif

/* ---- what an operator is ---- */

/* The arguments of an operator, in order. Letters: t tensor, i int, f float, b
 * bool, s str, d dtype, l int[], m float[]; capitals: optional. Its `out` overload has
 * the buffers for the results before argument number `out_at`. */
typedef struct {
    dlb_entry *entry;
    int out_at, tensors;
    char letters[DLB_MAX_TENSORS + DLB_MAX_SCALARS + 1];
} operator_layout;

/* Immutable and never freed, since calls read them without a lock. NULL: none yet. */
static _Atomic(const operator_layout *) layouts[DLB_TORCH_OPS];

/* The error of the last failed operator of this thread, for the caller that waits for
 * it and raises it instead of torch's RuntimeError. */
typedef struct {
    bool awaited;
    dlb_error error;
} failure;
static _Thread_local failure failed_last;

/* ---- the body ----
 *
 * Arguments off torch's stack, the kernel, results onto it. Runs on any thread, without
 * the GIL. An error leaves as a C++ exception that libtorch throws for us, from the
 * last statement: by then nothing is owned any more.
 *
 * Another thread may give a tensor other memory and another shape meanwhile (x.data =
 * y, x.set_, x.resize_, x.share_memory_). So the kernel gets copies of shapes and
 * strides, and the memory on the CPU is held; that of CUDA is used again in the order
 * of the stream. */

#define DIMS 128 /* shapes and strides of all tensors of most calls */

typedef struct {
    dlb_frame frame;
    const dlb_kernel *kernel;
    dlb_torch_tensor tensors[DLB_MAX_TENSORS]; /* as in the frame; NULL: left out */
    dlb_torch_string strings[DLB_MAX_SCALARS];
    int string_count;
    int32_t device_type, device_index; /* torch's numbers, for the results */
    bool is_out;                       /* results are also arguments */
    bool is_too_long; /* a list has more numbers than there is room for */
    int32_t dim_count, held_count;
    int64_t dims[DIMS];
    dlb_torch_hold held[2 * DLB_MAX_TENSORS]; /* memory, and dims for want of room */
} operator_call;

/* ---- arguments ---- */

static dlb_torch_value unbox(dlb_torch_value value) {
    dlb_torch_value *box = (dlb_torch_value *)(uintptr_t)value;
    dlb_torch_value inner = *box;
    if (dlb_shim.delete_boxed_value != NULL)
        dlb_shim.delete_boxed_value(box);
    else
        dlb_internals.delete_value(box);
    return inner;
}

/* The numbers of a list, each as torch has such a scalar. */
static void take_list(operator_call *call, dlb_scalar_kind kind, dlb_scalar *scalar,
                      dlb_torch_list list) {
    dlb_list_room *room = dlb_frame_add_list(&call->frame, kind, scalar);
    size_t size = 0;
    bool fits =
        room != NULL && dlb_shim.list_size(list, &size) == 0 && size <= DLB_MAX_LISTED;
    for (size_t i = 0; fits && i < size; i++) {
        dlb_torch_value value = 0;
        fits = dlb_shim.list_item(list, i, &value) == 0;
        memcpy(&room->values.ints[i], &value, sizeof value);
    }
    dlb_shim.delete_list(list);
    if (fits)
        room->list.count = (int64_t)size;
    call->is_too_long |= !fits;
}

static void take_scalar(operator_call *call, char letter, dlb_torch_value value) {
    dlb_scalar *scalar = &call->frame.scalars[call->frame.scalar_count++];
    const char *text = NULL;
    switch (letter) {
    case 'f':
        scalar->kind = DLB_FLOAT;
        memcpy(&scalar->value.f, &value, sizeof value);
        return;
    case 's':
        call->strings[call->string_count] = (dlb_torch_string)(uintptr_t)value;
        dlb_shim.string_text(call->strings[call->string_count++], &text);
        scalar->kind = DLB_STRING;
        scalar->value.s = text;
        return;
    case 'l':
    case 'm':
        take_list(call, letter == 'l' ? DLB_INTS : DLB_FLOATS, scalar,
                  (dlb_torch_list)(uintptr_t)value);
        return;
    case 'd': /* a number of torch, as a byte or more of the value */
        scalar->kind = DLB_INT;
        scalar->value.i = dlb_dtype_key(dlb_shim_dtype((int32_t)(value & 0xff)));
        return;
    default: /* a bool is one byte of the value */
        scalar->kind = DLB_INT;
        scalar->value.i = letter == 'b' ? (value & 0xff) != 0 : (int64_t)value;
    }
}

/* Everything on the stack is ours from here on, whatever fails later. */
static void take_argument(operator_call *call, char letter, dlb_torch_value value) {
    bool is_optional = letter < 'a', is_missing = is_optional && value == 0;
    char kind = is_optional ? (char)(letter - 'A' + 'a') : letter;
    if (is_optional && !is_missing)
        value = unbox(value);
    if (kind == 't') {
        call->tensors[call->frame.tensor_count++] =
            is_missing ? NULL : (dlb_torch_tensor)(uintptr_t)value;
    } else if (is_missing) {
        call->frame.scalars[call->frame.scalar_count++].kind = DLB_NONE;
    } else {
        take_scalar(call, kind, value);
    }
}

static int take_arguments(operator_call *call, const operator_layout *layout,
                          const dlb_torch_value *stack, uint64_t inputs) {
    uint64_t count = strlen(layout->letters), out_at = (uint64_t)layout->out_at;
    if (inputs < count || inputs - count > DLB_MAX_TENSORS - (uint64_t)layout->tensors)
        return dlb_frame_fail(&call->frame, DLB_ERROR_KERNEL,
                              "%s: the operator is being defined again",
                              dlb_entry_name(layout->entry));
    uint64_t outs = inputs - count;
    for (uint64_t i = 0; i < count; i++)
        take_argument(call, layout->letters[i], stack[i < out_at ? i : i + outs]);
    call->frame.input_count = call->frame.tensor_count;
    for (uint64_t i = 0; i < outs; i++)
        take_argument(call, 't', stack[out_at + i]);
    call->is_out = outs > 0;
    return 0;
}

/* What tells scalars apart that come as numbers: 'd', 'l', 'm', or 0. */
static char letter_of(const dlb_scalar_parameter *parameter) {
    char list = parameter->kind == DLB_INTS     ? 'l'
                : parameter->kind == DLB_FLOATS ? 'm'
                                                : 0;
    return parameter->is_dtype ? 'd' : list;
}

/* Whether each scalar of the operator is a dtype or a list where one of the kernel is.
 */
static bool has_same_letters(const operator_layout *layout,
                             const dlb_signature *signature) {
    int place = 0;
    for (const char *letter = layout->letters; *letter != 0; letter++)
        if (*letter != 't' && *letter != 'T') {
            char small = (char)(*letter | 0x20);
            char given = strchr("dlm", small) != NULL ? small : 0;
            if (given != letter_of(&signature->scalars[place++]))
                return false;
        }
    return true;
}

/* A dtype of torch that DLPack lacks has no key. */
static int check_dtypes(operator_call *call) {
    const dlb_signature *signature = call->kernel->signature;
    for (int i = 0; i < call->frame.scalar_count; i++) {
        const dlb_scalar *scalar = &call->frame.scalars[i];
        if (signature->scalars[i].is_dtype && scalar->kind == DLB_INT &&
            scalar->value.i == 0)
            return dlb_frame_fail(&call->frame, DLB_ERROR_TYPE,
                                  "%s: scalar %d is a dtype that DLPack does not know",
                                  call->kernel->name, i);
    }
    return 0;
}

/* The kernel of the name may have been replaced by one of another schema. */
static int check_kernel(operator_call *call, const operator_layout *layout,
                        uint64_t outputs) {
    const dlb_signature *signature = call->kernel ? call->kernel->signature : NULL;
    dlb_frame *frame = &call->frame;
    uint64_t results =
        call->is_out ? (uint64_t)(frame->tensor_count - frame->input_count) : outputs;
    if (call->kernel == NULL)
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                              "%s: no kernel of this name is registered any more",
                              dlb_entry_name(layout->entry));
    bool fits = signature != NULL && !signature->is_large &&
                signature->input_count == frame->input_count &&
                (uint64_t)signature->result_count == results &&
                signature->scalar_count == frame->scalar_count &&
                has_same_letters(layout, signature);
    for (int i = 0; fits && i < frame->scalar_count; i++) {
        bool is_string = signature->scalars[i].kind == DLB_STRING;
        fits = is_string ? frame->scalars[i].kind == DLB_STRING ||
                               frame->scalars[i].kind == DLB_NONE
                         : frame->scalars[i].kind != DLB_STRING;
        fits = fits &&
               (frame->scalars[i].kind != DLB_NONE || signature->scalars[i].optional);
    }
    if (!fits)
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                              "%s: this operator was made for a kernel of another "
                              "schema; look it up in torch.ops again",
                              dlb_entry_name(layout->entry));
    if (call->is_too_long)
        return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                              "%s: a list has at most %d numbers", call->kernel->name,
                              DLB_MAX_LISTED);
    return check_dtypes(call);
}

/* ---- tensors ---- */

static int fail_in_torch(operator_call *call) {
    const char *text = dlb_shim.exception_text ? dlb_shim.exception_text() : NULL;
    return dlb_frame_fail(&call->frame, DLB_ERROR_KERNEL, "%s: torch: %s",
                          call->kernel->name, text ? text : "an error");
}

static bool is_written(const operator_call *call, int index) {
    return index >= call->frame.input_count ||
           (dlb_written_inputs(call->kernel, call->frame.input_count) >> index & 1);
}

/* A storage may have been resized to less than its tensors need. */
static bool has_memory(const DLTensor *dl, dlb_torch_tensor tensor) {
    int64_t bytes = 0, offset = 0, count = dlb_torch_extent(dl);
    if (count == 0)
        return true;
    return dl->data != NULL && dlb_shim.storage_size(tensor, &bytes) == 0 &&
           dlb_shim.storage_offset(tensor, &offset) == 0 &&
           dlb_packed_bytes(dl->dtype, 0, offset + count) <= bytes;
}

static void keep(operator_call *call, dlb_torch_hold hold) {
    call->held[call->held_count++] = hold;
}

static int keep_dims(operator_call *call, DLTensor *dl) {
    int64_t size = 2 * (int64_t)dl->ndim, *room = call->dims + call->dim_count;
    if (size <= DIMS - call->dim_count) {
        call->dim_count += (int32_t)size;
    } else {
        room = malloc((size_t)size * sizeof *room);
        if (room == NULL)
            return dlb_frame_fail(&call->frame, DLB_ERROR_MEMORY, "%s: out of memory",
                                  call->kernel->name);
        keep(call, (dlb_torch_hold){room, free});
    }
    dlb_copy_dims(dl, room, size);
    return 0;
}

static int describe(operator_call *call, int index) {
    DLTensor *dl = &call->frame.tensors[index];
    dlb_torch_tensor tensor = call->tensors[index];
    int64_t ndim = 0;
    int32_t dtype = -1;
    call->frame.flags[index] = 0;
    *dl = (DLTensor){.ndim = -1, .device = {kDLCPU, 0}};
    if (tensor == NULL)
        return 0;
    /* A pointer to read from leaves lazily shared memory shared. */
    bool reads = dlb_shim.const_data_ptr != NULL && !is_written(call, index);
    int failed = reads ? dlb_shim.const_data_ptr(tensor, (const void **)&dl->data)
                       : dlb_shim.data_ptr(tensor, &dl->data);
    failed |= dlb_shim.ndim(tensor, &ndim) | dlb_shim.sizes(tensor, &dl->shape) |
              dlb_shim.strides(tensor, &dl->strides) | dlb_shim.dtype(tensor, &dtype) |
              dlb_shim.device_type(tensor, &call->device_type) |
              dlb_shim.device_index(tensor, &call->device_index);
    if (failed)
        return fail_in_torch(call);
    if (ndim > DLB_MAX_NDIM)
        return dlb_frame_fail(&call->frame, DLB_ERROR_VALUE,
                              "%s: argument %d has %lld dimensions; at most %d are "
                              "supported",
                              call->kernel->name, index + 1, (long long)ndim,
                              DLB_MAX_NDIM);
    dl->ndim = (int32_t)ndim;
    dl->dtype = dlb_shim_dtype(dtype);
    dl->device = dlb_shim_device(call->device_type, call->device_index);
    if (dl->dtype.bits == 0)
        return dlb_frame_fail(&call->frame, DLB_ERROR_TYPE,
                              "%s: argument %d has a dtype that DLPack does not know",
                              call->kernel->name, index + 1);
    return keep_dims(call, dl);
}

static int describe_all(operator_call *call) {
    dlb_frame *frame = &call->frame;
    int first = -1;
    for (int i = 0; i < frame->tensor_count; i++) {
        if (describe(call, i) < 0)
            return -1;
        if (call->tensors[i] == NULL)
            continue;
        if (first < 0)
            first = i;
        DLDevice here = frame->tensors[i].device, there = frame->tensors[first].device;
        if (here.device_type != there.device_type || here.device_id != there.device_id)
            return dlb_frame_refuse(call->kernel, frame, i, "device", first);
    }
    return 0;
}

static int hold_memory(operator_call *call) {
    dlb_frame *frame = &call->frame;
    for (int i = 0; i < frame->tensor_count; i++) {
        const DLTensor *dl = &frame->tensors[i];
        dlb_torch_hold hold;
        if (call->tensors[i] == NULL)
            continue;
        if (!has_memory(dl, call->tensors[i]))
            return dlb_frame_refuse(call->kernel, frame, i, "null_data", -1);
        if (dl->device.device_type != kDLCPU || dlb_torch_extent(dl) == 0)
            continue;
        if (!dlb_torch_hold_memory(call->tensors[i], dl, &hold))
            return fail_in_torch(call);
        keep(call, hold);
    }
    return 0;
}

/* ---- gradients and versions ---- */

/* A call that writes into its arguments has no derivative here. Versions change before
 * the kernel runs: what autograd saved must not be used, even after a kernel that
 * failed. */
static int prepare_writes(operator_call *call) {
    dlb_frame *frame = &call->frame;
    for (int i = 0; i < frame->tensor_count; i++)
        if (call->tensors[i] != NULL && dlb_torch_wants_gradient(call->tensors[i]))
            return dlb_frame_refuse(call->kernel, frame, i, "requires_grad", -1);
    bool inference = dlb_internals.inference_enabled();
    for (int i = 0; i < frame->tensor_count; i++) {
        if (call->tensors[i] == NULL || !is_written(call, i))
            continue;
        if (!dlb_internals.is_inference(call->tensors[i]))
            dlb_internals.bump_version(call->tensors[i]);
        else if (!inference)
            return dlb_frame_refuse(call->kernel, frame, i, "readonly", -1);
    }
    return 0;
}

/* ---- results ---- */

static int allocate(operator_call *call, int index) {
    dlb_frame *frame = &call->frame;
    int64_t shape[DLB_MAX_NDIM];
    DLDataType dtype;
    int32_t ndim =
        dlb_signature_result(call->kernel->signature, index - frame->input_count,
                             &frame->bindings, &dtype, shape);
    int32_t number = ndim < 0 ? -1 : dlb_shim_dtype_number(dtype);
    if (ndim < 0) { /* Python finds out why, from the inputs */
        frame->tensors[index].ndim = -1;
        return dlb_frame_refuse(call->kernel, frame, 0, "mismatch", -1);
    }
    if (number < 0)
        return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                              "%s: result %d has a dtype that torch does not know",
                              call->kernel->name, index - frame->input_count + 1);
    if (dlb_shim_empty(ndim, shape, number, call->device_type, call->device_index,
                       &call->tensors[index]) < 0)
        return fail_in_torch(call);
    return describe(call, index);
}

static int prepare_results(operator_call *call, uint64_t outputs) {
    dlb_frame *frame = &call->frame;
    if (call->is_out)
        return dlb_frame_check_results(call->kernel, frame);
    for (uint64_t i = 0; i < outputs; i++) {
        call->tensors[frame->tensor_count++] = NULL;
        if (allocate(call, frame->tensor_count - 1) < 0)
            return -1;
    }
    return 0;
}

/* The current stream of the tensors' device: torch calls the default one 0, which means
 * another one to code compiled for per-thread default streams. */
static int find_stream(operator_call *call) {
    DLDevice device = dlb_shim_device(call->device_type, call->device_index);
    if (device.device_type == kDLCPU || dlb_shim.cuda_stream == NULL)
        return 0;
    if (dlb_shim.cuda_stream(call->device_index, &call->frame.stream) != 0)
        return fail_in_torch(call);
    if (call->frame.stream == NULL && device.device_type == kDLCUDA)
        call->frame.stream = (void *)DLB_STREAM_LEGACY;
    return 0;
}

/* ---- the call ---- */

static int execute(operator_call *call, const operator_layout *layout,
                   uint64_t outputs) {
    dlb_frame *frame = &call->frame;
    if (check_kernel(call, layout, outputs) < 0 || describe_all(call) < 0 ||
        dlb_frame_bind(call->kernel, frame) < 0 || hold_memory(call) < 0 ||
        prepare_results(call, outputs) < 0)
        return -1;
    if (find_stream(call) < 0)
        return -1;
    if ((call->is_out || call->kernel->signature->has_mutated) &&
        prepare_writes(call) < 0)
        return -1;
    return dlb_frame_run(call->kernel, frame);
}

static void release(operator_call *call, int first, int end) {
    for (int i = first; i < end; i++)
        if (call->tensors[i] != NULL)
            dlb_shim.delete_tensor(call->tensors[i]);
    for (int i = 0; i < call->held_count; i++)
        call->held[i].let_go(call->held[i].owner);
}

/* Keep the error for who awaits it, else drop what it owns; its text stays readable. */
static void hand_over(dlb_error *error) {
    if (error->text[0] == 0)
        strcpy(error->text, "the kernel failed");
    if (failed_last.awaited) {
        dlb_error_clear(&failed_last.error);
        failed_last.error = *error;
    } else if (error->exception != NULL) {
        dlb_error dropped = {.kind = error->kind, .exception = error->exception};
        dlb_error_clear(&dropped);
    }
}

void dlb_torch_run(dlb_torch_value *stack, uint64_t inputs, uint64_t outputs,
                   int number) {
    const operator_layout *layout =
        atomic_load_explicit(&layouts[number], memory_order_acquire);
    operator_call call;
    call.string_count = call.dim_count = call.held_count = 0;
    call.is_too_long = false;
    call.kernel = dlb_entry_pin(layout->entry);
    call.device_index = -1;
    dlb_frame_start(&call.frame, "torch.Tensor");
    call.device_type = dlb_shim_device_type(kDLCPU);
    int failed = take_arguments(&call, layout, stack, inputs) < 0 ||
                 execute(&call, layout, outputs) < 0;
    dlb_frame *frame = &call.frame;
    bool returns = !failed && !call.is_out;
    release(&call, 0, returns ? frame->input_count : frame->tensor_count);
    for (int i = frame->input_count; returns && i < frame->tensor_count; i++)
        stack[i - frame->input_count] = (dlb_torch_value)(uintptr_t)call.tensors[i];
    for (int i = 0; i < call.string_count; i++)
        dlb_shim.delete_string(call.strings[i]);
    if (call.kernel != NULL)
        dlb_entry_unpin(layout->entry, call.kernel);
    if (failed) {
        hand_over(&frame->error);
        dlb_shim.check(false, "dlb_torch_run", __FILE__, __LINE__, frame->error.text);
    }
}

/* ---- for Python: open the shim, define, implement, call ---- */

static const char library_name[] = "dlbridge.torch_library";

/* torch_op_open(libtorch_cpu, libtorch_cuda, is_rocm, hidden) -> None, or the name of
 * what libtorch does not have. */
static PyObject *open_shim(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *path, *cuda_path, *hidden;
    int is_rocm;
    if (!PyArg_ParseTuple(args, "szpz:torch_op_open", &path, &cuda_path, &is_rocm,
                          &hidden))
        return NULL;
    const char *missing = dlb_internals_find(path, hidden);
    if (missing == NULL)
        missing = dlb_shim_open(path, hidden);
    if (missing == NULL)
        missing = dlb_shim_lacks_for_operators();
    if (cuda_path != NULL)
        dlb_shim_open_cuda(cuda_path);
    dlb_shim_set_rocm(is_rocm);
    if (missing == NULL)
        Py_RETURN_NONE;
    return PyUnicode_FromString(missing);
}

static PyObject *has_strings(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyBool_FromLong(dlb_shim.string_text != NULL &&
                           dlb_shim.delete_string != NULL);
}

static PyObject *has_lists(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyBool_FromLong(dlb_shim.list_size != NULL && dlb_shim.list_item != NULL &&
                           dlb_shim.delete_list != NULL);
}

/* A library object deletes what was defined or implemented through it; the capsule
 * does so only when asked, as libtorch may be gone first at the end. */
static PyObject *library_capsule(dlb_torch_library library) {
    PyObject *capsule = PyCapsule_New(library, library_name, NULL);
    if (capsule == NULL)
        dlb_shim.delete_library(library);
    return capsule;
}

static int add_definition(dlb_torch_library library, const char *schema,
                          int Py_UNUSED(number)) {
    return dlb_shim.define(library, schema);
}

static int add_implementation(dlb_torch_library library, const char *name, int number) {
    return dlb_shim.implement(library, name, trampoline(number));
}

/* A library object for a dispatch key, or NULL for definitions, with all of `texts` in
 * it. Without the GIL: the dispatcher has a lock of its own, and who holds that one may
 * want the GIL. */
static PyObject *make_library(const char *name_space, const char *key, PyObject *texts,
                              int (*add)(dlb_torch_library, const char *, int),
                              int number) {
    dlb_torch_library library = NULL;
    const char *text = name_space;
    Py_ssize_t count = PyTuple_GET_SIZE(texts);
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = key != NULL
                 ? dlb_shim.library_implementation(name_space, key, __FILE__, __LINE__,
                                                   &library)
                 : dlb_shim.library_fragment(name_space, __FILE__, __LINE__, &library);
    Py_END_ALLOW_THREADS
    bool is_open = !failed;
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(texts, i));
        failed = text == NULL;
        if (!failed) {
            Py_BEGIN_ALLOW_THREADS
            failed = add(library, text, number);
            Py_END_ALLOW_THREADS
        }
    }
    if (!failed)
        return library_capsule(library);
    const char *reason = dlb_shim.exception_text ? dlb_shim.exception_text() : "";
    if (text != NULL)
        PyErr_Format(PyExc_RuntimeError, "torch did not take %s: %s", text, reason);
    if (is_open)
        dlb_shim.delete_library(library);
    return NULL;
}

/* torch_op_define(namespace, schemas) -> a library object */
static PyObject *define(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *name_space;
    PyObject *schemas;
    if (!PyArg_ParseTuple(args, "sO!:torch_op_define", &name_space, &PyTuple_Type,
                          &schemas))
        return NULL;
    return make_library(name_space, NULL, schemas, add_definition, 0);
}

/* ---- numbers of the pool ---- */

static _Atomic int used; /* numbers given away */

static int count_tensors(const char *letters) {
    int count = 0;
    for (; *letters != 0; letters++)
        count += *letters == 't' || *letters == 'T';
    return count;
}

static int set_layout(int number, PyObject *name, const char *letters, int out_at) {
    const char *text = PyUnicode_AsUTF8(name);
    operator_layout *layout = text ? PyMem_RawMalloc(sizeof *layout) : NULL;
    if (text == NULL)
        return -1;
    if (layout != NULL)
        layout->entry = dlb_registry_add(text);
    if (layout == NULL || layout->entry == NULL) {
        PyMem_RawFree(layout);
        PyErr_NoMemory();
        return -1;
    }
    strcpy(layout->letters, letters);
    layout->out_at = out_at;
    layout->tensors = count_tensors(letters);
    atomic_store_explicit(&layouts[number], layout, memory_order_release);
    return 0;
}

/* torch_op_take(kernel name, letters, out_at) -> a number out of the pool, None: it is
 * empty */
static PyObject *take_number(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *name;
    const char *letters;
    int out_at;
    if (!PyArg_ParseTuple(args, "Usi:torch_op_take", &name, &letters, &out_at))
        return NULL;
    size_t count = strlen(letters), tensors = (size_t)count_tensors(letters);
    if (tensors > DLB_MAX_TENSORS || count - tensors > DLB_MAX_SCALARS || out_at < 0 ||
        (size_t)out_at > count)
        return PyErr_Format(PyExc_ValueError, "%U: too many arguments", name);
    int number = -1, status = 0;
    DLB_BEGIN_EXCLUSIVE(&dlb_KernelType); /* for want of an object of its own */
    if (used < pool_size) {
        status = set_layout(used, name, letters, out_at);
        if (status == 0)
            number = used++;
    }
    DLB_END_EXCLUSIVE();
    if (status < 0)
        return NULL;
    return number < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(number);
}

/* torch_op_implement(namespace, names, key, number) -> a library object */
static PyObject *implement(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *name_space, *key;
    PyObject *names;
    int number;
    if (!PyArg_ParseTuple(args, "sO!si:torch_op_implement", &name_space, &PyTuple_Type,
                          &names, &key, &number))
        return NULL;
    if (number < 0 || number >= used)
        return PyErr_Format(PyExc_ValueError, "torch_op_implement: no number %d",
                            number);
    return make_library(name_space, key, names, add_implementation, number);
}

/* torch_op_remove(library): undo what a library object did. */
static PyObject *remove_library(PyObject *Py_UNUSED(module), PyObject *capsule) {
    dlb_torch_library library = PyCapsule_GetPointer(capsule, library_name);
    int failed;
    if (library == NULL)
        return NULL;
    PyCapsule_SetName(capsule, "dlbridge.removed");
    Py_BEGIN_ALLOW_THREADS
    failed = dlb_shim.delete_library(library);
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_Format(PyExc_RuntimeError, "torch did not remove an operator");
    Py_RETURN_NONE;
}

/* ---- calls ---- */

/* Whether torch's exception, which is set, is what became of the kernel's error: the
 * Python code of a kernel may have caught that one. */
static bool is_that_error(const char *text) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *words = value ? PyObject_Str(value) : NULL;
    const char *said = words ? PyUnicode_AsUTF8(words) : NULL;
    bool found = said != NULL && strstr(said, text) != NULL;
    Py_XDECREF(words);
    PyErr_Restore(type, value, traceback);
    return found;
}

/* torch_op_call(operator, *args, **kwargs): the exception of the kernel comes out as it
 * is, where torch knows only RuntimeError. */
static PyObject *call_operator(PyObject *Py_UNUSED(module), PyObject *const *args,
                               Py_ssize_t count, PyObject *names) {
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "torch_op_call: an operator is missing");
        return NULL;
    }
    bool awaited_before = failed_last.awaited;
    dlb_error *error = &failed_last.error;
    dlb_error_clear(error);
    failed_last.awaited = true;
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)count - 1, names);
    failed_last.awaited = awaited_before;
    if (result == NULL && error->kind != DLB_ERROR_NONE &&
        PyErr_ExceptionMatches(PyExc_RuntimeError) && is_that_error(error->text)) {
        PyErr_Clear();
        return dlb_raise(error);
    }
    dlb_error_clear(error);
    return result;
}

/* torch_call_plain(kernel, *args, **kwargs) -> the result, or NotImplemented where the
 * dispatcher must do more than call the kernel. */
static PyObject *call_plain(PyObject *Py_UNUSED(module), PyObject *const *args,
                            Py_ssize_t count, PyObject *names) {
    if (count < 1 || !dlb_is_kernel(args[0])) {
        PyErr_SetString(PyExc_TypeError, "torch_call_plain: a kernel is missing");
        return NULL;
    }
    const dlb_kernel_object *kernel = (const dlb_kernel_object *)args[0];
    if (kernel->kernel->needs_gil)
        Py_RETURN_NOTIMPLEMENTED;
    dlb_family family = DLB_FAMILY_TORCH;
    PyObject *result = dlb_call_directly(kernel, &family, args + 1, count - 1, names);
    if (result == NULL && !PyErr_Occurred())
        Py_RETURN_NOTIMPLEMENTED;
    return result;
}

/* torch_call_batch(kernel, size, steps, *args, **kwargs) -> whether the kernel was
 * called. */
static PyObject *call_batch(PyObject *Py_UNUSED(module), PyObject *const *args,
                            Py_ssize_t count, PyObject *names) {
    int64_t steps[DLB_MAX_TENSORS];
    if (count < 3 || !dlb_is_kernel(args[0]) || !PyTuple_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError,
                        "torch_call_batch: a kernel, a size and a tuple of steps must "
                        "come first");
        return NULL;
    }
    const dlb_kernel_object *kernel = (const dlb_kernel_object *)args[0];
    Py_ssize_t size = PyLong_AsSsize_t(args[1]), step_count = PyTuple_GET_SIZE(args[2]);
    if (size == -1 && PyErr_Occurred())
        return NULL;
    if (step_count > DLB_MAX_TENSORS)
        Py_RETURN_FALSE;
    if (size < 1)
        return PyErr_Format(PyExc_ValueError,
                            "torch_call_batch: %zd elements, %zd steps", size,
                            step_count);
    for (Py_ssize_t i = 0; i < step_count; i++) {
        steps[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(args[2], i));
        if (steps[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    if (kernel->kernel->needs_gil || kernel->kernel->signature == NULL)
        Py_RETURN_FALSE;
    int status =
        dlb_call_batch(kernel, steps, step_count, size, args + 3, count - 3, names);
    return status < 0 && PyErr_Occurred() ? NULL : PyBool_FromLong(status == 0);
}

#define FAST(function) (PyCFunction)(void (*)(void)) function
PyMethodDef dlb_torch_op_functions[] = {
    {"torch_op_open", open_shim, METH_VARARGS,
     "torch_op_open($module, libtorch_cpu, libtorch_cuda, is_rocm, hidden, "
     "/)\n--\n\nFind the functions of libtorch."},
    {"torch_op_has_lists", has_lists, METH_NOARGS,
     "torch_op_has_lists($module, /)\n--\n\nWhether operators can have lists of "
     "numbers."},
    {"torch_op_has_strings", has_strings, METH_NOARGS,
     "torch_op_has_strings($module, /)\n--\n\nWhether operators can have str "
     "arguments."},
    {"torch_op_define", define, METH_VARARGS,
     "torch_op_define($module, namespace, schemas, /)\n--\n\nDefine operators."},
    {"torch_op_take", take_number, METH_VARARGS,
     "torch_op_take($module, kernel, letters, out_at, /)\n--\n\nTake a function out of "
     "the pool."},
    {"torch_op_implement", implement, METH_VARARGS,
     "torch_op_implement($module, namespace, names, key, number, /)\n--\n\nImplement "
     "operators."},
    {"torch_op_remove", remove_library, METH_O,
     "torch_op_remove($module, library, /)\n--\n\nRemove definitions."},
    {"torch_op_call", FAST(call_operator), METH_FASTCALL | METH_KEYWORDS,
     "torch_op_call($module, operator, /, *args, **kwargs)\n--\n\nCall an operator."},
    {"torch_call_plain", FAST(call_plain), METH_FASTCALL | METH_KEYWORDS,
     "torch_call_plain($module, kernel, /, *args, **kwargs)\n--\n\nCall a kernel with "
     "plain tensors."},
    {"torch_call_batch", FAST(call_batch), METH_FASTCALL | METH_KEYWORDS,
     "torch_call_batch($module, kernel, size, steps, /, *args, **kwargs)\n--\n\nCall a "
     "kernel for each element of a batch."},
    {NULL, NULL, 0, NULL},
};
