# find_package(dlbridge_kernel) gives the target dlbridge::kernel: the headers beside this
# file, for C11 or C++17. There is nothing to link. `python -m dlbridge config --cmake`
# prints this folder, for -Ddlbridge_kernel_DIR=.
if(NOT TARGET dlbridge::kernel)
  add_library(dlbridge::kernel INTERFACE IMPORTED)
  set_target_properties(dlbridge::kernel PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")
  get_property(dlbridge_kernel_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if("C" IN_LIST dlbridge_kernel_languages)
    set_property(TARGET dlbridge::kernel APPEND PROPERTY INTERFACE_COMPILE_FEATURES c_std_11)
  endif()
  if("CXX" IN_LIST dlbridge_kernel_languages)
    set_property(TARGET dlbridge::kernel APPEND PROPERTY INTERFACE_COMPILE_FEATURES cxx_std_17)
  endif()
endif()
