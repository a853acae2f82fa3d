#!/bin/sh
# Every part of the tests, one after another, with the time each took; ends with "N passed, N failed".
# A part that ends badly without a counted failure (it did not build, say) counts as one failed.
set -u
cd "$(dirname "$0")/.." || exit 1
TALLY_FILE=$(mktemp "${TMPDIR:-/tmp}/infer-ci.XXXXXX") || exit 1
times=$(mktemp "${TMPDIR:-/tmp}/infer-ci.XXXXXX") || exit 1
export TALLY_FILE
trap 'rm -f "$TALLY_FILE" "$times"' EXIT
trap 'exit 130' INT TERM
jobs=$(nproc 2>/dev/null || echo 2)

failures() { awk '{ f += $2 } END { print f + 0 }' "$TALLY_FILE"; }

part() { # part NAME COMMAND…
    name=$1; shift
    echo "== $name"
    before=$(failures) start=$(date +%s)
    MAKEFLAGS= "$@"
    status=$?
    if [ $status -ne 0 ] && [ "$(failures)" -eq "$before" ]; then
        echo "FAIL $name ended with status $status"
        echo "0 1 $name" >>"$TALLY_FILE"
    fi
    printf '%6d s  %s\n' $(($(date +%s) - start)) "$name" >>"$times"
}
# Compiler lines are noise here; its warnings and errors are not.
build() { make -s -j"$jobs" WERROR=-Werror "$@"; }

part style    make -s style
part headers  make -s headers
part gcc      build all lib
part unit     build unit
part kernels  build kernels
part golden   build golden
part cli      build cli badfiles
part install  build install-check
part clang    build BUILD=build-clang CC=clang INFER=build-clang/infer all unit kernels
part ndebug   build ndebug
part asan     build asan
part tsan     build tsan
part fuzz     build fuzz
part arm64    build arm64

echo "== time"
cat "$times"
awk '{ p += $1; f += $2 } END { printf "%d passed, %d failed\n", p, f; exit f > 0 || p == 0 }' "$TALLY_FILE"
