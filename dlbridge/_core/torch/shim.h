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
    void (*check)(bool fine, const char *function, const char *file, uint32_t line,
                  const char *text); /* throws c10::Error */
    /* May be missing. */
    int (*const_data_ptr)(dlb_torch_tensor tensor, const void **data);
    int (*delete_boxed_value)(dlb_torch_value *value);
    int (*string_text)(dlb_torch_string string, const char **text);
    int (*delete_string)(dlb_torch_string string);
    const char *(*exception_text)(void);
    int (*cuda_stream)(int32_t device_index, void **stream);
} dlb_torch_shim;
extern dlb_torch_shim dlb_shim;

/* Find them in the libtorch_cpu that is loaded, and ask for its numbers. NULL, or the
 * name of what is missing. `hidden`: a name not to find (for tests), or NULL. */
const char *dlb_shim_open(const char *path, const char *hidden);
/* Find the function for streams in libtorch_cuda; NULL: none. False: it is missing. */
bool dlb_shim_open_cuda(const char *path);
void dlb_shim_set_rocm(bool is_rocm); /* which calls itself CUDA */
#define DLB_SHIM_DTYPES 64
extern DLDataType dlb_shim_dtypes[DLB_SHIM_DTYPES];
/* Of what torch numbers `dtype`; all 0 for a dtype that DLPack does not know. */
static inline DLDataType dlb_shim_dtype(int32_t dtype) {
    bool is_number = dtype >= 0 && dtype < DLB_SHIM_DTYPES;
    return is_number ? dlb_shim_dtypes[dtype] : (DLDataType){0, 0, 0};
}
int32_t dlb_shim_dtype_number(DLDataType dtype); /* -1: torch does not know it */
int32_t dlb_shim_device_type(DLDeviceType type); /* CPU or CUDA; -1: unknown */
DLDevice dlb_shim_device(int32_t type, int32_t index);

#endif /* DLBRIDGE_CORE_TORCH_SHIM_H_ */
