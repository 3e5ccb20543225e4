#!/usr/bin/env bash
# Install what some tests need: requirements-tests.lock into .venv, a browser, Slurm, a C++ compiler, SkyPilot, and FFCV
# and Pillow-SIMD in a folder of their own. Never fails: without them these tests are skipped with a reason.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 0

stamp=.venv/.tests
checksum=$(cat requirements-tests.lock requirements-originals.lock scripts/setup_tests.sh | sha256sum)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$checksum" ] && exit 0

system_packages() {
    command -v chromium >/dev/null && command -v slurmctld >/dev/null && command -v g++ >/dev/null && return
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    local packages=(chromium slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge iproute2 procps)
    packages+=(g++ python3-dev)
    { apt-get install -y -qq --no-install-recommends "${packages[@]}" ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; }; } >/dev/null 2>&1 ||
        echo "setup: ${packages[*]} cannot be installed; the tests of the report page, of Slurm and on a simulated GPU are skipped" >&2
}

# SkyPilot pins other versions, so it has an environment of its own
skypilot() {
    { .venv/bin/python -m venv .venv/skypilot &&
        .venv/skypilot/bin/pip --quiet --disable-pip-version-check install skypilot==0.14.1; } >/dev/null 2>&1 ||
        { rm -rf .venv/skypilot
          echo "setup: skypilot cannot be installed; its test is skipped" >&2; }
}

echo "setup: installing packages for the tests"
export DEBIAN_FRONTEND=noninteractive
# note: one after the other, since both lock apt; all other tests run without FFCV and on plain Pillow, as users do
{ system_packages; scripts/setup_originals.sh .venv/originals; } &
skypilot &
.venv/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --requirement requirements-tests.lock ||
    echo "setup: some packages of requirements-tests.lock cannot be installed; the tests that need them are skipped" >&2
wait
echo "$checksum" > "$stamp"
