# Finds NCCL and the CUDA runtime by path: first those of the Python packages beside LibTorch, so that
# one copy of each is loaded, then the system's and a CUDA toolkit's.
# Set: NCCL_FOUND, NCCL_INCLUDE_DIRS, NCCL_LIBRARIES, NCCL_NOT_FOUND_MESSAGE.
set(_packages)
if(LibTorch_ROOT)
  get_filename_component(_packages ${LibTorch_ROOT}/../nvidia ABSOLUTE)
endif()
file(GLOB _runtimes ${_packages}/cu[0-9]* ${_packages}/cuda_runtime)
set(_toolkits $ENV{CUDA_HOME} /usr/local/cuda)

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_packages}/nccl/include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${_packages}/nccl/lib)
# Some packages of the runtime lack the headers that its own includes.
find_path(NCCL_CUDART_INCLUDE_DIR crt/host_defines.h HINTS ${_runtimes} ${_toolkits} PATH_SUFFIXES include)
find_library(NCCL_CUDART_LIBRARY NAMES libcudart.so.13 libcudart.so.12 cudart
  HINTS ${_runtimes} ${_toolkits} PATH_SUFFIXES lib lib64)

set(NCCL_FOUND ON)
set(NCCL_NOT_FOUND_MESSAGE "")
foreach(_part NCCL_INCLUDE_DIR NCCL_LIBRARY NCCL_CUDART_INCLUDE_DIR NCCL_CUDART_LIBRARY)
  if(NOT ${_part})
    set(NCCL_FOUND OFF)
    string(APPEND NCCL_NOT_FOUND_MESSAGE "${_part} is missing (nccl.h, libnccl, cuda_runtime_api.h with crt/host_defines.h, or libcudart); ")
  endif()
endforeach()
if(NCCL_FOUND)
  set(NCCL_INCLUDE_DIRS ${NCCL_INCLUDE_DIR} ${NCCL_CUDART_INCLUDE_DIR})
  set(NCCL_LIBRARIES ${NCCL_LIBRARY} ${NCCL_CUDART_LIBRARY})
  message(STATUS "NCCL: ${NCCL_LIBRARY}")
elseif(NOT NCCL_FIND_QUIETLY)
  message(STATUS "NCCL: ${NCCL_NOT_FOUND_MESSAGE}ranks with GPUs cannot communicate")
endif()
