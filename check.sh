#!/bin/sh
# Installs what is missing, builds neap and runs its tests. Extra arguments go to ctest: ./check.sh -R unit
set -eu
cd "$(dirname "$0")"
sh tools/setup.sh build test
: "${BUILD:=build}"
# shellcheck disable=SC2086
cmake -S . -B "$BUILD" -DNEAP_TESTS=ON ${CMAKE_ARGS:--DNEAP_WERROR=OFF} >/dev/null
cmake --build "$BUILD" -j "$(nproc)"
ctest --test-dir "$BUILD" --output-on-failure -j "$(nproc)" "$@"
