#!/bin/sh
# Installs the Debian packages that are missing: sh tools/setup.sh [build] [test] [ci] [browser]
# Does nothing when all are there. Uses sudo when it is not run by root.
set -eu

build="gcc libc6-dev make cmake pkg-config libjansson-dev libpcre2-dev libedit-dev libevent-dev libssl-dev"
tests="g++ python3 libcmocka-dev"
ci="python3-venv clang libclang-rt-14-dev clang-format-14 clang-format"
browser="chromium strace"

wanted=""
for group in "${@:-build}"; do
    case "$group" in
    build) wanted="$wanted $build" ;;
    test) wanted="$wanted $build $tests" ;;
    ci) wanted="$wanted $build $tests $ci" ;;
    browser) wanted="$wanted $browser" ;;
    *) echo "setup: unknown group '$group' (build, test, ci, browser)" >&2; exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
    # Not a Debian system: whoever has the tools and libraries may go on.
    for tool in cc cmake pkg-config; do
        command -v $tool >/dev/null 2>&1 || { echo "setup: please install $tool (Debian names: $wanted)" >&2; exit 1; }
    done
    pkg-config --exists jansson libpcre2-8 libedit libevent libevent_pthreads || {
        echo "setup: please install the development files of jansson, PCRE2, libedit and libevent" >&2
        exit 1
    }
    exit 0
fi

missing=""
for package in $wanted; do
    case " $missing " in *" $package "*) continue ;; esac
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        echo "setup: these packages are missing and neither root nor sudo is here:$missing" >&2
        exit 1
    }
    as_root="sudo"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "setup: installing$missing"
for try in 1 2 3 4 5; do
    if $as_root apt-get update -qq >"$log" 2>&1 &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 $missing >"$log" 2>&1 </dev/null; then
        exit 0
    fi
    echo "setup: attempt $try failed, waiting" >&2
    sleep $((try * 5))
done
cat "$log" >&2
echo "setup: could not install$missing" >&2
exit 1
