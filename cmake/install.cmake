# What `cmake --install` puts where: libraries with their CMake and pkg-config files, program, manual page, completion.
file(RELATIVE_PATH neap_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/neap.pc.in neap.pc @ONLY)
include(CMakePackageConfigHelpers)
configure_package_config_file(cmake/neap-config.cmake.in neap-config.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/neap)
write_basic_package_version_file(neap-config-version.cmake COMPATIBILITY SameMinorVersion)
install(TARGETS ${neap_libraries} EXPORT neap-targets)
install(EXPORT neap-targets NAMESPACE neap:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/neap)
install(FILES ${PROJECT_BINARY_DIR}/neap-config.cmake ${PROJECT_BINARY_DIR}/neap-config-version.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/neap)
install(FILES ${PROJECT_BINARY_DIR}/neap.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES include/neap.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS neap)
install(FILES ${PROJECT_BINARY_DIR}/neap.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PROJECT_BINARY_DIR}/neap.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    RENAME neap)
