/* Kernels in C++17: typed views of tensors, dtype dispatch, errors as exceptions, loops
 * over several threads. It adds to dlbridge_kernel.h, and needs nothing else.
 *
 *     #include "dlbridge_kernel.hpp"
 *
 *     DLB_KERNEL(row_sums) {
 *         dlb::visit<float, double>(call.tensor(0), [&](auto type) {
 *             using T = decltype(type);
 *             auto x = call.view<const T, 2>(0);
 *             auto out = call.view<T, 1>(1);
 *             dlb::check(x.extent(1) > 0, "a row needs an element");
 *             dlb::parallel_for(0, x.extent(0), 64, [&](int64_t i) {
 *                 T sum = 0;
 *                 for (int64_t j = 0; j < x.extent(1); j++)
 *                     sum += x(i, j);
 *                 out(i) = sum;
 *             });
 *         });
 *     }
 *     DLB_EXPORT(row_sums, "mylib::row_sums(x: f32|f64[n, m]) -> f32|f64[n]");
 *
 * An exception that leaves the body is a KernelError with its text. Indices are
 * compared with extents unless NDEBUG is defined.
 */
#ifndef DLBRIDGE_KERNEL_HPP_
#define DLBRIDGE_KERNEL_HPP_

#include <algorithm>
#include <array>
#include <complex>
#include <cstring>
#include <exception>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include "dlbridge_kernel.h"

/* The function `name`, as DLB_EXPORT and compile_cpp take it: what follows is its body,
 * in which `call` is the dlb::call. */
#define DLB_KERNEL(name)                                                               \
    static void dlb_body_of_##name(const dlb::call &call);                             \
    extern "C" int name(void *context, DLTensor *tensors, int count) noexcept;         \
    extern "C" __attribute__((visibility("default"))) int name(                        \
        void *context, DLTensor *tensors, int count) noexcept {                        \
        return dlb_guard(context, [&] {                                                \
            dlb_body_of_##name(dlb::call(context, tensors, count));                    \
            return 0;                                                                  \
        });                                                                            \
    }                                                                                  \
    static void dlb_body_of_##name([[maybe_unused]] const dlb::call &call)

namespace dlb {

#ifdef NDEBUG
inline constexpr bool checks_indices = false;
#else
inline constexpr bool checks_indices = true;
#endif

/* ---- errors
 * -------------------------------------------------------------------------- */

/* What ends a call with a text; any other std::exception does as well. */
class error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/* Throw dlb::error with the parts as one text, "n is ", n, unless `holds`. */
template <typename... Parts> inline void check(bool holds, const Parts &...parts) {
    if (holds)
        return;
    std::ostringstream text;
    (text << ... << parts);
    throw error(text.str());
}

/* ---- dtypes
 * -------------------------------------------------------------------------- */

/* bfloat16 and float16 are kept as their bits; arithmetic is that of float. */
struct bfloat16 {
    uint16_t bits = 0;

    bfloat16() = default;
    bfloat16(float value) {
        uint32_t word;
        std::memcpy(&word, &value, sizeof word);
        if (value != value)
            bits = static_cast<uint16_t>(word >> 16 | 0x40);
        else /* to nearest, ties to even */
            bits = static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
    }
    operator float() const {
        uint32_t word = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &word, sizeof value);
        return value;
    }
};

struct float16 {
    uint16_t bits = 0;

    float16() = default;
    float16(float value) {
        uint32_t word;
        std::memcpy(&word, &value, sizeof word);
        uint32_t sign = word >> 16 & 0x8000, size = word & 0x7fffffff;
        if (size > 0x7f800000) { /* NaN */
            bits = static_cast<uint16_t>(sign | 0x7e00);
        } else if (size >= 0x477ff000) { /* rounds to infinity */
            bits = static_cast<uint16_t>(sign | 0x7c00);
        } else if (size >= 0x38800000) { /* normal */
            size += 0xfff + (size >> 13 & 1);
            bits = static_cast<uint16_t>(sign | (size - 0x38000000) >> 13);
        } else { /* adding 0.5 leaves the rounded multiple of 2^-24 in the last bits */
            float magnitude;
            std::memcpy(&magnitude, &size, sizeof magnitude);
            volatile float moved = magnitude + 0.5f;
            float rounded = moved;
            std::memcpy(&size, &rounded, sizeof size);
            bits = static_cast<uint16_t>(sign | (size - 0x3f000000));
        }
    }
    operator float() const {
        uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16,
                 size = bits & 0x7fff;
        float value;
        if (size < 0x400) { /* subnormal */
            value = static_cast<float>(size) / 16777216.0f;
            return sign != 0 ? -value : value;
        }
        uint32_t word =
            sign | ((size << 13) + (size < 0x7c00 ? 0x38000000 : 0x70000000));
        std::memcpy(&value, &word, sizeof value);
        return value;
    }
};

