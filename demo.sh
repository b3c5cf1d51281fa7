#!/bin/sh
# Installs what is missing, builds neap and lets the bundled model answer a question.
# ./demo.sh "Where is ...?" asks another one.
set -eu
cd "$(dirname "$0")"
sh tools/setup.sh build
: "${BUILD:=build}"
if [ ! -x "$BUILD/neap" ]; then
    echo "building neap (about a minute) ..."
    [ -f "$BUILD/CMakeCache.txt" ] || cmake -S . -B "$BUILD" -DNEAP_TESTS=OFF >/dev/null
fi
cmake --build "$BUILD" -j "$(nproc)" --target neap >/dev/null
