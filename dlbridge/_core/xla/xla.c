/* The handler of XLA's typed FFI that serves every kernel. No Python here. */
#include "xla/xla.h"

#include <stdio.h>
#include <string.h>

static void *make_error(const dlb_xla_call *call, int code, const char *text) {
    dlb_xla_error_arguments arguments = {.message = text, .code = code};
    arguments.size = offsetof(dlb_xla_error_arguments, code) + sizeof arguments.code;
    return call->api->create_error(&arguments);
}

/* XLA refuses handlers of versions that it does not know; the structs read here are the
 * same in all versions with this major number, so its own number is the right answer.
 */
static bool answer_metadata(const dlb_xla_call *call) {
    for (dlb_xla_extension *at = call->extensions; at != NULL; at = at->next) {
        if (at->type != DLB_XLA_METADATA)
            continue;
        dlb_xla_metadata *metadata = ((dlb_xla_metadata_query *)at)->metadata;
        const dlb_xla_version *runtime = call->api ? &call->api->version : NULL;
        bool known = runtime != NULL && runtime->major == 0;
        metadata->version.size = offsetof(dlb_xla_version, minor) + sizeof(int);
        metadata->version.extensions = NULL;
        metadata->version.major = 0;
        metadata->version.minor = known ? runtime->minor : 1;
        metadata->traits = 0;
        return true;
    }
    return false;
}

/* ---- the kernel of a name ---- */

static inline bool is_same(const char *a, const char *b, size_t length) {
    uint64_t first, second;
    if (length < sizeof first)
        return memcmp(a, b, length) == 0;
    for (size_t at = 0; at + sizeof first < length; at += sizeof first) {
        memcpy(&first, a + at, sizeof first);
        memcpy(&second, b + at, sizeof second);
        if (first != second)
            return false;
    }
    memcpy(&first, a + length - sizeof first, sizeof first);
    memcpy(&second, b + length - sizeof second, sizeof second);
    return first == second;
}

static inline dlb_entry *find_entry(dlb_xla_thread *thread, const dlb_xla_span *name) {
    size_t slot = ((uintptr_t)name->data >> 4 ^ name->length) % DLB_XLA_ENTRIES;
    dlb_entry *entry = thread->entries[slot].entry;
    if (entry != NULL && thread->entries[slot].length == name->length &&
        is_same(dlb_entry_name(entry), name->data, name->length))
        return entry;
    entry = dlb_registry_entry(name->data, name->length);
    thread->entries[slot].entry = entry;
    thread->entries[slot].length = name->length;
    return entry;
}

static void *unknown_kernel(const dlb_xla_call *call, const dlb_xla_span *name) {
    char text[DLB_ERROR_SIZE];
    if (name == NULL)
        snprintf(text, sizeof text,
                 "dlbridge: this call carries no attribute `kernel` with a name");
    else
        snprintf(text, sizeof text,
                 "%.*s: no kernel of this name is known in this process; make it with "
                 "dlbridge.wrap(…, \"%.*s(…)\") before the program runs",
                 (int)(name->length < 200 ? name->length : 200), name->data,
                 (int)(name->length < 200 ? name->length : 200), name->data);
    return make_error(call, DLB_XLA_NOT_FOUND, text);
}

/* ---- one call ---- */

/* A program may have been made with another schema than the kernel has now. */
static int check_program(const dlb_kernel *kernel, dlb_xla_run *run) {
    const dlb_signature *signature = kernel->signature;
    dlb_frame *frame = &run->frame;
    int results = frame->tensor_count - frame->input_count;
    uint32_t last = kernel->writes_last && frame->input_count > 0
                        ? 1u << (frame->input_count - 1)
                        : 0;
    if (signature != NULL && (frame->input_count != signature->input_count ||
                              results != signature->result_count ||
                              frame->scalar_count > signature->scalar_count))
        return dlb_frame_fail(
            frame, DLB_ERROR_VALUE,
            "%s: the compiled program passes %d tensors, %d results and %d scalars, "
            "but "
            "the kernel of this name takes %d, %d and %d; trace and export it again",
            kernel->name, frame->input_count, results, frame->scalar_count,
            signature->input_count, signature->result_count, signature->scalar_count);
    if (((kernel->written | last) & ~run->missing) != run->mutated)
        return dlb_frame_fail(frame, DLB_ERROR_VALUE,
                              "%s: the compiled program and the kernel of this name do "
                              "not agree on which "
                              "tensors are written in place; trace and export it again",
                              kernel->name);
    while (signature != NULL && frame->scalar_count < signature->scalar_count)
        frame->scalars[frame->scalar_count++].kind = DLB_NONE;
    return 0;
}