/* The dtype of a type of C++; a type of yours becomes one by a specialisation. */
template <typename T> struct dtype_of {
    static_assert(std::is_arithmetic<T>::value, "dlb::dtype_of<T> is not specialised");
    static constexpr uint8_t code = std::is_same<T, bool>::value       ? kDLBool
                                    : std::is_floating_point<T>::value ? kDLFloat
                                    : std::is_signed<T>::value         ? kDLInt
                                                                       : kDLUInt;
};
template <> struct dtype_of<bfloat16> {
    static constexpr uint8_t code = kDLBfloat;
};
template <> struct dtype_of<float16> {
    static constexpr uint8_t code = kDLFloat;
};
template <typename T> struct dtype_of<std::complex<T>> {
    static constexpr uint8_t code = kDLComplex;
};

inline void check_given(const DLTensor &tensor) {
    check(!dlb_is_missing(&tensor), "a view of an optional tensor that was left out: "
                                    "call.is_missing(place) says so");
}

template <typename T> inline bool is_of(const DLTensor &tensor) {
    using Value = std::remove_cv_t<T>;
    return tensor.dtype.code == dtype_of<Value>::code &&
           tensor.dtype.bits == 8 * sizeof(Value) && tensor.dtype.lanes == 1;
}

/* Call `body` with a value of the one of `Types` that the tensor has the dtype of:
 * `using T = decltype(type)` in the body. Any other dtype is an error. */
template <typename... Types, typename Body>
inline void visit(const DLTensor &tensor, Body &&body) {
    bool is_found = ((is_of<Types>(tensor) ? (body(Types()), true) : false) || ...);
    check(is_found, "there is no code for dtype (code ", int(tensor.dtype.code),
          ", bits ", int(tensor.dtype.bits), ", lanes ", tensor.dtype.lanes, ")");
}

/* ---- views
 * --------------------------------------------------------------------------- */

/* The elements of a tensor with N dimensions: x(i, j). T is const for what is read. */
template <typename T, int N> class view {
  public:
    explicit view(const DLTensor &tensor) : data_(static_cast<T *>(tensor.data)) {
        check_given(tensor);
        check(tensor.ndim == N, "a view of ", N, " dimensions on a tensor of ",
              tensor.ndim);
        check(is_of<T>(tensor), "a view of another dtype than its tensor: code ",
              int(tensor.dtype.code), ", bits ", int(tensor.dtype.bits));
        std::copy_n(tensor.shape, N, extents_.begin());
        std::copy_n(tensor.strides, N, strides_.begin());
    }

    T *data() const {
        return data_;
    }
    int64_t extent(int dim) const {
        return extents_[static_cast<size_t>(dim)];
    }
    int64_t stride(int dim) const {
        return strides_[static_cast<size_t>(dim)];
    }

    int64_t size() const {
        int64_t count = 1;
        for (int64_t extent : extents_)
            count *= extent;
        return count;
    }

    template <typename... Indices> T &operator()(Indices... indices) const {
        static_assert(sizeof...(Indices) == N, "an index for each dimension");
        std::array<int64_t, N> at = {static_cast<int64_t>(indices)...};
        int64_t offset = 0;
        for (size_t dim = 0; dim < N; dim++) {
            if constexpr (checks_indices)
                check(at[dim] >= 0 && at[dim] < extents_[dim], "index ", at[dim],
                      " of dimension ", dim, ", which has ", extents_[dim]);
            offset += at[dim] * strides_[dim];
        }
        return data_[offset];
    }

  private:
    T *data_;
    std::array<int64_t, N> extents_, strides_;
};

/* The elements of a contiguous tensor of any number of dimensions, one after another.
 */
template <typename T> class flat {
  public:
    explicit flat(const DLTensor &tensor)
        : data_(static_cast<T *>(tensor.data)), size_(1) {
        check_given(tensor);
        check(is_of<T>(tensor), "a view of another dtype than its tensor: code ",
              int(tensor.dtype.code), ", bits ", int(tensor.dtype.bits));
        for (int dim = tensor.ndim - 1; dim >= 0; dim--) {
            check(tensor.shape[dim] <= 1 || tensor.strides[dim] == size_ || size_ == 0,
                  "dlb::flat needs a contiguous tensor");
            size_ *= tensor.shape[dim];
        }
    }

    T *data() const {
        return data_;
    }
    int64_t size() const {
        return size_;
    }
    T *begin() const {
        return data_;
    }
    T *end() const {
        return data_ + size_;
    }

    T &operator[](int64_t at) const {
        if constexpr (checks_indices)
            check(at >= 0 && at < size_, "index ", at, " of ", size_, " elements");
        return data_[at];
    }

  private:
    T *data_;
    int64_t size_;
};

/* ---- a list of numbers among the scalars of a call
 * ------------------------------------------------------------------------ */

template <typename T> class list {
  public:
    list(const T *data, int64_t size) : data_(data), size_(size) {
    }

    const T *data() const {
        return data_;
    }
    int64_t size() const {
        return size_;
    }
    const T *begin() const {
        return data_;
    }
    const T *end() const {
        return data_ + size_;
    }
    const T &operator[](int64_t index) const {
        check(index >= 0 && index < size_, "number ", index, " of a list of ", size_);
        return data_[index];
    }

  private:
    const T *data_;
    int64_t size_;
};

