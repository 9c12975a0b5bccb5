# The replay server and the `rlds2reverb` command. Builds with BuildKit and with Docker's classic builder.
ARG BASE_IMAGE=debian:bookworm-slim
# That of the package (rlds2reverb/__init__.py); `make release` changes both.
ARG VERSION=0.1.0

# All that runs, in one folder. Nothing else of this stage is kept.
FROM ${BASE_IMAGE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 python3-pip python3-venv \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*

# The tools of this stage. The folder of the final environment has no pip: the one here fills it.
COPY requirements/build.txt /src/requirements/
RUN python3 -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /src/requirements/build.txt \
 && python3 -m venv --without-pip /opt/replay

# Hashes are checked here; what comes as source is built with the tools above, not with what an index has today.
# TensorFlow's headers are for compilers only.
COPY requirements/server.txt /src/requirements/
RUN /build/bin/pip wheel --no-cache-dir --no-build-isolation --no-deps --require-hashes \
      -r /src/requirements/server.txt --wheel-dir /wheels \
 && /build/bin/pip --python /opt/replay/bin/python install --no-cache-dir --no-index --no-deps /wheels/*.whl \
 && rm -r /wheels /opt/replay/lib/python3.11/site-packages/tensorflow/include

COPY pyproject.toml README.md LICENSE /src/
COPY rlds2reverb /src/rlds2reverb
COPY server/replay_server /src/server/replay_server
RUN /build/bin/pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels /src \
 && /build/bin/pip --python /opt/replay/bin/python install --no-cache-dir --no-index --no-deps /wheels/*.whl


FROM ${BASE_IMAGE} AS replay
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ARG VERSION
LABEL org.opencontainers.image.title="rlds2reverb replay server" \
      org.opencontainers.image.description="DeepMind Reverb with checkpoints, health checks and metrics" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.documentation="docs/runbook.md"

# The folders belong to the user before a volume is mounted there: a new named volume takes over the owner.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
 && groupadd --gid 10001 replay \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/replay --shell /usr/sbin/nologin replay \
 && install --directory --owner 10001 --group 10001 /var/lib/replay /var/lib/replay/checkpoints

COPY --from=build /opt/replay /opt/replay
COPY scripts/container-probe /usr/local/bin/
COPY configs/server.yaml /etc/replay/

# Checkpoints go to a sub-folder: where a volume is mounted there may be a lost+found, and Reverb deletes what it
# does not know. HTTP listens inside the container on all interfaces; what is reachable is for ports: to say. Whoever asks by a name other
# than localhost needs REPLAY__HTTP__ALLOWED_HOSTS="[NAME]".
ENV PATH=/opt/replay/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TF_CPP_MIN_LOG_LEVEL=2 \
    CUDA_VISIBLE_DEVICES=-1 \
    REPLAY__CHECKPOINTS__FOLDER=/var/lib/replay/checkpoints \
    REPLAY__HTTP__HOST=0.0.0.0 \
    REPLAY__HTTP__PORT=8080 \
    REPLAY__LOG__FORMAT=json
USER 10001:10001
WORKDIR /var/lib/replay
VOLUME ["/var/lib/replay"]
EXPOSE 8000 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["container-probe", "/healthz"]
ENTRYPOINT ["tini", "--"]
CMD ["python", "-m", "replay_server", "--config", "/etc/replay/server.yaml"]


# What a learner with TF-Agents adds to it (docker-compose.yml, the service "learner"), in a folder of its own.
FROM build AS build-learner
COPY requirements/learner.txt /src/requirements/
RUN /build/bin/pip wheel --no-cache-dir --no-build-isolation --no-deps --require-hashes \
      -r /src/requirements/learner.txt --wheel-dir /learner-wheels \
 && /build/bin/pip install --no-cache-dir --no-index --no-deps --target /opt/learner /learner-wheels/*.whl


FROM replay AS learner
LABEL org.opencontainers.image.title="rlds2reverb learner" \
      org.opencontainers.image.description="A learner with TF-Agents, on data of a replay server" \
      org.opencontainers.image.documentation="docs/learner.md"
COPY --from=build-learner /opt/learner /opt/learner
COPY examples/learners /opt/learners
ENV PYTHONPATH=/opt/learner
HEALTHCHECK NONE
CMD ["python", "/opt/learners/bc_tf_agents.py", "--server", "replay:8000"]


# The last one is what `docker build` makes without a target: the server.
FROM replay
