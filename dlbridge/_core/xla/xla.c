/* The handler of XLA's typed FFI that serves every kernel: from the operands of a call
 * to the tensors of a frame, without copies and, until something fails, without Python.
 *
 * One target, "dlbridge", serves every kernel. A call carries these attributes:
 *
 *   - kernel, a string: the name in the registry, never a pointer.
 *   - s00, s01… for scalar 0, 1… of the kernel: int64, float64, bool or string; none
 *     for an optional scalar that was left out.
 *   - layout, a string, only where operands are not just the kernel's tensors in order:
 *     one letter for each tensor. t: an operand; m: an operand written in place, whose
 *     new value is one more result, at the same address; -: left out, no operand. Then,
 *     for scalars that are operands, `A`, `B`… for scalar 0, 1… with an operand of rank
 *     0 each, or `#` with pairs such as `Af` `Bi`: one uint32 operand that holds 64
 * bits for each.
 *   - eager, a bool: the caller is dlbridge, and asks for the exception itself. */
#include "xla/xla.h"
#include "cuda/cuda.h"
#include "kernel/kernel.h"
#include "layout/layout.h"
#include "memory/buffer.h"
#include "memory/lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ==== what a handler sees ====
 *
 * XLA's structs, declared again: only the fields that are read here. They stand at the
 * heads of the structs and have not moved from jaxlib 0.4.31 on, so one binary serves
 * all of these; everything behind them may change.
 *
 * Ownership. All of it belongs to XLA and is valid until the handler returns. An error
 * that the handler returns belongs to XLA. */

typedef struct dlb_xla_extension {
    size_t size;
    int type;
    struct dlb_xla_extension *next;
} dlb_xla_extension;

enum { DLB_XLA_METADATA = 1 }; /* of dlb_xla_extension.type */

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    int major, minor;
} dlb_xla_version;

typedef enum { /* the codes of absl::Status */
               DLB_XLA_INVALID_ARGUMENT = 3,
               DLB_XLA_NOT_FOUND = 5,
               DLB_XLA_RESOURCE_EXHAUSTED = 8,
               DLB_XLA_INTERNAL = 13,
} dlb_xla_code;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    const char *message; /* copied */
    int code;
} dlb_xla_error_arguments;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    void *context;
    void *stream; /* filled in */
} dlb_xla_stream_arguments;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    void *context;
    int32_t ordinal; /* filled in */
} dlb_xla_device_arguments;

typedef struct {
    size_t size; /* up to the last function that this XLA has */
    dlb_xla_extension *extensions;
    dlb_xla_version version;
    const void *internal;
    void *(*create_error)(dlb_xla_error_arguments *);
    void (*read_error)(void *);
    void (*destroy_error)(void *);
    void *(*register_handler)(void *);
    void *(*get_stream)(dlb_xla_stream_arguments *); /* returns an error, or NULL */
    void *not_read[12];
    void *(*get_device)(dlb_xla_device_arguments *); /* since 2025: see `size` */
} dlb_xla_api;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    int dtype; /* a number of xla::PrimitiveType */
    void *data;
    int64_t rank;
    int64_t *dims;
} dlb_xla_buffer;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    int64_t count;
    int *types;
    dlb_xla_buffer **buffers;
} dlb_xla_buffers;

typedef struct {
    const char *data;
    size_t length;
} dlb_xla_span;

typedef struct {
    int dtype;
    void *value;
} dlb_xla_scalar;

enum { DLB_XLA_SCALAR = 3, DLB_XLA_STRING = 4 }; /* of dlb_xla_attributes.types */

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    int64_t count;
    int *types;
    dlb_xla_span **names; /* sorted */
    void **values;        /* dlb_xla_span or dlb_xla_scalar, by type */
} dlb_xla_attributes;

typedef struct {
    size_t size;
    dlb_xla_extension *extensions;
    const dlb_xla_api *api;
    void *context;
    int stage;
    dlb_xla_buffers arguments, results;
    dlb_xla_attributes attributes;
} dlb_xla_call;

typedef struct { /* what XLA asks of a handler before it is used */
    size_t size;
    dlb_xla_version version;
    uint32_t traits;
} dlb_xla_metadata;

typedef struct {
    dlb_xla_extension base;
    dlb_xla_metadata *metadata;
} dlb_xla_metadata_query;

enum { /* numbers of xla::PrimitiveType */
       DLB_XLA_PRED = 1,
       DLB_XLA_S8 = 2,
       DLB_XLA_S16 = 3,
       DLB_XLA_S32 = 4,
       DLB_XLA_S64 = 5,
       DLB_XLA_U8 = 6,
       DLB_XLA_U16 = 7,
       DLB_XLA_U32 = 8,
       DLB_XLA_U64 = 9,
       DLB_XLA_F16 = 10,
       DLB_XLA_F32 = 11,
       DLB_XLA_F64 = 12,
       DLB_XLA_C64 = 15,
       DLB_XLA_BF16 = 16,
       DLB_XLA_C128 = 18,
       DLB_XLA_F8E5M2 = 19,
       DLB_XLA_F8E4M3FN = 20,
       DLB_XLA_S4 = 21,
       DLB_XLA_U4 = 22,
       DLB_XLA_F8E4M3B11FNUZ = 23,
       DLB_XLA_F8E5M2FNUZ = 24,
       DLB_XLA_F8E4M3FNUZ = 25,
       DLB_XLA_S2 = 26,
       DLB_XLA_U2 = 27,
       DLB_XLA_F8E4M3 = 28,
       DLB_XLA_F8E3M4 = 29,
       DLB_XLA_S1 = 30,
       DLB_XLA_U1 = 31,
       DLB_XLA_F4E2M1FN = 32,
       DLB_XLA_F8E8M0FNU = 33,
};

/* ==== a call ==== */

enum { CACHED_CALLS = 16, CACHED_TENSORS = 6, CACHED_RANK = 4, CACHED_ENTRIES = 16 };

