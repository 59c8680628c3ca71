/* A library as dlbridge_kernel.h of table version 1 made it, laid out by hand: it must
 * load for good, whatever the header becomes. Nothing is included, so that nothing can
 * change here.
 */
typedef struct {
    void *data;
    struct {
        int type, id;
    } device;
    int ndim;
    struct {
        unsigned char code, bits;
        unsigned short lanes;
    } dtype;
    long long *shape, *strides;
    unsigned long long byte_offset;
} tensor;

static int triple(void *context, tensor *arguments, int count) {
    (void)context, (void)count;
    for (long long i = 0; i < arguments[0].shape[0]; i++)
        ((float *)arguments[1].data)[i] = 3 * ((float *)arguments[0].data)[i];
    return 0;
}

static void negate(const double *x, double *out, long long n) {
    for (long long i = 0; i < n; i++)
        out[i] = -x[i];
}

/* The least that a description has: it ends with its schema. */
static const struct {
    unsigned long long size;
    const char *symbol;
    void *function;
    long long is_dltensors;
    const char *schema;
} shortest = {40, "triple", (void *)triple, 1, "old::triple(x: f32[n]) -> f32[n]"};

/* All of version 1. */
static const struct {
    unsigned long long size;
    const char *symbol;
    void *function;
    long long is_dltensors;
    const char *schema, *abi, *vjp, *jvp, *batch, *layout, *overlap, *gil, *cost,
        *stream;
    const char *platform, *doc;
    long long align;
} whole = {
    136,
    "negate",
    (void *)negate,
    0,
    "old::negate(x: f64[n]) -> f64[n]",
    "void(const double *x, double *out, int64_t n)",
    0,
    0,
    "sequential",
    "contiguous",
    "forbid",
    "auto",
    "2 * n",
    "current",
    "cpu",
    "Return -x.",
    16,
};

static const void *const entries[] = {&shortest, &whole};

const struct {
    unsigned long long magic;
    unsigned int version, size;
    const void *const *begin, *const *end;
} dlb_kernels = {0x6567646972626c64ULL, 1, 32, entries, entries + 2};
