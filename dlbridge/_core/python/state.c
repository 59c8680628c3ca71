/* The state that the Python package sets. */
#include "python/python.h"

dlb_state dlb;
