// The kernels of launch tests; `nvcc -ptx -arch=compute_75 kernels.cu` makes kernels.ptx of it,
// whose .version is then set to 7.3, so that drivers since CUDA 11.3 take it.
extern "C" __global__ void add_one(const float *x, float *out, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = x[i] + 1;
}

extern "C" __global__ void scale(const float *x, float *out, float factor, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = x[i] * factor;
}

extern "C" __global__ void saxpy(float a, const float *x, const float *y, float *out,
                                 long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = a * x[i] + y[i];
}

extern "C" __global__ void nothing() {}
