/* Steps over blocks: the part of native.Loops that needs no Python. */
#include "engine/loops.h"

#include <fenv.h>

static void run_steps(const dlb_loop_step *step, int32_t count, char *const *pointers,
                      npy_intp length) {
    for (const dlb_loop_step *end = step + count; step < end; step++) {
        char *arguments[DLB_LOOP_OPERANDS];
        for (int i = 0; i < DLB_LOOP_OPERANDS; i++)
            arguments[i] = pointers[step->locations[i]];
        step->function(arguments, &length, step->strides, step->data);
    }
}

static void advance(const dlb_loops_frame *frame, npy_intp length) {
    for (int32_t i = 0; i < frame->stream_count; i++) {
        const dlb_loop_stream *stream = &frame->streams[i];
        char **pointer = &frame->pointers[stream->location];
        *pointer += length * stream->item_size;
        if (*pointer == stream->end)
            *pointer = stream->start;
    }
}

void dlb_loops_run(const dlb_loops_plan *plan, const dlb_loops_frame *frame) {
    run_steps(plan->once, plan->once_count, frame->pointers, 1);
    for (npy_intp row = 0; row < frame->count; row += frame->row)
        for (npy_intp done = 0, length; done < frame->row; done += length) {
            length =
                frame->row - done < frame->block ? frame->row - done : frame->block;
            run_steps(plan->steps, plan->step_count, frame->pointers, length);
            advance(frame, length);
        }
    /* The next ufunc must not warn of what was divided here. */
    if (fetestexcept(FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INVALID))
        feclearexcept(FE_ALL_EXCEPT);
}
