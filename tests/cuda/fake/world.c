/* The lock, the list of calls, the list of faults. */
#include "fake.h"

#include <stdarg.h>
#include <stdio.h>

int64_t host_waits, implicit_waits, pageable_copies;
bool is_lazy;
uint32_t seed;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUresult broken; /* what every call returns after a kernel has failed */
static bool is_initialised, is_forked, is_shut_down;
static record *calls;
static uint32_t call_total, call_room;
static bool keeps_calls = true;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static char **faults;
static int32_t fault_count;
#define MAX_FAULTS 1000

static struct {
    char name[64];
    int32_t result, after, times;
} failure;

CUresult world_error(void) {
    return broken;
}

void world_lock(void) {
    pthread_mutex_lock(&lock);
}

void world_unlock(void) {
    pthread_mutex_unlock(&lock);
}

/* ---- calls ---- */

static void note_fork(void) {
    is_forked = true;
    pthread_mutex_init(&lock, NULL);
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, note_fork);
}

/* The failure of a function that a test has asked for. */
static CUresult planned_failure(const char *name) {
    if (failure.times <= 0 || strcmp(failure.name, name) != 0 || failure.after-- > 0)
        return SUCCESS;
    failure.times--;
    return failure.result;
}

static CUresult state_failure(const record *call, call_kind kind) {
    if (is_forked)
        return refuse(NOT_INITIALIZED, "%s in a process that was forked", call->name);
    if (is_shut_down)
        return DEINITIALIZED;
    if (broken != SUCCESS && kind != QUIET)
        return broken;
    if (!is_initialised && kind != QUIET)
        return refuse(NOT_INITIALIZED, "%s before cuInit", call->name);
    if (holds_is_callback() && kind != QUIET)
        return refuse(NOT_PERMITTED, "%s in a host function", call->name);
    if (failure.times > 0) {
        CUresult planned = planned_failure(call->name);
        if (planned != SUCCESS)
            return planned;
    }
    return kind == UNSAFE ? capture_check_unsafe(call->name) : SUCCESS;
}

static _Thread_local char thread_mark;

int call_begin(record *call, call_kind kind) {
    pthread_mutex_lock(&lock);
    call->thread = (uintptr_t)&thread_mark;
    if (keeps_calls) {
        if (call_total == call_room) {
            call_room = call_room ? 2 * call_room : 1024;
            calls = realloc(calls, call_room * sizeof *calls);
        }
        calls[call_total++] = *call;
    }
    CUresult result = state_failure(call, kind);
    if (result == SUCCESS)
        return 0;
    call_end(call, result);
    return -1;
}

/* Other threads may have called meanwhile: a record that moved is found by its thread.
 */
CUresult call_end(record *call, CUresult result) {
    call->result = result;
    for (uint32_t i = call_total; keeps_calls && i-- > 0;)
        if (calls[i].thread == call->thread) {
            if (calls[i].name == call->name)
                calls[i] = *call;
            break;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

uint32_t call_number(void) {
    return call_total;
}

const char *call_text(uint32_t number, char *text, size_t size) {
    if (number == 0 || number > call_total) {
        snprintf(text, size, "a call");
        return text;
    }
    const record *call = &calls[number - 1];
    snprintf(text, size, "call %u (%s on stream %#llx)", number, call->name,
             (unsigned long long)call->stream);
    return text;
}

/* ---- faults ---- */

static void fault_list(const char *kind, const char *format, va_list values) {
    char text[512];
    int length = snprintf(text, sizeof text, "%s: ", kind);
    vsnprintf(text + length, sizeof text - (size_t)length, format, values);
    if (fault_count >= MAX_FAULTS)
        return;
    if (faults == NULL)
        faults = calloc(MAX_FAULTS, sizeof *faults);
    faults[fault_count++] = strdup(text);
}

void fault(const char *kind, const char *format, ...) {
    va_list values;
    va_start(values, format);
    fault_list(kind, format, values);
    va_end(values);
}

static const char *kind_of(CUresult result) {
    if (result >= CAPTURE_UNSUPPORTED && result <= CAPTURE_WRONG_THREAD)
        return "capture";
    if (result == INVALID_HANDLE)
        return "invalid handle";
    return result == INVALID_CONTEXT ? "context" : "misuse";
}

CUresult refuse(CUresult result, const char *format, ...) {
    va_list values;
    va_start(values, format);
    fault_list(kind_of(result), format, values);
    va_end(values);
    return result;
}

/* ---- what tests can ask ---- */

API uint32_t fake_call_count(void) {
    return call_total;
}

API const record *fake_call(uint32_t i) {
    return i < call_total ? &calls[i] : NULL;
}

/* Deferred work may also have faults. */
API int32_t fake_fault_count(void) {
    world_lock();
    deferred_flush(NULL);
    world_unlock();
    return fault_count;
}

API const char *fake_fault(int32_t i) {
    return i >= 0 && i < fault_count ? faults[i] : NULL;
}

API void fake_forget_faults(void) {
    pthread_mutex_lock(&lock);
    while (fault_count > 0)
        free(faults[--fault_count]);
    pthread_mutex_unlock(&lock);
}

/* For benchmarks: the list costs memory. */
API void fake_keep_calls(int keeps) {
    keeps_calls = keeps;
}

/* From its call number `after` on, `times` calls of a function return `result`. */
API void fake_fail(const char *name, int32_t result, int32_t after, int32_t times) {
    pthread_mutex_lock(&lock);
    snprintf(failure.name, sizeof failure.name, "%s", name);
    failure.result = result;
    failure.after = after;
    failure.times = times;
    pthread_mutex_unlock(&lock);
}

/* As after the driver's own exit handler: every call fails. */
API void fake_shut_down(int is_down) {
    is_shut_down = is_down;
}

/* As after an illegal access of a kernel: the process has lost the devices. */
API void fake_break(int32_t result) {
    broken = result;
}

API int64_t fake_host_waits(void) {
    return host_waits;
}

API int64_t fake_implicit_waits(void) {
    return implicit_waits;
}

API int64_t fake_pageable_copies(void) {
    return pageable_copies;
}

/* Lazy: nothing is over before the host waits for it, or fake_finish. */
API void fake_set_lazy(int lazy) {
    is_lazy = lazy;
}

/* How long work is pending is decided by it: the same for each run of a program. */
API void fake_set_seed(uint32_t number) {
    seed = number;
}

void world_reset(void) {
    const char *text = getenv("FAKE_CUDA_SEED");
    seed = text != NULL ? (uint32_t)strtoul(text, NULL, 10) : 1;
    while (fault_count > 0)
        free(faults[--fault_count]);
    call_total = 0;
    keeps_calls = true;
    host_waits = implicit_waits = pageable_copies = 0;
    is_lazy = is_shut_down = false;
    failure.times = 0;
    broken = SUCCESS;
}

API CUresult cuInit(unsigned int flags) {
    CALL(QUIET, "cuInit")
    pthread_once(&once, watch_forks);
    is_initialised = true;
    return call_end(&call, flags == 0 ? SUCCESS : INVALID_VALUE);
}
