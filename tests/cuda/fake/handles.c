/* Handles: a hash table of what was ever handed out. */
#include "fake.h"

typedef struct {
    void *handle;
    int32_t kind;
    bool is_retired;
} row;

static row *rows;
static size_t row_count, row_room;
static int64_t alive[HANDLE_KINDS];

static row *row_of(const void *handle) {
    if (row_room == 0)
        return NULL;
    size_t at = ((uintptr_t)handle >> 4) * 0x9E3779B97F4A7C15u % row_room;
    while (rows[at].handle != NULL && rows[at].handle != handle)
        at = (at + 1) % row_room;
    return &rows[at];
}

static void grow_rows(void) {
    row *old = rows;
    size_t old_room = row_room;
    row_room = row_room ? 2 * row_room : 1024;
    rows = calloc(row_room, sizeof *rows);
    for (size_t i = 0; i < old_room; i++)
        if (old[i].handle != NULL)
            *row_of(old[i].handle) = old[i];
    free(old);
}

void *handle_new(handle_kind kind, size_t size) {
    void *handle = calloc(1, size < 16 ? 16 : size);
    if (2 * ++row_count > row_room)
        grow_rows();
    *row_of(handle) = (row){handle, (int32_t)kind, false};
    alive[kind]++;
    return handle;
}

bool handle_is(const void *handle, handle_kind kind) {
    const row *found = handle != NULL ? row_of(handle) : NULL;
    return found != NULL && found->handle != NULL && found->kind == (int32_t)kind &&
           !found->is_retired;
}

void handle_retire(void *handle, handle_kind kind) {
    row_of(handle)->is_retired = true;
    alive[kind]--;
}

void handle_revive(void *handle, handle_kind kind) {
    row_of(handle)->is_retired = false;
    alive[kind]++;
}

int64_t handle_count(handle_kind kind) {
    return alive[kind];
}

void handles_each(handle_kind kind, void (*visit)(void *handle, void *data),
                  void *data) {
    for (size_t i = 0; i < row_room; i++)
        if (rows[i].handle != NULL && rows[i].kind == (int32_t)kind &&
            !rows[i].is_retired)
            visit(rows[i].handle, data);
}

void handles_reset(void) {
    memset(alive, 0, sizeof alive);
    for (size_t i = 0; i < row_room; i++)
        rows[i].is_retired = true;
}
