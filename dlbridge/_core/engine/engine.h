/* What only the graph uses: sums, special functions, bytes put together. */
#ifndef DLBRIDGE_CORE_ENGINE_ENGINE_H_
#define DLBRIDGE_CORE_ENGINE_ENGINE_H_

#include "python/python.h"

/* The CRC-32C that follows `crc` (0 at first) after more bytes. */
uint32_t dlb_crc32c(uint32_t crc, const void *bytes, size_t size);

enum dlb_special { DLB_SPECIAL_ERF, DLB_SPECIAL_ERFC, DLB_SPECIAL_LOG_GAMMA };

/* Apply one of them to `count` numbers, double or float, in compact memory. */
void dlb_special(int function, bool is_float, const void *in, void *out, size_t count);

/* ---- join.c ---- */
PyObject *dlb_join(PyObject *module, PyObject *buffers);

#endif /* DLBRIDGE_CORE_ENGINE_ENGINE_H_ */
