/* The contract of the core. Each folder says in its own headers what it offers;
 * tests/core/test_core_layers.py lists them from low to high.
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
 * Without a GIL (3.13t and later) a thread state takes its place, and others run
 * meanwhile. What several threads can reach is then one of these, and says which where
 * it stands:
 *   - immutable once it can be found. It is published by a store with release, and
 *     found by a load with acquire; what it replaces stays allocated, since somebody
 *     may still read it (types in peers/types.c, routes of a Converter, caches of a
 *     kernel);
 *     What Python code of all threads holds is also given to dlb_share (kernels,
 *     functions, dtypes, devices): else they would all count references in one place;
 *   - an atomic number or address, which stands for nothing else;
 *   - of one thread (_Thread_local), or one part of a sum for each (`dlb_live`);
 *   - a cache in a dict, used by dlb_cache_get and dlb_cache_put alone: no reference
 *     that is borrowed from a dict or list which others can change;
 *   - under a lock: DLB_LOCK in C, and where Python objects are involved DLB_EXCLUSIVE
 *     of the object that owns the state, which is a critical section: like the GIL, it
 *     is given up wherever the thread waits, so what holds must hold there;
 *   - set while the package is imported, under the import's lock: hooks, names of
 *     attributes, what adapters open.
 * With a GIL all of this costs nothing, or one load.
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
#define DLB_DTYPE_CODES 19 /* those of DLDataTypeCode are below */
/* Our own mark of memory that is READ_ONLY as the values of JAX and TensorFlow are, and
 * not because its producer says so: the policy immutable= decides where a consumer
 * cannot protect it. It comes with READ_ONLY, and never leaves the core. */
#define DLB_IMMUTABLE (UINT64_C(1) << 63)
#define DLB_DECLINED 1

static inline uint32_t dlb_dtype_key(DLDataType dtype) {
    return dtype.code | (uint32_t)dtype.bits << 8 | (uint32_t)dtype.lanes << 16;
}

static inline DLDataType dlb_dtype_of_key(uint32_t key) {
    return (DLDataType){(uint8_t)key, (uint8_t)(key >> 8), (uint16_t)(key >> 16)};
}

#endif /* DLBRIDGE_CORE_CORE_H_ */
