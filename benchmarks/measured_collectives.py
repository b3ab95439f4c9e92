"""How well the time laws hold against published GPU collectives, and the fits that the presets carry.

python benchmarks/measured_collectives.py            # error of laws fitted on other sizes and group sizes
python benchmarks/measured_collectives.py --fits     # the table of costs/measured.py
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from autoshard.costs.fitting import Measurement, fit_collective, relative_errors
from tests.costs.measurements import held_out, published

DEVICES = {"H100": "sm_90", "B200": "sm_100_B200", "GB200": "sm_100_GB200", "GB300": "sm_103"}
TESTED_ABOVE_BYTES = 1 << 20
TOLERANCE = 0.25


def main() -> None:
    """Prints the errors, or the fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", action="store_true")
    if parser.parse_args().fits:
        _print_fits()
    else:
        _print_errors()


def _print_fits() -> None:
    for name, device in DEVICES.items():
        print(f"{name} = (")
        for kind, by_size in sorted(published(device).items()):
            fit = fit_collective([point for points in by_size.values() for point in points])
            numbers = (fit.base_s, fit.hop_s, fit.bytes_per_s, fit.small_group_ratio, fit.fill_s)
            print(f'    _fit("{kind}", {", ".join(f"{number:.3g}" for number in numbers)}),')
        print(")")


def _print_errors() -> None:
    within, total = 0, 0
    for name, device in DEVICES.items():
        for kind, by_size in sorted(published(device).items()):
            errors = _held_out_errors(by_size, same_group=kind == "permute")
            good = int((np.abs(errors) <= TOLERANCE).sum())
            print(
                f"{name:5} {kind:14} {good:3} of {len(errors):3} within 25 %, median {np.median(np.abs(errors)):.1%}"
                f"{', not counted below' if kind == 'permute' else ''}"
            )
            if kind != "permute":
                within, total = within + good, total + len(errors)
    print(f"all but permutes: {within} of {total} within 25 % ({within / total:.1%})")


def _held_out_errors(by_size: dict[int, list[Measurement]], same_group: bool) -> np.ndarray:
    errors = [
        relative_errors(fit_collective(seen), [point for point in unseen if point.nbytes > TESTED_ABOVE_BYTES])
        for seen, unseen in held_out(by_size, same_group=same_group)
    ]
    return np.concatenate(errors)


if __name__ == "__main__":
    main()
