# The Debian package: `make deb`, or `cpack -G DEB` in the build folder. Program, manual page, completion, unit file,
# example settings as a configuration file, dashboard; no library files.
set(neap_maintainer "neap maintainers <maintainers@neap.example>")
set(neap_deb_files ${PROJECT_BINARY_DIR}/deb)
find_program(GZIP gzip)
if(GZIP)
    file(MAKE_DIRECTORY ${neap_deb_files})
    file(WRITE ${neap_deb_files}/copyright
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: neap\n\n"
        "Files: *\nCopyright: 2026 the neap authors\nLicense: Apache-2.0\n"
        " On Debian systems the text of the Apache License, version 2.0, is in\n"
        " /usr/share/common-licenses/Apache-2.0.\n")
    file(WRITE ${neap_deb_files}/changelog
        "neap (${PROJECT_VERSION}) unstable; urgency=medium\n\n"
        "  * Version ${PROJECT_VERSION}; see the documentation.\n\n"
        " -- ${neap_maintainer}  Mon, 30 Nov 2026 00:00:00 +0000\n")
    # Reloads systemd's view and stops what would run without its program. Nothing is enabled or started: a model has to
    # be named first.
    file(WRITE ${neap_deb_files}/postinst "#!/bin/sh\nset -e\n"
        "if [ -d /run/systemd/system ]; then systemctl --system daemon-reload >/dev/null || true; fi\n")
    file(WRITE ${neap_deb_files}/prerm "#!/bin/sh\nset -e\n"
        "if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then\n"
        "    systemctl stop neap.service >/dev/null || true\nfi\n")
    file(WRITE ${neap_deb_files}/postrm "#!/bin/sh\nset -e\n"
        "if [ -d /run/systemd/system ]; then systemctl --system daemon-reload >/dev/null || true; fi\n")
    file(WRITE ${neap_deb_files}/conffiles "/etc/neap/neap.ini\n")
    file(CHMOD ${neap_deb_files}/postinst ${neap_deb_files}/prerm ${neap_deb_files}/postrm
        PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
    file(CHMOD ${neap_deb_files}/conffiles PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    add_custom_command(TARGET neap POST_BUILD
        COMMAND sh -c "gzip -9nc neap.1 >deb/neap.1.gz && gzip -9nc deb/changelog >deb/changelog.gz"
        WORKING_DIRECTORY ${PROJECT_BINARY_DIR} VERBATIM)
    # `cmake --install` takes none of these, and the package nothing else.
    function(neap_deb_install destination)
        install(FILES ${ARGN} DESTINATION ${destination} COMPONENT deb EXCLUDE_FROM_ALL)
    endfunction()
    install(TARGETS neap RUNTIME DESTINATION usr/bin COMPONENT deb EXCLUDE_FROM_ALL)
    neap_deb_install(usr/share/man/man1 ${neap_deb_files}/neap.1.gz)
    neap_deb_install(usr/share/doc/neap ${neap_deb_files}/copyright ${neap_deb_files}/changelog.gz)
    neap_deb_install(usr/share/doc/neap/examples packaging/grafana.json packaging/prometheus.yml packaging/alerts.yml)
    neap_deb_install(lib/systemd/system packaging/neap.service)
    neap_deb_install(etc/neap packaging/neap.ini)
    install(FILES ${PROJECT_BINARY_DIR}/neap.bash DESTINATION usr/share/bash-completion/completions RENAME neap
        COMPONENT deb EXCLUDE_FROM_ALL)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME neap)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "${neap_maintainer}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "language model server and tools for CPUs")
set(CPACK_PACKAGE_DESCRIPTION "neap runs Kimi Linear, Kimi K3, K3.1 and related models on processors: a server
with the OpenAI API, a chat in the terminal, and tools to measure, quantise and
verify models.")
set(CPACK_DEBIAN_DEB_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_COMPONENTS_ALL deb)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${neap_deb_files}/postinst ${neap_deb_files}/prerm ${neap_deb_files}/postrm
    ${neap_deb_files}/conffiles)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)
include(CPack)