typedef struct {
    int32_t xla_dtype, rank;
    DLDataType dtype;
    int64_t dims[CACHED_RANK], strides[CACHED_RANK];
} cached_tensor;

typedef struct {
    uint64_t serial; /* of the kernel; 0: free */
    DLDeviceType device_type;
    const dlb_target *target;
    int32_t count, input_count;
    cached_tensor tensors[CACHED_TENSORS];
} cached_call;

/* Kept by each thread from call to call. */
typedef struct {
    struct { /* entries live as long as the process */
        dlb_entry *entry;
        size_t length;
    } entries[CACHED_ENTRIES];
    cached_call calls[CACHED_CALLS];
} thread_cache;

typedef struct heap_block {
    struct heap_block *next;
    int64_t words[];
} heap_block;

typedef struct {
    dlb_frame frame;
    thread_cache *thread;
    const dlb_xla_call *call;
    const dlb_kernel *kernel; /* of run_kernel */
    DLDevice device;
    const dlb_xla_span *kernel_name, *layout;
    uint32_t *mutated, *missing; /* inputs that are written, that were left out */
    uint32_t few[2];             /* where the two lie, but for large kernels */
    int32_t mutated_count;
    bool is_eager;
    int64_t *room, *room_end; /* for strides and strings: `first_room`, or `heap` */
    heap_block *heap;
    int64_t first_room[256];
} xla_run;

/* ---- room for strides and strings, as long as the call lasts ---- */

static int64_t *get_room(xla_run *run, size_t bytes) {
    size_t words = (bytes + sizeof(int64_t) - 1) / sizeof(int64_t);
    if ((size_t)(run->room_end - run->room) < words) {
        heap_block *heap = malloc(sizeof *heap + words * sizeof(int64_t));
        if (heap == NULL) {
            dlb_frame_fail(&run->frame, DLB_ERROR_MEMORY, "dlbridge: out of memory");
            return NULL;
        }
        dlb_count_live(scratch, 1);
        heap->next = run->heap;
        run->heap = heap;
        return heap->words;
    }
    int64_t *room = run->room;
    run->room += words;
    return room;
}

static void free_room(xla_run *run) {
    while (run->heap != NULL) {
        heap_block *next = run->heap->next;
        dlb_count_live(scratch, -1);
        free(run->heap);
        run->heap = next;
    }
}

/* ---- scalars ---- */

static dlb_scalar *new_scalar(xla_run *run, int index) {
    dlb_frame *frame = &run->frame;
    if (index < 0 || index >= DLB_MAX_SCALARS) {
        dlb_frame_fail(frame, DLB_ERROR_VALUE, "dlbridge: scalar %d of a call from XLA",
                       index);
        return NULL;
    }
    while (frame->scalar_count <= index)
        frame->scalars[frame->scalar_count++].kind = DLB_NONE;
    return &frame->scalars[index];
}

#define READ(type, member, kind_)                                                      \
    scalar->kind = kind_;                                                              \
    scalar->value.member = *(const type *)value;                                       \
    return 0

static int read_scalar(xla_run *run, dlb_scalar *scalar, int dtype, const void *value) {
    switch (dtype) {
    case DLB_XLA_PRED:
    case DLB_XLA_U8:
        READ(uint8_t, i, DLB_INT);
    case DLB_XLA_S8:
        READ(int8_t, i, DLB_INT);
    case DLB_XLA_S16:
        READ(int16_t, i, DLB_INT);
    case DLB_XLA_S32:
        READ(int32_t, i, DLB_INT);
    case DLB_XLA_S64:
        READ(int64_t, i, DLB_INT);
    case DLB_XLA_U16:
        READ(uint16_t, i, DLB_INT);
    case DLB_XLA_U32:
        READ(uint32_t, i, DLB_INT);
    case DLB_XLA_F32:
        READ(float, f, DLB_FLOAT);
    case DLB_XLA_F64:
        READ(double, f, DLB_FLOAT);
    default:
        return dlb_frame_fail(&run->frame, DLB_ERROR_TYPE,
                              "dlbridge: a scalar of XLA's type number %d", dtype);
    }
}

static int read_string(xla_run *run, dlb_scalar *scalar, const dlb_xla_span *span) {
    if (memchr(span->data, 0, span->length) != NULL)
        return dlb_frame_fail(
            &run->frame, DLB_ERROR_VALUE,
            "dlbridge: a text with a zero byte, where kernels see its "
            "end");
    char *text = (char *)get_room(run, span->length + 1);
    if (text == NULL)
        return -1;
    memcpy(text, span->data, span->length);
    text[span->length] = 0;
    scalar->kind = DLB_STRING;
    scalar->value.s = text;
    return 0;
}

/* ---- attributes ---- */

static bool is_digit(char letter) {
    return letter >= '0' && letter <= '9';
}

static int read_attribute(xla_run *run, const dlb_xla_span *name, int type,
                          const void *value) {
    const char *letters = name->data;
    if (letters[0] == 'k')
        run->kernel_name = type == DLB_XLA_STRING ? value : NULL;
    else if (letters[0] == 'l')
        run->layout = type == DLB_XLA_STRING ? value : NULL;
    else if (letters[0] == 'e')
        run->is_eager = true;
    else if (letters[0] == 's' && name->length == 3) {
        bool is_number = is_digit(letters[1]) && is_digit(letters[2]);
        dlb_scalar *scalar = new_scalar(
            run, is_number ? (letters[1] - '0') * 10 + letters[2] - '0' : -1);
        if (scalar == NULL)
            return -1;
        if (type == DLB_XLA_STRING)
            return read_string(run, scalar, value);
        if (type != DLB_XLA_SCALAR)
            return dlb_frame_fail(&run->frame, DLB_ERROR_TYPE,
                                  "dlbridge: the attribute %.3s is no scalar", letters);
        const dlb_xla_scalar *number = value;
        return read_scalar(run, scalar, number->dtype, number->value);
    }
    return 0;
}

