# What FindLibTorch.cmake takes and what it refuses, on folders made for it.
#   cmake -DSCRATCH=DIR -DSOURCE=tests/package/libtorch -P libtorch_test.cmake
file(REMOVE_RECURSE ${SCRATCH})

# A folder that looks like LibTorch `version` (a list) with the libraries named after it.
function(make_torch dir version)
  list(GET version 0 major)
  list(GET version 1 minor)
  file(WRITE ${dir}/include/ATen/ATen.h "")
  file(WRITE ${dir}/include/torch/headeronly/version.h
    "#define TORCH_VERSION_MAJOR ${major}\n#define TORCH_VERSION_MINOR ${minor}\n"
    "#define TORCH_VERSION_PATCH 0\n")
  foreach(lib ${ARGN})
    file(WRITE ${dir}/lib/lib${lib}.so "")
  endforeach()
endfunction()

# Configures with TRIREME_TORCH=`torch`: the exit code is 0 or not, and the output says `text`.
function(expect works torch text)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build -DTRIREME_TORCH=${torch} --fresh
    RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  string(REGEX REPLACE "[ \n]+" " " said "${out}${err}")
  string(FIND "${said}" "${text}" at)
  if(at EQUAL -1 OR (works AND NOT code EQUAL 0) OR (NOT works AND code EQUAL 0))
    message(FATAL_ERROR "TRIREME_TORCH=${torch}: exit ${code}, expected to read `${text}` in: ${said}")
  endif()
endfunction()

expect(NO ${SCRATCH}/nothing "is no LibTorch")
foreach(minor 10 15)
  make_torch(${SCRATCH}/2.${minor} "2;${minor}" torch_cpu c10)
  expect(NO ${SCRATCH}/2.${minor} "LibTorch 2.${minor}.0")
endforeach()
make_torch(${SCRATCH}/3.11 "3;11" torch_cpu c10)
expect(NO ${SCRATCH}/3.11 "versions 2.11 to 2.14 are")
make_torch(${SCRATCH}/partial "2;13" c10)
expect(NO ${SCRATCH}/partial "libtorch_cpu.so is missing")
foreach(minor 11 12 13 14)
  make_torch(${SCRATCH}/2.${minor} "2;${minor}" torch_cpu c10)
  expect(YES ${SCRATCH}/2.${minor} "version 2.${minor}.0 cuda OFF")
endforeach()
make_torch(${SCRATCH}/cuda "2;13" torch_cpu c10 torch_cuda c10_cuda)
expect(YES ${SCRATCH}/cuda "cuda ON")
file(REMOVE_RECURSE ${SCRATCH})
