/* The scalars and strings of a call from XLA. No Python here. */
#include "xla/xla.h"

#include <stdlib.h>
#include <string.h>

/* ---- room for strides and strings, as long as the call lasts ---- */

typedef struct dlb_xla_heap {
    struct dlb_xla_heap *next;
    int64_t words[];
} dlb_xla_heap;

int64_t *dlb_xla_get_room(dlb_xla_run *run, size_t bytes) {
    size_t words = (bytes + sizeof(int64_t) - 1) / sizeof(int64_t);
    if ((size_t)(run->room_end - run->room) < words) {
        dlb_xla_heap *heap = malloc(sizeof *heap + words * sizeof(int64_t));
        if (heap == NULL) {
            dlb_frame_fail(&run->frame, DLB_ERROR_MEMORY, "dlbridge: out of memory");
            return NULL;
        }
        heap->next = run->heap;
        run->heap = heap;
        return heap->words;
    }
    int64_t *room = run->room;
    run->room += words;
    return room;
}

void dlb_xla_free_room(dlb_xla_run *run) {
    while (run->heap != NULL) {
        dlb_xla_heap *next = run->heap->next;
        free(run->heap);
        run->heap = next;
    }
}

/* ---- scalars ---- */

dlb_scalar *dlb_xla_new_scalar(dlb_xla_run *run, int index) {
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

int dlb_xla_read_scalar(dlb_xla_run *run, dlb_scalar *scalar, int dtype,
                        const void *value) {
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

static int read_string(dlb_xla_run *run, dlb_scalar *scalar, const dlb_xla_span *span) {
    char *text = (char *)dlb_xla_get_room(run, span->length + 1);
    if (text == NULL)
        return -1;
    memcpy(text, span->data, span->length);
    text[span->length] = 0;
    scalar->kind = DLB_STRING;
    scalar->value.s = text;
    return 0;
}

/* ---- attributes ---- */

static int read_attribute(dlb_xla_run *run, const dlb_xla_span *name, int type,
                          const void *value) {
    const char *letters = name->data;
    if (letters[0] == 'k')
        run->kernel_name = type == DLB_XLA_STRING ? value : NULL;
    else if (letters[0] == 'l')
        run->layout = type == DLB_XLA_STRING ? value : NULL;
    else if (letters[0] == 'e')
        run->is_eager = true;
    else if (letters[0] == 's' && name->length == 3) {
        dlb_scalar *scalar =
            dlb_xla_new_scalar(run, (letters[1] - '0') * 10 + letters[2] - '0');
        if (scalar == NULL)
            return -1;
        if (type == DLB_XLA_STRING)
            return read_string(run, scalar, value);
        const dlb_xla_scalar *number = value;
        return dlb_xla_read_scalar(
            run, scalar, type == DLB_XLA_SCALAR ? number->dtype : 0, number->value);
    }
    return 0;
}

int dlb_xla_read_attributes(dlb_xla_run *run) {
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
