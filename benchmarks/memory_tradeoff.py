"""Predicted step time and traffic of the example's training step against the memory that a device may use.

Plans the step of `examples/train_gpt.py` once per budget, prints the table, and draws the file named. Nothing is run:
the numbers are the cost model's. A plan for a smaller budget is one for a larger budget too, so the drawing has the
best plan found that fits each; the table has what each budget gave by itself.

    python benchmarks/memory_tradeoff.py memory_tradeoff.svg
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # as the example does, before jax is imported
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(HERE.parent / "examples"))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import train_gpt  # noqa: E402

from autoshard import Plan, autoshard  # noqa: E402
from autoshard.errors import PlanningError  # noqa: E402

MIB = 2**20
TIME_S = 40.0
BUDGETS_MIB = (38, 40, 44, 48, 50, 52, 54, 56, 60)
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 64, 16, 40, 48
STEP, SENT = "#1b6ca8", "#c2571a"


def plan(budget_mib: float) -> Plan | None:
    """The plan at a budget; None if nothing fits, or is found in time."""
    config = train_gpt.Config()
    state = jax.eval_shape(lambda: train_gpt.init(config))
    tokens = jax.ShapeDtypeStruct((config.batch, config.context + 1), jnp.int32)
    mesh = train_gpt.parse_mesh("4x2")
    step = autoshard(
        train_gpt.make_train_step(config), mesh, donate_argnums=0, memory_budget=budget_mib * MIB, time_limit_s=TIME_S
    )
    try:
        return step.plan(state, tokens)
    except PlanningError:
        return None


def best_within(budget_bytes: float, plans: Iterable[Plan]) -> Plan:
    """The fastest of the plans that fit."""
    fitting = [found for found in plans if found.predicted.peak_memory_bytes <= budget_bytes]
    return min(fitting, key=lambda found: found.predicted.step_seconds)


def panel(x0: float, width: float, title: str, colour: str, points: Sequence[tuple[float, float]]) -> str:
    """One axis-framed line of (MiB of budget, value), from zero up."""
    low, high = BUDGETS_MIB[0] - 2, BUDGETS_MIB[-1] + 2
    ceiling = 1.15 * max(value for _, value in points)
    plot = HEIGHT - TOP - BOTTOM

    def x(mib: float) -> float:
        return x0 + width * (mib - low) / (high - low)

    def y(value: float) -> float:
        return TOP + plot * (1 - value / ceiling)

    line = " ".join(f"{x(mib):.1f},{y(value):.1f}" for mib, value in points)
    dots = "".join(f'<circle cx="{x(mib):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>' for mib, value in points)
    ticks = "".join(text(x(mib), HEIGHT - BOTTOM + 18, f"{mib}") for mib in BUDGETS_MIB[1::3])
    marks = "".join(
        text(x0 - 6, y(share * ceiling) + 4, f"{share * ceiling:.3g}", anchor="end")
        for share in (0, 0.25, 0.5, 0.75, 1)
    )
    frame = f'<path d="M{x0},{TOP} V{TOP + plot} H{x0 + width}" fill="none" stroke="#888"/>'
    drawn = f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
    caption = text(x0 + width / 2, HEIGHT - 8, "memory budget, MiB per device")
    return frame + drawn + dots + ticks + marks + caption + text(x0 + width / 2, TOP - 16, title)


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def main() -> None:
    plans = {mib: found for mib in BUDGETS_MIB if (found := plan(mib)) is not None}
    print(f"{'budget MiB':>10}  {'step ms':>8}  {'sent MiB':>8}  {'peak MiB':>8}  status    gap")
    for mib, found in plans.items():
        p, solver = found.predicted, found.solver
        print(
            f"{mib:10}  {p.step_seconds * 1e3:8.3f}  {p.wire_bytes / MIB:8.1f}  {p.peak_memory_bytes / MIB:8.1f}  "
            f"{solver.status}  {solver.gap:.1%}"
        )

    def curve(value: Callable[[Plan], float]) -> list[tuple[float, float]]:
        return [(mib, value(best_within(mib * MIB, plans.values()))) for mib in plans]

    width = (WIDTH - 2 * LEFT - 2 * RIGHT) / 2
    panels = panel(LEFT, width, "predicted step, ms", STEP, curve(lambda p: p.predicted.step_seconds * 1e3))
    sent = curve(lambda p: p.predicted.wire_bytes / MIB)
    panels += panel(2 * LEFT + RIGHT + width, width, "sent per device and step, MiB", SENT, sent)
    style = 'font-family="sans-serif" font-size="12" fill="#555"'
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {style}>{panels}</svg>\n'
    Path(sys.argv[1]).write_text(svg)


if __name__ == "__main__":
    main()
