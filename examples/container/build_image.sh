#!/bin/sh
# Builds the example's image without a container daemon, and looks at what it holds.
#
#   examples/container/build_image.sh
#
# As root, with buildah. BASE_IMAGE is an image with Python; LEND names files and folders that pip needs during the
# build (its configuration, certificates, a folder of wheels); they are mounted read-only and are not kept.
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
container=

finish() {
    [ -z "$container" ] || buildah rm "$container" >/dev/null
}
trap finish EXIT

set --
for each in ${LEND:-}; do
    set -- "$@" --volume "$each:$each:ro"
done
buildah build --network host --build-arg "BASE=${BASE_IMAGE:-python:3.12-slim}" "$@" \
    --file "$here/examples/container/Dockerfile" --tag localhost/dejavu-cache-example "$here"

container=$(buildah from localhost/dejavu-cache-example)
mounted=$(buildah mount "$container")
buildah inspect --format 'user {{.OCIv1.Config.User}}, environment {{.OCIv1.Config.Env}}' "$container"
# As the image's own user, with the image's own Python, and without a C compiler.
in_image() {
    chroot --userspec=10001:10001 "$mounted" /usr/bin/env -i PATH=/opt/app/bin:/usr/bin:/bin HOME=/nonexistent \
        PYTHONDONTWRITEBYTECODE=1 DEJAVU_CACHE_URL=prewarmed:///tuned "$@"
}
if in_image sh -c "command -v gcc cc clang"; then
    echo "there is a C compiler in the image" >&2
    exit 1
fi
in_image dejavu-cache ls
in_image dejavu-cache doctor
