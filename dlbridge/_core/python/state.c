/* What the Python package has set. */
#include "python/python.h"

dlb_state dlb;
