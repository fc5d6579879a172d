#!/usr/bin/env bash
# go.sh PLAN [SECONDS], on a machine with a GPU, from the checkout's root. Unpacks .vllm/payload.tar.xz (folders `site`, a vLLM, and
# `extra`, what it needs) once; without it, the vLLM that is installed is run. Results: $OUT/PLAN.json.
set -eu
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
export VLLM_FOLDER=${VLLM_FOLDER:-/tmp/vllm-engine} OUT=${OUT:-$root/out}
mkdir -p "$VLLM_FOLDER/project" "$OUT"
if [ -e "$root/.vllm/payload.tar.xz" ] && [ ! -e "$VLLM_FOLDER/unpacked" ]; then
  start=$(date +%s); tar xJf "$root/.vllm/payload.tar.xz" -C "$VLLM_FOLDER"; touch "$VLLM_FOLDER/unpacked"
  echo "unpacked in $(( $(date +%s) - start )) s"
  # As pip does: else every start would compile some thousand modules of Python.
  python3 -m compileall -q -j 0 "$VLLM_FOLDER/site" "$VLLM_FOLDER/extra" "$root/dejavu_cache" "$root/client" > /dev/null || true
fi
# vLLM finds the plug-in by the entry point of an installed distribution.
info="$VLLM_FOLDER/project/dejavu_cache-0.dist-info"; mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: dejavu-cache\nVersion: 0\n' > "$info/METADATA"
printf '[vllm.general_plugins]\ndejavu_cache = dejavu_cache.engines.vllm.plugin:register\n[dejavu_cache.records]\nattention = dejavu_cache.attention.records\n' > "$info/entry_points.txt"
export PYTHONPATH="$root:$root/client:$VLLM_FOLDER/project:$VLLM_FOLDER/site:$VLLM_FOLDER/extra${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
program=side_by_side; if [ "${1:-}" = fused_moe ]; then program=fused_moe; fi
cd "$root"; exec python3 "$here/$program.py" "$@"
