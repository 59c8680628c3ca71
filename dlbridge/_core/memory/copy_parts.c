/* Plans taken apart: pieces that fit a buffer, ways through compact memory, repeats. */
#include "memory/copy.h"

int64_t dlb_copy_count(const dlb_copy_plan *plan) {
    int64_t count = plan->unit;
    for (int32_t i = 0; i < plan->ndim; i++)
        count *= plan->loops[i].extent;
    return count;
}

/* Without clearing the loops, which are many. */
static void copy_head(dlb_copy_plan *to, const dlb_copy_plan *from) {
    to->destination = from->destination;
    to->source = from->source;
    to->destination_start = from->destination_start;
    to->source_start = from->source_start;
    to->unit = from->unit;
    to->ndim = 0;
    to->is_bits = to->is_widened = to->is_signed = false;
}

/* The loops of `from` after the first `skipped`. */
static void copy_inner(dlb_copy_plan *to, const dlb_copy_plan *from, int32_t skipped) {
    copy_head(to, from);
    to->ndim = from->ndim - skipped;
    for (int32_t i = 0; i < to->ndim; i++)
        to->loops[i] = from->loops[i + skipped];
}

static int split_unit(const dlb_copy_plan *plan, int64_t limit, dlb_copy_each each,
                      void *context) {
    dlb_copy_plan part;
    copy_head(&part, plan);
    for (int64_t done = 0; done < plan->unit; done += limit) {
        part.unit = plan->unit - done < limit ? plan->unit - done : limit;
        part.destination_start = plan->destination_start + done;
        part.source_start = plan->source_start + done;
        if (each(context, &part) < 0)
            return -1;
    }
    return 0;
}

int dlb_copy_split(const dlb_copy_plan *plan, int64_t limit, dlb_copy_each each,
                   void *context) {
    int64_t total = dlb_copy_count(plan);
    if (total <= limit)
        return each(context, plan);
    if (plan->ndim == 0)
        return split_unit(plan, limit, each, context);
    dlb_copy_loop outer = plan->loops[0];
    int64_t inside = total / outer.extent, rows = inside <= limit ? limit / inside : 1;
    dlb_copy_plan part;
    for (int64_t done = 0; done < outer.extent; done += rows) {
        copy_inner(&part, plan, rows == 1);
        if (rows > 1)
            part.loops[0].extent =
                outer.extent - done < rows ? outer.extent - done : rows;
        part.destination_start = plan->destination_start + done * outer.destination;
        part.source_start = plan->source_start + done * outer.source;
        if (dlb_copy_split(&part, limit, each, context) < 0)
            return -1;
    }
    return 0;
}

void dlb_copy_through(const dlb_copy_plan *plan, void *middle, dlb_copy_plan *in,
                      dlb_copy_plan *out) {
    int64_t step = plan->unit;
    copy_inner(in, plan, 0);
    copy_inner(out, plan, 0);
    for (int32_t i = plan->ndim - 1; i >= 0; i--) {
        in->loops[i].destination = out->loops[i].source = step;
        step *= plan->loops[i].extent;
    }
    in->destination = middle;
    out->source = middle;
    in->destination_start = out->source_start = 0;
    dlb_copy_arrange(in);
    dlb_copy_arrange(out);
}

static int64_t magnitude(int64_t value) {
    return value < 0 ? -value : value;
}

void dlb_copy_order_by_source(dlb_copy_plan *plan) {
    for (int32_t i = 1; i < plan->ndim; i++) {
        dlb_copy_loop moving = plan->loops[i];
        int32_t at = i;
        for (;
             at > 0 && magnitude(plan->loops[at - 1].source) < magnitude(moving.source);
             at--)
            plan->loops[at] = plan->loops[at - 1];
        plan->loops[at] = moving;
    }
}

bool dlb_copy_to_bytes(dlb_copy_plan *plan) {
    int64_t all = plan->unit | plan->destination_start | plan->source_start;
    for (int32_t i = 0; i < plan->ndim; i++)
        all |= plan->loops[i].destination | plan->loops[i].source;
    if (!plan->is_bits)
        return true;
    if (plan->is_widened || (all & 7) != 0)
        return false;
    plan->is_bits = false;
    plan->unit /= 8;
    plan->destination_start /= 8;
    plan->source_start /= 8;
    for (int32_t i = 0; i < plan->ndim; i++) {
        plan->loops[i].destination /= 8;
        plan->loops[i].source /= 8;
    }
    return true;
}

int32_t dlb_copy_take_repeats(dlb_copy_plan *plan, dlb_copy_loop *repeats) {
    int32_t kept = 0, taken = 0;
    for (int32_t i = 0; i < plan->ndim; i++)
        if (plan->loops[i].source == 0)
            repeats[taken++] = plan->loops[i];
        else
            plan->loops[kept++] = plan->loops[i];
    plan->ndim = kept;
    if (taken > 0)
        dlb_copy_arrange(plan);
    return taken;
}

void dlb_copy_span(const dlb_copy_plan *plan, bool of_destination, int64_t *low,
                   int64_t *high) {
    int64_t start = of_destination ? plan->destination_start : plan->source_start;
    int64_t unit = of_destination && plan->is_widened ? 8 : plan->unit;
    int64_t first = start, last = start + unit, scale = plan->is_bits ? 8 : 1;
    for (int32_t i = 0; i < plan->ndim; i++) {
        const dlb_copy_loop *loop = &plan->loops[i];
        int64_t step = of_destination ? loop->destination : loop->source;
        *(step < 0 ? &first : &last) += step * (loop->extent - 1);
    }
    *low = (first - (first % scale + scale) % scale) / scale;
    *high = (last + (scale - last % scale) % scale) / scale;
}
