"""The verbs that the laboratory adds: name to module and what it is for."""

VERBS = {
    "tune": ("lab.cli.tune", "quasi-random trials of a search space, one run after another"),
    "ablate": ("lab.cli.ablate", "what each algorithm of a recipe costs and brings: grid, effects, parts of a step"),
    "curve": ("lab.cli.curve", "train a grid of recipes, lengths and seeds, here or on Slurm, skipping what is done"),
    "compare": ("lab.cli.compare", "run folders as tradeoff curves: Pareto front, speed-ups, AlgoPerf's score"),
    "report": ("lab.cli.report", "run folders as one page with curves, or as an image"),
    "mlperf": ("lab.cli.mlperf", "a run in MLPerf Training's log format"),
}
