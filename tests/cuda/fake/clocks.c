/* Vector clocks: how far each timeline is known to have come. */
#include "fake.h"

static int32_t timeline_count = 1;

int32_t timeline_new(void) {
    return timeline_count++;
}

void timelines_reset(void) {
    timeline_count = 1;
}

uint32_t clock_get(const vclock *self, int32_t timeline) {
    return timeline < self->length ? self->times[timeline] : 0;
}

static void reserve(vclock *self, int32_t length) {
    if (length > self->room) {
        self->room = length + 8;
        self->times = realloc(self->times, (size_t)self->room * sizeof *self->times);
    }
    for (; self->length < length; self->length++)
        self->times[self->length] = 0;
}

void clock_set(vclock *self, int32_t timeline, uint32_t time) {
    reserve(self, timeline + 1);
    self->times[timeline] = time;
}

void clock_merge(vclock *self, const vclock *other) {
    reserve(self, other->length);
    for (int32_t i = 0; i < other->length; i++)
        if (other->times[i] > self->times[i])
            self->times[i] = other->times[i];
}

void clock_copy(vclock *self, const vclock *other) {
    self->length = 0;
    clock_merge(self, other);
}

bool clock_reaches(const vclock *self, const vclock *other) {
    for (int32_t i = 0; i < other->length; i++)
        if (other->times[i] > clock_get(self, i))
            return false;
    return true;
}

void clock_free(vclock *self) {
    free(self->times);
    *self = (vclock){0};
}
