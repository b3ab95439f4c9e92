"""FLOPs of the matrix products and convolutions in optimised HLO, loops multiplied out.

XLA's own `cost_analysis()` counts a loop's body once. A multiply-add counts as two FLOPs; elementwise work, which is
bound by memory and not by arithmetic, is left out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from autoshard.errors import InputError
from autoshard.hlo_text import ArrayShape, Computation, Instruction, array_shapes, parse_module
from autoshard.hlo_trips import calls

_LHS_CONTRACTING = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')


def flops(text: str, *, assumed_trips: int = 1) -> float:
    """FLOPs of one device per call of a compiled program, in its dots, convolutions and cuBLAS matmuls.

    Of a conditional the costliest branch counts.

    Args:
        text: Optimised HLO, as `compiled.as_text()` gives it.
        assumed_trips: Trips of a loop that runs as often as data says.
    """
    module = parse_module(text)

    @cache
    def of_computation(name: str) -> int:
        computation = module.computations[name]
        total = 0
        for instruction in computation.instructions.values():
            inside = [
                call.times_assuming(assumed_trips) * of_computation(call.callee)
                for call in calls(module, computation, instruction)
            ]
            total += _instruction_flops(computation, instruction)
            total += max(inside) if instruction.opcode == "conditional" else sum(inside)
        return total

    return float(of_computation(module.entry))


def _instruction_flops(computation: Computation, instruction: Instruction) -> int:
    match instruction.opcode:
        case "dot":
            return _dot_flops(computation, instruction, instruction.integers("lhs_contracting_dims"))
        case "convolution":
            return _convolution_flops(computation, instruction)
        case "custom-call" if "__cublas" in (instruction.attribute("custom_call_target") or ""):
            dims = _LHS_CONTRACTING.search(instruction.attributes)
            contracted = tuple(int(dim) for dim in re.findall(r"\d+", dims[1])) if dims else ()
            return _dot_flops(computation, instruction, contracted)
        case _:
            return 0


def _dot_flops(computation: Computation, dot: Instruction, contracted: tuple[int, ...]) -> int:
    result, lhs = _result(dot), _operand(computation, dot, 0)
    return 2 * result.size * math.prod(lhs.dims[dim] for dim in contracted)


def _convolution_flops(computation: Computation, convolution: Instruction) -> int:
    """Multiply-adds: batch x input features x output features x pairs of output and window positions that meet data.

    Only window positions over data count, neither padding nor the holes of a dilated input. The TPU compiler writes
    the batch dimensions of a dot as such dilated windows, so this is what makes its dots come out right.
    """
    lhs, rhs = _operand(computation, convolution, 0), _operand(computation, convolution, 1)
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", convolution.attribute("dim_labels") or "")
    if labels is None:
        raise InputError(f"convolution %{convolution.name} has no readable dim_labels")
    window = convolution.attribute("window") or ""
    batch_groups = (convolution.integers("batch_group_count") or (1,))[0]
    batch = lhs.dims[labels[1].index("b")] // batch_groups
    features = rhs.dims[labels[2].index("i")] * rhs.dims[labels[2].index("o")]
    result = _result(convolution)
    positions = 1
    for spatial in range(len(labels[1]) - 2):
        digit = str(spatial)
        positions *= _meeting_positions(
            lhs.dims[labels[1].index(digit)],
            rhs.dims[labels[2].index(digit)],
            result.dims[labels[3].index(digit)],
            _WindowDimension.read(window, spatial),
        )
    return 2 * batch * features * positions


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowDimension:
    """How a convolution's window moves along one dimension."""

    stride: int
    pad_low: int
    input_dilation: int
    window_dilation: int

    @classmethod
    def read(cls, window: str, dimension: int) -> _WindowDimension:
        """One dimension of an attribute such as `{size=3x3 stride=2x1 pad=1_1x0_0 lhs_dilate=1x2}`."""

        def field(key: str, default: str) -> str:
            match = re.search(rf"\b{key}=([\d_x\-]+)", window)
            return match[1].split("x")[dimension] if match else default

        return cls(
            stride=int(field("stride", "1")),
            pad_low=int(field("pad", "0_0").split("_")[0]),
            input_dilation=int(field("lhs_dilate", "1")),
            window_dilation=int(field("rhs_dilate", "1")),
        )


def _meeting_positions(inputs: int, window: int, outputs: int, along: _WindowDimension) -> int:
    """Pairs of output and window positions, along one dimension, that fall on an element of the input."""
    at_output = np.arange(outputs)[:, None] * along.stride - along.pad_low
    at = at_output + np.arange(window)[None, :] * along.window_dilation
    on_data = (at >= 0) & (at <= (inputs - 1) * along.input_dilation) & (at % along.input_dilation == 0)
    return int(on_data.sum())


def _result(instruction: Instruction) -> ArrayShape:
    return array_shapes(instruction.shape)[0]


def _operand(computation: Computation, instruction: Instruction, position: int) -> ArrayShape:
    return _result(computation.instructions[instruction.operands[position]])
