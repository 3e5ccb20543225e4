"""Measure loaders per core: decoding, random resized crop and flip of real photographs.

    python -m benchmarks.loader --images imagenet_sample_100.tar --sizes 88 132 176 --json loader.json
    python -m benchmarks.loader --images imagenet_sample_100.tar --peers FOLDER

Each contender has its own process with one decoding thread. They alternate; the processor time of a pass is measured,
which depends little on the load of the machine. FFCV files are in the page cache.

FOLDER contains further peers, installed by `pip install --target FOLDER pillow nvidia-dali-cuda130`; missing ones are
skipped. All contenders use the same crops, except FFCV's own loader and DALI, which draw crops of the same
distribution.
"""
