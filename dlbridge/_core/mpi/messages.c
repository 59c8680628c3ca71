/* send, recv, and sendrecv: messages, as messages.py writes them. */
#include "python/python.h" /* first, as in quick.c */

#include "mpi/calls.h"

#include <limits.h>
#include <string.h>

static int advance_message(void *message) {
    return dlb_posted_advance(message);
}

/* A rank or tag; -1: declined. */
static int read_number(PyObject *given, int most) {
    if (!PyLong_CheckExact(given))
        return -1;
    int overflow;
    long number = PyLong_AsLongAndOverflow(given, &overflow);
    return overflow || number < 0 || number > most ? -1 : (int)number;
}

posted *dlb_begin_send(const quick *self, dlb_peers *over,
                       PyObject *const *args) { /* x, dest, tag */
    int dest = read_number(args[1], over->size - 1);
    int tag = read_number(args[2], over->highest_tag);
    source from;
    if (dest < 0 || tag < 0 || dlb_source_take(self, args[0], INT_MAX, &from) <= 0)
        return NULL;
    const DLTensor *dl = &from.view.dl;
    size_t with_head = from.nbytes <= DLB_MESSAGE_MOST ? from.nbytes : 0;
    size_t large = from.nbytes - with_head;
    posted *message = dlb_posted_new(
        over, dest, false, sizeof(message_head) + dlb_kind_size(dl) + with_head);
    if (message == NULL)
        goto done;
    message_head head = {dlb_next_tag(over, DLB_PAYLOAD_TAG), (uint32_t)over->rank,
                         (uint64_t)tag};
    memcpy(message->data, &head, sizeof head);
    memcpy(dlb_write_kind(message->data + sizeof head, dl), dlb_source_data(&from),
           with_head);
    if (dlb_post_head(message, tag) < 0 ||
        (large > 0 &&
         dlb_post_contents(message, from.view.buffer, (char *)dlb_source_data(&from),
                           large, head.number) < 0))
        Py_CLEAR(message);
done:
    dlb_source_drop(&from);
    return message;
}

PyObject *dlb_send(const caller *by, dlb_peers *over, PyObject *const *args,
                   Py_ssize_t Py_UNUSED(count)) {
    posted *message = dlb_begin_send(by->self, over, args);
    if (message == NULL)
        return dlb_decline();
    PyObject *result = NULL;
    int sent = dlb_wait_shortly(advance_message, message, over, message->nbytes);
    if (sent > 0)
        result = Py_NewRef(Py_None);
    else if (sent == 0)
        result = dlb_resume(by, "send", message, args + 1, 1);
    Py_DECREF(message);
    return result;
}

bool dlb_read_message(const posted *message, announced *out, uint32_t *number) {
    message_head head;
    size_t size = (size_t)message->head.size;
    if (size < sizeof head)
        return false;
    memcpy(&head, message->data, sizeof head);
    *number = head.number;
    const dlb_peers *over = message->over;
    return head.sender == (uint32_t)message->peer &&
           head.tag <= (uint64_t)over->highest_tag &&
           head.number <= (uint32_t)over->highest_tag &&
           dlb_read_kind(message->data + sizeof head, size - sizeof head, out) &&
           out->nbytes <= INT_MAX &&
           out->come == (out->nbytes <= DLB_MESSAGE_MOST ? out->nbytes : 0);
}

bool dlb_fits(const announced *said, const DLTensor *dl) {
    return said->ndim == dl->ndim &&
           memcmp(&said->dtype, &dl->dtype, sizeof dl->dtype) == 0 &&
           (dl->ndim == 0 ||
            memcmp(said->shape, dl->shape, (size_t)dl->ndim * sizeof *dl->shape) == 0);
}

/* Receive large contents into a view. Returns 1 when they have arrived, 0 if Python
 * goes on, with a Tensor if the memory is new, -1 with an exception. */
static int receive_contents(posted *message, dlb_view *view, bool is_new,
                            uint32_t number, size_t nbytes) {
    char *data = (char *)view->dl.data + view->dl.byte_offset;
    if (is_new) { /* first: once they are on their way, there must be one */
        dlb_buffer_retain(view->buffer);
        message->result = dlb_tensor_new(dlb.tensor_type, view);
        if (message->result == NULL) {
            PyErr_Clear();
            return 0; /* Python reports it, and takes them in */
        }
    }
    if (dlb_post_contents(message, view->buffer, data, nbytes, number) < 0)
        return -1;
    return dlb_wait_shortly(advance_message, message, message->over, nbytes);
}

int dlb_open_receiver(const quick *self, const dlb_peers *over, PyObject *source_,
                      PyObject *tag, PyObject *out, receiver *made) {
    bool any_tag = tag == Py_None;
    made->out = out;
    made->source = read_number(source_, over->size - 1);
    made->tag = any_tag ? over->any_tag : read_number(tag, over->highest_tag);
    if (made->source < 0 || (made->tag < 0 && !any_tag))
        return 0;
    return out == Py_None ? 1 : dlb_source_take_out(self, out, &made->into);
}

