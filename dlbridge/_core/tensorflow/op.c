/* One op of TensorFlow for all kernels: its definition and its registration.
 *
 * The node carries the kernel's name, never a pointer, so a saved model works in
 * another process that has wrapped a kernel of that name. The results' shapes are set
 * by Python from the schema: TensorFlow's C API does not show attributes to shape
 * functions.
 */
#include <stdio.h>

#include "tensorflow/tensorflow.h"

/* "Call" may be folded, shared and dropped like any function of its inputs; "Effect" is
 * for kernels without results, which are run for what they do. "CallTransposed" is in
 * no graph: Python gives it the gradient of "Call", and TensorFlow transposes that. */
static const struct {
    const char *name;
    bool stateful;
} ops[] = {{"DlbridgeCall", false},
           {"DlbridgeCallTransposed", false},
           {"DlbridgeEffect", true}};

static const char *const attributes[] = {
    "kernel: string",       "scalars: string = ''",  "present: string = ''",
    "Tin: list(type) >= 0", "Tout: list(type) >= 0",
};

static void infer_shapes(dlb_tf_handle context, dlb_tf_handle status) {
    dlb_tf.ShapeInferenceContextSetUnknownShape(context, status);
}

static void *create_node(dlb_tf_handle construction) {
    dlb_tf_handle status = dlb_tf.NewStatus();
    dlb_tf_node *node = dlb_tf_node_new(construction, status);
    if (node == NULL)
        dlb_tf.OpKernelConstruction_Failure(construction, status);
    dlb_tf.DeleteStatus(status);
    return node;
}

static void delete_node(void *node) {
    dlb_tf_node_free(node);
}

static void register_definition(const char *name, bool stateful, dlb_tf_handle status) {
    dlb_tf_handle builder = dlb_tf.NewOpDefinitionBuilder(name);
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        dlb_tf.OpDefinitionBuilderAddAttr(builder, attributes[i]);
    dlb_tf.OpDefinitionBuilderAddInput(builder, "inputs: Tin");
    dlb_tf.OpDefinitionBuilderAddOutput(builder, "outputs: Tout");
    dlb_tf.OpDefinitionBuilderSetIsStateful(builder, stateful);
    dlb_tf.OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shapes);
    dlb_tf.RegisterOpDefinition(builder, status);
}

int dlb_tf_register(char *error, size_t size) {
    dlb_tf_handle status = dlb_tf.NewStatus();
    int code = DLB_TF_OK;
    for (size_t i = 0; i < sizeof ops / sizeof *ops && code == DLB_TF_OK; i++) {
        register_definition(ops[i].name, ops[i].stateful, status);
        code = dlb_tf.GetCode(status);
        if (code != DLB_TF_OK)
            break;
        dlb_tf_handle builder = dlb_tf.NewKernelBuilder(ops[i].name, "CPU", create_node,
                                                        dlb_tf_run, delete_node);
        dlb_tf.RegisterKernelBuilder(ops[i].name, builder, status);
        code = dlb_tf.GetCode(status);
    }
    if (code != DLB_TF_OK)
        snprintf(error, size, "%s", dlb_tf.Message(status));
    dlb_tf.DeleteStatus(status);
    return code == DLB_TF_OK ? 0 : -1;
}
