import os

# note: before torch is imported; workers are as many as cores, and idle threads would only take them from each other
os.environ.setdefault("OMP_NUM_THREADS", "1")
