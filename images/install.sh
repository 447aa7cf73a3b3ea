#!/bin/sh
# install.sh REQUIREMENT...: from the wheels into the environment that a later stage copies; it has no pip. Its
# bytecode never asks for the sources' times, which copying may change. WHEELS and INTO say where, for trying it.
set -eu
: "${WHEELS:=/wheels}" "${INTO:=/opt/headrace}"
python3 -m venv --without-pip "$INTO"
python3 -m pip --python "$INTO/bin/python" install --disable-pip-version-check \
    --no-cache-dir --no-compile --no-index --find-links "$WHEELS" "$@"
site=$("$INTO/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
sh "$(dirname "$0")/prune.sh" "$site"
# A package may hold templates that are no Python; they are left as they are.
"$INTO/bin/python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$site" || true
