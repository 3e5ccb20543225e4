#!/usr/bin/env bash
# Install what tests need: requirements-tests.lock into .venv, and with `rest` also a browser, Slurm, a C++ compiler,
# SkyPilot, and FFCV and Pillow-SIMD in a folder of their own. What cannot be installed is reported and tried again the
# next time; its tests are skipped with a reason. With CI set, it is an error.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

log=.venv/setup_tests.log
failed() {
    echo "setup: $1 cannot be installed, see $log; the tests that need it are skipped" >&2
    return 1
}

packages() {
    local stamp=.venv/.tests checksum index
    checksum=$(sha256sum <requirements-tests.lock)
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$checksum" ] && return
    echo "setup: installing the packages of requirements-tests.lock"
    index=${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}
    [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=$PIP_CERT
    { .venv/bin/uv --quiet --cache-dir .venv/cache pip install \
        --python .venv/bin/python --no-deps ${index:+--default-index "$index"} --requirement requirements-tests.lock ||
        .venv/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --requirement requirements-tests.lock
    } >>"$log" 2>&1 || failed "requirements-tests.lock" || return
    rm -rf .venv/cache
    echo "$checksum" >"$stamp"
}

system_packages() {
    command -v chromium >/dev/null && command -v slurmctld >/dev/null && command -v g++ >/dev/null && return
    local packages=(chromium slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge iproute2 procps)
    packages+=(g++ python3-dev)
    echo "setup: installing ${packages[*]}"
    { [ "$(id -u)" = 0 ] && command -v apt-get && apt-get update -qq &&
        apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >>"$log" 2>&1 || failed "${packages[*]}"
}

# SkyPilot pins other versions, so it has an environment of its own
skypilot() {
    .venv/skypilot/bin/python -c 'import sky' 2>/dev/null && return
    echo "setup: installing SkyPilot into .venv/skypilot"
    { .venv/bin/python -m venv .venv/skypilot &&
        .venv/skypilot/bin/pip --quiet --disable-pip-version-check install skypilot==0.14.1; } >>"$log" 2>&1 ||
        { rm -rf .venv/skypilot; failed skypilot; }
}

# note: all other tests run without FFCV and on plain Pillow, as users do
originals() { scripts/setup_originals.sh .venv/originals >>"$log" 2>&1 || failed "FFCV or Pillow-SIMD"; }

export DEBIAN_FRONTEND=noninteractive
: >"$log"
wrong=0
packages || wrong=1
if [ "${1:-}" = rest ]; then
    skypilot &
    job=$!
    # note: one after the other, since both lock apt
    system_packages || wrong=1
    originals || wrong=1
    wait "$job" || wrong=1
fi
[ -z "${CI:-}" ] || exit "$wrong"
