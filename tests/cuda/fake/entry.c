/* How frameworks find the driver's functions: by name and version. */
#include "fake.h"

#include <dlfcn.h>
#include <stdio.h>

static void *own_library(void) {
    static void *library;
    Dl_info info;
    if (library == NULL && dladdr((void *)&own_library, &info) != 0)
        library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    return library;
}

/* The newest of the versions that are here. */
static void *find(const char *name) {
    static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
    char symbol[128];
    void *library = own_library();
    for (size_t i = 0; library != NULL && i < sizeof suffixes / sizeof *suffixes; i++) {
        snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
        void *found = dlsym(library, symbol);
        if (found != NULL)
            return found;
    }
    return NULL;
}

/* VERSION_NOT_SUFFICIENT would be 1, SYMBOL_NOT_FOUND is 2. */
API CUresult cuGetProcAddress_v2(const char *symbol, void **pointer, int version,
                                 uint64_t flags, int *status) {
    (void)version, (void)flags;
    bool is_renamed = strcmp(symbol, "cuGraphInstantiate") == 0; /* since CUDA 12 */
    *pointer = find(is_renamed ? "cuGraphInstantiateWithFlags" : symbol);
    if (status != NULL)
        *status = *pointer != NULL ? 0 : 2;
    return *pointer != NULL ? SUCCESS : NOT_FOUND;
}

API CUresult cuGetExportTable(const void **table, const void *id) {
    (void)id;
    *table = NULL;
    return NOT_FOUND;
}
