/* What is known of the inside of libtorch: C++ functions by their mangled names, and
 * where words lie in its objects. No header promises any of it. All stays closed until
 * Python hands in the places that were proved for the version of torch that is loaded
 * (native.torch_places); each is compared with known tensors, never searched for. */
#ifndef DLBRIDGE_CORE_TORCH_INTERNALS_H_
#define DLBRIDGE_CORE_TORCH_INTERNALS_H_

#include "core.h"

/* They take an at::Tensor, which is one pointer, or the TensorImpl that it points to.
 */
typedef struct {
    bool (*is_neg)(const void *tensor);
    bool (*is_conj)(const void *tensor);
    bool (*is_zerotensor)(const void *tensor);
    bool (*is_inference)(const void *tensor);
    bool (*requires_grad)(const void *impl);
    const void *const *(*forward_grad)(const void *impl, uint64_t level,
                                       const void *tensor);
    const void *undefined; /* the TensorImpl of no tensor */
    void (*bump_version)(const void *tensor);
    bool (*grad_enabled)(void);
    bool (*inference_enabled)(void);
    bool (*function_mode)(void);
    bool (*has_callbacks)(void);
    /* Returns a std::optional of callbacks through the pointer. */
    void *(*find_callbacks)(void *callbacks, uint8_t scope);
    void (*delete_value)(void *value); /* operator delete */
} dlb_torch_internals;
extern dlb_torch_internals dlb_internals;

/* Find them in the loaded libtorch_cpu and what it needs. NULL, or the name of what is
 * missing: "places" where nothing is proved. `hidden`: a name not to find, for tests.
 */
const char *dlb_internals_find(const char *path, const char *hidden);

/* Whether a derivative is wanted of what is done with the tensor now. */
static inline bool dlb_torch_wants_gradient(const void *tensor) {
    const void *impl = *(const void *const *)tensor;
    return (dlb_internals.requires_grad(impl) && dlb_internals.grad_enabled()) ||
           *dlb_internals.forward_grad(impl, 0, tensor) != dlb_internals.undefined;
}

/* Elements from the first to the last in memory, both included; 0: there are none. */
static inline int64_t dlb_torch_extent(const DLTensor *dl) {
    int64_t last = 0;
    for (int32_t i = 0; i < dl->ndim; i++) {
        if (dl->shape[i] == 0)
            return 0;
        last += (dl->shape[i] - 1) * dl->strides[i];
    }
    return last + 1;
}

#endif /* DLBRIDGE_CORE_TORCH_INTERNALS_H_ */
