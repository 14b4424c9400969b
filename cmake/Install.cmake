# `cmake --install` and `find_package(trireme)`: the libraries trireme::core and trireme::trireme, the
# headers as they lie in the tree, the program, and our own find module for LibTorch.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/trireme)

set_target_properties(trireme_core PROPERTIES EXPORT_NAME core)
set(_targets trireme_core)
if(TRIREME_WITH_TORCH)
  list(APPEND _targets trireme trireme_program)
endif()
install(TARGETS ${_targets} EXPORT trireme
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/trireme DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN pch.h EXCLUDE)
install(EXPORT trireme NAMESPACE trireme:: DESTINATION ${_package} FILE triremeTargets.cmake)

configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/triremeConfig.cmake.in ${PROJECT_BINARY_DIR}/triremeConfig.cmake
  INSTALL_DESTINATION ${_package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/triremeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/triremeConfig.cmake ${PROJECT_BINARY_DIR}/triremeConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake
  DESTINATION ${_package})
