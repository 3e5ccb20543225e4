"""The verbs of the laboratory: name to module and description."""

VERBS = {
    "tune": ("lab.cli.tune", "search hyperparameters by quasi-random trials, one run after another"),
    "ablate": ("lab.cli.ablate", "measure each algorithm of a recipe: ablation grid, effects, parts of a step"),
    "curve": ("lab.cli.curve", "train a grid of recipes, lengths and seeds, here or on Slurm; skips finished runs"),
    "compare": ("lab.cli.compare", "compare runs: tradeoff curves, Pareto front, speed-ups, AlgoPerf's score"),
    "report": ("lab.cli.report", "write runs as one HTML page with curves, or as an image"),
    "mlperf": ("lab.cli.mlperf", "write a run's log in MLPerf Training's format"),
}
