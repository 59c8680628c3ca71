/* Who touched which bytes when: races, use after free, memory of other devices. */
#include "fake.h"

#include <stdio.h>

/* ---- segments ---- */

static void insert_segment(block *memory, int32_t at, segment new) {
    if (memory->segment_count == memory->segment_room) {
        memory->segment_room = memory->segment_room ? 2 * memory->segment_room : 4;
        memory->segments = realloc(memory->segments, (size_t)memory->segment_room *
                                                         sizeof *memory->segments);
    }
    memmove(memory->segments + at + 1, memory->segments + at,
            (size_t)(memory->segment_count - at) * sizeof *memory->segments);
    memory->segments[at] = new;
    memory->segment_count++;
}

/* The segment that holds the address. */
static int32_t find_segment(const block *memory, uint64_t address) {
    int32_t low = 0, high = memory->segment_count - 1;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (memory->segments[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void split(block *memory, uint64_t address) {
    if (address <= memory->address || address >= memory->address + memory->nbytes)
        return;
    int32_t at = find_segment(memory, address);
    segment whole = memory->segments[at];
    if (whole.start == address)
        return;
    segment rest = whole;
    rest.start = address;
    if (whole.read_count > 0) {
        size_t size = (size_t)whole.read_count * sizeof *whole.reads;
        rest.reads = memcpy(malloc(size), whole.reads, size);
    }
    memory->segments[at].end = address;
    insert_segment(memory, at + 1, rest);
}

/* ---- one access ---- */

static bool is_before(const moment *past, const op *now) {
    return clock_get(&now->now, past->timeline) >= past->time;
}

static void report(const block *memory, const segment *at, const moment *past,
                   const op *now, const char *verb, const char *before) {
    char first[128], second[128];
    fault("race",
          "%s %s bytes %llu to %llu of the %llu at %#llx, that %s %s, without an order "
          "between the two",
          call_text(now->call, second, sizeof second), verb,
          (unsigned long long)(at->start - memory->address),
          (unsigned long long)(at->end - memory->address),
          (unsigned long long)memory->nbytes, (unsigned long long)memory->address,
          call_text(past->call, first, sizeof first), before);
}

static bool check_segment(const block *memory, const segment *at, const op *now,
                          bool writes, const char *verb) {
    if (!is_before(&at->write, now)) {
        report(memory, at, &at->write, now, verb, "wrote");
        return false;
    }
    for (int32_t i = 0; writes && i < at->read_count; i++)
        if (!is_before(&at->reads[i], now)) {
            report(memory, at, &at->reads[i], now, verb, "reads");
            return false;
        }
    return true;
}

static void note_read(segment *at, const op *now) {
    moment seen = {now->timeline, now->time, now->call};
    int32_t kept = 0;
    for (int32_t i = 0; i < at->read_count; i++)
        if (!is_before(&at->reads[i], now))
            at->reads[kept++] = at->reads[i];
    at->reads = realloc(at->reads, (size_t)(kept + 1) * sizeof *at->reads);
    at->reads[kept] = seen;
    at->read_count = kept + 1;
}

static void note_write(segment *at, const op *now) {
    at->write = (moment){now->timeline, now->time, now->call};
    free(at->reads);
    at->reads = NULL;
    at->read_count = 0;
}

/* After a write many segments may be one again. */
static void join_segments(block *memory, int32_t from, int32_t to) {
    int32_t kept = from;
    for (int32_t i = from + 1; i < to; i++) {
        segment *last = &memory->segments[kept], *next = &memory->segments[i];
        if (last->read_count == 0 && next->read_count == 0 &&
            memcmp(&last->write, &next->write, sizeof last->write) == 0)
            last->end = next->end;
        else
            memory->segments[++kept] = *next;
    }
    memmove(memory->segments + kept + 1, memory->segments + to,
            (size_t)(memory->segment_count - to) * sizeof *memory->segments);
    memory->segment_count -= to - kept - 1;
}

static void touch(op *self, block *memory, uint64_t start, uint64_t end, bool writes,
                  const char *verb) {
    split(memory, start);
    split(memory, end);
    int32_t first = find_segment(memory, start), at = first;
    for (; at < memory->segment_count && memory->segments[at].start < end; at++) {
        segment *here = &memory->segments[at];
        if (!self->is_reported) /* one report is enough */
            self->is_reported = !check_segment(memory, here, self, writes, verb);
        if (writes)
            note_write(here, self);
        else
            note_read(here, self);
    }
    if (writes && at - first > 1)
        join_segments(memory, first, at);
}

void access_begin_life(block *memory, const op *self) {
    segment all = {.start = memory->address, .end = memory->address + memory->nbytes};
    all.write = (moment){self->timeline, self->time, self->call};
    for (int32_t i = 0; i < memory->segment_count; i++)
        free(memory->segments[i].reads);
    memory->segment_count = 0;
    insert_segment(memory, 0, all);
}

/* ---- may it? ---- */

static bool reaches(const op *self, const block *memory) {
    if (self->device < 0 || memory->kind == PINNED || memory->kind == MANAGED)
        return true;
    if (memory->kind == MAPPED_MEMORY)
        return memory->access >> (self->is_copy ? memory->device : self->device) & 1;
    if (self->is_copy || memory->device == self->device)
        return true;
    if (memory->kind == POOL_MEMORY)
        return memory->pool->peers >> self->device & 1;
    return self->peers >> memory->device & 1;
}

static bool is_alive(const op *self, const block *memory) {
    char text[128], freed[128];
    if (!memory->is_freed)
        return true;
    fault("use after free", "%s uses memory at %#llx that %s freed",
          call_text(self->call, text, sizeof text), (unsigned long long)memory->address,
          call_text(memory->freed_by, freed, sizeof freed));
    return false;
}

int access_memory(op *self, uint64_t address, uint64_t nbytes, bool writes) {
    char text[128];
    if (nbytes == 0)
        return 0;
    block *memory = block_find(address);
    if (memory == NULL || address + nbytes > memory->address + memory->nbytes) {
        fault("out of bounds", "%s %s %llu bytes at %#llx, where there is no memory%s",
              call_text(self->call, text, sizeof text), writes ? "writes" : "reads",
              (unsigned long long)nbytes, (unsigned long long)address,
              memory ? " for all of them" : "");
        return -1;
    }
    if (!is_alive(self, memory))
        return -1;
    if (!reaches(self, memory)) {
        fault("wrong device", "%s on device %d touches memory at %#llx of device %d",
              call_text(self->call, text, sizeof text), self->device,
              (unsigned long long)address, memory->device);
        return -1;
    }
    touch(self, memory, address, address + nbytes, writes, writes ? "writes" : "reads");
    return 0;
}

int access_all(op *self, block *memory, bool writes, const char *verb) {
    if (!is_alive(self, memory))
        return -1;
    touch(self, memory, memory->address, memory->address + memory->nbytes, writes,
          verb);
    return 0;
}
