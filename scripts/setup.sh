#!/usr/bin/env bash
# Make .venv with everything that requirements.lock names and the launcher itself; does nothing when that is done.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES="python3-venv python3-dev gcc g++ make git"
stamp=.venv/.complete
wanted=$(cat requirements.lock pyproject.toml scripts/setup.sh | sha256sum)

[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    needs_system=yes
elif ! python3 -c 'import ensurepip, venv, sysconfig, os; assert os.path.exists(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null; then
    needs_system=yes
elif ! command -v g++ >/dev/null; then
    needs_system=yes
else
    needs_system=no
fi

if [ "$needs_system" = yes ]; then
    if [ "$(id -u)" = 0 ]; then
        echo "setup: installing $PACKAGES"
        apt-get update -qq
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $PACKAGES >/dev/null
    else
        echo "setup: system packages are missing; run this once, then the same command again:" >&2
        echo "  sudo apt-get install -y --no-install-recommends $PACKAGES" >&2
        exit 2
    fi
fi

echo "setup: installing Python packages into .venv (a few minutes, 6 GB)"
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
echo "$wanted" > "$stamp"
