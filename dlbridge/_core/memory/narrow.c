/* Copies of 64-bit numbers to 32 bits. They fail for integers that do not fit and for
 * finite numbers that would become infinite; others are rounded. */
#include "memory/copy.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* `count` numbers, `step` bytes apart, to compact ones: whether each may stand for the
 * one it was. */
typedef bool (*narrow_run)(void *to, const char *from, int64_t count, int64_t step);

#define NARROW_INTEGERS(name, wide, short)                                             \
    static bool name(void *to, const char *from, int64_t count, int64_t step) {        \
        bool is_kept = true;                                                           \
        for (int64_t i = 0; i < count; i++, from += step) {                            \
            wide value;                                                                \
            memcpy(&value, from, sizeof value);                                        \
            short made = (short)value;                                                 \
            is_kept &= made == value;                                                  \
            ((short *)to)[i] = made;                                                   \
        }                                                                              \
        return is_kept;                                                                \
    }
NARROW_INTEGERS(narrow_signed, int64_t, int32_t)
NARROW_INTEGERS(narrow_unsigned, uint64_t, uint32_t)

/* A finite number stays finite. */
static bool narrow_floats(void *to, const char *from, int64_t count, int64_t step) {
    bool is_kept = true;
    for (int64_t i = 0; i < count; i++, from += step) {
        double value;
        memcpy(&value, from, sizeof value);
        float made = (float)value;
        is_kept &= !(fabsf(made) > FLT_MAX && fabs(value) <= DBL_MAX);
        ((float *)to)[i] = made;
    }
    return is_kept;
}

static bool narrow_complex(void *to, const char *from, int64_t count, int64_t step) {
    bool is_kept = true;
    for (int64_t i = 0; i < count; i++)
        is_kept &= narrow_floats((float *)to + 2 * i, from + i * step, 2, 8);
    return is_kept;
}

static narrow_run run_of(DLDataType dtype) {
    static const struct {
        uint8_t code, bits;
        narrow_run run;
    } runs[] = {{kDLInt, 64, narrow_signed},
                {kDLUInt, 64, narrow_unsigned},
                {kDLFloat, 64, narrow_floats},
                {kDLComplex, 128, narrow_complex}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        if (dtype.code == runs[i].code && dtype.bits == runs[i].bits &&
            dtype.lanes == 1)
            return runs[i].run;
    return NULL;
}

bool dlb_narrower(DLDataType dtype, DLDataType *narrower) {
    *narrower = (DLDataType){dtype.code, dtype.bits / 2, 1};
    return run_of(dtype) != NULL;
}

bool dlb_copy_narrowed(void *to, const DLTensor *from) {
    narrow_run run = run_of(from->dtype);
    int64_t width = from->dtype.bits / 8, index[DLB_MAX_NDIM] = {0};
    int32_t inner = from->ndim - 1;
    int64_t count = inner < 0 ? 1 : from->shape[inner];
    int64_t step = inner < 0 ? 0 : from->strides[inner] * width;
    const char *at = from->data;
    bool is_kept = true;
    for (int32_t i = 0; i < from->ndim; i++)
        if (from->shape[i] == 0)
            return true;
    for (char *made = to;; made += count * width / 2) {
        is_kept &= run(made, at, count, step);
        int32_t i = inner - 1;
        for (; i >= 0 && ++index[i] == from->shape[i]; i--) {
            index[i] = 0;
            at -= (from->shape[i] - 1) * from->strides[i] * width;
        }
        if (i < 0)
            return is_kept;
        at += from->strides[i] * width;
    }
}
