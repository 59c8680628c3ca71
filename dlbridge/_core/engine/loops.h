/* A run of element-wise ufuncs in C, block by block.
 *
 * Values are numbered: inputs first, then the result of each instruction. What an input
 * is like (its form) differs from call to call; a plan serves all calls whose inputs
 * have the same forms. A plan knows where each value lies (its location): an input, an
 * output array, a cell (one element) or a register (one block of scratch memory).
 *
 *   loops_parse.c     what is run: inner loops found in the ufuncs
 *   loops_plan.c      forms -> locations, and steps in terms of them
 *   loops_run.c       steps over blocks; no Python
 *   loops_operands.c  arrays -> forms
 *   loops_memory.c    blocks, scratch memory
 *   loops.c           the call, its results, the type */
#ifndef DLBRIDGE_CORE_ENGINE_LOOPS_H_
#define DLBRIDGE_CORE_ENGINE_LOOPS_H_

#include "python/numpy.h"

#define DLB_LOOP_INPUTS 3 /* of one instruction */
#define DLB_LOOP_OPERANDS (DLB_LOOP_INPUTS + 1)
#define DLB_LOOP_ALIGNMENT 64
#define DLB_LARGEST_ITEM 16 /* bytes: complex128 */

typedef void (*dlb_inner_loop)(char **, const npy_intp *, const npy_intp *, void *);

/* What an input contributes to the shape of all; a value has the bits of all inputs
 * that it depends on. None: an element of rank 0. */
enum {
    DLB_FORM_FULL = 1,   /* the common shape */
    DLB_FORM_SUFFIX = 2, /* its last dims (and ones before), repeated */
    DLB_FORM_ONE = 4,    /* one element of a rank above 0 */
};
#define DLB_FORM_BLOCKS (DLB_FORM_FULL | DLB_FORM_SUFFIX)

typedef struct {
    dlb_inner_loop function;
    void *data;
    int32_t operands[DLB_LOOP_INPUTS];
    int32_t operand_count;
} dlb_instruction;

typedef struct {
    dlb_inner_loop function;
    void *data;
    const npy_intp *strides;
    int32_t locations[DLB_LOOP_OPERANDS]; /* operands, then the result; then 0 */
} dlb_loop_step;

typedef struct {
    int32_t references; /* under the GIL */
    bool declines;      /* an output has neither the common shape nor rank 0 */
    int32_t once_count, step_count;
    dlb_loop_step *once;  /* on cells, before the blocks */
    dlb_loop_step *steps; /* on each block */
    npy_intp *strides;
    int32_t *locations; /* by value */
    int32_t first_cell, first_register, location_count;
    unsigned char *item_sizes; /* by register: bytes of an element */
    npy_intp block;            /* elements that suit the cache */
    unsigned char *forms;      /* by input */
} dlb_loops_plan;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    bool single; /* the only output is returned bare */
    int32_t input_count, instruction_count, output_count;
    PyArray_Descr **descrs; /* by value */
    dlb_instruction *instructions;
    int32_t *outputs;     /* values */
    PyObject *kept;       /* the instructions as given: their ufuncs own the loops */
    PyObject *slow;       /* or NULL */
    dlb_loops_plan *plan; /* of the last call, or NULL */
} dlb_loops;

/* How a block moves through memory. */
typedef struct {
    int32_t location;
    npy_intp item_size;
    char *start, *end; /* where it starts again */
} dlb_loop_stream;

typedef struct {
    npy_intp count;      /* elements of the common shape */
    npy_intp block, row; /* blocks do not cross rows */
    int32_t stream_count;
    dlb_loop_stream *streams;
    char **pointers; /* by location */
} dlb_loops_frame;

/* An input of a call. */
typedef struct {
    char *data;
    npy_intp count;
    unsigned char form;
    _Alignas(DLB_LARGEST_ITEM) char cell[DLB_LARGEST_ITEM]; /* of a NumPy scalar */
} dlb_loops_operand;

typedef struct {
    const dlb_loops *loops;
    PyObject *const *values;
    dlb_loops_operand *operands;
    unsigned char *forms;
    PyArrayObject *widest; /* it has the common shape; NULL: all have rank 0 */
    const dlb_loops_plan *plan;
    dlb_loops_frame frame;
    /* By output, new arrays; NULL: it is none, or the one of an earlier output. */
    PyObject **arrays;
} dlb_loops_call;

/* Where the parts of the memory of a call start, and its size. */
typedef struct {
    size_t streams, cells, buffers, total;
} dlb_loops_layout;

/* ---- loops_parse.c ---- */
int dlb_loops_start(void);
int dlb_loops_parse(dlb_loops *loops, PyObject *args, PyObject *kwargs);

/* ---- loops_plan.c ---- */
dlb_loops_plan *dlb_loops_plan_new(const dlb_loops *loops, const unsigned char *forms);
void dlb_loops_plan_drop(dlb_loops_plan *plan);

/* ---- loops_operands.c ---- */
/* Fill in operands, forms and the common shape; false where only NumPy knows. */
bool dlb_loops_take(dlb_loops_call *call);

/* ---- loops_memory.c ---- */
dlb_loops_layout dlb_loops_lay_out(dlb_loops_call *call); /* chooses the blocks, too */
void dlb_loops_place(dlb_loops_call *call, char *memory,
                     const dlb_loops_layout *layout);

/* ---- loops_run.c ---- */
void dlb_loops_run(const dlb_loops_plan *plan, const dlb_loops_frame *frame);

extern PyTypeObject dlb_LoopsType;

static inline npy_intp dlb_loops_item_size(const dlb_loops *loops, int32_t value) {
    return PyDataType_ELSIZE(loops->descrs[value]);
}

static inline size_t dlb_loops_round_up(size_t bytes) {
    return (bytes + DLB_LOOP_ALIGNMENT - 1) / DLB_LOOP_ALIGNMENT * DLB_LOOP_ALIGNMENT;
}

#endif /* DLBRIDGE_CORE_ENGINE_LOOPS_H_ */
