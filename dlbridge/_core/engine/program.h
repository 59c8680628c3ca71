/* A plan that runs in one call: functions over numbered slots.
 *
 * A slot is owned (filled by a step, released by a step or at the end) or lent (filled
 * with a constant or an argument, which somebody else keeps alive during the call).
 * Which slot is full at which step is known when the program is made (program_parse.c),
 * so running it (program.c) checks nothing. */
#ifndef DLBRIDGE_CORE_ENGINE_PROGRAM_H_
#define DLBRIDGE_CORE_ENGINE_PROGRAM_H_

#include "python/python.h"

#define DLB_DISCARDED (-1) /* an output that nobody wants */

typedef enum {
    DLB_STEP_COPY,    /* no function: the first output is the first input */
    DLB_STEP_BARE,    /* the result is the only output */
    DLB_STEP_SEVERAL, /* the result is a tuple or list of the outputs */
    DLB_STEP_IGNORED, /* the result is not looked at */
} dlb_program_form;

/* The slots of a step stand one after another in dlb_program.indices. */
typedef struct {
    PyObject *function; /* NULL for DLB_STEP_COPY */
    dlb_program_form form;
    int32_t first; /* where its slots start: inputs, outputs, slots to release */
    int32_t input_count, output_count, release_count;
} dlb_program_step;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    bool single; /* the only output is returned bare */
    int32_t slot_count;
    int32_t step_count;
    int32_t input_count;
    int32_t output_count;
    int32_t leftover_count; /* owned slots that are full after the last step */
    int32_t argument_room;  /* the most inputs of a step */
    dlb_program_step *steps;
    int32_t *indices;
    int32_t *inputs, *outputs, *leftovers;
    bool *moves;          /* by output: its slot gives its reference away */
    bool *lent;           /* by slot */
    PyObject **constants; /* by slot, NULL elsewhere: what a call starts from */
    PyObject *kept;       /* a second reference to each constant, see program_fetch.c */
    PyObject *on_error;   /* or NULL */
} dlb_program;

/* Fill in everything from the arguments of native.Program; what was filled in before a
 * failure is freed by the destructor. */
int dlb_program_parse(dlb_program *program, PyObject *args, PyObject *kwargs);

extern PyTypeObject dlb_ProgramType, dlb_FeedType, dlb_FetchType;

#endif /* DLBRIDGE_CORE_ENGINE_PROGRAM_H_ */
