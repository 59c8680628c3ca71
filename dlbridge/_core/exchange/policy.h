/* The policies of an exchange, and the decision that follows from them: whether memory
 * is shared, copied or refused. */
#ifndef DLBRIDGE_CORE_EXCHANGE_POLICY_H_
#define DLBRIDGE_CORE_EXCHANGE_POLICY_H_

#include "layout/layout.h"
#include "tensor/tensor.h"

#include <string.h>

/* In the order of the words in policy.c. */
enum { DLB_RESPECT, DLB_SHARE, DLB_COPY }; /* readonly=, immutable= */
enum { DLB_DETACH = 1 };                   /* grad= */
enum { DLB_CONTIGUOUS = 2 };               /* layout= */
enum { DLB_CHECKED = 1 };                  /* narrow= */

typedef struct {
    bool is_default; /* none was given */
    bool copies;     /* copy=True */
    bool shares;     /* copy=False */
    bool on_cpu;     /* device="cpu" */
    bool names_own;  /* a device object of a framework */
    int readonly, immutable, grad, layout, narrow;
} dlb_policy;

static const dlb_policy dlb_no_policy = {.is_default = true, .immutable = DLB_SHARE};

enum { DLB_POLICIES_OF_FROM_DLPACK = 3, DLB_POLICIES = 8 };

int dlb_policy_start(PyObject *module);
/* Read the first `known` policies by the names of keywords. False: Python decides, or
 * raises the error. */
bool dlb_read_policy(PyObject *const *values, PyObject *names, int known,
                     dlb_policy *out);
bool dlb_is_word(PyObject *value, const char *word);
extern PyMethodDef dlb_policy_functions[];

/* Why a copy is made, and why the tensor itself would be refused: reasons of
 * ExchangeError, or NULL. If both are NULL, the memory is shared. A copy may be
 * accepted where the tensor is refused: ask again with the copy. */
typedef struct {
    const char *copied, *refused;
    bool is_opened; /* the read-only flag was cleared to ask again */
} dlb_decision;

/* Why the consumer cannot represent the view, or NULL. */
typedef const char *dlb_refuser(const void *consumer, const dlb_view *view);

/* Return whether a copy on the same device removes the reason. */
static inline bool dlb_is_cured_by_copy(const char *reason) {
    return strcmp(reason, "strides") == 0 || strcmp(reason, "alignment") == 0;
}

/* Apply `immutable=` to memory that never changes: treat it as read-only, or share it,
 * writable unless the consumer protects it. Return whether it must be copied. */
static inline bool dlb_settle_immutable(const dlb_policy *with, bool protects,
                                        dlb_view *view) {
    if (!(view->flags & DLB_IMMUTABLE))
        return false;
    if (with->immutable == DLB_RESPECT)
        view->flags &= ~DLB_IMMUTABLE;
    else if (!protects)
        view->flags &= ~(DLPACK_FLAG_BITMASK_READ_ONLY | DLB_IMMUTABLE);
    return with->immutable == DLB_COPY;
}

/* Decide about the view. It gets the flags of what is shared, or keeps its own if it is
 * copied. `protects`: the consumer does not write through memory marked read-only.
 * `is_copied`: it was copied before, or the consumer copies it itself. `readonly=` is
 * about memory that would be shared: neither what is copied in any case nor what has no
 * elements. */
static inline dlb_decision dlb_decide(const dlb_policy *with, bool protects,
                                      bool is_copied, dlb_refuser *refuse,
                                      const void *consumer, dlb_view *view) {
    dlb_decision made = {NULL, NULL, false};
    const uint64_t given = view->flags;
    bool is_renewed = dlb_settle_immutable(with, protects, view) && !is_copied;
    if (with->copies && !is_copied)
        made.copied = "requested";
    else if (with->layout == DLB_CONTIGUOUS && !dlb_is_row_major(&view->dl))
        made.copied = "strides";
    else if (is_renewed)
        made.copied = "readonly";
    const uint64_t flags = view->flags;
    const char *reason = refuse(consumer, view);
    if (reason != NULL && strcmp(reason, "readonly") == 0) {
        view->flags &= ~(uint64_t)DLPACK_FLAG_BITMASK_READ_ONLY;
        reason = refuse(consumer, view);
        bool is_shared =
            made.copied == NULL && reason == NULL && dlb_element_count(&view->dl) != 0;
        if (is_shared && with->readonly != DLB_SHARE) {
            view->flags = flags;
            if (with->readonly == DLB_COPY)
                made.copied = "readonly";
            else
                made.refused = "readonly";
        }
        made.is_opened = true;
    }
    if (reason != NULL && !dlb_is_cured_by_copy(reason))
        made.refused = reason;
    else if (reason != NULL && made.copied == NULL)
        made.copied = reason;
    if (made.copied != NULL)
        view->flags = given;
    return made;
}

#endif /* DLBRIDGE_CORE_EXCHANGE_POLICY_H_ */
