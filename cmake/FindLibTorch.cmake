# Finds LibTorch by path and defines the target LibTorch::LibTorch.
#
# Looked for, in this order: TRIREME_TORCH (variable or environment: the installed Python package
# `torch` or an unpacked LibTorch), the package of .venv, the package of python3.
# Set: LibTorch_VERSION, LibTorch_CUDA (ON for a CUDA build), LibTorch_ROOT.
set(LibTorch_MIN 2.11)
set(LibTorch_MAX 2.14)

set(_candidates)
if(TRIREME_TORCH)
  list(APPEND _candidates ${TRIREME_TORCH})
elseif(DEFINED ENV{TRIREME_TORCH})
  list(APPEND _candidates $ENV{TRIREME_TORCH})
else()
  foreach(_python ${CMAKE_SOURCE_DIR}/.venv/bin/python python3)
    execute_process(
      COMMAND ${_python} -c
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE _dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(_dir)
      list(APPEND _candidates ${_dir})
    endif()
  endforeach()
endif()

foreach(_dir ${_candidates})
  if(EXISTS ${_dir}/include/ATen/ATen.h AND EXISTS ${_dir}/lib)
    set(LibTorch_ROOT ${_dir})
    break()
  endif()
endforeach()
if(NOT LibTorch_ROOT)
  message(FATAL_ERROR
    "LibTorch was not found (looked in: ${_candidates}). Install the Python package torch==2.13.0 "
    "into .venv, or set TRIREME_TORCH to an installed `torch` package or an unpacked LibTorch.")
endif()

file(STRINGS ${LibTorch_ROOT}/include/torch/headeronly/version.h _version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3"
  LibTorch_VERSION "${_version_lines}")
if(LibTorch_VERSION VERSION_LESS ${LibTorch_MIN} OR
   LibTorch_VERSION VERSION_GREATER_EQUAL 2.15)
  message(FATAL_ERROR
    "LibTorch ${LibTorch_VERSION} at ${LibTorch_ROOT} is not supported: versions ${LibTorch_MIN} to "
    "${LibTorch_MAX} are. Install torch==2.13.0 or point TRIREME_TORCH elsewhere.")
endif()

find_library(LibTorch_CPU_LIB torch_cpu PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH REQUIRED)
find_library(LibTorch_C10_LIB c10 PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH REQUIRED)
find_library(LibTorch_CUDA_LIB torch_cuda PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
set(LibTorch_CUDA OFF)
set(_libs ${LibTorch_CPU_LIB} ${LibTorch_C10_LIB})
if(LibTorch_CUDA_LIB)
  set(LibTorch_CUDA ON)
  find_library(LibTorch_C10_CUDA_LIB c10_cuda PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH REQUIRED)
  list(APPEND _libs ${LibTorch_CUDA_LIB} ${LibTorch_C10_CUDA_LIB})
endif()

if(NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    ${LibTorch_ROOT}/include ${LibTorch_ROOT}/include/torch/csrc/api/include)
  target_link_libraries(LibTorch::LibTorch INTERFACE ${_libs})
  target_link_options(LibTorch::LibTorch INTERFACE -Wl,-rpath,${LibTorch_ROOT}/lib)
endif()
set(LibTorch_FOUND TRUE)
message(STATUS "LibTorch ${LibTorch_VERSION} (CUDA: ${LibTorch_CUDA}) at ${LibTorch_ROOT}")
