# The replay server and the `rlds2reverb` command. Builds with BuildKit and with Docker's classic builder.
ARG BASE_IMAGE=debian:bookworm-slim
# Of the pusher, which needs no TensorFlow: the newest Python that we try.
ARG PUSHER_BASE_IMAGE=python:3.13-slim-bookworm
# That of the package (rlds2reverb/__init__.py); `make release` changes both.
ARG VERSION=0.1.0

# All that runs, in one folder. Nothing else of this stage is kept.
FROM ${BASE_IMAGE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates gcc libc6-dev python3 python3-pip python3-venv \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*

# The tools of this stage. The folder of the final environment has no pip: the one here fills it.
COPY requirements/build.txt /src/requirements/
RUN python3 -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /src/requirements/build.txt \
 && python3 -m venv --without-pip /opt/replay

# Hashes are checked here.
COPY requirements/server.txt /src/requirements/
RUN /build/bin/pip --python /opt/replay/bin/python install --no-cache-dir --no-deps --require-hashes --only-binary :all: \
      -r /src/requirements/server.txt

COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY rlds2reverb /src/rlds2reverb
COPY server/replay_server /src/server/replay_server
COPY configs/open_x /src/configs/open_x
COPY scripts/slim-packages /src/scripts/
# Of Reverb and TensorFlow only the libraries stay that a server loads.
RUN RLDS2REVERB_COMPILE=require /build/bin/pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels /src \
 && /build/bin/pip --python /opt/replay/bin/python install --no-cache-dir --no-index --no-deps /wheels/*.whl \
 && /opt/replay/bin/python -B -m replay_server.environment /opt/replay/lib/python3.11/site-packages \
 && python3 -B /src/scripts/slim-packages /opt/replay/lib/python3.11/site-packages


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
    RLDS2REVERB_LEFT_OUT="the image of the pusher reads more formats; for a table of such a dataset let it write the signature out: rlds2reverb inspect SOURCE --server-config (docs/install.md)" \
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


# The pusher alone: the command on a small Python, without TensorFlow and without the server. PUSHER_FORMATS=common reads and writes RLDS,
# Minari, D4RL, robomimic, RLlib's JSON and msgpack, pickles and npz; with "all" also Parquet, Arrow, videos (LeRobot) and buckets.
FROM ${PUSHER_BASE_IMAGE} AS build-pusher
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ARG PUSHER_FORMATS=common
COPY requirements/build.txt requirements/pusher-*.txt /src/requirements/
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
 && python3 -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /src/requirements/build.txt \
 && python3 -m venv --without-pip /opt/pusher \
 && /build/bin/pip --python /opt/pusher/bin/python install --no-cache-dir --no-deps --require-hashes --only-binary :all: \
      -r "/src/requirements/pusher-${PUSHER_FORMATS}.txt"
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY requirements/server.txt /src/requirements/
COPY rlds2reverb /src/rlds2reverb
COPY server/replay_server /src/server/replay_server
COPY configs/open_x /src/configs/open_x
COPY scripts/slim-packages /src/scripts/
RUN RLDS2REVERB_COMPILE=require /build/bin/pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels /src \
 && /build/bin/pip --python /opt/pusher/bin/python install --no-cache-dir --no-index --no-deps /wheels/*.whl \
 && python3 -B /src/scripts/slim-packages /opt/pusher/lib/python3.13/site-packages


# The system of the pusher: the base without its package tools, which have nothing to do here. Packages go without their scripts, which need
# one another.
FROM ${PUSHER_BASE_IMAGE} AS pusher-system
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates tini \
 && groupadd --gid 10001 pusher \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/pusher --shell /usr/sbin/nologin pusher \
 && install --directory --owner 10001 --group 10001 /var/lib/pusher \
 && python3 -c 'import shutil, sysconfig; from pathlib import Path; \
    [shutil.rmtree(path) for name in ("pip*", "setuptools*", "wheel*") for path in Path(sysconfig.get_path("purelib")).glob(name)]; \
    [shutil.rmtree(Path(sysconfig.get_path("stdlib"), name), ignore_errors=True) \
     for name in ("ensurepip", "idlelib", "pydoc_data", "tkinter", "turtledemo")]' \
 && rm -rf /usr/local/bin/pip* /usr/local/bin/idle3* /usr/local/bin/wheel /usr/local/include /usr/local/lib/python3.13/config-* \
      /usr/local/lib/python3.13/lib-dynload/_*test* /usr/local/lib/python3.13/lib-dynload/xx* \
 && rm -f /var/lib/dpkg/info/*.p*inst /var/lib/dpkg/info/*.p*rm \
 && (dpkg-query --show --showformat '${Package}\n' \
     | grep -xE 'adduser|apt|bsdutils|debconf|e2fsprogs|gpgv|libapt-pkg6.0|libcom-err2|libdb5.3|libext2fs2|libgcrypt20|libgnutls30|libgpg-error0|libhogweed6|libidn2-0|libnettle8|libp11-kit0|libpam-modules|libpam-modules-bin|libpam-runtime|libseccomp2|libsemanage2|libsemanage-common|libsepol2|libss2|libtasn1-6|libunistring2|logsave|login|mount|openssl|passwd|perl-base|sysvinit-utils|util-linux|util-linux-extra|usr-is-merged' \
     | xargs dpkg --purge --force-all) \
 && rm -rf /var/lib/apt /var/cache/* /var/log/* /etc/apt /usr/share/doc /usr/share/info /usr/share/man /usr/share/locale \
      /usr/share/zoneinfo/right /usr/lib/*/gconv /var/lib/dpkg/info


FROM scratch AS pusher
ARG VERSION
LABEL org.opencontainers.image.title="rlds2reverb pusher" \
      org.opencontainers.image.description="The command rlds2reverb with its formats, without TensorFlow" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.documentation="docs/cli.md"
# The whole file system is meant: a base's layers would stay below what was removed from them.
# hadolint ignore=DL3067
COPY --from=pusher-system / /
COPY --from=build-pusher /opt/pusher /opt/pusher
# Python's ssl looks where the package openssl has its links, which is gone with its tools.
ENV PATH=/opt/pusher/bin:/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    RLDS2REVERB_LEFT_OUT="build it with --build-arg PUSHER_FORMATS=all (docs/install.md)" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/pusher
VOLUME ["/var/lib/pusher"]
HEALTHCHECK NONE
ENTRYPOINT ["tini", "--", "rlds2reverb"]
CMD ["--help"]


# What a learner with TF-Agents adds to it (docker-compose.yml, the service "learner"), in a folder of its own that comes first: TensorFlow
# and Reverb whole. What comes as source is built with the tools above, not with what an index has today.
FROM build AS build-learner
COPY requirements/learner.txt /src/requirements/
RUN /build/bin/pip wheel --no-cache-dir --no-build-isolation --no-deps --require-hashes \
      -r /src/requirements/learner.txt --wheel-dir /learner-wheels \
 && /build/bin/pip install --no-cache-dir --no-index --no-deps --target /opt/learner /learner-wheels/*.whl \
 && rm -r /learner-wheels /opt/learner/tensorflow/include


FROM replay AS learner
LABEL org.opencontainers.image.title="rlds2reverb learner" \
      org.opencontainers.image.description="A learner with TF-Agents, on data of a replay server" \
      org.opencontainers.image.documentation="docs/learner.md"
COPY --from=build-learner /opt/learner /opt/learner
# What stands there is on PYTHONPATH, where Python reads no such file; it brings distutils, which Debian's Python lacks and TensorFlow imports.
COPY --from=build-learner /opt/learner/distutils-precedence.pth /opt/replay/lib/python3.11/site-packages/
COPY examples/learners /opt/learners
ENV PYTHONPATH=/opt/learner
HEALTHCHECK NONE
CMD ["python", "/opt/learners/bc_tf_agents.py", "--server", "replay:8000"]


# The last one is what `docker build` makes without a target: the server.
FROM replay
