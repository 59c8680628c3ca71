/* Plans of native.Loops: where values lie, and which memory is used again. */
#include "engine/loops.h"

#include <string.h>

#define NOWHERE (-1)
#define SIZES 5            /* bytes of an element: 1, 2, 4, 8, 16 */
#define CACHE (24 << 10)   /* bytes that one block of all values should take */
#define SHORTEST_BLOCK 512 /* elements; below, calls cost more than arithmetic */
#define LONGEST_BLOCK 8192

/* Working memory, by value. */
typedef struct {
    const dlb_loops *loops;
    dlb_loops_plan *plan;
    unsigned char *forms; /* what the value depends on */
    int32_t *last_uses;   /* instruction, or NOWHERE: nobody needs the value */
    int32_t *free_next;   /* by register: lists of those that are free, by size */
    int32_t free_first[SIZES];
    int32_t register_count, cell_count;
    npy_intp *strides; /* the end of the plan's */
} planner;

static bool is_output(const dlb_loops *loops, int32_t value, int32_t *index) {
    for (*index = 0; *index < loops->output_count; ++*index)
        if (loops->outputs[*index] == value)
            return true;
    return false;
}

/* ---- which values are needed, and until when ---- */

static void find_last_uses(planner *at) {
    const dlb_loops *loops = at->loops;
    int32_t inputs = loops->input_count;
    for (int32_t v = 0; v < inputs + loops->instruction_count; v++)
        at->last_uses[v] = NOWHERE;
    for (int32_t i = 0; i < loops->output_count; i++)
        at->last_uses[loops->outputs[i]] = loops->instruction_count;
    for (int32_t i = loops->instruction_count - 1; i >= 0; i--) {
        const dlb_instruction *instruction = &loops->instructions[i];
        for (int k = 0;
             at->last_uses[inputs + i] != NOWHERE && k < instruction->operand_count;
             k++)
            if (at->last_uses[instruction->operands[k]] == NOWHERE)
                at->last_uses[instruction->operands[k]] = i;
    }
}

static void find_forms(planner *at, const unsigned char *forms) {
    const dlb_loops *loops = at->loops;
    memcpy(at->forms, forms, (size_t)loops->input_count);
    for (int32_t i = 0; i < loops->instruction_count; i++) {
        int32_t value = loops->input_count + i;
        at->forms[value] = 0;
        for (int k = 0; k < loops->instructions[i].operand_count; k++)
            at->forms[value] |= at->forms[loops->instructions[i].operands[k]];
        at->cell_count += at->last_uses[value] != NOWHERE &&
                          (at->forms[value] & DLB_FORM_BLOCKS) == 0;
    }
    for (int32_t i = 0; i < loops->output_count; i++) {
        int32_t value = loops->outputs[i];
        if (value >= loops->input_count && at->forms[value] != 0 &&
            (at->forms[value] & DLB_FORM_FULL) == 0)
            at->plan->declines = true;
    }
}

/* ---- registers ---- */

static int size_class(npy_intp bytes) {
    return __builtin_ctzl((unsigned long)bytes);
}

static int32_t take_register(planner *at, npy_intp bytes) {
    int32_t *first = &at->free_first[size_class(bytes)], number = *first;
    if (number != NOWHERE) {
        *first = at->free_next[number];
        return number;
    }
    at->plan->item_sizes[at->register_count] = (unsigned char)bytes;
    return at->register_count++;
}

/* Results may lie where an operand of the same size was: loops work element by element,
 * and NumPy has them work in place, too. */
static void release_registers(planner *at, int32_t index) {
    const dlb_instruction *instruction = &at->loops->instructions[index];
    for (int k = 0; k < instruction->operand_count; k++) {
        int32_t value = instruction->operands[k],
                number = at->plan->locations[value] - at->plan->first_register;
        if (at->last_uses[value] != index || number < 0)
            continue;
        at->last_uses[value] = NOWHERE; /* it may be an operand twice */
        int32_t *first =
            &at->free_first[size_class(dlb_loops_item_size(at->loops, value))];
        at->free_next[number] = *first;
        *first = number;
    }
}

static int32_t find_location(planner *at, int32_t index) {
    const dlb_loops *loops = at->loops;
    int32_t value = loops->input_count + index, output;
    if ((at->forms[value] & DLB_FORM_BLOCKS) == 0)
        return at->plan->first_cell + at->cell_count++;
    release_registers(at, index);
    if (at->last_uses[value] == loops->instruction_count &&
        is_output(loops, value, &output))
        return loops->input_count + output;
    return at->plan->first_register +
           take_register(at, dlb_loops_item_size(loops, value));
}

/* ---- steps ---- */

static npy_intp stride(const planner *at, int32_t value) {
    bool moves = (at->forms[value] & DLB_FORM_BLOCKS) != 0;
    return moves ? dlb_loops_item_size(at->loops, value) : 0;
}

/* Most steps have the strides of the step before. */
static const npy_intp *share_strides(planner *at, const npy_intp *strides) {
    size_t bytes = DLB_LOOP_OPERANDS * sizeof *strides;
    if (at->strides == at->plan->strides ||
        memcmp(at->strides - DLB_LOOP_OPERANDS, strides, bytes) != 0) {
        memcpy(at->strides, strides, bytes);
        at->strides += DLB_LOOP_OPERANDS;
    }
    return at->strides - DLB_LOOP_OPERANDS;
}

