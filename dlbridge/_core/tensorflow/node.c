/* The attributes of a node, read once when TensorFlow makes the node's kernel. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/tensorflow.h"

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
        int i = node->scalar_count;
        bool traced = false;
        if (i == DLB_MAX_SCALARS)
            return -1;
        text = read_scalar(text, &node->scalars[i], &traced);
        if (text == NULL)
            return -1;
        node->traced |= (uint32_t)traced << i;
        node->traced_count += traced;
        node->scalar_count++;
    }
    return 0;
}

/* One '0' or '1' for each tensor; nothing at all where all are there. */
static int read_present(dlb_tf_node *node, const char *present, int32_t given) {
    size_t length = strlen(present), tensors = (size_t)(given - node->traced_count);
    for (size_t i = 0; i < length && i < DLB_MAX_TENSORS; i++) {
        node->absent |= (uint32_t)(present[i] == '0') << i;
        tensors += present[i] == '0';
    }
    node->input_count = (uint8_t)tensors;
    return given < node->traced_count || tensors > DLB_MAX_TENSORS ||
                   (length != 0 && length != tensors)
               ? -1
               : 0;
}

static int read_outputs(dlb_tf_handle construction, dlb_tf_node *node,
                        dlb_tf_handle status) {
    int32_t count = 0, bytes = 0;
    int numbers[DLB_MAX_TENSORS];
    dlb_tf.OpKernelConstruction_GetAttrSize(construction, "Tout", &count, &bytes,
                                            status);
    if (dlb_tf.GetCode(status) != DLB_TF_OK || count > DLB_MAX_TENSORS)
        return -1;
    dlb_tf.OpKernelConstruction_GetAttrTypeList(construction, "Tout", numbers, count,
                                                status);
    if (dlb_tf.GetCode(status) != DLB_TF_OK)
        return -1;
    for (int32_t i = 0; i < count; i++)
        node->outputs[i] = numbers[i] > 0 && numbers[i] < DLB_TF_DTYPES
                               ? (uint8_t)numbers[i]
                               : 0; /* no dtype */
    node->output_count = (uint8_t)count;
    return 0;
}

static int read_attributes(dlb_tf_handle construction, dlb_tf_node *node,
                           dlb_tf_handle status) {
    int32_t given = 0, bytes = 0;
    dlb_tf.OpKernelConstruction_GetAttrSize(construction, "Tin", &given, &bytes,
                                            status);
    char *present = read_string(construction, "present", status);
    node->name = read_string(construction, "kernel", status);
    node->text = read_string(construction, "scalars", status);
    node->scalars = calloc(DLB_MAX_SCALARS, sizeof *node->scalars);
    int failed = present == NULL || node->name == NULL || node->text == NULL ||
                 node->scalars == NULL || read_scalars(node) < 0 ||
                 read_present(node, present, given) < 0 ||
                 read_outputs(construction, node, status) < 0;
    free(present);
    return failed ? -1 : 0;
}

dlb_tf_node *dlb_tf_node_new(dlb_tf_handle construction, dlb_tf_handle status) {
    enum { LINE = 64 };
    size_t size = (sizeof(dlb_tf_node) + LINE - 1) / LINE * LINE;
    dlb_tf_node *node = aligned_alloc(LINE, size);
    if (node != NULL)
        memset(node, 0, size);
    if (node != NULL && read_attributes(construction, node, status) == 0)
        return node;
    if (dlb_tf.GetCode(status) == DLB_TF_OK) {
        char text[256];
        snprintf(text, sizeof text, "%.160s: the node's attributes are damaged",
                 node != NULL && node->name != NULL ? node->name : "dlbridge");
        dlb_tf.SetStatus(status, DLB_TF_INVALID_ARGUMENT, text);
    }
    dlb_tf_node_free(node);
    return NULL;
}

void dlb_tf_node_free(dlb_tf_node *node) {
    if (node == NULL)
        return;
    free(node->name);
    free(node->text);
    free(node->scalars);
    free(node);
}