static int read_attributes(xla_run *run) {
    const dlb_xla_attributes *attributes = &run->call->attributes;
    int status = 0;
    if (attributes->count == 1 && attributes->types[0] == DLB_XLA_STRING) {
        run->kernel_name = attributes->values[0]; /* whatever it is called */
        return 0;
    }
    for (int64_t i = 0; i < attributes->count; i++)
        if (attributes->names[i]->length > 0)
            status |= read_attribute(run, attributes->names[i], attributes->types[i],
                                     attributes->values[i]);
    return status;
}

/* ---- devices with streams ---- */

/* XLA calls the default stream 0, which means another one to code compiled for
 * per-thread default streams. */
static void *read_stream(xla_run *run) {
    const dlb_xla_call *call = run->call;
    dlb_xla_stream_arguments arguments = {.size = sizeof arguments,
                                          .context = call->context};
    void *error = call->api->get_stream(&arguments);
    run->frame.stream = arguments.stream;
    if (run->device.device_type == kDLCUDA && arguments.stream == NULL)
        run->frame.stream = (void *)DLB_STREAM_LEGACY;
    return error;
}

/* Where the memory is, for an XLA that does not tell the number of its device. */
static int32_t find_device(const dlb_xla_buffers *buffers) {
    DLDevice found;
    for (int64_t i = 0; i < buffers->count; i++)
        if (buffers->buffers[i]->data != NULL &&
            dlb_cuda_locate(buffers->buffers[i]->data, 0, &found) == 1)
            return found.device_id;
    return -1;
}

static void *read_device(xla_run *run) {
    const dlb_xla_call *call = run->call;
    const dlb_xla_api *api = call->api;
    void *error = read_stream(run);
    if (error != NULL)
        return error;
    if (api->size >= offsetof(dlb_xla_api, get_device) + sizeof api->get_device) {
        dlb_xla_device_arguments arguments = {.size = sizeof arguments,
                                              .context = call->context};
        error = api->get_device(&arguments);
        run->device.device_id = arguments.ordinal;
    } else if (run->device.device_type == kDLCUDA) {
        int32_t found = find_device(&call->arguments);
        found = found < 0 ? find_device(&call->results) : found;
        run->device.device_id = found < 0 ? 0 : found;
    }
    return error;
}

static int copy_on_device(xla_run *run, void *to, const void *from, size_t nbytes) {
    dlb_cuda_scope scope;
    if (run->device.device_type != kDLCUDA)
        return dlb_frame_fail(&run->frame, DLB_ERROR_BUFFER,
                              "dlbridge: XLA did not alias a tensor that is written in "
                              "place, and dlbridge cannot copy on this device");
    if (nbytes == 0)
        return 0;
    if (dlb_cuda_enter(run->device.device_id, &scope) < 0)
        return dlb_frame_fail_cuda(run->kernel, &run->frame);
    int status = dlb_cuda_check(
        dlb_cuda_get()->cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, nbytes,
                                      (CUstream)run->frame.stream),
        "cuMemcpyAsync");
    dlb_cuda_leave(&scope);
    return status < 0 ? dlb_frame_fail_cuda(run->kernel, &run->frame) : 0;
}

/* ---- tensors ---- */

static const DLDataType dtypes[34] = {
    [DLB_XLA_PRED] = {kDLBool, 8, 1},
    [DLB_XLA_S8] = {kDLInt, 8, 1},
    [DLB_XLA_S16] = {kDLInt, 16, 1},
    [DLB_XLA_S32] = {kDLInt, 32, 1},
    [DLB_XLA_S64] = {kDLInt, 64, 1},
    [DLB_XLA_U8] = {kDLUInt, 8, 1},
    [DLB_XLA_U16] = {kDLUInt, 16, 1},
    [DLB_XLA_U32] = {kDLUInt, 32, 1},
    [DLB_XLA_U64] = {kDLUInt, 64, 1},
    [DLB_XLA_F16] = {kDLFloat, 16, 1},
    [DLB_XLA_F32] = {kDLFloat, 32, 1},
    [DLB_XLA_F64] = {kDLFloat, 64, 1},
    [DLB_XLA_C64] = {kDLComplex, 64, 1},
    [DLB_XLA_BF16] = {kDLBfloat, 16, 1},
    [DLB_XLA_C128] = {kDLComplex, 128, 1},
    [DLB_XLA_F8E5M2] = {kDLFloat8_e5m2, 8, 1},
    [DLB_XLA_F8E4M3FN] = {kDLFloat8_e4m3fn, 8, 1},
    [DLB_XLA_S4] = {kDLInt, 4, 1},
    [DLB_XLA_U4] = {kDLUInt, 4, 1},
    [DLB_XLA_F8E4M3B11FNUZ] = {kDLFloat8_e4m3b11fnuz, 8, 1},
    [DLB_XLA_F8E5M2FNUZ] = {kDLFloat8_e5m2fnuz, 8, 1},
    [DLB_XLA_F8E4M3FNUZ] = {kDLFloat8_e4m3fnuz, 8, 1},
    [DLB_XLA_S2] = {kDLInt, 2, 1},
    [DLB_XLA_U2] = {kDLUInt, 2, 1},
    [DLB_XLA_F8E4M3] = {kDLFloat8_e4m3, 8, 1},
    [DLB_XLA_F8E3M4] = {kDLFloat8_e3m4, 8, 1},
    [DLB_XLA_S1] = {kDLInt, 1, 1},
    [DLB_XLA_U1] = {kDLUInt, 1, 1},
    [DLB_XLA_F4E2M1FN] = {kDLFloat4_e2m1fn, 4, 1},
    [DLB_XLA_F8E8M0FNU] = {kDLFloat8_e8m0fnu, 8, 1},
};

/* A dlb_dtype_key; 0: DLPack has none. */
static uint32_t find_dtype(int number) {
    bool is_known = number >= 0 && number < (int)(sizeof dtypes / sizeof *dtypes) &&
                    dtypes[number].bits != 0;
    return is_known ? dlb_dtype_key(dtypes[number]) : 0;
}

