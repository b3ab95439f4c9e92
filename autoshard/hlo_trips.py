"""How often each computation of an HLO module runs per call, loops multiplied out.

CPU and GPU write a loop's trip count into the text; the TPU compiler does not, and there it is derived from the loop's
condition and counter: `i < limit`, with `i` starting at a constant and advanced by a constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from autoshard.errors import InputError
from autoshard.hlo_text import Computation, Instruction, Metadata, Module

_KNOWN_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SCALAR_INTEGER = re.compile(r"[su]\d+\[\]")
_NO_METADATA = Metadata()
_SAME_VALUE = frozenset({"bitcast", "copy", "convert", "reshape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How one computation runs within a call of the module.

    Attributes:
        times: Runs per call; every branch of a conditional counts as taken.
        times_known: Whether every loop around it has a known trip count.
        conditional: Whether it runs only in some branch of a conditional.
        caller: Metadata of the instruction that runs it, for instructions inside that have none.
    """

    times: int
    times_known: bool = True
    conditional: bool = False
    caller: Metadata = _NO_METADATA


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A computation that an instruction runs.

    Attributes:
        callee: Name of the computation.
        times: Runs each time the instruction runs; None for a loop that runs as often as data says.
        conditional: Whether it is one branch of several.
    """

    callee: str
    times: int | None = 1
    conditional: bool = False

    def times_assuming(self, assumed_trips: int) -> int:
        """The runs, where a loop that runs as often as data says is taken to run so often."""
        return assumed_trips if self.times is None else self.times


@dataclass(frozen=True, slots=True)
class _Affine:
    """An integer: element `index` of the loop's carry (of nothing, if None) plus `offset`."""

    index: int | None
    offset: int


_Parameters = Callable[[int], _Affine | None]


def executions(module: Module, assumed_trips: int = 1) -> dict[str, Execution]:
    """How often each computation runs per call of the module; computations that never run are absent.

    Functions applied to single elements (of a reduce, a sort, or the sum in an all-reduce) are not followed.

    Args:
        module: The module.
        assumed_trips: Trips of a loop that runs as often as data says.
    """
    found = {module.entry: Execution(times=1)}
    for name in _callers_first(module):
        computation, here = module.computations[name], found[name]
        for instruction in computation.instructions.values():
            for call in calls(module, computation, instruction):
                inside = _inside(module, instruction, call, here, assumed_trips)
                found[call.callee] = _together(found.get(call.callee), inside)
    return found


def trip_count(module: Module, parent: Computation, loop: Instruction) -> int | None:
    """Trips of a while loop: as the compiler wrote it down, else derived from its counter; None if it depends on data.

    Args:
        module: The module of the loop.
        parent: The computation the loop stands in.
        loop: The while instruction.
    """
    if known := _KNOWN_TRIP_COUNT.search(loop.attributes):
        return int(known[1])
    condition = module.computations[_callee(loop, "condition")]
    body = module.computations[_callee(loop, "body")]
    comparison = _comparison(module, condition)
    if comparison is None:
        return None
    left, direction, right = comparison
    # Either side may be a counter, a constant, or an element that the body passes on unchanged.
    ends = []
    for side in (left, right):
        start, step = _start_and_step(module, parent, loop, body, side)
        if start is None or step is None:
            return None
        ends.append((start, step))
    (start, step), (limit, limit_step) = ends
    return trips_of_counter(start - limit, step - limit_step, direction)


