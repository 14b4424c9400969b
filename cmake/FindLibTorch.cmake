# Finds LibTorch by path and defines the target LibTorch::LibTorch. Serves the CPU and CUDA builds of
# the Python package `torch` and an unpacked LibTorch; needs no CUDA toolkit.
#
# Looked for in this order: TRIREME_TORCH (variable or environment; nothing else is then tried), the
# package of .venv, the package of python3.
# Set: LibTorch_VERSION, LibTorch_CUDA (ON for a CUDA build), LibTorch_ROOT.
set(_supported "2.11 to 2.14")

set(_asked ${TRIREME_TORCH})
if(NOT _asked)
  set(_asked $ENV{TRIREME_TORCH})
endif()
set(_candidates ${_asked})
if(NOT _asked)
  foreach(_python ${CMAKE_SOURCE_DIR}/.venv/bin/python python3)
    execute_process(
      COMMAND ${_python} -c
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE _dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND _candidates ${_dir})
  endforeach()
endif()

set(LibTorch_ROOT)
foreach(_dir ${_candidates})
  if(EXISTS ${_dir}/include/ATen/ATen.h AND IS_DIRECTORY ${_dir}/lib)
    get_filename_component(LibTorch_ROOT ${_dir} ABSOLUTE)
    break()
  endif()
endforeach()
if(NOT LibTorch_ROOT AND _asked)
  message(FATAL_ERROR
    "TRIREME_TORCH=${_asked} is no LibTorch: ${_asked}/include/ATen/ATen.h or ${_asked}/lib is missing. "
    "Expected the folder of an installed Python package `torch` (.../site-packages/torch) or of an "
    "unpacked LibTorch. Correct it, or unset it to use the package of .venv.")
elseif(NOT LibTorch_ROOT)
  message(FATAL_ERROR
    "LibTorch was not found (looked in: ${_candidates}). Run `make deps`, which installs torch==2.13.0 "
    "into .venv, or set TRIREME_TORCH to an installed `torch` package or an unpacked LibTorch.")
endif()

set(LibTorch_VERSION unknown)
foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(EXISTS ${LibTorch_ROOT}/include/${_header})
    file(STRINGS ${LibTorch_ROOT}/include/${_header} _lines
      REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    if(_lines MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+)")
      set(LibTorch_VERSION ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
      break()
    endif()
  endif()
endforeach()
if(NOT LibTorch_VERSION MATCHES "^2\\.1[1-4]\\.")
  message(FATAL_ERROR
    "LibTorch ${LibTorch_VERSION} at ${LibTorch_ROOT} is not supported: versions ${_supported} are. "
    "Install torch==2.13.0, or point TRIREME_TORCH at a supported one.")
endif()

# A CUDA build's kernels register themselves when their library is loaded: nothing refers to them, so
# the linker is told to keep it. Its own dependencies (cudart, cublas) are found at load time.
set(_libs)
foreach(_name torch_cpu c10)
  if(NOT EXISTS ${LibTorch_ROOT}/lib/lib${_name}.so)
    message(FATAL_ERROR "LibTorch at ${LibTorch_ROOT} is incomplete: lib/lib${_name}.so is missing. "
      "Install it again.")
  endif()
  list(APPEND _libs ${LibTorch_ROOT}/lib/lib${_name}.so)
endforeach()
set(LibTorch_CUDA OFF)
if(EXISTS ${LibTorch_ROOT}/lib/libtorch_cuda.so)
  set(LibTorch_CUDA ON)
  list(APPEND _libs -Wl,--allow-shlib-undefined -Wl,--push-state,--no-as-needed
    ${LibTorch_ROOT}/lib/libtorch_cuda.so ${LibTorch_ROOT}/lib/libc10_cuda.so -Wl,--pop-state)
endif()

# LibTorch's include folder also holds other libraries, among them an fmt of another version than the
# one we link. Only its own folders are made visible.
set(_include ${CMAKE_BINARY_DIR}/libtorch/include)
file(MAKE_DIRECTORY ${_include})
foreach(_folder ATen c10 caffe2 torch)
  file(CREATE_LINK ${LibTorch_ROOT}/include/${_folder} ${_include}/${_folder} SYMBOLIC)
endforeach()

if(NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE ${_include})
  target_link_libraries(LibTorch::LibTorch INTERFACE ${_libs})
  target_link_options(LibTorch::LibTorch INTERFACE -Wl,-rpath,${LibTorch_ROOT}/lib)
  message(STATUS "LibTorch ${LibTorch_VERSION} (CUDA: ${LibTorch_CUDA}) at ${LibTorch_ROOT}")
endif()
set(LibTorch_FOUND TRUE)