void dlb_close_receiver(const receiver *made) {
    if (made->out != Py_None)
        dlb_source_drop(&made->into);
}

posted *dlb_new_receive(dlb_peers *over, int peer) {
    return dlb_posted_new(over, peer, true,
                          sizeof(message_head) + sizeof(description) +
                              8 * MOST_DIMENSIONS + DLB_MESSAGE_MOST);
}

/* Receive a message that was posted: 1, with the result; 0, Python goes on; -1. */
static int receive(posted *message, receiver *to, PyObject **result) {
    announced said;
    uint32_t number;
    dlb_view made;
    source *into = to->out == Py_None ? NULL : &to->into;
    int came = dlb_wait_shortly(advance_message, message, message->over, 0);
    if (came < 0)
        return -1;
    if (came == 0 || !dlb_read_message(message, &said, &number) ||
        (into != NULL && !dlb_fits(&said, &into->view.dl)) ||
        (into == NULL && dlb_make_memory(&made, said.dtype, said.ndim, said.shape) < 0))
        return 0;
    dlb_view *view = into != NULL ? &into->view : &made;
    if (said.come > 0)
        memcpy((char *)view->dl.data + view->dl.byte_offset, said.contents, said.come);
    else
        came = receive_contents(message, view, into == NULL, number, said.nbytes);
    if (came > 0 && into == NULL) {
        *result = dlb_give(to->converter, &made);
        return *result == NULL ? -1 : 1;
    }
    if (came > 0)
        *result = Py_NewRef(to->out);
    if (into == NULL)
        dlb_buffer_drop(made.buffer);
    return came;
}

PyObject *dlb_recv(const caller *by, dlb_peers *over, PyObject *const *args,
                   Py_ssize_t count) { /* source, tag, to, out */
    receiver to;
    PyObject *result = NULL;
    posted *message = NULL;
    if (dlb_open_receiver(by->self, over, args[0], args[1], args[3], &to) <= 0)
        return dlb_decline();
    if ((to.converter = dlb_find_converter(args[2])) == NULL) {
        result = dlb_decline();
        goto done;
    }
    message = dlb_new_receive(over, to.source);
    if (message != NULL && dlb_post_head(message, to.tag) == 0 &&
        receive(message, &to, &result) == 0)
        result = dlb_resume(by, "recv", message, args, count);
    Py_XDECREF(message);
done:
    Py_XDECREF(to.converter);
    dlb_close_receiver(&to);
    return result;
}

/* Go on with both in Python, or with the send alone. */
static PyObject *resume_exchange(const caller *by, PyObject *both, PyObject *result,
                                 PyObject *const *args, Py_ssize_t count) {
    if (result == NULL)
        return dlb_resume(by, "sendrecv", both, args, count);
    PyObject *none = dlb_resume(by, "send", PyTuple_GET_ITEM(both, 0), args + 1, 1);
    if (none == NULL)
        Py_CLEAR(result);
    Py_XDECREF(none);
    return result;
}

PyObject *
dlb_sendrecv(const caller *by, dlb_peers *over, PyObject *const *args,
             Py_ssize_t count) { /* x, dest, source, sendtag, recvtag, to, out */
    PyObject *sends[3] = {args[0], args[1], args[3]}, *result = NULL, *both = NULL;
    receiver to;
    posted *sent = NULL, *received = NULL;
    if (dlb_open_receiver(by->self, over, args[2], args[4], args[6], &to) <= 0)
        return dlb_decline();
    to.converter = args[5] == Py_None ? dlb_type_converter(by->self, args[0])
                                      : dlb_find_converter(args[5]);
    if (to.converter == NULL || (received = dlb_new_receive(over, to.source)) == NULL ||
        (both = PyTuple_New(2)) == NULL ||
        (sent = dlb_begin_send(by->self, over, sends)) == NULL) {
        result = dlb_decline();
        goto done;
    }
    PyTuple_SET_ITEM(both, 0, Py_NewRef(sent));
    PyTuple_SET_ITEM(both, 1, Py_NewRef(received));
    if (dlb_post_head(received, to.tag) < 0)
        goto done;
    int came = receive(received, &to, &result);
    int gone =
        came < 0 ? -1 : dlb_wait_shortly(advance_message, sent, over, sent->nbytes);
    if (gone < 0)
        Py_CLEAR(result);
    else if (came == 0 || gone == 0)
        result = resume_exchange(by, both, result, args, count);
done:
    Py_XDECREF(both);
    Py_XDECREF(sent);
    Py_XDECREF(received);
    Py_XDECREF(to.converter);
    dlb_close_receiver(&to);
    return result;
}
