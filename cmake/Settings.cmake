# Compiler settings shared by every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
add_compile_options(-fPIC)  # one code model, so that tests and the program reuse the precompiled header
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# Kernels choose their instruction set at run time, so everything else stays on the baseline.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_compile_options(-march=x86-64-v2)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  else()
    add_compile_options(-fpch-preprocess)
  endif()
endif()
find_program(LLD ld.lld)
if(LLD)
  add_link_options(-fuse-ld=lld)
endif()
if(TRIREME_SANITIZE)
  add_compile_options(-fsanitize=${TRIREME_SANITIZE} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${TRIREME_SANITIZE})
endif()

if(TRIREME_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TRIREME_FUZZ needs Clang (libFuzzer); this is ${CMAKE_CXX_COMPILER_ID}. The same targets run in damage_tests with any compiler")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Warnings are errors for our own code only (dependencies are system includes), and only with the
# compilers they are checked with: a newer one's new warnings must not keep a user from building.
add_library(trireme_warnings INTERFACE)
target_compile_options(trireme_warnings INTERFACE -Wall -Wextra)
# GCC 12 sees uninitialized members in the clean-up of aggregates with default member initializers, at -O3.
target_compile_options(trireme_warnings INTERFACE
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
# GCC 14 sees copies beyond an empty vector<bool> in LibTorch's torch::autograd::Function.
target_compile_options(trireme_warnings INTERFACE
  "$<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-array-bounds;-Wno-stringop-overflow>")
set(_known_compiler OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(_known_compiler ON)
endif()
option(TRIREME_WERROR "Warnings in our own code are errors" ${_known_compiler})
if(TRIREME_WERROR)
  target_compile_options(trireme_warnings INTERFACE -Werror)
endif()
