# Builds the plugin of SOURCE out of tree against an installed BUILD and trains with all that it adds, on one rank and on
# 2 tensor x 2 pipeline ranks: the same losses and metrics.
# So with the family of FAMILY on 2 data x 2 tensor x 2 pipeline ranks.
#   cmake -DBUILD=build/release -DSOURCE=examples/plugin -DFAMILY=examples/new_family -P plugin_test.cmake
set(scratch ${BUILD}/plugin_test)
file(REMOVE_RECURSE ${scratch})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code WORKING_DIRECTORY ${BUILD})
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit ${code}: ${ARGN}")
  endif()
endfunction()

# A line of a run's metrics without the numbers that differ from run to run.
function(metrics_of folder out)
  file(STRINGS ${folder}/metrics.jsonl lines)
  set(kept "")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "\"step\": [0-9]+, \"(loss|eval_loss)\": [0-9]+\\.[0-9][0-9][0-9]" head "${line}")
    string(REGEX MATCH "\"eval_accuracy\": [^,]*, \"eval_reciprocal_rank\": [0-9]\\.?[0-9]?[0-9]?[0-9]?[0-9]?" values "${line}")
    list(APPEND kept "${head} ${values}")
  endforeach()
  set(${out} "${kept}" PARENT_SCOPE)
endfunction()

execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${scratch}/prefix COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${scratch}/build -DCMAKE_PREFIX_PATH=${scratch}/prefix -DCMAKE_BUILD_TYPE=Debug)
run(${CMAKE_COMMAND} --build ${scratch}/build)
set(trireme ${scratch}/prefix/bin/trireme)
set(own plugins=[${scratch}/build/libmine.so])
set(train ${trireme} train --config ${SOURCE}/run.yaml ${own})
run(${train} --ranks 4 train.output_dir=${scratch}/four)
run(${train} train.output_dir=${scratch}/one train.dist.tensor_parallel_size=1 train.dist.pipeline_parallel_size=1)
metrics_of(${scratch}/four four)
metrics_of(${scratch}/one one)
if(NOT four STREQUAL one OR NOT four MATCHES "eval_accuracy\": (1|0.9)")
  message(FATAL_ERROR "4 ranks: ${four}\n1 rank: ${one}")
endif()
file(READ ${scratch}/four/diary.txt diary)
if(NOT diary MATCHES "^begun\nevaluating\nstep 60: .*\nevaluating\nstep 120: .*\ndone, 120 steps begun, 120 ended\n$")
  message(FATAL_ERROR "the hook's diary: ${diary}")
endif()
run(${trireme} --plugin ${scratch}/build/libmine.so ckpt inspect ${scratch}/four/checkpoints/step_00000120)
run(${trireme} eval --config ${SOURCE}/run.yaml --ranks 4 ${own} train.output_dir=${scratch}/four)

execute_process(COMMAND ${trireme} train --config ${SOURCE}/run.yaml plugins=[${scratch}/none.so] --ranks 4 --dry-run
                RESULT_VARIABLE code ERROR_VARIABLE error)
if(NOT code EQUAL 2 OR NOT error MATCHES "plugins: .*none.so cannot be loaded")
  message(FATAL_ERROR "a plugin that is not there: exit ${code}: ${error}")
endif()

run(${CMAKE_COMMAND} -G Ninja -S ${FAMILY} -B ${scratch}/family -DCMAKE_PREFIX_PATH=${scratch}/prefix -DCMAKE_BUILD_TYPE=Debug)
run(${CMAKE_COMMAND} --build ${scratch}/family)
set(train ${trireme} train --config ${FAMILY}/run.yaml plugins=[${scratch}/family/libstablelm.so])
run(${train} --ranks 8 train.output_dir=${scratch}/family8)
run(${train} train.output_dir=${scratch}/family1 train.num_accumulation_steps=4 train.dist.data_parallel_size=1
    train.dist.tensor_parallel_size=1 train.dist.pipeline_parallel_size=1)
metrics_of(${scratch}/family8 eight)
metrics_of(${scratch}/family1 one)
if(NOT eight STREQUAL one OR NOT eight MATCHES "step\": 6")
  message(FATAL_ERROR "8 ranks: ${eight}\n1 rank: ${one}")
endif()
file(REMOVE_RECURSE ${scratch})
