/* Views of a Tensor: over the same buffer in Python's hands, or as a buffer for others.
 */
#include "tensor/tensor.h"
#include "layout/layout.h"

#include <string.h>

PyObject *dlb_tensor_subview(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"shape",     "strides", "byte_offset", "dtype",
                            "set_flags", "cls",     "clear_flags", NULL};
    PyObject *shape, *strides, *dtype = Py_None, *cls = Py_None;
    Py_ssize_t byte_offset = 0;
    unsigned long long set_flags = 0, clear_flags = 0;
    int64_t dims[DLB_MAX_NDIM];
    dlb_view view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|nOKOK:_view", names, &shape,
                                     &strides, &byte_offset, &dtype, &set_flags, &cls,
                                     &clear_flags))
        return NULL;
    PyTypeObject *type = cls == Py_None ? Py_TYPE(self) : (PyTypeObject *)cls;
    if (cls != Py_None &&
        (!PyType_Check(cls) || !PyType_IsSubtype((PyTypeObject *)cls, &dlb_TensorType)))
        return PyErr_Format(PyExc_TypeError, "_view: cls must be a Tensor type, got %R",
                            cls);
    dlb_tensor_view((dlb_tensor *)self, &view);
    int ndim = dlb_parse_dims(shape, dims, "shape");
    int stride_count = ndim < 0 ? -1 : dlb_parse_dims(strides, view.scratch, "strides");
    if (ndim < 0 || stride_count < 0 ||
        (dtype != Py_None && dlb_parse_dtype(dtype, &view.dl.dtype) < 0))
        goto failed;
    if (ndim != stride_count) {
        PyErr_Format(PyExc_ValueError, "_view: %d dimensions but %d strides", ndim,
                     stride_count);
        goto failed;
    }
    view.dl.ndim = ndim;
    view.dl.shape = dims;
    view.dl.strides = view.scratch;
    view.flags = (view.flags | set_flags) & ~clear_flags;
    dlb_advance(&view.dl, byte_offset);
    const char *reason = dlb_layout_check(&view.dl, view.flags);
    if (reason == NULL)
        return dlb_tensor_new(type, &view);
    dlb_refuse_layout(reason, "_view", &view.dl);
failed:
    dlb_buffer_drop(view.buffer);
    return NULL;
}

/* ---- the buffer protocol ---- */

/* PEP 3118 formats; the types that have none cannot go this way. */
static const struct {
    uint8_t code, bits;
    const char *format;
} formats[] = {
    {kDLFloat, 32, "f"},    {kDLFloat, 64, "d"},     {kDLInt, 64, "q"},
    {kDLInt, 32, "i"},      {kDLUInt, 8, "B"},       {kDLBool, 8, "?"},
    {kDLInt, 8, "b"},       {kDLInt, 16, "h"},       {kDLUInt, 16, "H"},
    {kDLUInt, 32, "I"},     {kDLUInt, 64, "Q"},      {kDLFloat, 16, "e"},
    {kDLComplex, 64, "Zf"}, {kDLComplex, 128, "Zd"},
};

static const char *buffer_format(DLDataType dtype) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].code == dtype.code && formats[i].bits == dtype.bits &&
            dtype.lanes == 1)
            return formats[i].format;
    return NULL;
}

/* Integers by signedness and size, since 'l' and 'q' differ between platforms. */
#define CODE(letter, code) [letter] = 1 + code
static const uint8_t code_by_letter[128] = {
    CODE('b', kDLInt),  CODE('h', kDLInt),   CODE('i', kDLInt),   CODE('l', kDLInt),
    CODE('q', kDLInt),  CODE('n', kDLInt),   CODE('B', kDLUInt),  CODE('H', kDLUInt),
    CODE('I', kDLUInt), CODE('L', kDLUInt),  CODE('Q', kDLUInt),  CODE('N', kDLUInt),
    CODE('c', kDLUInt), CODE('e', kDLFloat), CODE('f', kDLFloat), CODE('d', kDLFloat),
    CODE('?', kDLBool),
};

