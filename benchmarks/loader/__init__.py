"""Images a second and a core: decode, random resized crop and flip of real photographs, beside other loaders.

    python -m benchmarks.loader --images imagenet_sample_100.tar --sizes 88 132 176 --json loader.json
    python -m benchmarks.loader --images imagenet_sample_100.tar --peers FOLDER

Each contender has a process of its own with one thread that decodes; they take turns, and the processor time that a
pass takes counts, so that other work on the machine weighs little. FFCV files lie in the page cache. Then the loaders
as training builds them: mild's and hot's on FFCV files, and what one more worker costs in memory.

FOLDER is where `pip install --target FOLDER pillow nvidia-dali-cuda130` has put further peers; what is not there is
left out. All cut the same keyed boxes but FFCV's own loader and DALI, which draw their own of the same kind.
"""
