# The cache server, and nothing that needs a GPU.
# The base image is pinned by its digest, which this prints for another version:
#   docker buildx imagetools inspect --format '{{.Manifest.Digest}}' python:3.12.11-slim-bookworm
ARG BASE=python:3.12.11-slim-bookworm@sha256:519591d6871b7bc437060736b9f7456b8731f1499a57e22e6c285135ae657bf7

FROM ${BASE} AS build
WORKDIR /src
COPY requirements/server.txt requirements/build.txt requirements/
RUN python3 -m venv /opt/dejavu \
    && /opt/dejavu/bin/python -m pip install --no-cache-dir --require-hashes --requirement requirements/server.txt \
    && python3 -m venv /build \
    && /build/bin/python -m pip install --no-cache-dir --require-hashes --requirement requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY dejavu_cache dejavu_cache
COPY client client
COPY service service
COPY migrations migrations
RUN /build/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/dejavu/bin/python -m pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM ${BASE}
LABEL org.opencontainers.image.title="dejavu-cache server" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/dejavu /opt/dejavu
# Only the data directory is written to: the rest may be mounted read-only, with a tmpfs on /tmp.
RUN mkdir -p /var/lib/dejavu \
    && echo "dejavu:x:10001:10001::/var/lib/dejavu:/usr/sbin/nologin" >> /etc/passwd \
    && echo "dejavu:x:10001:" >> /etc/group \
    && chown 10001:10001 /var/lib/dejavu
ENV PATH=/opt/dejavu/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DEJAVU_SERVER_HOST=0.0.0.0 \
    DEJAVU_SERVER_DRAIN=5 \
    DEJAVU_SERVER_DATABASE=sqlite:////var/lib/dejavu/server.sqlite3
USER 10001:10001
WORKDIR /var/lib/dejavu
VOLUME /var/lib/dejavu
EXPOSE 8765
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8765/livez', timeout=2)"]
ENTRYPOINT ["python3", "-m", "dejavu_service"]
CMD ["serve"]
