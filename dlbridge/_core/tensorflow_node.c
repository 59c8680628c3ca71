/* The attributes of a node, read once when TensorFlow makes the node's kernel. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow_api.h"

static char *read_string(dlb_tf_handle construction, const char *name,
                         dlb_tf_handle status) {
    int32_t items = 0, bytes = 0;
    dlb_tf.OpKernelConstruction_GetAttrSize(construction, name, &items, &bytes, status);
    if (dlb_tf.GetCode(status) != DLB_TF_OK)
        return NULL;
    char *text = calloc(1, (size_t)bytes + 1);
    if (text != NULL && bytes > 0)
        dlb_tf.OpKernelConstruction_GetAttrString(construction, name, text,
                                                  (size_t)bytes, status);
    return text;
}

/* One scalar is kind, length of the value in bytes, ':', the value, ',': "i2:-7,". The
 * values of 'i' are decimal, those of 'f' the bits of a double in hexadecimal; 'n' is
 * None and 't' a value that comes with the tensors. NULL: not of this form. */
static char *read_scalar(char *text, dlb_scalar *scalar, bool *traced) {
    char kind = *text++, *end;
    unsigned long length = strtoul(text, &end, 10);
    if (end == text || *end != ':' || strlen(end + 1) < length + 1)
        return NULL;
    char *value = end + 1;
    end = value + length;
    if (*end != ',')
        return NULL;
    *end = 0; /* a string ends here, for the kernel */
    uint64_t bits = kind == 'f' ? strtoull(value, NULL, 16) : 0;
    *traced = kind == 't';
    switch (kind) {
    case 'i':
        scalar->kind = DLB_INT;
        scalar->value.i = strtoll(value, NULL, 10);
        break;
    case 'f':
        scalar->kind = DLB_FLOAT;
        memcpy(&scalar->value.f, &bits, sizeof bits);
        break;
    case 's':
        scalar->kind = DLB_STRING;
        scalar->value.s = value;
        break;
    case 'n':
    case 't':
        scalar->kind = DLB_NONE;
        break;
    default:
        return NULL;
    }
    return end + 1;
}

static int read_scalars(dlb_tf_node *node) {
    for (char *text = node->text; *text != 0;) {
        int32_t i = node->scalar_count;
        if (i == DLB_MAX_SCALARS)
            return -1;
        text = read_scalar(text, &node->scalars[i], &node->traced[i]);
        if (text == NULL)
            return -1;
        node->traced_count += node->traced[i];
        node->scalar_count++;
    }
    return 0;
}

dlb_tf_node *dlb_tf_node_new(dlb_tf_handle construction, dlb_tf_handle status) {
    dlb_tf_node *node = calloc(1, sizeof *node);
    if (node != NULL) {
        node->name = read_string(construction, "kernel", status);
        node->text = read_string(construction, "scalars", status);
        node->present = read_string(construction, "present", status);
    }
    if (node == NULL || node->name == NULL || node->text == NULL ||
        node->present == NULL) {
        if (dlb_tf.GetCode(status) == DLB_TF_OK)
            dlb_tf.SetStatus(status, DLB_TF_INTERNAL, "dlbridge: out of memory");
    } else if (read_scalars(node) < 0) {
        char text[256];
        snprintf(text, sizeof text, "%.160s: the attribute 'scalars' is damaged",
                 node->name);
        dlb_tf.SetStatus(status, DLB_TF_INVALID_ARGUMENT, text);
    } else {
        return node;
    }
    dlb_tf_node_free(node);
    return NULL;
}

void dlb_tf_node_free(dlb_tf_node *node) {
    if (node == NULL)
        return;
    free(node->name);
    free(node->text);
    free(node->present);
    free(node);
}