/* Its memory is left for later; XLA may pass NULL where there are no elements. */
static const char *check_buffer(const xla_run *run, const dlb_xla_buffer *buffer) {
    if (buffer->rank < 0 || buffer->rank > DLB_MAX_NDIM)
        return "ndim";
    const DLTensor tensor = {.data = buffer->dims,
                             .device = run->device,
                             .ndim = (int32_t)buffer->rank,
                             .dtype = dtypes[buffer->dtype],
                             .shape = buffer->dims};
    return dlb_layout_check(&tensor, 0);
}

static int add_tensor(xla_run *run, const dlb_xla_buffer *buffer, uint64_t flags) {
    dlb_frame *frame = &run->frame;
    int index = frame->tensor_count;
    if (index == frame->room)
        return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                              "dlbridge: more than %d tensors in a call from XLA",
                              (int)frame->room);
    if (find_dtype(buffer->dtype) == 0)
        return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                              "dlbridge: tensor %d has XLA's type number %d, which "
                              "DLPack has no dtype for",
                              index, buffer->dtype);
    const char *reason = check_buffer(run, buffer);
    if (reason != NULL)
        return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                              "dlbridge: tensor %d of a call from XLA, of %lld "
                              "dimensions: %s",
                              index, (long long)buffer->rank, reason);
    int64_t *strides = get_room(run, (size_t)buffer->rank * sizeof(int64_t));
    if (strides == NULL)
        return -1;
    frame->tensors[index] = (DLTensor){.data = buffer->data,
                                       .device = run->device,
                                       .ndim = (int32_t)buffer->rank,
                                       .dtype = dtypes[buffer->dtype],
                                       .shape = buffer->dims,
                                       .strides = strides};
    dlb_row_major_strides((int32_t)buffer->rank, buffer->dims, strides);
    frame->flags[index] = flags;
    frame->tensor_count++;
    return 0;
}

/* The new value of a tensor that is written in place is a result at the same address;
 * where XLA chose another one, the old value goes there first. */
static int add_mutated(xla_run *run, const dlb_xla_buffer *buffer) {
    const dlb_xla_buffers *results = &run->call->results;
    int index = run->frame.tensor_count;
    if (run->mutated_count >= results->count)
        return dlb_frame_fail(&run->frame, DLB_ERROR_VALUE,
                              "dlbridge: fewer results than tensors in place");
    if (add_tensor(run, buffer, 0) < 0)
        return -1;
    dlb_set_add(run->mutated, index);
    run->mutated_count++;
    return 0;
}

/* The program says which results these are: they must be what their operands are. */
static int check_mutated(xla_run *run) {
    const dlb_xla_buffers *results = &run->call->results;
    dlb_frame *frame = &run->frame;
    int64_t next = results->count - run->mutated_count;
    for (int i = 0; i < frame->input_count; i++) {
        const DLTensor *tensor = &frame->tensors[i];
        if (!dlb_set_has(run->mutated, i))
            continue;
        const dlb_xla_buffer *result = results->buffers[next++];
        size_t nbytes = (size_t)tensor->ndim * sizeof *tensor->shape;
        if (find_dtype(result->dtype) != dlb_dtype_key(tensor->dtype) ||
            result->rank != tensor->ndim ||
            (nbytes > 0 && memcmp(result->dims, tensor->shape, nbytes) != 0) ||
            (result->data == NULL && tensor->data != NULL))
            return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                                  "dlbridge: the new value of tensor %d, which is "
                                  "written in place, has another dtype or shape",
                                  i);
    }
    return 0;
}

static int move_mutated(xla_run *run) {
    const dlb_xla_buffers *results = &run->call->results;
    dlb_frame *frame = &run->frame;
    int64_t next = results->count - run->mutated_count;
    for (int i = 0; i < frame->input_count; i++) {
        DLTensor *tensor = &frame->tensors[i];
        if (!dlb_set_has(run->mutated, i))
            continue;
        void *data = results->buffers[next++]->data;
        if (data == tensor->data)
            continue;
        size_t nbytes = (size_t)dlb_packed_bytes(tensor->dtype, frame->flags[i],
                                                 dlb_element_count(tensor));
        if (run->device.device_type == kDLCPU && nbytes > 0)
            memcpy(data, tensor->data, nbytes);
        else if (nbytes > 0 && copy_on_device(run, data, tensor->data, nbytes) < 0)
            return -1;
        tensor->data = data;
    }
    return 0;
}

static int add_missing(xla_run *run) {
    dlb_frame *frame = &run->frame;
    if (frame->tensor_count == frame->room)
        return dlb_frame_fail(frame, DLB_ERROR_VALUE, "dlbridge: too many tensors");
    frame->tensors[frame->tensor_count] = (DLTensor){.ndim = -1, .device = run->device};
    dlb_set_add(run->missing, frame->tensor_count);
    frame->flags[frame->tensor_count++] = 0;
    return 0;
}

/* ---- the layout ---- */

typedef struct {
    xla_run *run;
    const char *at, *end;
    int64_t next; /* operand */
} cursor;

static const dlb_xla_buffer *next_operand(cursor *cursor) {
    const dlb_xla_buffers *arguments = &cursor->run->call->arguments;
    if (cursor->next < arguments->count)
        return arguments->buffers[cursor->next++];
    dlb_frame_fail(&cursor->run->frame, DLB_ERROR_VALUE,
                   "dlbridge: fewer operands than the attribute `layout` names");
    return NULL;
}

static int read_tensor_letter(cursor *cursor, char letter) {
    if (letter == '-')
        return add_missing(cursor->run);
    const dlb_xla_buffer *buffer = next_operand(cursor);
    if (buffer == NULL)
        return -1;
    return letter == 'm'
               ? add_mutated(cursor->run, buffer)
               : add_tensor(cursor->run, buffer, DLPACK_FLAG_BITMASK_READ_ONLY);
}

/* Kernels take scalars in CPU memory, and waiting for a device here would stop all of
 * it. */
