/* The functions of TensorFlow's C API, found by name. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "tensorflow/tensorflow.h"

dlb_tensorflow_api dlb_tf;
DLDataType dlb_tf_dtypes[DLB_TF_DTYPES];

const char *dlb_tf_open(const char *library) {
    void *handle = dlopen(library, RTLD_NOLOAD | RTLD_NOW);
    if (handle == NULL)
        return "the library is not loaded";
    const struct {
        const char *name;
        void **function;
    } wanted[] = {
#define DLB_FIND(result, function, arguments)                                          \
    {"TF_" #function, (void **)(void *)&dlb_tf.function},
        DLB_TENSORFLOW_FUNCTIONS(DLB_FIND)
#undef DLB_FIND
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].function = dlsym(handle, wanted[i].name);
        if (*wanted[i].function == NULL)
            return wanted[i].name;
    }
    return NULL; /* `handle` stays open: the op refers to the library for good */
}
