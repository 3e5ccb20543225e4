VERBS = {"steps": ("extras.steps", "how many steps a run has done")}
