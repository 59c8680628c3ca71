/* The stable C functions of libtorch, found by name, and its numbers of dtypes and
 * devices, asked once. No Python here. */
#include "torch/torch.h"

#include <dlfcn.h>
#include <string.h>

dlb_torch_shim dlb_shim;

DLDataType dlb_shim_dtypes[DLB_SHIM_DTYPES];
static int8_t numbers[DLB_DTYPE_CODES][8]; /* by code and log2 of the bits; -1: none */
static int32_t cpu_type, cuda_type;
static DLDeviceType cuda_means = kDLCUDA;

typedef enum { REQUIRED, OF_OPERATORS, OPTIONAL } symbol_need;
static const struct {
    const char *name;
    void *target; /* where the address goes */
    symbol_need need;
} symbols[] = {
    {"aoti_torch_library_init_fragment", &dlb_shim.library_fragment, OF_OPERATORS},
    {"aoti_torch_library_init_impl", &dlb_shim.library_implementation, OF_OPERATORS},
    {"aoti_torch_library_def", &dlb_shim.define, OF_OPERATORS},
    {"aoti_torch_library_impl", &dlb_shim.implement, OF_OPERATORS},
    {"aoti_torch_delete_library_object", &dlb_shim.delete_library, OF_OPERATORS},
    {"aoti_torch_get_data_ptr", &dlb_shim.data_ptr, REQUIRED},
    {"aoti_torch_get_dim", &dlb_shim.ndim, REQUIRED},
    {"aoti_torch_get_sizes", &dlb_shim.sizes, REQUIRED},
    {"aoti_torch_get_strides", &dlb_shim.strides, REQUIRED},
    {"aoti_torch_get_dtype", &dlb_shim.dtype, REQUIRED},
    {"aoti_torch_get_device_type", &dlb_shim.device_type, REQUIRED},
    {"aoti_torch_get_device_index", &dlb_shim.device_index, REQUIRED},
    {"aoti_torch_get_storage_size", &dlb_shim.storage_size, REQUIRED},
    {"aoti_torch_get_storage_offset", &dlb_shim.storage_offset, REQUIRED},
    {"aoti_torch_empty_strided", &dlb_shim.empty_strided, REQUIRED},
    {"aoti_torch_delete_tensor_object", &dlb_shim.delete_tensor, REQUIRED},
    {"aoti_torch_check", &dlb_shim.check, REQUIRED},
    {"aoti_torch__reinterpret_tensor", &dlb_shim.alias, REQUIRED},
    {"torch_get_const_data_ptr", &dlb_shim.const_data_ptr, OPTIONAL},
    {"torch_delete_stable_ivalue", &dlb_shim.delete_boxed_value, OPTIONAL},
    {"torch_string_c_str", &dlb_shim.string_text, OPTIONAL},
    {"torch_delete_string", &dlb_shim.delete_string, OPTIONAL},
    {"torch_list_size", &dlb_shim.list_size, OPTIONAL},
    {"torch_list_get_item", &dlb_shim.list_item, OPTIONAL},
    {"torch_delete_list", &dlb_shim.delete_list, OPTIONAL},
    {"torch_exception_get_what_without_backtrace", &dlb_shim.exception_text, OPTIONAL},
};

static const struct {
    const char *name;
    DLDataType dtype;
} dtype_functions[] = {
    {"aoti_torch_dtype_bool", {kDLBool, 8, 1}},
    {"aoti_torch_dtype_int8", {kDLInt, 8, 1}},
    {"aoti_torch_dtype_int16", {kDLInt, 16, 1}},
    {"aoti_torch_dtype_int32", {kDLInt, 32, 1}},
    {"aoti_torch_dtype_int64", {kDLInt, 64, 1}},
    {"aoti_torch_dtype_uint8", {kDLUInt, 8, 1}},
    {"aoti_torch_dtype_uint16", {kDLUInt, 16, 1}},
    {"aoti_torch_dtype_uint32", {kDLUInt, 32, 1}},
    {"aoti_torch_dtype_uint64", {kDLUInt, 64, 1}},
    {"aoti_torch_dtype_float16", {kDLFloat, 16, 1}},
    {"aoti_torch_dtype_bfloat16", {kDLBfloat, 16, 1}},
    {"aoti_torch_dtype_float32", {kDLFloat, 32, 1}},
    {"aoti_torch_dtype_float64", {kDLFloat, 64, 1}},
    {"aoti_torch_dtype_complex32", {kDLComplex, 32, 1}},
    {"aoti_torch_dtype_complex64", {kDLComplex, 64, 1}},
    {"aoti_torch_dtype_complex128", {kDLComplex, 128, 1}},
    {"aoti_torch_dtype_float8_e4m3fn", {kDLFloat8_e4m3fn, 8, 1}},
    {"aoti_torch_dtype_float8_e4m3fnuz", {kDLFloat8_e4m3fnuz, 8, 1}},
    {"aoti_torch_dtype_float8_e5m2", {kDLFloat8_e5m2, 8, 1}},
    {"aoti_torch_dtype_float8_e5m2fnuz", {kDLFloat8_e5m2fnuz, 8, 1}},
    {"torch_dtype_float8_e8m0fnu", {kDLFloat8_e8m0fnu, 8, 1}},
    {"torch_dtype_float4_e2m1fn_x2", {kDLFloat4_e2m1fn, 4, 2}},
};