static const dlb_xla_buffer *next_scalars(cursor *cursor) {
    if (cursor->run->device.device_type == kDLCPU)
        return next_operand(cursor);
    dlb_frame_fail(&cursor->run->frame, DLB_ERROR_BUFFER,
                   "dlbridge: traced scalars are for the CPU; on a device pass Python "
                   "numbers, which are compiled in");
    return NULL;
}

static int read_scalar_letter(cursor *cursor, char letter) {
    dlb_scalar *scalar = new_scalar(cursor->run, letter - 'A');
    const dlb_xla_buffer *buffer = scalar ? next_scalars(cursor) : NULL;
    if (buffer == NULL)
        return -1;
    if (buffer->rank != 0 || buffer->data == NULL)
        return dlb_frame_fail(&cursor->run->frame, DLB_ERROR_VALUE,
                              "dlbridge: the operand of scalar %d has rank %lld",
                              letter - 'A', (long long)buffer->rank);
    return read_scalar(cursor->run, scalar, buffer->dtype, buffer->data);
}

static int read_block(cursor *cursor) {
    const dlb_xla_buffer *buffer = next_scalars(cursor);
    if (buffer == NULL)
        return -1;
    int64_t pairs = (cursor->end - cursor->at) / 2;
    if (buffer->dtype != DLB_XLA_U32 || buffer->rank != 1 ||
        buffer->dims[0] != 2 * pairs || (buffer->data == NULL && pairs > 0))
        return dlb_frame_fail(&cursor->run->frame, DLB_ERROR_VALUE,
                              "dlbridge: the operand of scalars is no uint32[%lld]",
                              (long long)(2 * pairs));
    const char *data = buffer->data;
    for (; cursor->at + 1 < cursor->end; cursor->at += 2, data += sizeof(int64_t)) {
        dlb_scalar *scalar = new_scalar(cursor->run, cursor->at[0] - 'A');
        if (scalar == NULL)
            return -1;
        scalar->kind = cursor->at[1] == 'f' ? DLB_FLOAT : DLB_INT;
        memcpy(&scalar->value, data, sizeof(int64_t));
    }
    return 0;
}

static int read_letter(cursor *cursor, char letter) {
    if (letter >= 'A' && letter < 'A' + DLB_MAX_SCALARS)
        return read_scalar_letter(cursor, letter);
    if (letter == '#')
        return read_block(cursor);
    return read_tensor_letter(cursor, letter);
}

static int read_layout(xla_run *run) {
    const dlb_xla_span *layout = run->layout;
    cursor cursor = {run, layout->data, layout->data + layout->length, 0};
    while (cursor.at < cursor.end)
        if (read_letter(&cursor, *cursor.at++) < 0)
            return -1;
    return 0;
}

static int read_operands(xla_run *run) {
    const dlb_xla_buffers *arguments = &run->call->arguments;
    const dlb_xla_buffers *results = &run->call->results;
    dlb_frame *frame = &run->frame;
    if (run->layout != NULL) {
        if (read_layout(run) < 0)
            return -1;
    } else {
        for (int64_t i = 0; i < arguments->count; i++)
            if (add_tensor(run, arguments->buffers[i], DLPACK_FLAG_BITMASK_READ_ONLY) <
                0)
                return -1;
    }
    frame->input_count = frame->tensor_count;
    int64_t result_count = results->count - run->mutated_count;
    for (int64_t i = 0; i < result_count; i++)
        if (add_tensor(run, results->buffers[i], 0) < 0)
            return -1;
    return 0;
}

/* ---- the cache of calls that passed all checks ----
 *
 * Programs repeat the same dtypes and shapes. A call like a cached one needs no check
 * but that of its addresses: XLA guarantees that results have memory of their own. */

static inline const dlb_xla_buffer *buffer_at(const dlb_xla_call *call, int64_t index) {
    int64_t inputs = call->arguments.count;
    return index < inputs ? call->arguments.buffers[index]
                          : call->results.buffers[index - inputs];
}

static inline cached_call *find_place(const xla_run *run, const dlb_kernel *kernel) {
    const dlb_xla_buffers *arguments = &run->call->arguments;
    uint64_t key = kernel->serial;
    if (arguments->count > 0 && arguments->buffers[0]->rank > 0)
        key += (uint64_t)arguments->buffers[0]->dims[0] * 7;
    return &run->thread->calls[key % CACHED_CALLS];
}

/* Whether a buffer is like the cached one. Its strides are copied on the way, since a
 * call that the kernel leads to may replace the cached ones. */
static inline bool is_same_buffer(const dlb_xla_buffer *buffer,
                                  const cached_tensor *cached, int64_t *strides) {
    const int64_t *dims = buffer->dims;
    if (buffer->dtype != cached->xla_dtype || buffer->rank != cached->rank ||
        buffer->data == NULL)
        return false;
    for (int32_t d = 0; d < cached->rank; d++) {
        if (dims[d] != cached->dims[d])
            return false;
        strides[d] = cached->strides[d];
    }
    return true;
}

/* Fill in the tensors; false at the first that is not like the cached one. */
static inline bool fill_tensors(xla_run *run, const dlb_kernel *kernel,
                                const cached_call *cached) {
    int64_t *strides = run->first_room;
    uintptr_t addresses = 0;
    for (int32_t i = 0; i < cached->count; i++) {
        const dlb_xla_buffer *buffer = buffer_at(run->call, i);
        const cached_tensor *like = &cached->tensors[i];
        if (!is_same_buffer(buffer, like, strides))
            return false;
        run->frame.tensors[i] = (DLTensor){.data = buffer->data,
                                           .device = run->device,
                                           .ndim = like->rank,
                                           .dtype = like->dtype,
                                           .shape = buffer->dims,
                                           .strides = strides};
        run->frame.flags[i] =
            i < cached->input_count ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
        addresses |= (uintptr_t)buffer->data;
        strides += CACHED_RANK;
    }
    return dlb_is_aligned(kernel, addresses);
}