static void add_step(planner *at, int32_t index) {
    dlb_loops_plan *plan = at->plan;
    const dlb_instruction *instruction = &at->loops->instructions[index];
    int32_t value = at->loops->input_count + index;
    npy_intp strides[DLB_LOOP_OPERANDS] = {0};
    dlb_loop_step step = {.function = instruction->function, .data = instruction->data};
    int k;
    for (k = 0; k < instruction->operand_count; k++) {
        step.locations[k] = plan->locations[instruction->operands[k]];
        strides[k] = stride(at, instruction->operands[k]);
    }
    plan->locations[value] = step.locations[k] = find_location(at, index);
    /* Also for one element, as NumPy has it: 0 would mean a reduction to some loops. */
    strides[k] = dlb_loops_item_size(at->loops, value);
    step.strides = share_strides(at, strides);
    if ((at->forms[value] & DLB_FORM_BLOCKS) != 0)
        plan->steps[plan->step_count++] = step;
    else
        plan->once[plan->once_count++] = step;
}

static void add_steps(planner *at) {
    const dlb_loops *loops = at->loops;
    dlb_loops_plan *plan = at->plan;
    plan->first_cell = loops->input_count + loops->output_count;
    plan->first_register = plan->first_cell + at->cell_count;
    at->cell_count = 0;
    for (int32_t i = 0; i < loops->input_count; i++)
        plan->locations[i] = i;
    for (int32_t i = 0; i < loops->instruction_count; i++)
        if (at->last_uses[loops->input_count + i] != NOWHERE)
            add_step(at, i);
    plan->location_count = plan->first_register + at->register_count;
}

/* ---- the block ---- */

static void choose_block(planner *at) {
    const dlb_loops *loops = at->loops;
    npy_intp bytes = 1;
    for (int32_t i = 0; i < at->register_count; i++)
        bytes += at->plan->item_sizes[i];
    for (int32_t i = 0; i < loops->input_count; i++)
        bytes += stride(at, i);
    for (int32_t i = 0; i < loops->output_count; i++)
        bytes += stride(at, loops->outputs[i]);
    npy_intp block = CACHE / bytes / 64 * 64;
    at->plan->block = block < SHORTEST_BLOCK  ? SHORTEST_BLOCK
                      : block > LONGEST_BLOCK ? LONGEST_BLOCK
                                              : block;
}

/* ---- memory ---- */

static dlb_loops_plan *allocate_plan(const dlb_loops *loops) {
    size_t steps = (size_t)loops->instruction_count,
           values = steps + (size_t)loops->input_count;
    dlb_loops_plan *plan = PyMem_Calloc(1, sizeof *plan);
    if (plan == NULL)
        return NULL;
    plan->references = 1;
    plan->once = PyMem_Calloc(steps + 1, sizeof *plan->once);
    plan->steps = PyMem_Calloc(steps + 1, sizeof *plan->steps);
    plan->strides = PyMem_Calloc(steps + 1, DLB_LOOP_OPERANDS * sizeof *plan->strides);
    plan->locations = PyMem_Calloc(values + 1, sizeof *plan->locations);
    plan->item_sizes = PyMem_Calloc(steps + 1, 1);
    plan->forms = PyMem_Calloc(values + 1, 1);
    if (plan->once == NULL || plan->steps == NULL || plan->strides == NULL ||
        plan->locations == NULL || plan->item_sizes == NULL || plan->forms == NULL) {
        dlb_loops_plan_drop(plan);
        return NULL;
    }
    return plan;
}

dlb_loops_plan *dlb_loops_plan_new(const dlb_loops *loops, const unsigned char *forms) {
    size_t values = (size_t)loops->input_count + (size_t)loops->instruction_count + 1;
    planner at = {.loops = loops, .plan = allocate_plan(loops)};
    at.forms = PyMem_Calloc(values, 1);
    at.last_uses = PyMem_Calloc(values, sizeof *at.last_uses);
    at.free_next = PyMem_Calloc(values, sizeof *at.free_next);
    if (at.plan == NULL || at.forms == NULL || at.last_uses == NULL ||
        at.free_next == NULL) {
        dlb_loops_plan_drop(at.plan);
        at.plan = NULL;
        PyErr_NoMemory();
    } else {
        memcpy(at.plan->forms, forms, (size_t)loops->input_count);
        at.strides = at.plan->strides;
        for (int i = 0; i < SIZES; i++)
            at.free_first[i] = NOWHERE;
        find_last_uses(&at);
        find_forms(&at, forms);
        add_steps(&at);
        choose_block(&at);
    }
    PyMem_Free(at.forms);
    PyMem_Free(at.last_uses);
    PyMem_Free(at.free_next);
    return at.plan;
}

void dlb_loops_plan_drop(dlb_loops_plan *plan) {
    if (plan == NULL || --plan->references > 0)
        return;
    PyMem_Free(plan->once);
    PyMem_Free(plan->steps);
    PyMem_Free(plan->strides);
    PyMem_Free(plan->locations);
    PyMem_Free(plan->item_sizes);
    PyMem_Free(plan->forms);
    PyMem_Free(plan);
}