typedef int32_t (*number_function)(void);

static int32_t ask_number(void *library, const char *name) {
    void *found = dlsym(library, name);
    number_function function;
    memcpy(&function, &found, sizeof function);
    return found == NULL ? -1 : function();
}

static void ask_numbers(void *library) {
    memset(dlb_shim_dtypes, 0, sizeof dlb_shim_dtypes);
    memset(numbers, -1, sizeof numbers);
    for (size_t i = 0; i < sizeof dtype_functions / sizeof *dtype_functions; i++) {
        DLDataType dtype = dtype_functions[i].dtype;
        int32_t number = ask_number(library, dtype_functions[i].name);
        if (number < 0 || number >= DLB_SHIM_DTYPES)
            continue;
        dlb_shim_dtypes[number] = dtype;
        if (dtype.lanes == 1)
            numbers[dtype.code][__builtin_ctz(dtype.bits)] = (int8_t)number;
    }
    cpu_type = ask_number(library, "aoti_torch_device_type_cpu");
    cuda_type = ask_number(library, "aoti_torch_device_type_cuda");
}

const char *dlb_shim_open(const char *path, const char *hidden) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return path;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        bool is_hidden = hidden != NULL && strcmp(hidden, symbols[i].name) == 0;
        void *found = is_hidden ? NULL : dlsym(library, symbols[i].name);
        if (found == NULL && symbols[i].need == REQUIRED)
            return symbols[i].name;
        memcpy(symbols[i].target, &found, sizeof found);
    }
    ask_numbers(library);
    return NULL;
}

const char *dlb_shim_lacks_for_operators(void) {
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found;
        memcpy(&found, symbols[i].target, sizeof found);
        if (found == NULL && symbols[i].need == OF_OPERATORS)
            return symbols[i].name;
    }
    return NULL;
}

bool dlb_shim_open_cuda(const char *path) {
    void *library = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *stream =
        library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : NULL;
    memcpy(&dlb_shim.cuda_stream, &stream, sizeof stream);
    return stream != NULL;
}

void dlb_shim_set_rocm(bool is_rocm) {
    cuda_means = is_rocm ? kDLROCM : kDLCUDA;
}

int32_t dlb_shim_dtype_number(DLDataType dtype) {
    bool is_single = dtype.lanes == 1 && dtype.code < DLB_DTYPE_CODES &&
                     dtype.bits >= 8 && dtype.bits <= 128 &&
                     (dtype.bits & (dtype.bits - 1)) == 0;
    if (is_single)
        return numbers[dtype.code][__builtin_ctz(dtype.bits)];
    for (int32_t i = 0; i < DLB_SHIM_DTYPES; i++)
        if (dlb_dtype_key(dlb_shim_dtypes[i]) == dlb_dtype_key(dtype) &&
            dlb_shim_dtypes[i].bits != 0)
            return i;
    return -1;
}

int32_t dlb_shim_device_type(DLDeviceType type) {
    return type == kDLCPU ? cpu_type : type == cuda_means ? cuda_type : -1;
}

DLDevice dlb_shim_device(int32_t type, int32_t index) {
    if (type == cpu_type)
        return (DLDevice){kDLCPU, 0};
    if (type == cuda_type)
        return (DLDevice){cuda_means, index < 0 ? 0 : index};
    return (DLDevice){kDLExtDev, index < 0 ? 0 : index};
}

/* ---- new tensors ---- */

int dlb_shim_empty(int32_t ndim, const int64_t *shape, int32_t dtype,
                   int32_t device_type, int32_t device_index, dlb_torch_tensor *made) {
    int64_t strides[DLB_MAX_NDIM], step = 1;
    *made = NULL;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        strides[i] = step;
        if (__builtin_mul_overflow(step, shape[i] > 1 ? shape[i] : 1, &step))
            return -1;
    }
    if (dlb_shim.empty_strided(ndim, shape, strides, dtype, device_type, device_index,
                               made) == 0 &&
        *made != NULL)
        return 0;
    *made = NULL;
    return -1;
}
