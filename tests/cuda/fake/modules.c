/* Modules and libraries: any image that looks like one has all kernels. */
#include "fake.h"

/* PTX text, an ELF file, a fat binary, or "fake". */
static bool is_image(const char *image) {
    static const char *const starts[] = {"fake",
                                         "//",
                                         ".version",
                                         "\x7f"
                                         "ELF",
                                         "\x50\xed\x55\xba",
                                         "\x0a//",
                                         "\n."};
    for (size_t i = 0; image != NULL && i < sizeof starts / sizeof *starts; i++)
        if (strncmp(image, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

static CUresult load(struct module **module, const void *image,
                     struct context *context) {
    if (!is_image(image))
        return refuse(INVALID_IMAGE, "no image of a module");
    *module = handle_new(ANY_MODULE, sizeof **module);
    (*module)->context = context;
    return SUCCESS;
}

static CUresult load_here(CUmodule *module, const void *image) {
    struct context *context = context_current();
    if (context == NULL)
        return refuse(INVALID_CONTEXT, "no current context to load a module in");
    return load(module, image, context);
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CALL(UNSAFE, "cuModuleLoadData")
    return call_end(&call, load_here(module, image));
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                void *options, void **values) {
    CALL(UNSAFE, "cuModuleLoadDataEx")(void) count, (void)options, (void)values;
    return call_end(&call, load_here(module, image));
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *image, void *options,
                               void **values, unsigned int count, void *more,
                               void **more_values, unsigned int more_count) {
    CALL(UNSAFE, "cuLibraryLoadData")(void) count, (void)options, (void)values;
    (void)more_count, (void)more, (void)more_values;
    return call_end(&call, load(library, image, NULL));
}

/* Kernels of the module may be running: the driver waits before it takes their code. */
static CUresult unload(struct module *module) {
    if (!handle_is(module, ANY_MODULE))
        return refuse(INVALID_HANDLE, "%p is no module", (void *)module);
    CUresult result = host_waits_implicitly(module->context);
    deferred_flush(NULL);
    if (result == SUCCESS)
        handle_retire(module, ANY_MODULE);
    return result;
}

API CUresult cuModuleUnload(CUmodule module) {
    CALL(UNSAFE, "cuModuleUnload")
    return call_end(&call, unload(module));
}

API CUresult cuLibraryUnload(CUlibrary library) {
    CALL(UNSAFE, "cuLibraryUnload")
    return call_end(&call, unload(library));
}

bool function_is(const struct function *function) {
    return handle_is(function, ANY_FUNCTION) && handle_is(function->module, ANY_MODULE);
}

static CUresult no_function(const struct function *function) {
    return refuse(INVALID_HANDLE, "%p is no kernel, or its module was unloaded",
                  (const void *)function);
}

static CUresult get_function(CUfunction *function, struct module *module,
                             const char *name) {
    if (!handle_is(module, ANY_MODULE))
        return refuse(INVALID_HANDLE, "%p is no module", (void *)module);
    const kernel_entry *kernel = kernel_find(name);
    if (kernel == NULL)
        return NOT_FOUND;
    *function = handle_new(ANY_FUNCTION, sizeof **function);
    **function = (struct function){module, module->context, kernel,
                                   FREE_SHARED - kernel->statics};
    return SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module,
                                 const char *name) {
    CALL(SAFE, "cuModuleGetFunction")
    return call_end(&call, get_function(function, module, name));
}

API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    CALL(SAFE, "cuLibraryGetKernel")
    return call_end(&call, get_function(kernel, library, name));
}

API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CALL(SAFE, "cuKernelGetFunction")
    struct context *context = context_current();
    if (context == NULL)
        return call_end(&call, refuse(INVALID_CONTEXT, "no current context"));
    if (!function_is(kernel))
        return call_end(&call, no_function(kernel));
    *function = handle_new(ANY_FUNCTION, sizeof **function);
    **function = (struct function){kernel->module, context, kernel->kernel,
                                   kernel->shared_limit};
    return call_end(&call, SUCCESS);
}

/* ---- attributes ---- */

/* MAX_THREADS_PER_BLOCK 0, SHARED_SIZE_BYTES 1, NUM_REGS 4, PTX_VERSION 5,
 * BINARY_VERSION 6, MAX_DYNAMIC_SHARED_SIZE_BYTES 8 */
static CUresult get_attribute(int *value, int attribute, CUfunction function) {
    if (!function_is(function))
        return no_function(function);
    const int known[] = {1024, function->kernel->statics, 0, 0, 16, 90, 90,
                         0,    function->shared_limit};
    *value = attribute >= 0 && attribute <= 8 ? known[attribute] : 0;
    return SUCCESS;
}

static CUresult set_attribute(CUfunction function, int attribute, int value) {
    if (!function_is(function))
        return no_function(function);
    if (attribute == 8 &&
        (value < 0 || value > MOST_SHARED - function->kernel->statics))
        return INVALID_VALUE;
    if (attribute == 8)
        function->shared_limit = value;
    return SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    CALL(SAFE, "cuFuncGetAttribute")
    return call_end(&call, get_attribute(value, attribute, function));
}

API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    CALL(SAFE, "cuFuncSetAttribute")
    return call_end(&call, set_attribute(function, attribute, value));
}

API CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel,
                                  CUdevice device) {
    CALL(SAFE, "cuKernelGetAttribute", .device = device)
    return call_end(&call, get_attribute(value, attribute, kernel));
}

API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel,
                                  CUdevice device) {
    CALL(SAFE, "cuKernelSetAttribute", .device = device)
    return call_end(&call, set_attribute(kernel, attribute, value));
}

static CUresult get_parameter(CUfunction function, size_t index, size_t *offset,
                              size_t *size) {
    if (!function_is(function))
        return no_function(function);
    const char *sizes = function->kernel->sizes;
    size_t at = 0;
    if (index >= strlen(sizes))
        return INVALID_VALUE;
    for (size_t i = 0; i <= index; i++) {
        size_t step = parameter_alignment(sizes[i]);
        *offset = at = (at + step - 1) / step * step;
        at += *size = parameter_size(sizes[i]);
    }
    return SUCCESS;
}

API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset,
                                size_t *size) {
    CALL(SAFE, "cuFuncGetParamInfo")
    return call_end(&call, get_parameter(function, index, offset, size));
}

API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset,
                                  size_t *size) {
    CALL(SAFE, "cuKernelGetParamInfo")
    return call_end(&call, get_parameter(kernel, index, offset, size));
}

API CUresult cuFuncGetName(const char **name, CUfunction function) {
    CALL(SAFE, "cuFuncGetName")
    if (!function_is(function))
        return call_end(&call, no_function(function));
    *name = function->kernel->name;
    return call_end(&call, SUCCESS);
}
