/* The operands of a call from XLA become the tensors of a frame; no memory is copied.
 * No Python here. */
#include "xla/xla.h"
#include "layout/layout.h"

#include <string.h>

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

static int add_tensor(dlb_xla_run *run, const dlb_xla_buffer *buffer, uint64_t flags) {
    dlb_frame *frame = &run->frame;
    int index = frame->tensor_count;
    if (index == DLB_MAX_TENSORS)
        return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                              "dlbridge: more than %d tensors in a call from XLA",
                              DLB_MAX_TENSORS);
    if (buffer->dtype < 0 || buffer->dtype >= (int)(sizeof dtypes / sizeof *dtypes) ||
        dtypes[buffer->dtype].bits == 0)
        return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                              "dlbridge: tensor %d has XLA's type number %d, which "
                              "DLPack has no dtype for",
                              index, buffer->dtype);
    int64_t *strides = dlb_xla_get_room(run, (size_t)buffer->rank * sizeof(int64_t));
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
static int add_mutated(dlb_xla_run *run, const dlb_xla_buffer *buffer) {
    const dlb_xla_buffers *results = &run->call->results;
    int index = run->frame.tensor_count;
    if (run->mutated_count >= results->count)
        return dlb_frame_fail(&run->frame, DLB_ERROR_VALUE,
                              "dlbridge: fewer results than tensors in place");
    if (add_tensor(run, buffer, 0) < 0)
        return -1;
    run->mutated |= 1u << index;
    run->mutated_count++;
    return 0;
}

static int pair_mutated(dlb_xla_run *run, int32_t result_count) {
    const dlb_xla_buffers *results = &run->call->results;
    dlb_frame *frame = &run->frame;
    for (int i = 0, next = result_count; i < frame->input_count; i++) {
        DLTensor *tensor = &frame->tensors[i];
        if (!(run->mutated >> i & 1))
            continue;
        void *data = results->buffers[next++]->data;
        if (data == tensor->data)
            continue;
        size_t nbytes = (size_t)dlb_packed_bytes(tensor->dtype, frame->flags[i],
                                                 dlb_element_count(tensor));
        if (run->device.device_type == kDLCPU)
            memcpy(data, tensor->data, nbytes);
        else if (dlb_xla_copy(run, data, tensor->data, nbytes) < 0)
            return -1;
        tensor->data = data;
    }
    return 0;
}

static int add_missing(dlb_xla_run *run) {
    dlb_frame *frame = &run->frame;
    if (frame->tensor_count == DLB_MAX_TENSORS)
        return dlb_frame_fail(frame, DLB_ERROR_VALUE, "dlbridge: too many tensors");
    frame->tensors[frame->tensor_count] = (DLTensor){.ndim = -1, .device = run->device};
    run->missing |= 1u << frame->tensor_count;
    frame->flags[frame->tensor_count++] = 0;
    return 0;
}

/* ---- the layout ---- */

typedef struct {
    dlb_xla_run *run;
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
    dlb_scalar *scalar = dlb_xla_new_scalar(cursor->run, letter - 'A');
    const dlb_xla_buffer *buffer = scalar ? next_scalars(cursor) : NULL;
    return buffer
               ? dlb_xla_read_scalar(cursor->run, scalar, buffer->dtype, buffer->data)
               : -1;
}

static int read_block(cursor *cursor) {
    const dlb_xla_buffer *buffer = next_scalars(cursor);
    if (buffer == NULL)
        return -1;
    int64_t pairs = (cursor->end - cursor->at) / 2;
    if (buffer->dtype != DLB_XLA_U32 || buffer->rank != 1 ||
        buffer->dims[0] != 2 * pairs)
        return dlb_frame_fail(&cursor->run->frame, DLB_ERROR_VALUE,
                              "dlbridge: the operand of scalars is no uint32[%lld]",
                              (long long)(2 * pairs));
    const char *data = buffer->data;
    for (; cursor->at + 1 < cursor->end; cursor->at += 2, data += sizeof(int64_t)) {
        dlb_scalar *scalar = dlb_xla_new_scalar(cursor->run, cursor->at[0] - 'A');
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

static int read_layout(dlb_xla_run *run) {
    const dlb_xla_span *layout = run->layout;
    cursor cursor = {run, layout->data, layout->data + layout->length, 0};
    while (cursor.at < cursor.end)
        if (read_letter(&cursor, *cursor.at++) < 0)
            return -1;
    return 0;
}

int dlb_xla_read_operands(dlb_xla_run *run) {
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
    return run->mutated ? pair_mutated(run, (int32_t)result_count) : 0;
}
