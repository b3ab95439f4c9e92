"""Sliding windows: reduce_window and its relatives, select_and_scatter, and the spatial dimensions of convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoshard.rules.base import Combine, Dims, Equation, OpRule, RuleBuilder, rule_for, unsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How a window slides along one dimension.

    Attributes:
        extent: Elements of the window.
        stride: Elements from one window to the next.
        padding: Elements added before and after.
        base_dilation: Distance of neighbouring elements of the operand once it is spread out.
        window_dilation: Distance of neighbouring elements of the window.
    """

    extent: int
    stride: int
    padding: tuple[int, int]
    base_dilation: int = 1
    window_dilation: int = 1

    @property
    def halo(self) -> tuple[int, int]:
        """Elements that a shard's windows need before and after the shard (negative: fewer than it has).

        Result o looks at the operand from ``o stride - padding`` over ``reach`` elements. The results [i m, (i+1) m) of
        shard i therefore reach from ``padding`` before its first element to ``reach - stride - padding`` past its last.
        """
        reach = (self.extent - 1) * self.window_dilation + 1
        return self.padding[0], reach - self.stride - self.padding[0]

    def factor(self, b: RuleBuilder, before: int, after: int) -> tuple[int, ...]:
        """The factor of a dimension of ``before`` elements that gives ``after`` results.

        It stays whole unless every shard of results belongs to one shard of the operand.
        """
        low, high = self.halo
        if self.base_dilation != 1 or before != after * self.stride or low < 0 or max(0, high) != self.padding[1]:
            return ()
        if low == 0 and high <= 0:
            return b.factor(after)
        return b.factor(after, Combine.HALO, halo=(low, high), least=max(low, high))


def _windows(equation: Equation) -> list[Window]:
    p = equation.params
    rank = len(p["window_dimensions"])
    bases, dilations = p.get("base_dilation") or (1,) * rank, p.get("window_dilation") or (1,) * rank
    parts = zip(p["window_dimensions"], p["window_strides"], p["padding"], bases, dilations)
    return [
        Window(extent=n, stride=s, padding=tuple(pads), base_dilation=base, window_dilation=dilation)
        for n, s, pads, base, dilation in parts
    ]


@rule_for("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window")
def reduce_window(equation: Equation) -> OpRule:
    """Dimensions over which windows do not overlap are parallel, the others exchange borders."""
    b = RuleBuilder(equation)
    count = len(equation.results)
    before, after = equation.operands[0].shape, equation.results[0].shape
    dims = tuple(window.factor(b, m, n) for window, m, n in zip(_windows(equation), before, after))
    size = math.prod(equation.params["window_dimensions"])
    scalars = [unsplit(t) for t in equation.operands[count:]]
    return b.build(
        [dims] * count + scalars,
        [dims] * count,
        flops=float(size * equation.results[0].elements),
        local_factors=b.every,
    )


@rule_for("select_and_scatter_add", "select_and_scatter", "select_and_gather_add")
def select_and_scatter(equation: Equation) -> OpRule:
    """Dimensions over which windows do not overlap are parallel, the others stay whole."""
    b = RuleBuilder(equation)
    shapes = [t.shape for t in (*equation.operands[:2], *equation.results)]
    fine, coarse = max(shapes, key=math.prod), min(shapes, key=math.prod)
    dims: Dims = tuple(
        b.factor(n) if not _overlaps(window) and m == n * window.stride else ()
        for window, m, n in zip(_windows(equation), fine, coarse)
    )
    operands = [dims, dims, *map(unsplit, equation.operands[2:])]
    return b.build(operands, [dims], flops=float(math.prod(fine)), local_factors=b.every)


def _overlaps(window: Window) -> bool:
    low, high = window.halo
    return (low, max(0, high)) != (0, 0) or tuple(window.padding) != (0, 0) or window.base_dilation != 1
