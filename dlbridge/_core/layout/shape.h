/* The shape record of the TensorFlow C++ core: a tensor shape in 16 bytes.
 *
 * Bytes 0 to 11 hold the dimensions in the narrowest of three representations:
 *   tag 0, Rep16: up to 6 dimensions of at most 65533, as uint16
 *   tag 1, Rep32: up to 3 dimensions of at most 4294967293, as uint32
 *   tag 2, Rep64: any, as int64 on the heap; bytes 0 to 7 are the pointer
 * An unknown dimension is all ones. Byte 12 and whatever the dimensions leave over is
 * padding: zero here, arbitrary in TensorFlow, so records are compared by field. The
 * pointer of a Rep64 record leads to our own array, not to TensorFlow's vector: only
 * Rep16 and Rep32 may be handed to it.
 *
 * No function needs Python. Failure is a reason code, a static string; NULL is success.
 */
#ifndef DLBRIDGE_CORE_LAYOUT_SHAPE_H_
#define DLBRIDGE_CORE_LAYOUT_SHAPE_H_

#include <stdbool.h>
#include <stdint.h>

#define DLB_SHAPE_BYTES 16
#define DLB_SHAPE_MAX_RANK 254
#define DLB_SHAPE_UNKNOWN_RANK 255 /* as stored; rank -1 in calls */
#define DLB_SHAPE_REP16 0
#define DLB_SHAPE_REP32 1
#define DLB_SHAPE_REP64 2
#define DLB_SHAPE_MAX_REP16 65533
#define DLB_SHAPE_MAX_REP32 4294967293

typedef struct {
    uint8_t dims[12];
    uint8_t padding;
    uint8_t dtype; /* a TensorFlow DataType number inside a tensor, else 0 */
    uint8_t ndims;
    uint8_t tag;
} dlb_shape;

/* Fill `shape` from `rank` dimensions, each -1 (unknown) or its extent; rank -1:
 * unknown rank. "ndim": more than 254 dimensions; "shape": one below -1; "memory".
 * Failure leaves a valid record of unknown rank. Release what was packed before packing
 * again. */
const char *dlb_shape_pack(dlb_shape *shape, int32_t rank, const int64_t *dims);
/* Free what the record owns, and make it one of unknown rank. */
void dlb_shape_release(dlb_shape *shape);
/* -1: unknown rank */
int32_t dlb_shape_rank(const dlb_shape *shape);
/* Write all dimensions, room for the rank of them, and return the rank. */
int32_t dlb_shape_unpack(const dlb_shape *shape, int64_t *dims);
/* Whether a tensor of this shape may stand where the record is declared: the same rank
 * and dimensions, as far as they are known. */
bool dlb_shape_fits(const dlb_shape *shape, int32_t rank, const int64_t *dims);

#endif /* DLBRIDGE_CORE_LAYOUT_SHAPE_H_ */
