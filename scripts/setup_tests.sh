#!/usr/bin/env bash
# Install what some tests need: requirements-tests.lock into .venv, SkyPilot, and a browser. Never fails: without them
# these tests are skipped with a reason.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 0

stamp=.venv/.tests
checksum=$(cat requirements-tests.lock scripts/setup_tests.sh | sha256sum)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$checksum" ] && exit 0

browser() {
    command -v chromium >/dev/null && return
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    { apt-get install -y -qq --no-install-recommends chromium ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }; } >/dev/null 2>&1 ||
        echo "setup: chromium cannot be installed; the tests of the report page are skipped" >&2
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
browser &
skypilot &
.venv/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --requirement requirements-tests.lock ||
    echo "setup: some packages of requirements-tests.lock cannot be installed; the tests that need them are skipped" >&2
wait
echo "$checksum" > "$stamp"
