# Installs the build in BUILD into a scratch prefix, then builds and runs the consumer project with it.
#   cmake -DBUILD=build/release -DSOURCE=tests/package/consumer -P consumer_test.cmake
set(scratch ${BUILD}/consumer_test)
file(REMOVE_RECURSE ${scratch})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit ${code}: ${ARGN}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${scratch}/prefix)
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${scratch}/build -DCMAKE_PREFIX_PATH=${scratch}/prefix
    -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${scratch}/build)
run(${scratch}/build/core_consumer)
run(${scratch}/build/consumer)
run(${scratch}/prefix/bin/trireme --help)
file(REMOVE_RECURSE ${scratch})
