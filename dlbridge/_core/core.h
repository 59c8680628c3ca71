/* The contract of the core. Each folder says in its own headers what it offers;
 * tests/test_core_layers.py lists them from low to high.
 *
 * Ownership. Memory belongs to a `dlb_buffer`, counted by reference with atomics. A
 * Tensor, an exported managed tensor and a view each hold one reference. Whoever drops
 * the last one releases the memory, on any thread, with or without the GIL. `dlb_view`
 * is the currency between the ways in (take_*) and the ways out (give_*): a described
 * tensor plus one reference to its buffer.
 *
 * GIL. Functions that take or return a PyObject need it; all others neither need nor
 * take it. Releasing a buffer that keeps a Python object takes the GIL itself, and
 * leaks the object when the interpreter is gone.
 *
 * Failure. A function that returns a pointer returns NULL, one that returns int returns
 * -1, with a Python exception set. `take_*` functions may also return DLB_DECLINED:
 * nothing was consumed, no exception is set, and the caller asks the Python path, which
 * either succeeds or says why not. Layout functions need no Python: they return NULL or
 * a reason code, a static string that is a key of `dlbridge.errors.REASONS`.
 */
#ifndef DLBRIDGE_CORE_CORE_H_
#define DLBRIDGE_CORE_CORE_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dlpack.h"

/* No tensor of a higher rank is let in, whichever way it comes: by dlb_layout_check, or
 * before its shape is used where that is not called. Arrays on the stack rely on it. */
#define DLB_MAX_NDIM 254
#define DLB_KNOWN_FLAGS 7
#define DLB_DECLINED 1

static inline uint32_t dlb_dtype_key(DLDataType dtype) {
    return dtype.code | (uint32_t)dtype.bits << 8 | (uint32_t)dtype.lanes << 16;
}

#endif /* DLBRIDGE_CORE_CORE_H_ */
