#!/bin/sh
# install.sh REQUIREMENT...: from /wheels into the environment /opt/headrace, which a later stage copies.
# The environment has no pip. Its bytecode never asks for the sources' times, which copying may change.
set -eu
python3 -m venv --without-pip /opt/headrace
python3 -m pip --python /opt/headrace/bin/python install --disable-pip-version-check \
    --no-cache-dir --no-compile --no-index --find-links /wheels "$@"
site=$(/opt/headrace/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
sh "$(dirname "$0")/prune.sh" "$site"
# A package may hold templates that are no Python; they are left as they are.
/opt/headrace/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash "$site" || true
