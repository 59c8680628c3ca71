/* The frameworks' tensors: for each kind of array type one row, with all that the core
 * does to its objects in a way of their own.
 *
 * `dlb_peer` is the row. types.c finds the row of a type, once; each other file has the
 * rows of one framework or protocol. What is the same for all lies above: exchange/
 * asks for views, call/ borrows the tensors of a call (see borrowing.h). */
#ifndef DLBRIDGE_CORE_PEERS_PEERS_H_
#define DLBRIDGE_CORE_PEERS_PEERS_H_

#include "layout/layout.h"
#include "memory/arena.h"
#include "python/python.h"
#include "tensor/tensor.h"
#include "torch/torch.h"

typedef struct dlb_peer dlb_peer;

/* A type whose row is known. Immutable. */
typedef struct {
    PyTypeObject *type;  /* a strong reference, so that the address cannot be reused */
    PyObject *reference; /* weak, in its place: ends the entry with the type; or NULL */
    const dlb_peer *peer;
    const DLPackExchangeAPI *table; /* its exchange table, or NULL */
    PyObject *payload; /* what the adapter says of the type; each peer has its own */
    PyObject *values;  /* takes an object by value; or NULL */
    PyObject *source;  /* its name in receipts; NULL: the type's */
} dlb_known_type;

struct dlb_peer {
    const char *name; /* as adapters answer it, see exchange/adapter.py */
    /* Its types are those of a framework, and nothing else besides. */
    bool is_framework;
    bool is_named;       /* receipts keep the type's name, since the type may go */
    bool is_kept_weakly; /* classes of users, as a kept type is never freed */
    bool has_gradients;  /* its tensors may be detached */
    /* Check the payload, and read it: 0, or -1 with an error. NULL: there is none. */
    int (*accept)(dlb_known_type *known);
    /* 0: the view holds the tensor. DLB_DECLINED, or -1 with an error. The payload is
     * borrowed from `known`, which may go as soon as Python code runs. */
    int (*take)(PyObject *x, const dlb_known_type *known, bool detaches,
                dlb_view *view);
    /* The same in the name of a call by the user, whose refusal an error is; the peer
     * is asked in no other way. NULL: `take`. */
    int (*ask)(PyObject *x, const dlb_known_type *known, PyObject *call,
               dlb_view *view);
    /* Where the memory of x begins; DLB_UNKNOWN: take it. NULL: take it. */
    int (*look_address)(PyObject *x, const void **address);
    /* By which entry a tensor was taken, for receipts. NULL: by none with a name. */
    const char *(*entry)(const dlb_known_type *known, const dlb_view *view);
};

#define DLB_UNKNOWN 2 /* neither success nor DLB_DECLINED */

extern const dlb_peer dlb_own_peer, dlb_slow_peer, dlb_numpy_peer, dlb_torch_peer,
    dlb_torch_public_peer, dlb_jax_peer, dlb_table_peer, dlb_function_peer,
    dlb_cupy_peer, dlb_buffer_peer, dlb_protocol_peer, dlb_tvm_peer;

/* ---- types.c ---- */

/* A type has one set of places. When that is full its oldest entry is thrown out, and
 * the type of that one is classified again. Without a GIL another thread may be reading
 * it, so that it stays, and a type which finds no place goes the Python way. */
#ifdef Py_GIL_DISABLED
enum { DLB_TYPE_SETS = 64, DLB_TYPE_PLACES = 8 };
#else
enum { DLB_TYPE_SETS = 128, DLB_TYPE_PLACES = 4 };
#endif
extern _Atomic(const dlb_known_type *) dlb_known_types[DLB_TYPE_SETS][DLB_TYPE_PLACES];

static inline _Atomic(const dlb_known_type *) *dlb_type_set(PyTypeObject *type) {
    return dlb_known_types[((uintptr_t)type >> 4) % DLB_TYPE_SETS];
}

/* Not inlined: most types are in the first place. */
const dlb_known_type *dlb_find_further_type(PyTypeObject *type);
const dlb_known_type *dlb_classify_type(PyTypeObject *type);

/* NULL: not known. What is returned stays until Python code runs. */
static inline const dlb_known_type *dlb_find_type(PyTypeObject *type) {
    const dlb_known_type *known =
        atomic_load_explicit(dlb_type_set(type), memory_order_acquire);
    return known != NULL && known->type == type ? known : dlb_find_further_type(type);
}

/* The same, after asking the adapters where it is not known; NULL with an error. */
static inline const dlb_known_type *dlb_type_of(PyObject *x) {
    const dlb_known_type *known = dlb_find_type(Py_TYPE(x));
    return known != NULL ? known : dlb_classify_type(Py_TYPE(x));
}

/* Whether its objects are tensors of a framework that were taken before; false of
 * classes of users, which may speak a protocol and be something else as well. */
bool dlb_is_framework_type(PyTypeObject *type);
/* Show a type to its adapter, once; -1: an error that is not an Exception. */
int dlb_meet_type(PyTypeObject *type);
/* Take x with the payload of its row, held: the entry may go as soon as Python code
 * runs. */
static inline int
dlb_take_with_payload(int (*take)(PyObject *x, PyObject *payload, dlb_view *view),
                      PyObject *x, const dlb_known_type *known, dlb_view *view) {
    PyObject *payload = Py_NewRef(known->payload);
    int status = take(x, payload, view);
    Py_DECREF(payload);
    return status;
}
/* For `accept`: a tuple of `count`; -1 with an error that says what is needed. */
int dlb_expect_payload(PyObject *payload, Py_ssize_t count, const char *needs);
extern PyMethodDef dlb_type_functions[];

