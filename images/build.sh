#!/bin/sh
# build.sh: the images, with whatever builds images here. By environment:
#   TAG=dev      IMAGE=headrace (others are $IMAGE-broker, ...)      TARGETS="headrace broker operator cli spark"
#   BASE=python:3.13-slim      SPARK=spark:...      PIP_INDEX_URL=...      BUILDER=docker|podman|buildah
set -eu
cd "$(dirname "$0")/.."
: "${IMAGE:=headrace}" "${TAG:=dev}" "${TARGETS:=headrace broker operator cli spark}"

works() { # Whether a builder is there and answers: docker without its daemon doesn't.
    command -v "$1" >/dev/null 2>&1 && "$1" info >/dev/null 2>&1
}

if [ -z "${BUILDER:-}" ]; then
    for each in docker podman buildah; do
        if works "$each"; then BUILDER=$each && break; fi
    done
fi
if [ -z "${BUILDER:-}" ]; then
    echo "Nothing here builds images: docker, podman and buildah are missing or don't answer." >&2
    command -v docker >/dev/null 2>&1 && echo "(docker is installed, but its daemon isn't running)" >&2
    echo "Install one of them (apt install buildah needs no daemon), or name it: BUILDER=..." >&2
    exit 1
fi

set --
for argument in BASE SPARK PIP_INDEX_URL; do
    value=$(printenv "$argument" || true)
    [ -z "$value" ] || set -- "$@" --build-arg "$argument=$value"
done
for target in $TARGETS; do
    case $target in headrace) name=$IMAGE:$TAG ;; *) name=$IMAGE-$target:$TAG ;; esac
    echo "$BUILDER build --target $target: $name"
    "$BUILDER" build --target "$target" --tag "$name" "$@" .
done
