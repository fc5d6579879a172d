#!/bin/sh
# Builds the image from the Dockerfile without a container daemon, then starts the server from the built
# root file system as its own user, and asks /readyz.
#
#   tests/service/build_image.sh [ROOTFS]
#
# As root, with buildah; with debootstrap too where ROOTFS, a Debian root file system with Python, is not given.
# BASE_IMAGE takes an image that buildah can pull instead. LEND names files and folders that pip needs during
# the build (its configuration, certificates, a folder of wheels); they are mounted read-only and are not kept.
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
port=${PORT:-8795}
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
server= mounted= container=

finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$mounted" ] || umount "$mounted/proc" 2>/dev/null || true
    [ -z "$container" ] || buildah rm "$container" >/dev/null
    rm -rf "$work"
}
trap finish EXIT

base=${BASE_IMAGE:-}
if [ -z "$base" ]; then
    rootfs=${1:-$work/rootfs}
    [ -d "$rootfs" ] || debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$rootfs" >/dev/null
    base=localhost/dejavu-base
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$rootfs" / >/dev/null
    buildah commit --quiet "$container" "$base" >/dev/null
    buildah rm "$container" >/dev/null
    container=
fi

set --
for each in ${LEND:-}; do
    set -- "$@" --volume "$each:$each:ro"
done
buildah build --format docker --network host --build-arg "BASE=$base" "$@" --tag localhost/dejavu-cache-server "$here"

container=$(buildah from localhost/dejavu-cache-server)
mounted=$(buildah mount "$container")
buildah inspect --format 'user {{.OCIv1.Config.User}}, command {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}' "$container"
if chroot "$mounted" /opt/dejavu/bin/python -c "import torch" 2>/dev/null; then
    echo "there is torch in the image" >&2
    exit 1
fi

in_image() {
    exec chroot --userspec=10001:10001 "$mounted" /usr/bin/env -i PATH=/opt/dejavu/bin:/usr/bin:/bin HOME=/var/lib/dejavu \
        PYTHONDONTWRITEBYTECODE=1 DEJAVU_SERVER_DATABASE=sqlite:////var/lib/dejavu/server.sqlite3 \
        python3 -m dejavu_service "$@"
}

(in_image token create --role admin --name build >/dev/null)
in_image serve --host 0.0.0.0 --port "$port" &
server=$!
for _ in $(seq 60); do
    if answer=$(curl --silent --fail "http://127.0.0.1:$port/readyz"); then
        owner=$(stat --format %u "$mounted/var/lib/dejavu/server.sqlite3")
        echo "/readyz: $answer, the process runs as user $owner"
        exit 0
    fi
    sleep 0.5
done
echo "/readyz did not answer" >&2
exit 1