def trips_of_counter(start: int, step: int, direction: str) -> int | None:
    """Trips of `for (i = start; i <direction> 0; i += step)`; None if that never ends.

    >>> trips_of_counter(-7, 2, "LT"), trips_of_counter(3, -1, "GE"), trips_of_counter(-1, -1, "LT")
    (4, 4, None)
    >>> trips_of_counter(-9, 3, "NE"), trips_of_counter(-9, 2, "NE")
    (3, None)
    """
    if direction == "NE":
        if start == 0:
            return 0
        return -start // step if step and start % step == 0 and start * step < 0 else None
    if direction in ("GT", "GE"):
        start, step = -start, -step
    if direction in ("LE", "GE"):
        start -= 1
    if start >= 0:
        return 0
    return -(start // step) if step > 0 else None


def _callers_first(module: Module) -> list[str]:
    """Computations reachable from the entry, each before everything it calls."""
    finished: dict[str, None] = {}

    def visit(name: str) -> None:
        for instruction in module.computations[name].instructions.values():
            for callee in _callees(instruction):
                if callee not in finished:
                    visit(callee)
        finished[name] = None

    visit(module.entry)
    return list(reversed(finished))


def _callees(instruction: Instruction) -> tuple[str, ...]:
    """Names of the computations that an instruction runs as a whole."""
    match instruction.opcode:
        case "while":
            return _callee(instruction, "body"), _callee(instruction, "condition")
        case "fusion" | "async-start":
            return (_callee(instruction, "calls"),)
        case "call":
            return (_callee(instruction, "to_apply"),)
        case "conditional":
            branches = instruction.attribute("branch_computations")
            if branches is not None:
                return tuple(re.findall(r"[\w.\-]+", branches))
            return _callee(instruction, "true_computation"), _callee(instruction, "false_computation")
        case _:
            return ()


def _callee(instruction: Instruction, key: str) -> str:
    name = instruction.attribute(key)
    if name is None:
        raise InputError(f"{instruction.opcode} %{instruction.name} has no attribute {key!r}")
    return name.lstrip("%")


def calls(module: Module, parent: Computation, instruction: Instruction) -> tuple[Call, ...]:
    """The computations that an instruction runs as a whole.

    Args:
        module: The module.
        parent: The computation the instruction stands in.
        instruction: Any instruction; most run none.
    """
    callees = _callees(instruction)
    if instruction.opcode == "while":
        trips = trip_count(module, parent, instruction)
        body, condition = callees
        # The condition is evaluated once more than the body, to leave the loop.
        return Call(callee=body, times=trips), Call(callee=condition, times=None if trips is None else trips + 1)
    return tuple(Call(callee=callee, conditional=instruction.opcode == "conditional") for callee in callees)


def _inside(module: Module, instruction: Instruction, call: Call, here: Execution, assumed_trips: int) -> Execution:
    """The part of the callee's execution that this call accounts for."""
    metadata = instruction.metadata(module.lines_by_frame)
    return Execution(
        times=here.times * call.times_assuming(assumed_trips),
        times_known=here.times_known and call.times is not None,
        conditional=here.conditional or call.conditional,
        caller=metadata if metadata.op_name or metadata.source else here.caller,
    )


def _together(first: Execution | None, second: Execution) -> Execution:
    """The execution of a computation with two callers."""
    if first is None:
        return second
    return Execution(
        times=first.times + second.times,
        times_known=first.times_known and second.times_known,
        conditional=first.conditional or second.conditional,
        caller=first.caller,
    )


def _comparison(
    module: Module, computation: Computation, parameters: _Parameters | None = None
) -> tuple[_Affine, str, _Affine] | None:
    """The comparison that a loop condition is, looked up through fusions: (left, direction, right)."""
    root = computation.root
    if root.opcode in ("fusion", "call"):
        inner = module.computations[_callees(root)[0]]
        return _comparison(module, inner, _bind(module, computation, root, parameters))
    direction = root.attribute("direction")
    if root.opcode != "compare" or direction is None:
        return None
    left, right = (_value(module, computation, name, parameters) for name in root.operands)
    return None if left is None or right is None else (left, direction, right)


def _start_and_step(
    module: Module, parent: Computation, loop: Instruction, body: Computation, side: _Affine
) -> tuple[int | None, int | None]:
    """First value and increment per trip of one side of a loop's condition."""
    if side.index is None:
        return side.offset, 0
    start = _element(module, parent, loop.operands[0], side.index, None)
    after = _element(module, body, body.root.name, side.index, None)
    if start is None or start.index is not None or after is None or after.index != side.index:
        return None, None
    return start.offset + side.offset, after.offset


def _value(module: Module, computation: Computation, name: str, parameters: _Parameters | None) -> _Affine | None:
    """A scalar integer as an affine function of the carry, None where it is anything else.

    Args:
        module: The module.
        computation: A loop's condition or body, or what one of them calls.
        name: The instruction in it.
        parameters: Values of the computation's parameters; None where its one parameter is the loop's carry.
    """
    instruction = computation.instructions[name]
    if not _SCALAR_INTEGER.match(instruction.shape):
        return None
    match instruction.opcode:
        case "constant":
            return _Affine(None, int(instruction.arguments))
        case "parameter":
            return None if parameters is None else parameters(int(instruction.arguments))
        case "get-tuple-element":
            (index,) = instruction.integers("index")
            return _element(module, computation, instruction.operands[0], index, parameters)
        case "fusion" | "call":
            inner = module.computations[_callees(instruction)[0]]
            return _value(module, inner, inner.root.name, _bind(module, computation, instruction, parameters))
        case "add" | "subtract":
            left, right = (_value(module, computation, operand, parameters) for operand in instruction.operands)
            return _combined(left, right, 1 if instruction.opcode == "add" else -1)
        case opcode if opcode in _SAME_VALUE:
            return _value(module, computation, instruction.operands[0], parameters)
        case _:
            return None


def _element(
    module: Module, computation: Computation, name: str, index: int, parameters: _Parameters | None
) -> _Affine | None:
    """One element of a tuple as an affine function of the carry; arguments as in `_value`."""
    instruction = computation.instructions[name]
    match instruction.opcode:
        case "parameter" if parameters is None:
            return _Affine(index, 0)
        case "tuple":
            return _value(module, computation, instruction.operands[index], parameters)
        case "fusion" | "call":
            inner = module.computations[_callees(instruction)[0]]
            bound = _bind(module, computation, instruction, parameters)
            return _element(module, inner, inner.root.name, index, bound)
        case _:
            return None


def _bind(module: Module, computation: Computation, call: Instruction, parameters: _Parameters | None) -> _Parameters:
    """Values of a callee's parameters, evaluated when asked for: most operands have nothing to do with counters."""
    return lambda position: _value(module, computation, call.operands[position], parameters)


def _combined(left: _Affine | None, right: _Affine | None, sign: int) -> _Affine | None:
    if left is None or right is None or (right.index is not None and (left.index is not None or sign < 0)):
        return None
    index = left.index if left.index is not None else right.index
    return _Affine(index, left.offset + sign * right.offset)