static void *report(dlb_xla_run *run) {
    static const int codes[] = {
        [DLB_ERROR_TYPE] = DLB_XLA_INVALID_ARGUMENT,
        [DLB_ERROR_VALUE] = DLB_XLA_INVALID_ARGUMENT,
        [DLB_ERROR_BUFFER] = DLB_XLA_INVALID_ARGUMENT,
        [DLB_ERROR_KERNEL] = DLB_XLA_INTERNAL,
        [DLB_ERROR_PYTHON] = DLB_XLA_INTERNAL,
        [DLB_ERROR_MEMORY] = DLB_XLA_RESOURCE_EXHAUSTED,
    };
    dlb_error *error = &run->frame.error;
    char text[DLB_ERROR_SIZE + 32];
    int code = codes[error->kind];
    if (run->is_eager) {
        snprintf(text, sizeof text, "%s", error->text);
        size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, " [dlbridge failure %llu]",
                 (unsigned long long)dlb_xla_keep_failure(error));
        return make_error(run->call, code, text);
    }
    void *made = make_error(run->call, code, error->text);
    dlb_error_clear(error);
    return made;
}

static inline void start(dlb_xla_run *run, const dlb_xla_call *call,
                         DLDeviceType type) {
    static _Thread_local dlb_xla_thread thread;
    run->thread = &thread;
    dlb_frame_start(&run->frame, "jax.Array");
    run->call = call;
    run->device = (DLDevice){type, 0};
    run->kernel_name = run->layout = NULL;
    run->mutated = run->missing = 0;
    run->mutated_count = 0;
    run->is_eager = false;
    run->heap = NULL;
    run->room = run->first_room;
    run->room_end = run->room + sizeof run->first_room / sizeof *run->room;
}

/* Each call site has memory of its own, which is seldom in the nearest cache. Ask for
 * all of it at once: finding the kernel waits for memory, too. */
static inline void fetch_ahead(const dlb_xla_buffers *buffers) {
    for (int64_t i = 0; i < buffers->count; i++)
        __builtin_prefetch(buffers->buffers[i]->dims);
}

static int run_kernel(const dlb_kernel *kernel, dlb_xla_run *run) {
    int status;
    run->kernel = kernel;
    if (dlb_xla_run_known(run, kernel, &status))
        return status;
    if (dlb_xla_read_operands(run) < 0 || check_program(kernel, run) < 0 ||
        dlb_frame_bind(kernel, &run->frame) < 0 ||
        dlb_frame_check_results(kernel, &run->frame) < 0)
        return -1;
    status = dlb_frame_run(kernel, &run->frame);
    if (status == 0)
        dlb_xla_learn(run, kernel);
    return status;
}

static void *execute(const dlb_xla_call *call, DLDeviceType device_type) {
    dlb_xla_run run;
    if (call->extensions != NULL && answer_metadata(call))
        return NULL;
    __builtin_prefetch(call->attributes.types);
    if (call->attributes.count > 0)
        __builtin_prefetch(call->attributes.values[0]);
    fetch_ahead(&call->arguments);
    fetch_ahead(&call->results);
    start(&run, call, device_type);
    int status = dlb_xla_read_attributes(&run);
    dlb_entry *entry = run.kernel_name ? find_entry(run.thread, run.kernel_name) : NULL;
    const dlb_kernel *kernel = entry ? dlb_entry_pin(entry) : NULL;
    void *error = NULL;
    if (kernel == NULL)
        error = unknown_kernel(call, run.kernel_name);
    else if (device_type != kDLCPU)
        error = dlb_xla_read_device(&run);
    if (error == NULL && (status < 0 || run_kernel(kernel, &run) < 0))
        error = report(&run);
    if (kernel != NULL)
        dlb_entry_unpin(entry, kernel);
    dlb_xla_free_room(&run);
    return error;
}

/* ---- one handler for each platform ---- */

void *dlb_xla_execute_cpu(dlb_xla_call *call) {
    return execute(call, kDLCPU);
}

void *dlb_xla_execute_cuda(dlb_xla_call *call) {
    return execute(call, kDLCUDA);
}

void *dlb_xla_execute_rocm(dlb_xla_call *call) {
    return execute(call, kDLROCM);
}
