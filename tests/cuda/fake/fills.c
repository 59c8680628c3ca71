/* Fills, in elements of one, two or four bytes. */
#include "fake.h"

static void fill_row(char *row, const fill_work *fill) {
    if (fill->value_size == 1) {
        memset(row, (int)fill->value, fill->width);
        return;
    }
    for (size_t i = 0; i < fill->width; i++)
        memcpy(row + i * fill->value_size, &fill->value, fill->value_size);
}

static CUresult fill_run(action *self, op *op) {
    const fill_work *fill = &self->fill;
    size_t nbytes = fill->width * fill->value_size;
    for (size_t y = 0; y < fill->height; y++) {
        uint64_t row = fill->to + y * fill->pitch;
        if (access_memory(op, row, nbytes, true) != 0)
            break;
        fill_row((char *)(uintptr_t)row, fill);
    }
    return SUCCESS;
}

static CUresult fill_on(CUstream handle, fill_work fill) {
    struct stream *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != SUCCESS || fill.width * fill.height == 0)
        return result;
    action work = {fill_run, "a fill", .fill = fill};
    return submit(stream, &work);
}

#define FILL(name, type)                                                               \
    API CUresult name(CUdeviceptr to, type value, size_t count, CUstream stream) {     \
        CALL(SAFE, #name, (uintptr_t)stream, 0, to, count * sizeof value)              \
        fill_work fill = {to, value, sizeof value, 0, count, 1};                       \
        return call_end(&call, fill_on(stream, fill));                                 \
    }

FILL(cuMemsetD8Async, unsigned char)
FILL(cuMemsetD16Async, unsigned short)
FILL(cuMemsetD32Async, unsigned int)

#define FILL_ROWS(name, type)                                                          \
    API CUresult name(CUdeviceptr to, size_t pitch, type value, size_t width,          \
                      size_t height, CUstream stream) {                                \
        CALL(SAFE, #name, (uintptr_t)stream, 0, to, width * height * sizeof value)     \
        fill_work fill = {to, value, sizeof value, pitch, width, height};              \
        return call_end(&call, fill_on(stream, fill));                                 \
    }

FILL_ROWS(cuMemsetD2D8Async, unsigned char)
FILL_ROWS(cuMemsetD2D16Async, unsigned short)
FILL_ROWS(cuMemsetD2D32Async, unsigned int)
