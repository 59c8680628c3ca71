/* Kernels that are Python functions: one call, and the tensors lent to it. All of this
 * needs the GIL. */
#ifndef DLBRIDGE_CORE_ABI_PYTHON_H_
#define DLBRIDGE_CORE_ABI_PYTHON_H_

#include "kernel/python.h"

/* A function, and how it wants to be called; `dlb_target.user` of the convention
 * "python". Made by dlbridge/kernels/kinds/python_kernel.py. */
typedef struct {
    PyObject_HEAD
    PyObject *function;
    PyObject *converter;     /* makes what the function is given */
    PyObject *framework;     /* its name, a str */
    PyObject *support;       /* the Python half of what is rare, see `Support` */
    PyObject *tensor_names;  /* inputs, then results; empty without a schema */
    PyObject *keyword_names; /* the scalars, then "stream" and "out" as wanted */
    int takes_stream;
    int takes_out;       /* writes its results into `out=`, instead of returning them */
    int protects;        /* the framework keeps read-only memory from being written */
    int counts_versions; /* or tells afterwards: its tensors have `_version` */
} dlb_python_function;
extern PyTypeObject dlb_PythonFunctionType;
PyObject *dlb_inside_xla(PyObject *module, PyObject *unused);

/* One tensor on loan. The memory is the caller's, or, where the framework could not
 * represent it, a copy in row-major order. */
typedef struct {
    PyObject *object;   /* what the function gets */
    dlb_buffer *buffer; /* our reference: the last one, once the loan is over */
    bool is_copy;       /* of memory that is counted: may be kept */
    bool write_back;    /* a copy of what the function writes */
    bool watched;       /* must not be written */
} dlb_python_loan;

typedef struct {
    const dlb_kernel *kernel;
    const dlb_python_function *self;
    dlb_frame *frame;
    int argument_count, result_count; /* tensors; without a schema all are arguments */
    int lent;                         /* how many of `loans` are filled in */
    dlb_python_loan loans[DLB_MAX_TENSORS];
} dlb_python_call;

/* ---- python_loan.c ---- */
/* Fill in loan `index`, of the tensor of that index. -1 with a Python error. */
int dlb_lend(dlb_python_call *call, int index);
/* The caller's tensor of that index as memory on loan; NULL: no memory. Ending it
 * drops it, and orders what was done with it before the caller's next work: -1 with the
 * error in the frame. */
dlb_buffer *dlb_new_loan(const dlb_python_call *call, int index);
int dlb_end_loan(dlb_python_call *call, dlb_buffer *loan);
/* Copy back what was written into copies. -1 with a Python error. */
int dlb_loans_write_back(dlb_python_call *call);
/* Take every loan back, whatever happened; what was kept or written against the rules
 * is an error in the frame: -1. No Python error is set before or after. */
int dlb_loans_end(dlb_python_call *call);
/* For texts: valid until the next call. */
const char *dlb_tensor_name(const dlb_python_call *call, int index, char room[32]);

/* ---- python_result.c ---- */
/* Check what the function returned and copy it into the results. -1 with a Python
 * error. */
int dlb_return_results(dlb_python_call *call, PyObject *value);

/* ---- python_save.c ---- */
/* Give a Tensor, or a NumPy array over one, memory of its own with the values of
 * `tensor`, over whose memory it lies. Views of it keep the old address: they cannot be
 * found. false: it is something else. */
bool dlb_save(PyObject *object, const DLTensor *tensor);

#endif /* DLBRIDGE_CORE_ABI_PYTHON_H_ */
