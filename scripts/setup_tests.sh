#!/usr/bin/env bash
# Into .venv and the system what some tests need: requirements-tests.lock and a browser. Never fails: without them those
# tests are skipped and say so.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 0

stamp=.venv/.tests
wanted=$(cat requirements-tests.lock scripts/setup_tests.sh | sha256sum)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

browser() {
    command -v chromium >/dev/null && return
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    { apt-get install -y -qq --no-install-recommends chromium ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }; } >/dev/null 2>&1 ||
        echo "setup: no chromium to be had; the tests of the report's page are skipped" >&2
}

echo "setup: installing what some tests need"
export DEBIAN_FRONTEND=noninteractive
browser &
.venv/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --requirement requirements-tests.lock ||
    echo "setup: not all of requirements-tests.lock installs here; the tests that need it are skipped" >&2
wait
echo "$wanted" > "$stamp"
