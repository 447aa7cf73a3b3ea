#!/bin/sh
# prune.sh SITE_PACKAGES: takes out what no part of Headrace imports and what would be most of an image.
set -eu
site=$1
# The official client has a class for every kind of object and every call, twice: 73 MB. We use its
# configuration, credentials and TLS only; those classes are loaded one by one, when asked for.
for client in "$site/kubernetes/client" "$site/kubernetes/aio/client"; do
    for generated in api models; do
        test ! -d "$client/$generated" ||
            find "$client/$generated" -type f -name '*.py' ! -name '__init__.py' -delete
    done
done
# zstandard brings two backends of 12 MB each; CPython takes the one in C.
find "$site" -path '*/zstandard/_cffi*.so' -delete
