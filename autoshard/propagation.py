"""How Shardy, XLA's sharding propagation, splits every value of a lowered function.

The propagation that runs inside the compiler is run here on a copy of the lowered module, where its decisions can be
read with the shapes of whole arrays and the user's source lines beside them; in optimised HLO both are gone. MLIR's
objects are untyped here, as the stubs of its bindings are incomplete.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy

_PROPAGATION = "builtin.module(sdy-propagation-pipeline)"
_OP_NAME = re.compile(r'loc\("((?:[^"\\]|\\.)*)"')
_LINE = re.compile(r'"([^"]+)":(\d+):\d+')
_FREE = frozenset({"stablehlo.constant", "sdy.constant", "stablehlo.iota", "stablehlo.broadcast_in_dim"})
"""Cost nothing in any sharding: computed where they are used."""
_PASSED_ON = frozenset(
    {
        *("func.call", "sdy.reshard", "sdy.sharding_constraint", "stablehlo.while", "stablehlo.case"),
        *("stablehlo.reshape", "stablehlo.transpose", "stablehlo.slice", "stablehlo.dynamic_slice"),
    }
)
"""Give on (parts of) values made by operations that are looked at themselves; reshards are in the collectives."""

Role = Literal["argument", "result", "value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagatedValue:
    """A value of a lowered function and how it is split.

    Attributes:
        role: Argument, result, or a value inside.
        name: Path of an argument or result, or JAX's name of the operation.
        dtype: Element type, as StableHLO writes it.
        shape: Shape of the whole array.
        parts: Into how many parts it is split.
        nbytes: Bytes on each device.
        source: The user's `file:line`, empty where there is none.
    """

    role: Role
    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: int
    nbytes: int
    source: str = ""

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        return f"{self.role} {self.name} {self.dtype}[{','.join(map(str, self.shape))}]{where}"


def propagated_values(lowered: jax.stages.Lowered) -> tuple[PropagatedValue, ...]:
    """Every argument, result and value of a lowered function under the shardings that Shardy gives it.

    Constants and broadcasts, which cost nothing in any sharding, are left out, and so are the insides of `shard_map`.
    Without a mesh in the module there is nothing to propagate and the answer is empty.

    Args:
        lowered: What `jax.jit(fn).lower(...)` returns.
    """
    stablehlo: Any = lowered.compiler_ir("stablehlo")
    with stablehlo.context:
        module = ir.Module.parse(stablehlo.operation.get_asm(enable_debug_info=True))
        mesh_axes = dict(_mesh_axes(module))
        if not mesh_axes:
            return ()
        passmanager.PassManager.parse(_PROPAGATION).run(module.operation)
        return tuple(_module_values(module, mesh_axes))


def _mesh_axes(module: Any) -> Iterator[tuple[str, int]]:
    for operation in module.body.operations:
        if operation.operation.name == "sdy.mesh":
            for axis in sdy.MeshAttr(operation.attributes["mesh"]).axes:
                yield sdy.MeshAxisAttr(axis).name, sdy.MeshAxisAttr(axis).size


def _module_values(module: Any, mesh_axes: Mapping[str, int]) -> Iterator[PropagatedValue]:
    for function in module.body.operations:
        if function.operation.name != "func.func":
            continue
        if function.attributes["sym_name"].value == "main":
            yield from _signature(function, mesh_axes)
        for block in function.regions[0].blocks:
            yield from _block_values(block, mesh_axes)


def _signature(main: Any, mesh_axes: Mapping[str, int]) -> Iterator[PropagatedValue]:
    """Arguments and results of the main function."""
    arguments = main.regions[0].blocks[0].arguments
    for argument, attributes in zip(arguments, main.attributes["arg_attrs"], strict=True):
        yield from _value("argument", argument.type, _sharding(attributes), mesh_axes, _name(argument.location), "")
    for result, attributes in zip(main.type.results, main.attributes["res_attrs"], strict=True):
        name = attributes["jax.result_info"].value if "jax.result_info" in attributes else "result"
        yield from _value("result", result, _sharding(attributes), mesh_axes, name, "")


def _block_values(block: Any, mesh_axes: Mapping[str, int]) -> Iterator[PropagatedValue]:
    for operation in block.operations:
        name = operation.operation.name
        if name not in _FREE | _PASSED_ON:
            yield from _result_values(operation, mesh_axes)
        if name == "sdy.manual_computation":
            continue
        for region in operation.regions:
            for inner in region.blocks:
                yield from _block_values(inner, mesh_axes)


def _result_values(operation: Any, mesh_axes: Mapping[str, int]) -> Iterator[PropagatedValue]:
    shardings = _result_shardings(operation)
    for number, result in enumerate(operation.results):
        sharding = shardings[number] if shardings else None
        location = operation.location
        yield from _value("value", result.type, sharding, mesh_axes, _name(location), _source(location))


def _result_shardings(operation: Any) -> list[Any]:
    key = "out_shardings" if operation.operation.name == "sdy.manual_computation" else "sdy.sharding"
    if key not in operation.attributes:
        return []
    return list(sdy.TensorShardingPerValueAttr(operation.attributes[key]).shardings)


def _value(
    role: Role, kind: Any, sharding: Any, mesh_axes: Mapping[str, int], name: str, source: str
) -> Iterator[PropagatedValue]:
    """The value, unless it is no array (a token)."""
    if not isinstance(kind, ir.RankedTensorType):
        return
    parts_by_dim = [1] * kind.rank if sharding is None else _parts(sharding, mesh_axes)
    shard = [-(-size // parts) for size, parts in zip(kind.shape, parts_by_dim, strict=True)]
    yield PropagatedValue(
        role=role,
        name=name,
        dtype=str(kind.element_type),
        shape=tuple(kind.shape),
        parts=math.prod(parts_by_dim),
        nbytes=math.prod(shard) * _element_nbytes(kind.element_type),
        source=source,
    )


def _sharding(attributes: Any) -> Any:
    return attributes["sdy.sharding"] if "sdy.sharding" in attributes else None


def _parts(sharding: Any, mesh_axes: Mapping[str, int]) -> list[int]:
    """Into how many parts each dimension is split."""
    return [
        math.prod(_axis_size(axis, mesh_axes) for axis in sdy.DimensionShardingAttr(dimension).axes)
        for dimension in sdy.TensorShardingAttr(sharding).dimension_shardings
    ]


def _axis_size(axis: Any, mesh_axes: Mapping[str, int]) -> int:
    reference = sdy.AxisRefAttr(axis)
    if reference.sub_axis_info is not None:
        return int(sdy.SubAxisInfoAttr(reference.sub_axis_info).size)
    return mesh_axes[reference.name]


def _element_nbytes(element: Any) -> int:
    """Bytes of one element: the number in the type's name, twice that for complex numbers, whole bytes."""
    text = str(element)
    bits = re.search(r"\d+", text)
    if bits is None:
        return 0
    return -(-int(bits[0]) // 8) * (2 if text.startswith("complex") else 1)


def _name(location: Any) -> str:
    match = _OP_NAME.match(str(location))
    return match[1] if match else ""


def _source(location: Any) -> str:
    match = _LINE.search(str(location))
    return f"{match[1]}:{match[2]}" if match else ""
