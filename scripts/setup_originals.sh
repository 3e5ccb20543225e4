#!/usr/bin/env bash
# Build FFCV and Pillow-SIMD, which have no wheels, and install them into .venv (Pillow-SIMD over Pillow), or into a
# folder for PYTHONPATH: setup_originals.sh [FOLDER].
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-}
stamp=${folder:-.venv}/.originals
checksum=$(cat requirements.lock requirements-originals.lock scripts/setup_originals.sh | sha256sum)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$checksum" ] && exit 0

packages=(g++ pkg-config libopencv-dev libturbojpeg0-dev libjpeg62-turbo-dev zlib1g-dev libtiff-dev libwebp-dev
    libopenjp2-7-dev liblcms2-dev libfreetype6-dev)
have_headers() { .venv/bin/python -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null; }
have_libraries() { command -v c++ >/dev/null && pkg-config --exists opencv4 libturbojpeg libjpeg zlib 2>/dev/null; }

have_headers || packages+=(python3-dev)
if ! have_headers || ! have_libraries; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "setup: FFCV and Pillow-SIMD need system packages; run this once, then the same command again:" >&2
        echo "  sudo apt-get install -y --no-install-recommends ${packages[*]}" >&2
        exit 2
    fi
    echo "setup: installing ${packages[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

wheels=.venv/wheels
rm -rf "$wheels"
mkdir -p "$wheels"
pip=".venv/bin/python -m pip --quiet --disable-pip-version-check"
avx2=$(grep -qw avx2 /proc/cpuinfo 2>/dev/null && echo -mavx2 || true)
build() { $pip wheel --use-pep517 --no-deps --wheel-dir "$wheels" "${@:2}" >"$wheels/$1.log" 2>&1; }
echo "setup: building FFCV and Pillow-SIMD"
CC="cc $avx2" build pillow-simd "$(grep ^pillow-simd requirements-originals.lock)" &
simd_job=$!
build ffcv --requirement <(grep -v ^pillow-simd requirements-originals.lock) ||
    { echo "setup: FFCV does not build here, see $wheels/ffcv.log" >&2; exit 1; }
wait "$simd_job" || { echo "setup: Pillow-SIMD does not build here, see $wheels/pillow-simd.log" >&2; exit 1; }

# note: `pip install --target` does not replace packages that are there
[ -z "$folder" ] || rm -rf "$folder"
$pip install --no-deps --force-reinstall ${folder:+--target "$folder"} "$wheels"/*.whl
PYTHONPATH=$folder .venv/bin/python -c 'import PIL; assert ".post" in PIL.__version__'
echo "$checksum" > "$stamp"
