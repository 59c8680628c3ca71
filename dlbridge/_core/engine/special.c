/* Special functions that NumPy lacks, from the C library. */
#include <math.h>

#include "engine/engine.h"

#define LOOP(name, type, function)                                                     \
    static void name(const void *in, void *out, size_t count) {                        \
        const type *x = in;                                                            \
        type *y = out;                                                                 \
        for (size_t i = 0; i < count; i++)                                             \
            y[i] = function(x[i]);                                                     \
    }

LOOP(erf_double, double, erf)
LOOP(erf_float, float, erff)
LOOP(erfc_double, double, erfc)
LOOP(erfc_float, float, erfcf)
LOOP(log_gamma_double, double, lgamma)
LOOP(log_gamma_float, float, lgammaf)

static void (*const LOOPS[][2])(const void *, void *, size_t) = {
    [DLB_SPECIAL_ERF] = {erf_double, erf_float},
    [DLB_SPECIAL_ERFC] = {erfc_double, erfc_float},
    [DLB_SPECIAL_LOG_GAMMA] = {log_gamma_double, log_gamma_float},
};

void dlb_special(int function, bool is_float, const void *in, void *out, size_t count) {
    LOOPS[function][is_float](in, out, count);
}
