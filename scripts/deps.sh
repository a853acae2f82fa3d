#!/bin/sh
# Installs what is missing, and nothing else: deps.sh run (to build and to fetch the default model),
# deps.sh check (the tests too). Needs only a shell; Debian or Ubuntu for the packages of the system,
# elsewhere it names what is missing. Python packages go to a virtual environment in the user's data
# folder. One line for each thing done; silent when there is nothing to do.
set -u
mode=${1:-run}
case $mode in run | check) ;; *) echo "usage: deps.sh run|check" >&2; exit 2 ;; esac
home=${INFER_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/infer}
venv=$home/venv
log=$(mktemp "${TMPDIR:-/tmp}/infer-deps.XXXXXX") || exit 1
trap 'rm -f "$log"' EXIT

say() { echo "deps: $*" >&2; }
die() { say "$1"; tail -n 25 "$log" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
lib() { have pkg-config && pkg-config --exists "$1"; }

missing=
need() { # need PACKAGE TEST…: the package joins the list where the test fails
    package=$1; shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
compiles() { printf '%s\n' "$1" | "$2" -x c $3 -o /dev/null - ; }

need gcc have gcc
need libc6-dev compiles '#include <stdio.h>
int main(void) { return 0; }' gcc ''
need make have make
need pkg-config have pkg-config
need libjansson-dev lib jansson
need libpcre2-dev lib libpcre2-8
need libutf8proc-dev lib libutf8proc
need libcurl4-openssl-dev lib libcurl
need libedit-dev lib libedit
need python3-venv python3 -c 'import ensurepip, venv'
if [ "$mode" = check ]; then
    need git have git
    need libcmocka-dev lib cmocka
    need qemu-user have qemu-x86_64
    need clang have clang
    if have clang; then
        version=$(clang -dumpversion | cut -d. -f1)
        need "libclang-rt-$version-dev" compiles '#include <stddef.h>
int LLVMFuzzerTestOneInput(const void *p, size_t n) { return p && n > 7; }' clang \
            '-fsanitize=fuzzer,address,undefined'
    else
        missing="$missing libclang-rt-14-dev"
    fi
    if ls "$(dirname "$0")"/../src/compute/cpu/arm/*.c >/dev/null 2>&1; then
        need gcc-aarch64-linux-gnu have aarch64-linux-gnu-gcc
        need libc6-dev-arm64-cross test -d /usr/aarch64-linux-gnu/include
        need qemu-user have qemu-aarch64
    fi
fi

if [ -n "$missing" ]; then
    have apt-get || die "missing:$missing (Debian's names); install them and call again"
    root=
    if [ "$(id -u)" != 0 ]; then
        have sudo || die "missing:$missing; call as root, or install sudo"
        root=sudo
    fi
    # The compiler's version decides the name of its run-time library: ask for the one there will be.
    if ! have clang && [ "$mode" = check ]; then
        $root apt-get update >"$log" 2>&1 || die "apt-get update failed:"
        version=$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
        missing=$(echo "$missing" | sed "s/libclang-rt-14-dev/libclang-rt-${version:-14}-dev/")
    fi
    say "installing with apt-get:$missing"
    install="$root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
    # Package lists may be absent or stale: refresh them when the first try fails.
    # shellcheck disable=SC2086
    $install $missing >"$log" 2>&1 ||
        { $root apt-get update >"$log" 2>&1 && $install $missing >>"$log" 2>&1; } ||
        die "apt-get failed:"
fi

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "making a Python environment in $venv"
    # What the system's Python has is used; only the rest is installed.
    python3 -m venv --system-site-packages "$venv" >"$log" 2>&1 || die "python3 -m venv failed:"
fi
if [ "$mode" = check ]; then
    wanted=
    for module in numpy gguf tokenizers jinja2 pytest; do
        "$venv/bin/python" -c "import $module" >/dev/null 2>&1 || wanted="$wanted $module"
    done
    if [ -n "$wanted" ]; then
        say "installing with pip:$wanted"
        # shellcheck disable=SC2086
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $wanted \
            >"$log" 2>&1 || die "pip failed:"
    fi
fi