/* ---- the call
 * ------------------------------------------------------------------------ */

/* Tensors count in the order of the schema, results after arguments; so do scalars. */
class call {
  public:
    call(void *context, DLTensor *tensors, int count)
        : context_(static_cast<dlb_context *>(context)), tensors_(tensors),
          count_(count) {
    }

    int count() const {
        return count_;
    }
    void *stream() const {
        return context_->stream;
    }

    const DLTensor &tensor(int place) const {
        check(place >= 0 && place < count_, "tensor ", place, " of ", count_);
        return tensors_[place];
    }
    bool is_missing(int place) const {
        return dlb_is_missing(&tensor(place));
    }

    /* The tensors of a list; arguments and results count in the order of the schema,
     * each list once; an argument that is not a list is one tensor: tensors(place)[0],
     * and an optional result one or none.
     * All other functions count all tensors in a row, each of a list as one. */
    list<DLTensor> tensors(int place) const {
        bool knows_lists = context_->size >= offsetof(dlb_context, count_count) + 8 &&
                           context_->counts != nullptr;
        int64_t parts = knows_lists ? context_->count_count : count_;
        check(place >= 0 && place < parts, "argument or result ", place, " of ", parts);
        int64_t size = 0;
        DLTensor *first = dlb_get_tensors(context_, tensors_, place, &size);
        return {first, size};
    }

    template <typename T, int N> dlb::view<T, N> view(int place) const {
        return dlb::view<T, N>(tensor(place));
    }
    template <typename T> dlb::flat<T> flat(int place) const {
        return dlb::flat<T>(tensor(place));
    }

    bool is_none(int place) const {
        return scalar(place).kind == DLB_NONE;
    }
    double get_float(int place) const {
        scalar(place);
        return dlb_get_float(context_, place);
    }
    int64_t get_int(int place) const {
        scalar(place);
        return dlb_get_int(context_, place);
    }
    DLDataType get_dtype(int place) const {
        scalar(place);
        return dlb_get_dtype(context_, place);
    }
    list<int64_t> get_ints(int place) const {
        check(scalar(place).kind == DLB_INTS, "scalar ", place, " is no int[]");
        return {scalar(place).value.list->ints, scalar(place).value.list->count};
    }
    list<double> get_floats(int place) const {
        check(scalar(place).kind == DLB_FLOATS, "scalar ", place, " is no float[]");
        return {scalar(place).value.list->floats, scalar(place).value.list->count};
    }
    const char *get_string(int place) const {
        check(scalar(place).kind == DLB_STRING, "scalar ", place, " is no text");
        return scalar(place).value.s;
    }

  private:
    const dlb_scalar &scalar(int place) const {
        check(place >= 0 && place < context_->scalar_count, "scalar ", place, " of ",
              context_->scalar_count);
        return context_->scalars[place];
    }

    dlb_context *context_;
    DLTensor *tensors_;
    int count_;
};

/* ---- loops over several threads
 * ------------------------------------------------------ */

/* Call `body(i)` for each i of [begin, end): in several threads where each of them has
 * at least `grain` of them, by OpenMP where that is switched on, else by std::thread.
 * The first exception of a body is thrown again here; indices after it may be left out.
 */
template <typename Body>
inline void parallel_for(int64_t begin, int64_t end, int64_t grain, Body &&body) {
    int64_t count = end - begin;
    int64_t most = std::max<int64_t>(1, std::thread::hardware_concurrency());
    int64_t parts = std::min(most, count / std::max<int64_t>(1, grain));
    std::exception_ptr failure;
    std::mutex lock;
    auto run = [&](int64_t part) noexcept {
        try {
            int64_t stop = begin + (count / parts) * (part + 1) +
                           std::min(part + 1, count % parts);
            int64_t start =
                begin + (count / parts) * part + std::min(part, count % parts);
            for (int64_t i = start; i < stop; i++)
                body(i);
        } catch (...) {
            std::lock_guard<std::mutex> held(lock);
            if (!failure)
                failure = std::current_exception();
        }
    };
    if (parts < 2) {
        for (int64_t i = begin; i < end; i++)
            body(i);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for
    for (int64_t part = 0; part < parts; part++)
        run(part);
#else
    std::vector<std::thread> threads;
    threads.reserve(static_cast<size_t>(parts));
    int64_t started = 1; /* part 0 is this thread's */
    try {
        for (; started < parts; started++)
            threads.emplace_back(run, started);
    } catch (const std::system_error &) {
        /* no further thread can be had: what is left is done here */
    }
    run(0);
    for (int64_t part = started; part < parts; part++)
        run(part);
    for (std::thread &each : threads)
        each.join();
#endif
    if (failure)
        std::rethrow_exception(failure);
}

} // namespace dlb

#endif /* DLBRIDGE_KERNEL_HPP_ */
