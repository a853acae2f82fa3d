#!/bin/sh
# Installs into a folder, builds the example there with pkg-config against the shared and the static
# library, runs it, and looks at the libraries' symbols. Says "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
to=$(mktemp -d "${TMPDIR:-/tmp}/infer-install.XXXXXX") || exit 1
trap 'rm -rf "$to"' EXIT
passed=0 failed=0
ok() { # ok WHAT COMMAND…
    what=$1; shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "failed: $what"; fi
}
none() { ! grep . "$1"; } # shows the lines there should not be

ok 'make install with DESTDIR' make -s BUILD="$build" DESTDIR="$to/stage" PREFIX=/opt/infer install
for f in bin/infer include/infer.h include/infer_base.h lib/libinfer.a lib/libinfer.so lib/pkgconfig/infer.pc; do
    ok "staged $f" test -s "$to/stage/opt/infer/$f"
done
ok 'the prefix is without DESTDIR' grep -q '^prefix=/opt/infer$' "$to/stage/opt/infer/lib/pkgconfig/infer.pc"
ok 'make install with PREFIX' make -s BUILD="$build" PREFIX="$to/usr" install

PKG_CONFIG_PATH=$to/usr/lib/pkgconfig
export PKG_CONFIG_PATH
version=$(pkg-config --modversion infer)
ok "version $version" test "$version" = "$(sed -n 's/.*INFER_VERSION "\(.*\)".*/\1/p' src/base/error.c)"
cc=${CC:-gcc}
ok 'example, shared' $cc -std=c11 -Wall -Werror -o "$to/shared" examples/demo_inference.c \
    $(pkg-config --cflags --libs infer) -Wl,-rpath,"$to/usr/lib"
ok 'example, static' $cc -std=c11 -Wall -Werror -o "$to/static" examples/demo_inference.c \
    $(pkg-config --cflags infer) "$to/usr/lib/libinfer.a" $(pkg-config --static --libs infer | sed 's/-linfer//')
model=${INFER_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/infer}/models/gemma-3-270m-q4_k_m.gguf
for kind in shared static; do
    "$to/$kind" "$to/missing.gguf" >"$to/out" 2>"$to/err"
    ok "$kind: a missing model ends with 1" test $? -eq 1
    ok "$kind: and says so" grep -q 'missing.gguf: no such file' "$to/err"
    if [ -f "$model" ]; then
        "$to/$kind" "$model" >"$to/out" 2>"$to/err"
        ok "$kind: an answer" grep -q "the capital of the country" "$to/out"
    fi
done

nm -g --defined-only "$to/usr/lib/libinfer.a" | awk 'NF == 3 && $3 !~ /^infer_/' >"$to/foreign"
ok 'static: only infer_* is global' none "$to/foreign"
nm -D --defined-only "$to/usr/lib/libinfer.so" | awk 'NF == 3 && $3 !~ /^infer_/' >"$to/foreign"
ok 'shared: only infer_* is exported' none "$to/foreign"
# Every function that a header announces is there.
grep -hA1 INFER_API include/*.h | grep -o '\binfer_[a-z0-9_]*(' | tr -d '(' | sort -u >"$to/announced"
nm -D --defined-only "$to/usr/lib/libinfer.so" | awk '{ print $3 }' | sort -u >"$to/defined"
comm -23 "$to/announced" "$to/defined" >"$to/foreign"
ok 'announced and not there' none "$to/foreign"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
