/* The functions of MPI, in the library that mpi4py has loaded. */
#include "python/python.h" /* first, as it asks for RTLD_NOLOAD in its own way */

#include "mpi/mpi.h"

#include <dlfcn.h>
#include <stdatomic.h>

static const char *const NAMES[] = {
    "MPI_Isend",     "MPI_Irecv",     "MPI_Improbe", "MPI_Mrecv",         "MPI_Test",
    "MPI_Get_count", "MPI_Finalized", "MPI_Cancel",  "MPI_Test_cancelled"};

_Static_assert(sizeof(dlb_mpi) == sizeof NAMES, "a name for each function");

/* MPI_Error_string, once a library was found: it is the same one in all of a process.
 */
static _Atomic(int (*)(int, char *, int *)) describe;

int dlb_mpi_find(dlb_mpi *mpi, const char *path) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD), **at = (void **)mpi;
    if (library == NULL) {
        dlb_raise_error("MPIError", "Transport: %s is not loaded", path);
        return -1;
    }
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        at[i] = dlsym(library, NAMES[i]);
        if (at[i] == NULL) {
            dlb_raise_error("MPIError", "Transport: the MPI library has no function %s",
                            NAMES[i]);
            dlclose(library);
            return -1;
        }
    }
    int (*found)(int, char *, int *);
    *(void **)&found = dlsym(library, "MPI_Error_string");
    atomic_store(&describe, found);
    return 0; /* the library stays open: MPI cannot be unloaded */
}

int dlb_mpi_failed(const char *function, int code, int peer) {
    char text[1024] = ""; /* more than any library has */
    char whose[64] = "";
    int size = 0;
    int (*known)(int, char *, int *) = atomic_load(&describe);
    if (known == NULL || known(code, text, &size) != 0)
        text[0] = '\0';
    if (peer >= 0)
        snprintf(whose, sizeof whose, " for a message to or from rank %d,", peer);
    dlb_raise_error("MPIError", "%s failed%s with the code %d of the MPI library%s%s",
                    function, whose, code, text[0] == '\0' ? "" : ": ", text);
    return -1;
}
