#!/usr/bin/env bash
# Install requirements.lock, FFCV, Pillow-SIMD and the launcher into .venv; does nothing if that is up to date.
# `setup.sh tests` also installs what some tests need.
set -euo pipefail
cd "$(dirname "$0")/.."

ffcv="ffcv==1.0.2"
pillow_simd="pillow-simd==12.1.1.post0"
packages=(python3-venv)
# Headers and libraries to build FFCV and Pillow-SIMD.
libraries=(g++ pkg-config libopencv-dev libturbojpeg0-dev libjpeg62-turbo-dev zlib1g-dev libtiff-dev libwebp-dev
    libopenjp2-7-dev liblcms2-dev libfreetype6-dev)

stamp=.venv/.complete
built=.venv/.built
wheels=.venv/wheels
checksum=$(cat requirements.lock pyproject.toml scripts/setup.sh | sha256sum)

have_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
have_headers() { python3 -c 'import os, sysconfig as s; os.stat(s.get_paths()["include"] + "/Python.h")' 2>/dev/null; }
have_libraries() {
    command -v c++ >/dev/null && have_headers && pkg-config --exists opencv4 libturbojpeg libjpeg zlib 2>/dev/null
}
is_current() { [ -f "$1" ] && [ "$(cat "$1")" = "$checksum" ]; }

for_tests() { [ "$1" != tests ] || scripts/setup_tests.sh; }

if is_current "$stamp" && is_current "$built"; then
    for_tests "${1:-}"
    exit 0
fi

have_libraries || packages+=("${libraries[@]}")
have_headers || packages+=(python3-dev)
if ! have_venv || ! have_libraries; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing ${packages[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
    else
        echo "setup: system packages are missing; run this once, then the same command again:" >&2
        echo "  sudo apt-get install -y --no-install-recommends ${packages[*]}" >&2
        have_venv || exit 2
        echo "setup: continuing without FFCV and with plain Pillow" >&2
    fi
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "setup: needs Python 3.10 or newer, python3 is $(python3 --version)" >&2
    exit 2
fi

[ -x .venv/bin/python ] || python3 -m venv .venv
pip=".venv/bin/python -m pip --quiet --disable-pip-version-check"
for_tests "${1:-}" &
tests_job=$!

# note: both compile while the other packages are downloaded; a fresh Debian has no `wheel` for builds outside PEP 517
build() { $pip wheel --use-pep517 --no-deps --wheel-dir "$wheels" "$1" >"$wheels/$2.log" 2>&1; }
if have_libraries; then
    echo "setup: building FFCV and Pillow-SIMD in the background"
    rm -rf "$wheels"
    mkdir -p "$wheels"
    build "$ffcv" ffcv &
    ffcv_job=$!
    avx2=$(grep -qw avx2 /proc/cpuinfo 2>/dev/null && echo -mavx2 || true)
    CC="cc $avx2" build "$pillow_simd" pillow-simd &
    pillow_job=$!
fi

if ! is_current "$stamp"; then
    echo "setup: installing Python packages into .venv (a few minutes, 6 GB)"
    $pip install --requirement requirements.lock
    $pip install --no-deps --no-build-isolation --editable .
    echo "$checksum" > "$stamp"
fi

if have_libraries; then
    if wait "$ffcv_job"; then
        $pip install --no-deps --force-reinstall "$wheels"/ffcv-*.whl
    else
        echo "setup: FFCV does not build here ($wheels/ffcv.log); dataloader=ffcv is not available" >&2
    fi
    if wait "$pillow_job" && $pip install --no-deps --force-reinstall "$wheels"/pillow_simd-*.whl; then
        .venv/bin/python -c 'import PIL; assert ".post" in PIL.__version__'
    else
        echo "setup: Pillow-SIMD does not build here ($wheels/pillow-simd.log); plain Pillow loads about 25 % fewer" \
            "images/s, see docs/performance.md" >&2
    fi
    echo "$checksum" > "$built"
fi
wait "$tests_job"
