/* Copy sub-byte elements: bit i of memory is bit i % 8 of byte i / 8, low bits first.
 */
#include <string.h>

#include "memory/copy.h"

/* Byte and bit of a signed bit offset, rounding down. */
static int64_t byte_of(int64_t bit) {
    return (bit - (bit & 7)) / 8;
}

/* Up to 8 bits from `bit` on; reads no byte that holds none of them. */
static unsigned get_bits(const uint8_t *from, int64_t bit, unsigned width) {
    unsigned shift = (unsigned)(bit & 7);
    const uint8_t *at = from + byte_of(bit);
    unsigned value = *at;
    if (shift + width > 8)
        value |= (unsigned)at[1] << 8;
    return value >> shift & ((1u << width) - 1);
}

static void set_bits(uint8_t *to, int64_t bit, unsigned width, unsigned value) {
    unsigned shift = (unsigned)(bit & 7), mask = ((1u << width) - 1) << shift;
    uint8_t *at = to + byte_of(bit);
    value <<= shift;
    at[0] = (uint8_t)((at[0] & ~mask) | (value & mask));
    if (shift + width > 8)
        at[1] = (uint8_t)((at[1] & ~(mask >> 8)) | (value >> 8 & mask >> 8));
}

/* A run of any length: bytes at once where both sides lie on a byte boundary. */
static void copy_run(uint8_t *to, int64_t to_bit, const uint8_t *from, int64_t from_bit,
                     int64_t count) {
    if ((to_bit & 7) == 0 && (from_bit & 7) == 0) {
        int64_t bytes = count / 8;
        memcpy(to + byte_of(to_bit), from + byte_of(from_bit), (size_t)bytes);
        to_bit += bytes * 8;
        from_bit += bytes * 8;
        count -= bytes * 8;
    }
    for (int64_t done = 0; done < count; done += 8) {
        unsigned width = count - done < 8 ? (unsigned)(count - done) : 8;
        set_bits(to, to_bit + done, width, get_bits(from, from_bit + done, width));
    }
}

/* What readers of padded elements, such as ml_dtypes, expect in the bits that fill the
 * byte. */
static uint8_t widen(unsigned value, unsigned width, bool is_signed) {
    bool is_negative = is_signed && value >> (width - 1);
    return (uint8_t)(is_negative ? value | (0xffu << width) : value);
}

void dlb_copy_bits(dlb_copy_plan *plan) {
    int64_t index[DLB_MAX_NDIM + 1];
    int64_t to_bit = plan->destination_start, from_bit = plan->source_start;
    uint8_t *to = (uint8_t *)plan->destination;
    const uint8_t *from = (const uint8_t *)plan->source;
    unsigned width = (unsigned)plan->unit;
    memset(index, 0, (size_t)plan->ndim * sizeof *index);
    do {
        if (plan->is_widened)
            to[byte_of(to_bit)] =
                widen(get_bits(from, from_bit, width), width, plan->is_signed);
        else
            copy_run(to, to_bit, from, from_bit, plan->unit);
    } while (dlb_copy_advance(plan->loops, plan->ndim, index, &to_bit, &from_bit));
}
