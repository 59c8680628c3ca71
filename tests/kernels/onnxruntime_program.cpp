// A program without Python that runs a model with the operators of a kernel library:
//
//     program LIBONNXRUNTIME MODEL LIBRARY COUNT
//
// The model has an input "x" and an output "y", float32 of one dimension, which is
// 0, 1, … COUNT - 1. It prints the output, or the runtime's error. What is used of the
// runtime's C API is declared here; its headers are not needed.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {

using handle = void *;
using function = void (*)();

struct api_base {
    const function *(*get_api)(std::uint32_t version);
    const char *(*get_version)();
};

const function *functions;

// The functions by their places in the table.
template <typename... Arguments> handle call(int place, Arguments... arguments) {
    return reinterpret_cast<handle (*)(Arguments...)>(functions[place])(arguments...);
}

enum {
    get_error_message = 2,
    create_env = 3,
    create_session = 7,
    run = 9,
    create_session_options = 10,
    register_custom_ops_library = 29,
    create_tensor_with_data = 49,
    get_tensor_mutable_data = 51,
    get_shape_element_count = 64,
    get_tensor_type_and_shape = 65,
    create_cpu_memory_info = 69
};

void check(handle status) {
    if (status == nullptr)
        return;
    auto text = reinterpret_cast<const char *(*)(handle)>(functions[get_error_message]);
    std::cout << "error: " << text(status) << std::endl;
    std::exit(3);
}

bool has_python() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
        if (line.find("libpython") != std::string::npos)
            return true;
    return dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr;
}

} // namespace

int main(int count, char **words) {
    if (count != 5)
        return 2;
    void *runtime = dlopen(words[1], RTLD_NOW);
    if (runtime == nullptr) {
        std::cerr << dlerror() << std::endl;
        return 2;
    }
    auto base =
        reinterpret_cast<const api_base *(*)()>(dlsym(runtime, "OrtGetApiBase"))();
    functions = base->get_api(21);
    handle env, options, library, session, memory, input, output = nullptr, info;
    check(call(create_env, 3, "program", &env));
    check(call(create_session_options, &options));
    check(call(register_custom_ops_library, options, const_cast<const char *>(words[3]),
               &library));
    check(call(create_session, env, const_cast<const char *>(words[2]), options,
               &session));

    std::vector<float> x(static_cast<std::size_t>(std::atoi(words[4])));
    for (std::size_t i = 0; i < x.size(); i++)
        x[i] = static_cast<float>(i);
    std::int64_t shape[] = {static_cast<std::int64_t>(x.size())};
    check(call(create_cpu_memory_info, 0, 0, &memory));
    check(call(create_tensor_with_data, memory, static_cast<void *>(x.data()),
               x.size() * sizeof(float), static_cast<const std::int64_t *>(shape),
               std::size_t{1}, 1, &input));
    const char *inputs[] = {"x"}, *outputs[] = {"y"};
    for (int turn = 0; turn < 3; turn++)
        check(call(run, session, handle{nullptr},
                   static_cast<const char *const *>(inputs),
                   static_cast<const handle *>(&input), std::size_t{1},
                   static_cast<const char *const *>(outputs), std::size_t{1}, &output));
    float *y;
    std::size_t size;
    check(call(get_tensor_mutable_data, output, &y));
    check(call(get_tensor_type_and_shape, output, &info));
    check(call(get_shape_element_count, info, &size));
    std::cout << "y:";
    for (std::size_t i = 0; i < size; i++)
        std::cout << ' ' << y[i];
    std::cout << "\nruntime " << base->get_version() << ", "
              << (has_python() ? "with Python" : "without Python") << std::endl;
    return 0;
}
