# What C++ code needs to build against the Python package: headers, and cmake/ for find_package(Monarch). A wheel gets
# both; in a checkout cmake/ points at the sources, so that `python -m monarch.cpp --cmake-dir` means the same in both.
include(CMakePackageConfigHelpers)
set(config_dir ${PROJECT_BINARY_DIR}/package)
if(NOT SKBUILD)
  set(config_dir ${PROJECT_SOURCE_DIR}/python/monarch/cmake)
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/MonarchConfig.cmake.in ${config_dir}/MonarchConfig.cmake
                              INSTALL_DESTINATION monarch/cmake)
write_basic_package_version_file(${config_dir}/MonarchConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS monarch EXPORT MonarchTargets LIBRARY DESTINATION monarch)
if(NOT SKBUILD)
  export(EXPORT MonarchTargets NAMESPACE Monarch:: FILE ${config_dir}/MonarchTargets.cmake)
  return()
endif()
install(EXPORT MonarchTargets NAMESPACE Monarch:: DESTINATION monarch/cmake)
install(FILES ${config_dir}/MonarchConfig.cmake ${config_dir}/MonarchConfigVersion.cmake DESTINATION monarch/cmake)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/monarch DESTINATION monarch/include
        FILES_MATCHING PATTERN "*.h" PATTERN testing EXCLUDE PATTERN internal EXCLUDE)
install(TARGETS monarch-guard monarch-hostd RUNTIME DESTINATION monarch/bin)
install(TARGETS _core LIBRARY DESTINATION monarch)
