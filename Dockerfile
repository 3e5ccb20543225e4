# The image for any machine with NVIDIA's driver: torch brings its own CUDA libraries.
#
#   docker build -t train .
#   docker run --gpus all --ipc=host -v /mnt/imagenet:/data -v /mnt/runs:/runs train recipe=hot epochs=240

FROM debian:12-slim AS build
WORKDIR /opt/train
COPY . .
RUN scripts/setup.sh
# More packages, such as s3fs or gcsfs, for `train prepare` from a bucket
ARG PACKAGES=
RUN [ -z "$PACKAGES" ] || .venv/bin/pip install --no-cache-dir $PACKAGES
RUN rm -rf .venv/wheels

FROM debian:12-slim
# Python, and the libraries of FFCV, Pillow-SIMD and OpenCV; gcc and libpython3-dev, 238 MB, are for compile=on
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        ca-certificates python3 libfreetype6 libgl1 libglib2.0-0 libjpeg62-turbo liblcms2-2 libopencv-core406 \
        libopencv-imgproc406 libopenjp2-7 libtiff6 libturbojpeg0 libwebp7 libwebpdemux2 libwebpmux3 libxcb1 gcc libpython3-dev \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 train && mkdir /data /runs && chown train /data /runs
COPY --from=build /opt/train /opt/train
ENV PATH=/opt/train/.venv/bin:$PATH
# the default of dataset.path; in the working folder /, `runs` is /runs
ENV TRAIN_DATA=/data
WORKDIR /
USER train
VOLUME ["/data", "/runs"]
RUN train doctor dataloader=ffcv
ENTRYPOINT ["train"]
