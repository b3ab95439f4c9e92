"""Choose one strategy per node: the optimisation problem, its reductions and its solvers."""
