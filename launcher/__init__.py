"""Train image classifiers with efficient recipes: one typed config, one process a GPU, one run folder."""

__version__ = "0.2.0"
