#!/usr/bin/env bash
# Install what some tests need: requirements-tests.lock into .venv, and a browser. Never fails: without them these tests
# are skipped with a reason.
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

echo "setup: installing packages for the tests"
export DEBIAN_FRONTEND=noninteractive
browser &
.venv/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --requirement requirements-tests.lock ||
    echo "setup: some packages of requirements-tests.lock cannot be installed; the tests that need them are skipped" >&2
wait
echo "$checksum" > "$stamp"
