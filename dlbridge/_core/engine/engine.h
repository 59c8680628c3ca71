/* Used by the graph alone: programs, loops of ufuncs, functions for kernels of op
 * types. */
#ifndef DLBRIDGE_CORE_ENGINE_ENGINE_H_
#define DLBRIDGE_CORE_ENGINE_ENGINE_H_

#include "python/python.h"

/* ---- ops.c ---- */

/* The CRC-32C that follows `crc` (0 at first) after more bytes. */
uint32_t dlb_crc32c(uint32_t crc, const void *bytes, size_t size);

enum dlb_special { DLB_SPECIAL_ERF, DLB_SPECIAL_ERFC, DLB_SPECIAL_LOG_GAMMA };

/* Apply one of them to `count` numbers, double or float, in compact memory. */
void dlb_special(int function, bool is_float, const void *in, void *out, size_t count);

PyObject *dlb_join(PyObject *module, PyObject *buffers);

/* ---- program.c, loops.c ---- */
extern PyTypeObject dlb_ProgramType, dlb_FeedType, dlb_FetchType, dlb_LoopsType;
int dlb_loops_start(void);

/* ---- ufuncs.c: `sigmoid` of the module ---- */
int dlb_ufuncs_start(PyObject *module);

/* ---- calls.c ---- */
extern PyTypeObject dlb_QuietType, dlb_LookupType;

/* ---- transport.c ---- */
extern PyTypeObject dlb_TransportType, dlb_RendezvousType, dlb_EdgeType,
    dlb_StepNumbersType, dlb_ClusterCallType, dlb_InArenaType, dlb_LoanType;

#endif /* DLBRIDGE_CORE_ENGINE_ENGINE_H_ */
