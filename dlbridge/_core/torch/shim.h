/* The functions of libtorch's C interface, found by name in the library that is
 * loaded: no torch headers, no Python. */
#ifndef DLBRIDGE_CORE_TORCH_SHIM_H_
#define DLBRIDGE_CORE_TORCH_SHIM_H_

#include "core.h"

typedef struct torch_tensor
    *dlb_torch_tensor; /* AtenTensorHandle: owned by its holder */
typedef struct torch_string *dlb_torch_string;
typedef struct torch_library *dlb_torch_library;
typedef uint64_t dlb_torch_value; /* StableIValue */
typedef void (*dlb_torch_boxed)(dlb_torch_value *stack, uint64_t inputs,
                                uint64_t outputs);

/* ---- shim.c: the functions of libtorch; those that return int return 0, or
 * something else for a C++ exception that was caught ---- */
typedef struct {
    int (*library_fragment)(const char *name_space, const char *file, uint32_t line,
                            dlb_torch_library *library);
    int (*library_implementation)(const char *name_space, const char *key,
                                  const char *file, uint32_t line,
                                  dlb_torch_library *library);
    int (*define)(dlb_torch_library library, const char *schema);
    int (*implement)(dlb_torch_library library, const char *name,
                     dlb_torch_boxed function);
    int (*delete_library)(dlb_torch_library library);
    int (*data_ptr)(dlb_torch_tensor tensor, void **data);
    int (*ndim)(dlb_torch_tensor tensor, int64_t *ndim);
    int (*sizes)(dlb_torch_tensor tensor, int64_t **sizes);
    int (*strides)(dlb_torch_tensor tensor, int64_t **strides);
    int (*dtype)(dlb_torch_tensor tensor, int32_t *dtype);
    int (*device_type)(dlb_torch_tensor tensor, int32_t *type);
    int (*device_index)(dlb_torch_tensor tensor, int32_t *index);
    int (*storage_size)(dlb_torch_tensor tensor, int64_t *bytes);
    int (*storage_offset)(dlb_torch_tensor tensor, int64_t *elements);
    int (*empty_strided)(int64_t ndim, const int64_t *sizes, const int64_t *strides,
                         int32_t dtype, int32_t device_type, int32_t device_index,
                         dlb_torch_tensor *result);
    int (*delete_tensor)(dlb_torch_tensor tensor);
    bool (*grad_enabled)(void);
    void (*check)(bool fine, const char *function, const char *file, uint32_t line,
                  const char *text); /* throws c10::Error */
    /* C++ functions: they take an at::Tensor, which a handle points to, or its
     * TensorImpl, to which that points. */
    bool (*requires_grad)(const void *impl);
    const void *const *(*forward_grad)(const void *impl, uint64_t level,
                                       dlb_torch_tensor tensor);
    const void *undefined; /* the TensorImpl of no tensor */
    bool (*is_inference)(dlb_torch_tensor tensor);
    bool (*inference_enabled)(void);
    void (*bump_version)(dlb_torch_tensor tensor);
    void (*delete_value)(void *value); /* of an optional argument */
    /* May be missing. */
    int (*const_data_ptr)(dlb_torch_tensor tensor, const void **data);
    int (*delete_boxed_value)(dlb_torch_value *value);
    int (*string_text)(dlb_torch_string string, const char **text);
    int (*delete_string)(dlb_torch_string string);
    const char *(*exception_text)(void);
    int (*cuda_stream)(int32_t device_index, void **stream);
} dlb_torch_shim;
extern dlb_torch_shim dlb_shim;

/* Find everything in the libtorch that is loaded from `path`. NULL, or the name of what
 * is missing. `hidden`: a name that is not looked for (for tests), or NULL. */
const char *dlb_shim_open(const char *path, const char *cuda_path, bool is_rocm,
                          const char *hidden);
/* Of what torch numbers `dtype`; all 0 for a dtype that DLPack does not know. */
DLDataType dlb_shim_dtype(int32_t dtype);
int32_t dlb_shim_dtype_number(DLDataType dtype); /* -1: torch does not know it */
int32_t dlb_shim_cpu_type(void);
DLDevice dlb_shim_device(int32_t type, int32_t index);

#endif /* DLBRIDGE_CORE_TORCH_SHIM_H_ */
