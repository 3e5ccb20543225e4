#!/usr/bin/env bash
# Make .venv with everything that requirements.lock names and the launcher itself; does nothing when that is done.
set -euo pipefail
cd "$(dirname "$0")/.."

packages="python3-venv"
stamp=.venv/.complete
wanted=$(cat requirements.lock pyproject.toml scripts/setup.sh | sha256sum)

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ]; then
        echo "setup: installing $packages"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
    else
        echo "setup: system packages are missing; run this once, then the same command again:" >&2
        echo "  sudo apt-get install -y --no-install-recommends $packages" >&2
        exit 2
    fi
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "setup: Python 3.10 or newer is needed, python3 is $(python3 --version)" >&2
    exit 2
fi

echo "setup: installing Python packages into .venv (a few minutes, 6 GB)"
[ -x .venv/bin/python ] || python3 -m venv .venv
pip=".venv/bin/python -m pip --quiet --disable-pip-version-check"
$pip install --requirement requirements.lock
$pip install --no-deps --no-build-isolation --editable .
echo "$wanted" > "$stamp"
