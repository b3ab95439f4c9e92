"""The solver on instances of the public contest on intra-operator parallelism (google/iopddl).

Prints, per instance, the cost reached within the contest's time limit, the lower bound, the gap between them, the
ratio to the best cost of the contest, and the seconds from the call of `solve`. Every choice is checked independently.

    python benchmarks/solver_contest.py FOLDER [A B ...]        # FOLDER holds A.json.gz and so on
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from autoshard.solver import check_solution, load_iopddl, solve


@dataclass(frozen=True, slots=True)
class Instance:
    """The contest's time limit in seconds, and the best cost that an entry reached in it."""

    limit_s: float
    best_cost: float


INSTANCES = {  # letters and costs as in the contest's published results (ASPLOS / EuroSys 2025)
    "A": Instance(60, 6_548_641_531),
    "B": Instance(60, 532_843),
    "C": Instance(60, 84_102_445_260),
    "G": Instance(120, 217_039),
    "K": Instance(180, 2_274_276_676),
    "M": Instance(180, 49_928_460_991),
    "P": Instance(240, 662_197_407_330),
    "S": Instance(240, 1_534_613_444),
}


def run(folder: Path, letter: str) -> str:
    """One row of the table."""
    instance = INSTANCES[letter]
    problem = load_iopddl(folder / f"{letter}.json.gz")
    begin = time.monotonic()
    solution = solve(problem, time_limit_s=instance.limit_s)
    seconds = time.monotonic() - begin
    if solution.choice:
        check = check_solution(problem, solution.choice)
        assert not check.violations and check.cost == solution.cost, check.violations[:3]
    ratio = solution.cost / instance.best_cost
    return (
        f"{letter:8} {solution.status:10} {solution.cost:16.0f} {solution.bound:16.0f} {100 * solution.gap:7.3f} %"
        f" {ratio:8.5f} {seconds:7.1f} / {instance.limit_s:.0f}"
    )


def main(arguments: list[str]) -> None:
    folder, letters = Path(arguments[0]), arguments[1:] or list(INSTANCES)
    print(f"{'instance':8} {'status':10} {'cost':>16} {'bound':>16} {'gap':>9} {'to best':>8} {'seconds':>7} / limit")
    for letter in letters:
        print(run(folder, letter), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