/* Scalars that are dimensions decide on shapes: such calls are checked. */
static inline bool has_plain_scalars(const dlb_frame *frame, const dlb_kernel *kernel) {
    const dlb_signature *signature = kernel->signature;
    int32_t count = signature ? signature->scalar_count : 0;
    if (frame->scalar_count != count || (signature && signature->has_sizes))
        return false;
    for (int32_t i = 0; i < count; i++)
        if (frame->scalars[i].kind != (int64_t)signature->scalars[i].kind)
            return false;
    return true;
}

static bool run_cached(xla_run *run, const dlb_kernel *kernel, int *status) {
    const cached_call *cached = find_place(run, kernel);
    const dlb_xla_call *call = run->call;
    dlb_frame *frame = &run->frame;
    if (cached->serial != kernel->serial || run->layout != NULL ||
        run->device.device_type != cached->device_type ||
        run->room != run->first_room || call->arguments.count != cached->input_count ||
        call->results.count != cached->count - cached->input_count ||
        !has_plain_scalars(frame, kernel) || !fill_tensors(run, kernel, cached))
        return false;
    frame->input_count = cached->input_count;
    frame->tensor_count = cached->count;
    *status = dlb_frame_invoke(kernel, cached->target, frame);
    return true;
}

static bool cache_tensor(cached_tensor *cached, const DLTensor *tensor,
                         const dlb_xla_buffer *buffer) {
    if (tensor->ndim > CACHED_RANK)
        return false;
    cached->xla_dtype = buffer->dtype;
    cached->rank = tensor->ndim;
    cached->dtype = tensor->dtype;
    for (int32_t d = 0; d < tensor->ndim; d++) {
        cached->dims[d] = tensor->shape[d];
        cached->strides[d] = tensor->strides[d];
    }
    return true;
}

static void cache_call(xla_run *run, const dlb_kernel *kernel) {
    cached_call *cached = find_place(run, kernel);
    const dlb_frame *frame = &run->frame;
    if (run->layout != NULL || frame->tensor_count > CACHED_TENSORS)
        return;
    cached->serial = 0;
    cached->device_type = run->device.device_type;
    cached->target = dlb_kernel_target(kernel, run->device);
    cached->count = frame->tensor_count;
    cached->input_count = frame->input_count;
    for (int32_t i = 0; i < frame->tensor_count; i++)
        if (!cache_tensor(&cached->tensors[i], &frame->tensors[i],
                          buffer_at(run->call, i)))
            return;
    cached->serial = cached->target ? kernel->serial : 0;
}

/* ---- the exceptions of eager calls ----
 *
 * XLA carries an error as a text. That of an eager call ends with a number, which the
 * caller exchanges for the exception itself; one that nobody asks for is forgotten
 * after a thousand further failures. A thread that waits for the GIL meanwhile may be
 * passed by a hundred failures of each other thread. */

enum { KEPT = 1024 };

DLB_LOCK(failure_lock)
static struct {
    uint64_t last;
    uint64_t numbers[KEPT]; /* 0: none */
    dlb_error errors[KEPT];
} failures;

/* Move the error out of `error`; return a number that is never 0. The lock is never
 * held while the GIL is waited for. */
static uint64_t keep_failure(dlb_error *error) {
    dlb_error old = {.kind = DLB_ERROR_NONE};
    pthread_mutex_lock(&failure_lock);
    uint64_t number = ++failures.last;
    int slot = (int)(number % KEPT);
    if (failures.numbers[slot] != 0)
        old = failures.errors[slot];
    failures.numbers[slot] = number;
    failures.errors[slot] = *error;
    pthread_mutex_unlock(&failure_lock);
    error->exception = NULL;
    dlb_error_clear(&old);
    return number;
}

static bool take_failure(uint64_t number, dlb_error *error) {
    int slot = (int)(number % KEPT);
    pthread_mutex_lock(&failure_lock);
    bool found = number != 0 && failures.numbers[slot] == number;
    if (found) {
        failures.numbers[slot] = 0;
        *error = failures.errors[slot];
    }
    pthread_mutex_unlock(&failure_lock);
    return found;
}

static uint64_t number_in(PyObject *exception) {
    static const char mark[] = " [dlbridge failure ";
    PyObject *text = PyObject_Str(exception);
    const char *found = NULL;
    uint64_t number = 0;
    if (text != NULL) {
        const char *characters = PyUnicode_AsUTF8(text);
        found = characters ? strstr(characters, mark) : NULL;
    }
    if (found != NULL)
        number = strtoull(found + sizeof mark - 1, NULL, 10);
    dlb_drop_error();
    Py_XDECREF(text);
    return number;
}

void dlb_xla_raise_failure(void) {
    PyObject *type, *value, *traceback;
    dlb_error error;
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && /* XLA's own, by its code */
        !PyErr_ExceptionMatches(PyExc_ValueError))
        return;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value != NULL && take_failure(number_in(value), &error)) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        dlb_raise(&error);
        return;
    }
    PyErr_Restore(type, value, traceback);
}

/* ---- errors and versions ---- */

static void *make_error(const dlb_xla_call *call, int code, const char *text) {
    dlb_xla_error_arguments arguments = {.message = text, .code = code};
    arguments.size = offsetof(dlb_xla_error_arguments, code) + sizeof arguments.code;
    return call->api->create_error(&arguments);
}

/* XLA refuses handlers of versions that it does not know; the structs read here are the
 * same in all versions with this major number, so its own number is the right answer.
 */
static bool answer_metadata(const dlb_xla_call *call) {
    for (dlb_xla_extension *at = call->extensions; at != NULL; at = at->next) {
        if (at->type != DLB_XLA_METADATA)
            continue;
        dlb_xla_metadata *metadata = ((dlb_xla_metadata_query *)at)->metadata;
        const dlb_xla_version *runtime = call->api ? &call->api->version : NULL;
        bool known = runtime != NULL && runtime->major == 0;
        metadata->version.size = offsetof(dlb_xla_version, minor) + sizeof(int);
        metadata->version.extensions = NULL;
        metadata->version.major = 0;
        metadata->version.minor = known ? runtime->minor : 1;
        metadata->traits = 0;
        return true;
    }
    return false;
}

