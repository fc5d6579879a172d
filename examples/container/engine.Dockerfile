# What a vLLM engine launches of Triton, compiled before it is shipped, on a builder without a GPU.
#
#   docker build --file examples/container/engine.Dockerfile --tag registry.example.com/tuned:1 \
#     --build-context model=/path/of/config.json's/folder --build-context start=/path/of/a/start .
#
# `start` has what one start and some requests wrote on a GPU of the architecture: `records`, the store of its
# DEJAVU_CACHE_URL, says what vLLM compiles of its own, and `vllm` is its VLLM_CACHE_ROOT. Both may be empty folders;
# attention follows from the model's config.json.
ARG BASE=vllm/vllm-openai:v0.26.0

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY dejavu_cache dejavu_cache
COPY client client
COPY service service
COPY migrations migrations
RUN python3 -m pip install --no-cache-dir .

FROM build AS prewarm
ARG DEVICE="NVIDIA H100 80GB HBM3"
ARG OPTIONS="--option max-num-seqs=256"
COPY --from=model config.json /model/config.json
COPY --from=start records /records
COPY --from=start vllm /io.vllm.cache
WORKDIR /
RUN dejavu-cache prewarm --engine vllm --option model=/model ${OPTIONS} --store /records \
        --device "${DEVICE}" --out /io.vllm.cache/tuned \
    && dejavu-cache doctor --store prewarmed:///io.vllm.cache/tuned \
    && mkdir -p /io.vllm.cache/torch_compile_cache && chmod -R go-w /io.vllm.cache

# The folder and the labels are those that Model Cache Vault gives an image with a tree beside vLLM's own, as hints for
# what plans KServe's mounts (`mcv --extract` also asks for a manifest and a summary, which only `mcv --create` writes):
# DEJAVU_CACHE_URL=prewarmed:///tuned. A KernelCache of KServe's names `ociPath: io.vllm.cache` and a `containerPath`
# instead, and then the folder is CONTAINER_PATH/tuned. Other pods mount the image with `subPath: io.vllm.cache/tuned`.
FROM scratch
LABEL org.opencontainers.image.title="prewarmed Triton kernels" \
    io.kserve.km/framework="vllm" \
    io.kserve.km/cache-type="torch-compile" \
    io.kserve.km/cache-root-env="VLLM_CACHE_ROOT=/vllm-cache" \
    io.kserve.km/cache-mount-subpath="torch_compile_cache" \
    io.kserve.km/cache-mounts='[{"subPath":"tuned","absPath":"/tuned"}]' \
    io.kserve.km/split-cache-capture="true"
COPY --from=prewarm /io.vllm.cache /io.vllm.cache
