/* The memory of a call: blocks, buffers, and what points to them. */
#include "engine/loops.h"

#include <string.h>

/* ---- blocks ---- */

/* A suffix that is shorter than a block is laid out repeatedly in a buffer as long as a
 * block; a longer one is walked through, and blocks end where it ends. */
static bool is_repeated(const dlb_loops_call *at, const dlb_loops_operand *operand) {
    return operand->form == DLB_FORM_SUFFIX && operand->count <= at->plan->block &&
           operand->count < at->frame.count;
}

static void choose_blocks(dlb_loops_call *at) {
    dlb_loops_frame *frame = &at->frame;
    npy_intp period = 1, block = at->plan->block;
    frame->row = frame->count;
    for (int32_t i = 0; i < at->loops->input_count; i++) {
        const dlb_loops_operand *operand = &at->operands[i];
        if (operand->form != DLB_FORM_SUFFIX || operand->count == 0)
            continue;
        if (operand->count <= block && operand->count > period)
            period = operand->count;
        else if (operand->count > block && operand->count < frame->row)
            frame->row = operand->count;
    }
    block = block / period * period;
    frame->block = block < frame->row ? block : frame->row;
}

/* ---- memory ---- */

/* Registers that touch look as if they overlapped to some loops, which then take
 * another path. */
static size_t buffer_bytes(const dlb_loops_call *at, npy_intp item_size) {
    return dlb_loops_round_up((size_t)(at->frame.block * item_size)) +
           DLB_LOOP_ALIGNMENT;
}

dlb_loops_layout dlb_loops_lay_out(dlb_loops_call *at) {
    choose_blocks(at);
    const dlb_loops *loops = at->loops;
    const dlb_loops_plan *plan = at->plan;
    dlb_loops_layout layout = {0};
    layout.streams = dlb_loops_round_up((size_t)plan->location_count * sizeof(char *));
    size_t streams = (size_t)(loops->input_count + loops->output_count);
    layout.cells =
        layout.streams + dlb_loops_round_up(streams * sizeof(dlb_loop_stream));
    layout.buffers = layout.cells + DLB_LARGEST_ITEM * (size_t)(plan->first_register -
                                                                plan->first_cell);
    layout.buffers = dlb_loops_round_up(layout.buffers);
    layout.total = layout.buffers;
    for (int32_t i = 0; i < plan->location_count - plan->first_register; i++)
        layout.total += buffer_bytes(at, plan->item_sizes[i]);
    for (int32_t i = 0; i < loops->input_count; i++)
        if (is_repeated(at, &at->operands[i]))
            layout.total += buffer_bytes(at, dlb_loops_item_size(loops, i));
    return layout;
}

static void add_stream(dlb_loops_call *at, int32_t location, char *start,
                       npy_intp count, npy_intp item_size) {
    at->frame.pointers[location] = start;
    at->frame.streams[at->frame.stream_count++] =
        (dlb_loop_stream){location, item_size, start, start + count * item_size};
}

static char *repeat(const dlb_loops_call *at, const dlb_loops_operand *operand,
                    npy_intp item_size, char *buffer) {
    size_t bytes = (size_t)(operand->count * item_size);
    for (npy_intp done = 0; done < at->frame.block; done += operand->count)
        memcpy(buffer + done * item_size, operand->data, bytes);
    return buffer;
}

void dlb_loops_place(dlb_loops_call *at, char *memory, const dlb_loops_layout *layout) {
    const dlb_loops *loops = at->loops;
    const dlb_loops_plan *plan = at->plan;
    dlb_loops_frame *frame = &at->frame;
    char *buffer = memory + layout->buffers, *cell = memory + layout->cells;
    frame->pointers = (char **)memory;
    frame->streams = (dlb_loop_stream *)(memory + layout->streams);
    for (int32_t i = 0; i < loops->input_count; i++) {
        const dlb_loops_operand *operand = &at->operands[i];
        npy_intp item_size = dlb_loops_item_size(loops, i);
        if (is_repeated(at, operand)) {
            frame->pointers[i] = repeat(at, operand, item_size, buffer);
            buffer += buffer_bytes(at, item_size);
        } else if (operand->form & DLB_FORM_BLOCKS) {
            add_stream(at, i, operand->data, operand->count, item_size);
        } else
            frame->pointers[i] = operand->data;
    }
    for (int32_t i = 0; i < loops->output_count; i++)
        if (at->arrays[i] != NULL)
            add_stream(at, loops->input_count + i,
                       PyArray_DATA((PyArrayObject *)at->arrays[i]), frame->count,
                       dlb_loops_item_size(loops, loops->outputs[i]));
    for (int32_t i = plan->first_cell; i < plan->first_register; i++)
        frame->pointers[i] = cell + DLB_LARGEST_ITEM * (i - plan->first_cell);
    for (int32_t i = plan->first_register; i < plan->location_count; i++) {
        frame->pointers[i] = buffer;
        buffer += buffer_bytes(at, plan->item_sizes[i - plan->first_register]);
    }
}
