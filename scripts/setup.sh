#!/usr/bin/env bash
# Install requirements.lock, which needs no compiler, and the launcher into .venv; does nothing if that is up to date.
# PYTHON is the interpreter, python3 by default.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
stamp=.venv/.complete
checksum=$(cat requirements.lock pyproject.toml scripts/setup.sh | sha256sum)
is_current() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$checksum" ]; }
have_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

if is_current; then
    exit 0
fi

if ! have_venv; then
    if [ "$python" != python3 ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "setup: $python has no venv; run this once, then the same command again:" >&2
        echo "  sudo apt-get install -y --no-install-recommends python3-venv" >&2
        exit 2
    fi
    echo "setup: installing python3-venv"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup: needs Python 3.11 or newer, $python is $("$python" --version); set PYTHON=python3.11" >&2
    exit 2
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=".venv/bin/python -m pip --quiet --disable-pip-version-check"

# note: uv downloads and unpacks in parallel, but reads none of pip's settings
by_uv() {
    local index
    index=${PIP_INDEX_URL:-$($pip config get global.index-url 2>/dev/null || true)}
    [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=$PIP_CERT
    # the lines of uv and of its hashes
    $pip install --no-deps --require-hashes --requirement <(sed -n '/^uv==/,/[^\\]$/p' requirements.lock) &&
        .venv/bin/uv --quiet --cache-dir .venv/cache pip install --python .venv/bin/python --no-deps --require-hashes \
            ${index:+--default-index "$index"} --requirement requirements.lock
}

echo "setup: installing Python packages into .venv (some minutes, 6 GB)"
by_uv || $pip install --no-deps --require-hashes --requirement requirements.lock
rm -rf .venv/cache
$pip install --no-deps --no-build-isolation --editable .
echo "$checksum" > "$stamp"
