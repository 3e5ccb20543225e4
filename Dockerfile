# The image for machines with NVIDIA's driver 580 or newer, and GPUs from T4 on: torch brings its own CUDA 13 libraries.
#
#   docker build -t train .
#   docker run --gpus all --ipc=host -v /mnt/imagenet:/data -v /mnt/runs:/runs train recipe=hot epochs=240
#
# As another user, on a file system that cannot be written:
#
#   docker run --user 4321 --read-only --tmpfs /tmp:exec -v /mnt/runs:/runs train recipe=mild dataset=shapes

FROM debian:12-slim AS build
WORKDIR /opt/train
COPY . .
# compiled here, since the finished image may be read-only
ENV UV_COMPILE_BYTECODE=1
RUN scripts/setup.sh
# More packages, such as s3fs or gcsfs, for `train prepare` from a bucket
ARG PACKAGES=
RUN [ -z "$PACKAGES" ] || .venv/bin/pip install --no-cache-dir $PACKAGES

FROM debian:12-slim
# gcc and libpython3-dev, 238 MB, are for compile; the libraries of InfiniBand, without which NCCL uses TCP between nodes
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        ca-certificates python3 gcc libpython3-dev libibverbs1 librdmacm1 ibverbs-providers \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 train && mkdir /data /runs && chmod 1777 /data /runs
COPY --from=build /opt/train /opt/train
ENV PATH=/opt/train/.venv/bin:$PATH
# the default of dataset.path; in the working folder /, `runs` is /runs
ENV TRAIN_DATA=/data
# caches, those of compile=on too, for any user
ENV HOME=/tmp
ENV USER=train
WORKDIR /
USER train
VOLUME ["/data", "/runs"]
RUN train doctor dataset=shapes
ENTRYPOINT ["train"]