/* ---- the kernel of a name ---- */

static inline bool is_same(const char *a, const char *b, size_t length) {
    uint64_t first, second;
    if (length < sizeof first)
        return memcmp(a, b, length) == 0;
    for (size_t at = 0; at + sizeof first < length; at += sizeof first) {
        memcpy(&first, a + at, sizeof first);
        memcpy(&second, b + at, sizeof second);
        if (first != second)
            return false;
    }
    memcpy(&first, a + length - sizeof first, sizeof first);
    memcpy(&second, b + length - sizeof second, sizeof second);
    return first == second;
}

static inline dlb_entry *find_entry(thread_cache *thread, const dlb_xla_span *name) {
    size_t slot = ((uintptr_t)name->data >> 4 ^ name->length) % CACHED_ENTRIES;
    dlb_entry *entry = thread->entries[slot].entry;
    if (entry != NULL && thread->entries[slot].length == name->length &&
        is_same(dlb_entry_name(entry), name->data, name->length))
        return entry;
    entry = dlb_registry_entry(name->data, name->length);
    thread->entries[slot].entry = entry;
    thread->entries[slot].length = name->length;
    return entry;
}

static void *unknown_kernel(const dlb_xla_call *call, const dlb_xla_span *name) {
    char text[DLB_ERROR_SIZE], shown[200];
    if (name == NULL)
        snprintf(text, sizeof text,
                 "dlbridge: this call carries no attribute `kernel` with a name");
    else
        snprintf(text, sizeof text,
                 "%s: no kernel of this name is known in this process; make it with "
                 "dlbridge.wrap(…, \"%s(…)\") before the program runs",
                 dlb_show_name(shown, sizeof shown, name->data, name->length), shown);
    return make_error(call, DLB_XLA_NOT_FOUND, text);
}

/* ---- one call ---- */

static bool agree_on_written(const dlb_kernel *kernel, const xla_run *run) {
    int32_t count = run->frame.input_count;
    if (count <= 32)
        return (dlb_written_inputs(kernel, count) & ~*run->missing) == *run->mutated;
    for (int32_t i = 0; i < count; i++)
        if (dlb_set_has(run->mutated, i) !=
            (dlb_writes_input(kernel, count, i) && !dlb_set_has(run->missing, i)))
            return false;
    return true;
}

/* A program may have been made with another schema than the kernel has now. */
static int check_program(const dlb_kernel *kernel, xla_run *run) {
    const dlb_signature *signature = kernel->signature;
    dlb_frame *frame = &run->frame;
    int results = frame->tensor_count - frame->input_count;
    if (signature != NULL && (frame->input_count != signature->input_count ||
                              results != signature->result_count ||
                              frame->scalar_count > signature->scalar_count))
        return dlb_frame_fail(
            frame, DLB_ERROR_VALUE,
            "%s: the compiled program passes %d tensors, %d results and %d scalars, "
            "but "
            "the kernel of this name takes %d, %d and %d; trace and export it again",
            kernel->name, frame->input_count, results, frame->scalar_count,
            signature->input_count, signature->result_count, signature->scalar_count);
    if (!agree_on_written(kernel, run))
        return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                              "%s: the compiled program and the kernel of this name do "
                              "not agree on which "
                              "tensors are written in place; trace and export it again",
                              kernel->name);
    while (signature != NULL && frame->scalar_count < signature->scalar_count)
        frame->scalars[frame->scalar_count++].kind = DLB_NONE;
    return 0;
}

/* Whether a result is one int64 or float64. */
static bool is_wide_number(const dlb_signature *signature, int32_t result) {
    const dlb_parameter *part = &signature->parameters[signature->input_count + result];
    const dlb_dtype_set *set = &signature->dtypes[part->dtype];
    if (part->dim_count != 0 || set->key_count != 1)
        return false;
    return set->keys[0] == dlb_dtype_key((DLDataType){kDLInt, 64, 1}) ||
           set->keys[0] == dlb_dtype_key((DLDataType){kDLFloat, 64, 1});
}

/* Without 64-bit numbers JAX has a number, or an extent that the kernel says, as two
 * int32. */
static void read_wide_numbers(const dlb_kernel *kernel, dlb_frame *frame) {
    const dlb_signature *signature = kernel->signature;
    DLDataType half = {kDLInt, 32, 1};
    for (int32_t i = 0; signature != NULL && i < signature->result_count; i++) {
        DLTensor *tensor = &frame->tensors[frame->input_count + i];
        if (tensor->ndim != 1 || tensor->shape[0] != 2 ||
            dlb_dtype_key(tensor->dtype) != dlb_dtype_key(half) ||
            !is_wide_number(signature, i))
            continue;
        uint32_t key =
            signature->dtypes[signature->parameters[signature->input_count + i].dtype]
                .keys[0];
        tensor->dtype.code = key & 0xFF;
        tensor->dtype.bits = 64;
        tensor->ndim = 0;
    }
}

static void *report(xla_run *run) {
    static const int codes[] = {
        [DLB_ERROR_TYPE] = DLB_XLA_INVALID_ARGUMENT,
        [DLB_ERROR_VALUE] = DLB_XLA_INVALID_ARGUMENT,
        [DLB_ERROR_BUFFER] = DLB_XLA_INVALID_ARGUMENT,
        [DLB_ERROR_KERNEL] = DLB_XLA_INTERNAL,
        [DLB_ERROR_PYTHON] = DLB_XLA_INTERNAL,
        [DLB_ERROR_MEMORY] = DLB_XLA_RESOURCE_EXHAUSTED,
    };
    dlb_error *error = &run->frame.error;
    char text[DLB_ERROR_SIZE + 32];
    int code = codes[error->kind];
    if (run->is_eager) {
        snprintf(text, sizeof text, "%s", error->text);
        size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, " [dlbridge failure %llu]",
                 (unsigned long long)keep_failure(error));
        return make_error(run->call, code, text);
    }
    void *made = make_error(run->call, code, error->text);
    dlb_error_clear(error);
    return made;
}

