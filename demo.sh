#!/bin/sh
# Installs what is missing, builds neap and lets the bundled model answer a question about a document that it
# has never seen. Another question: ./demo.sh "What does Tomor keep?"
set -eu
cd "$(dirname "$0")"
question=${1:-"Where did Tomor leave the flute?"}
document=models/valley/documents/harvest.txt

sh tools/setup.sh build
: "${BUILD:=build}"
if [ ! -f "$BUILD/CMakeCache.txt" ]; then
    cmake -S . -B "$BUILD" -DNEAP_TESTS=OFF -DNEAP_WERROR=OFF >/dev/null
fi
[ -x "$BUILD/neap" ] || echo "building neap (a minute or two) ..."
cmake --build "$BUILD" -j "$(nproc)" --target neap >/dev/null

echo "document: $document ($(wc -w <"$document") words)"
echo "question: $question"
printf 'answer:   '
"$BUILD/neap" run models/valley -f "$document" -p "$question"
