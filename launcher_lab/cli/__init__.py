"""The verbs of this package: name to module and description."""

VERBS = {
    "ablate": ("launcher_lab.cli.ablate", "measure each algorithm of a recipe: ablation grid, effects, time in a step"),
    "curve": (
        "launcher_lab.cli.curve",
        "train a grid of recipes, lengths, seeds and values of intervals, here or on Slurm",
    ),
    "compare": ("launcher_lab.cli.compare", "compare runs: tradeoff curves, Pareto front, speed-ups, AlgoPerf's score"),
    "watch": ("launcher_lab.cli.watch", "show runs in a browser while they train, by TensorBoard"),
    "report": (
        "launcher_lab.cli.report",
        "write a page, model card or MLPerf log of a run, or draw runs as a page or image",
    ),
}