static inline void start(xla_run *run, const dlb_xla_call *call, DLDeviceType type) {
    static _Thread_local thread_cache thread;
    run->thread = &thread;
    dlb_frame_start(&run->frame, "jax.Array");
    run->call = call;
    run->device = (DLDevice){type, 0};
    run->kernel_name = run->layout = NULL;
    run->mutated = &run->few[0];
    run->missing = &run->few[1];
    run->few[0] = run->few[1] = 0;
    run->mutated_count = 0;
    run->is_eager = false;
    run->heap = NULL;
    run->room = run->first_room;
    run->room_end = run->room + sizeof run->first_room / sizeof *run->room;
}

/* Each call site has memory of its own, which is seldom in the nearest cache. Ask for
 * all of it at once: finding the kernel also waits for memory. */
static inline void fetch_ahead(const dlb_xla_buffers *buffers) {
    for (int64_t i = 0; i < buffers->count; i++)
        __builtin_prefetch(buffers->buffers[i]->dims);
}

/* For a large kernel. */
static int make_room(xla_run *run, const dlb_kernel *kernel) {
    dlb_frame *frame = &run->frame;
    if (dlb_frame_fit(kernel, frame) < 0 || frame->large == NULL)
        return frame->error.kind == DLB_ERROR_NONE ? 0 : -1;
    size_t words = (size_t)dlb_set_words(frame->room);
    run->mutated = (uint32_t *)get_room(run, 2 * words * sizeof *run->mutated);
    if (run->mutated == NULL)
        return -1;
    run->missing = run->mutated + words;
    memset(run->mutated, 0, 2 * words * sizeof *run->mutated);
    return 0;
}

static int run_kernel(const dlb_kernel *kernel, xla_run *run) {
    int status;
    run->kernel = kernel;
    if (run_cached(run, kernel, &status))
        return status;
    if (make_room(run, kernel) < 0 || read_operands(run) < 0 ||
        check_program(kernel, run) < 0 || check_mutated(run) < 0)
        return -1;
    read_wide_numbers(kernel, &run->frame);
    if (dlb_frame_bind(kernel, &run->frame) < 0 ||
        dlb_frame_check_results(kernel, &run->frame) < 0 || move_mutated(run) < 0)
        return -1;
    status = dlb_frame_run(kernel, &run->frame);
    if (status == 0)
        cache_call(run, kernel);
    return status;
}

static void *execute(const dlb_xla_call *call, DLDeviceType device_type) {
    xla_run run;
    if (call->extensions != NULL && answer_metadata(call))
        return NULL;
    __builtin_prefetch(call->attributes.types);
    if (call->attributes.count > 0)
        __builtin_prefetch(call->attributes.values[0]);
    fetch_ahead(&call->arguments);
    fetch_ahead(&call->results);
    start(&run, call, device_type);
    int status = read_attributes(&run);
    dlb_entry *entry = run.kernel_name ? find_entry(run.thread, run.kernel_name) : NULL;
    const dlb_kernel *kernel = entry ? dlb_entry_pin(entry) : NULL;
    void *error = NULL;
    if (kernel == NULL)
        error = unknown_kernel(call, run.kernel_name);
    else if (device_type != kDLCPU)
        error = read_device(&run);
    if (error == NULL && (status < 0 || run_kernel(kernel, &run) < 0))
        error = report(&run);
    if (kernel != NULL)
        dlb_entry_unpin(entry, kernel);
    free_room(&run);
    dlb_frame_end(&run.frame);
    return error;
}

/* ---- one handler for each platform, and what Python calls ---- */

static void *execute_cpu(dlb_xla_call *call) {
    return execute(call, kDLCPU);
}

static void *execute_cuda(dlb_xla_call *call) {
    return execute(call, kDLCUDA);
}

static void *execute_rocm(dlb_xla_call *call) {
    return execute(call, kDLROCM);
}

/* The compute stream of each device, as the program that asks for it has found it; 0:
 * nobody has asked. Not learnt from kernels, which XLA may run on other streams. */
static _Atomic dlb_stream compute_streams[DLB_MAX_DEVICES];

static void *note_stream(dlb_xla_call *call) {
    xla_run run;
    if (call->extensions != NULL && answer_metadata(call))
        return NULL;
    start(&run, call, kDLCUDA);
    void *error = read_device(&run);
    int32_t device = run.device.device_id;
    if (error == NULL && device >= 0 && device < DLB_MAX_DEVICES)
        atomic_store(&compute_streams[device], (dlb_stream)run.frame.stream);
    return error;
}

/* xla_stream(device): the compute stream, or 0. */
PyObject *dlb_xla_stream(PyObject *Py_UNUSED(module), PyObject *device) {
    long number = PyLong_AsLong(device);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    bool is_known = number >= 0 && number < DLB_MAX_DEVICES;
    return PyLong_FromUnsignedLongLong(is_known ? atomic_load(&compute_streams[number])
                                                : 0);
}

PyObject *dlb_xla_handler(PyObject *Py_UNUSED(module), PyObject *platform) {
    static const struct {
        const char *platform;
        void *(*handler)(dlb_xla_call *);
    } rows[] = {{"cpu", execute_cpu},
                {"CUDA", execute_cuda},
                {"ROCM", execute_rocm},
                {"stream", note_stream}};
    const char *name = PyUnicode_AsUTF8(platform);
    if (name == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].platform, name) == 0)
            return PyCapsule_New((void *)rows[i].handler, NULL, NULL);
    return PyErr_Format(PyExc_ValueError, "xla_handler: no handler for %R", platform);
}

PyObject *dlb_xla_call_eagerly(PyObject *Py_UNUSED(module), PyObject *const *args,
                               Py_ssize_t count) {
    if (count == 0)
        return PyErr_Format(PyExc_TypeError, "xla_call: no function");
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)count - 1, NULL);
    if (result == NULL)
        dlb_xla_raise_failure();
    return result;
}