/* ---- numpy.c ---- */
bool dlb_is_numpy(PyObject *x);
bool dlb_numpy_has_objects(PyObject *x); /* an array whose elements are objects */
int dlb_take_numpy(PyObject *array, dlb_view *view);
/* `keeper` keeps the array, which may be of a subclass; what its memory is in is kept
 * too. */
dlb_buffer *dlb_buffer_of_array(PyObject *keeper, PyObject *array);
/* Of a dtype that NumPy itself does not have; its elements are of whole bytes. */
int dlb_take_numpy_as(PyObject *array, DLDataType dtype, dlb_view *view);
PyObject *dlb_give_numpy(dlb_view *view, PyObject *descr);
/* Whether memory of an array of NumPy stays where it is as long as that is referred to;
 * others may be over a bytearray, say, that is resized. */
bool dlb_numpy_keeps_memory(PyObject *array);
/* An array over compact, aligned memory of the CPU that `owner` keeps. NULL: without an
 * exception, dlb_give_numpy decides. */
PyObject *dlb_numpy_within(PyObject *owner, const DLTensor *dl);
/* The Tensor whose memory the array shares, borrowed, or NULL. */
dlb_tensor *dlb_numpy_base(PyObject *array);
void dlb_numpy_set_data(PyObject *array, void *data);
/* As a kernel takes it: `strides` has room for `room` of them */
int dlb_borrow_numpy(PyObject *x, DLTensor *tensor, uint64_t *flags, int64_t *strides,
                     int32_t room);
/* A new array; NULL without an exception where NumPy has no such dtype. */
PyObject *dlb_numpy_allocate(int32_t ndim, const int64_t *shape, DLDataType dtype);
/* A dtype of NumPy's own, in native byte order. */
bool dlb_numpy_dtype(PyObject *descr, DLDataType *dtype);
PyObject *dlb_numpy_descr(DLDataType dtype); /* NULL without an exception: none */
extern PyMethodDef dlb_numpy_functions[];

/* ---- numpy_memory.c: the memory of NumPy's own arrays ---- */
extern PyTypeObject dlb_AlignedNumpyType, dlb_LimitedNumpyType;
/* A new ndarray of uint8 whose memory is one of our blocks, aligned and kept for reuse;
 * no limit that the context sets on NumPy's memory applies. */
PyObject *dlb_numpy_bytes(size_t nbytes);
/* The capsule of a handler that has arrays of `least` bytes and more from an arena. */
PyObject *dlb_numpy_arena_handler(dlb_arena *arena, size_t least);
/* Whether an ndarray owns memory that it has from such a handler. */
bool dlb_numpy_in_arena(PyObject *array);
extern PyMethodDef dlb_numpy_memory_functions[];

/* ---- jax.c ---- */
/* A new jax.Array, which nobody else has, as memory that may be written: 0, -1 with an
 * error, or DLB_DECLINED: take it as any other. */
int dlb_jax_take_result(PyObject *x, dlb_view *view);

/* ---- torch.c ---- */
/* x.detach(); NULL with an error. */
PyObject *dlb_torch_detach(PyObject *x);

/* ---- table.c: our C exchange table, and the use of others' ---- */
int dlb_add_exchange_table(PyTypeObject *type);
int dlb_take_table(PyObject *x, const DLPackExchangeAPI *table, dlb_view *view);
/* `to`: the stream that its framework works on; NULL asks the table. */
PyObject *dlb_give_table(dlb_view *view, const DLPackExchangeAPI *table,
                         const uintptr_t *to);
/* For `accept`: the payload is the capsule of a table. */
int dlb_accept_table(dlb_known_type *known);
extern PyMethodDef dlb_table_functions[];

/* ---- buffer.c ---- */
extern PyTypeObject dlb_HeldBufferType, dlb_CollectableBufferType;
int dlb_take_buffer(PyObject *x, dlb_view *view);
/* An object that has the buffer of x, so that x may not give it up, and keeps an object
 * that takes no part in garbage collection, or NULL; NULL with an error. */
PyObject *dlb_hold_buffer(PyObject *x, PyObject *kept);
/* Strides in bytes become strides in elements; -1: the layout cannot be named. */
int dlb_fill_from_buffer(const Py_buffer *in, dlb_view *view);

/* ---- tvm.c ---- */
/* In an object of tvm-ffi's C ABI: where its type is, and what follows the header. */
enum { DLB_TVM_TYPE_AT = 8, DLB_TVM_HEADER_SIZE = 24 };
/* The libtvm_ffi that the process has loaded, as dlsym takes it; a second copy would
 * know nothing of the first's objects. False: there is none. */
bool dlb_tvm_ffi_library(void **library);

/* ---- function.c ---- */
/* The attribute of x of this name; for a pair of names, that of the attribute. */
PyObject *dlb_read_attribute(PyObject *x, PyObject *name);
/* Whether x passes the guard of its payload, see there; -1 with an error. */
int dlb_passes_guard(PyObject *x, PyObject *guard, PyObject *accepted);
/* Take memory that has streams by an adapter's function `lend`, see there. */
int dlb_take_by_lending(PyObject *x, PyObject *lend, dlb_view *view);

#endif /* DLBRIDGE_CORE_PEERS_PEERS_H_ */
