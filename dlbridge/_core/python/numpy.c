/* NumPy's C API, fetched. */
#define DLB_NUMPY_HOME
#include "python/numpy.h"

int dlb_numpy_start(void) {
    import_array1(-1);
    return 0;
}