int dlb_buffer_format(const char *format, Py_ssize_t itemsize, DLDataType *dtype) {
    const char *at = format == NULL ? "B" : format;
    if (*at == '@' || *at == '=' ||
        *at == '<') /* native order on the machines we build for */
        at++;
    bool is_complex = at[0] == 'Z' && (at[1] == 'f' || at[1] == 'd');
    uint8_t code = is_complex ? 1 + kDLComplex : code_by_letter[at[0] & 127];
    if (code == 0 || at[is_complex ? 2 : 1] != 0 || (at[0] & 128))
        return -1;
    *dtype = (DLDataType){(uint8_t)(code - 1), (uint8_t)(itemsize * 8), 1};
    return 0;
}

static int refuse_buffer(Py_buffer *out, const char *reason, const char *text) {
    out->obj = NULL;
    dlb_refuse(reason, "buffer protocol: %s", text);
    return -1;
}

static bool asks(int request, int flags) {
    return (request & flags) == flags;
}

static bool contiguity_fits(const DLTensor *dl, int request) {
    bool row_major = dlb_is_row_major(dl), column_major = dlb_is_column_major(dl);
    if (!asks(request, PyBUF_STRIDES) || asks(request, PyBUF_C_CONTIGUOUS))
        return row_major;
    if (asks(request, PyBUF_F_CONTIGUOUS))
        return column_major;
    return !asks(request, PyBUF_ANY_CONTIGUOUS) || row_major || column_major;
}

static int check_request(const dlb_tensor *tensor, Py_buffer *out, int request) {
    const DLTensor *dl = &tensor->dl;
    if (dl->device.device_type != kDLCPU)
        return refuse_buffer(out, "device",
                             "the tensor is not in CPU memory; pass .to(\"cpu\")");
    if (buffer_format(dl->dtype) == NULL)
        return refuse_buffer(out, "dtype",
                             "the dtype has no format in PEP 3118; "
                             "pass .view(\"uint8\") for the bytes");
    if ((tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY) && (request & PyBUF_WRITABLE))
        return refuse_buffer(out, "readonly", "the tensor is read-only");
    if (dl->ndim > PyBUF_MAX_NDIM)
        return refuse_buffer(out, "ndim", "a buffer has at most 64 dimensions");
    if (!contiguity_fits(dl, request))
        return refuse_buffer(
            out, "strides",
            "the consumer asks for contiguous memory; pass .contiguous()");
    return 0;
}

static int tensor_getbuffer(PyObject *self, Py_buffer *out, int request) {
    dlb_tensor *tensor = (dlb_tensor *)self;
    DLTensor *dl = &tensor->dl;
    if (check_request(tensor, out, request) < 0)
        return -1;
    Py_ssize_t itemsize = dl->dtype.bits / 8;
    Py_ssize_t *strides = PyMem_Malloc(((size_t)dl->ndim + 1) * sizeof *strides);
    if (strides == NULL) {
        out->obj = NULL;
        PyErr_NoMemory();
        return -1;
    }
    for (int32_t i = 0; i < dl->ndim; i++)
        strides[i] = dl->strides[i] * itemsize;
    bool scalar = dl->ndim == 0; /* which has no shape and no strides, says PEP 3118 */
    out->obj = Py_NewRef(self);
    out->buf = dl->data ? dl->data : (void *)dl; /* never read: there are no elements */
    out->len = dlb_element_count(dl) * itemsize;
    out->readonly = (tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    out->itemsize = itemsize;
    out->format = request & PyBUF_FORMAT ? (char *)buffer_format(dl->dtype) : NULL;
    out->ndim = request & PyBUF_ND ? dl->ndim : 1;
    out->shape = request & PyBUF_ND && !scalar ? (Py_ssize_t *)dl->shape : NULL;
    out->strides = asks(request, PyBUF_STRIDES) && !scalar ? strides : NULL;
    out->suboffsets = NULL;
    out->internal = strides;
    return 0;
}

static void tensor_releasebuffer(PyObject *Py_UNUSED(self), Py_buffer *out) {
    PyMem_Free(out->internal);
}

PyBufferProcs dlb_tensor_buffer_protocol = {tensor_getbuffer, tensor_releasebuffer};
