"""Shardy's own resharding, out of jaxlib: the collectives that `sdy-reshard-to-collectives` makes of a reshard."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from jax.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir, passmanager

from autoshard.costs import Cost, MeshModel, ShardingSpec, all_gather, all_to_all, collective_permute

PASS = "builtin.module(func.func(sdy-reshard-to-collectives))"

_OPERATION = re.compile(r"sdy\.(\w+) (?:\[(.*?)\] )?%\w+ out_sharding=<@mesh, \[(.*?)\](?:, \w.*?)?>")
_DIM = re.compile(r"\{(.*?)\}")
_AXIS = re.compile(r'"(\w+)"(:\(\d+\)\d+)?')
_PARAMETER = re.compile(r"\{(.*?)\}: (\d+)->(\d+)")

Pair = tuple[ShardingSpec, ShardingSpec]


def shardy_costs(pairs: Sequence[Pair], shape: tuple[int, ...], itemsize: int, mesh: MeshModel) -> list[Cost | None]:
    """What Shardy's collectives for each pair cost at our prices; None where its pass fails, as with some odd sizes."""
    try:
        text = _resharded(_module_text(pairs, shape, mesh))
    except ir.MLIRError:
        return [cost for pair in pairs for cost in shardy_costs([pair], shape, itemsize, mesh)] if pairs[1:] else [None]
    bodies = text.split("func.func")[1:]
    return [sum(_priced(body, source, shape, itemsize, mesh), start=Cost()) for body, (source, _) in zip(bodies, pairs)]


def _resharded(text: str) -> str:
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        passmanager.PassManager.parse(PASS).run(module.operation)
        return str(module)


def _module_text(pairs: Sequence[Pair], shape: tuple[int, ...], mesh: MeshModel) -> str:
    axes = ", ".join(f'"{name}"={size}' for name, size in mesh.sizes.items())
    tensor = f"tensor<{'x'.join(map(str, shape))}xf32>"
    functions = [
        f"func.func @pair{i}(%arg0: {tensor} {{sdy.sharding = #sdy.sharding<@mesh, {_text(source)}>}}) -> {tensor} {{\n"
        f"  %0 = sdy.reshard %arg0 <@mesh, {_text(target)}> : {tensor}\n  return %0 : {tensor}\n}}"
        for i, (source, target) in enumerate(pairs)
    ]
    return f"sdy.mesh @mesh = <[{axes}]>\n" + "\n".join(functions)


def _text(spec: ShardingSpec) -> str:
    return "[" + ", ".join("{" + ", ".join(f'"{axis}"' for axis in dim) + "}" for dim in spec.dims) + "]"


def _axes(text: str) -> tuple[str, ...]:
    return tuple(name + part for name, part in _AXIS.findall(text))


def _dims(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(_axes(dim) for dim in _DIM.findall(text))


def _priced(body: str, spec: ShardingSpec, shape: tuple[int, ...], itemsize: int, mesh: MeshModel) -> Iterator[Cost]:
    """One cost per collective; one that acts on several dimensions at once counts as one after the other."""
    for name, arguments, after in _OPERATION.findall(body):
        target = ShardingSpec.of(*_dims(after))
        held = spec.shard_bytes(shape, itemsize, mesh)
        if name == "all_gather":
            for axes in _dims(arguments):
                held *= math.prod(mesh.size(axis) for axis in axes)
                yield all_gather(held, axes, mesh)
        elif name == "all_to_all":
            yield from (all_to_all(held, _axes(axes), mesh) for axes, _, _ in _PARAMETER.findall(arguments))
        elif name == "collective_permute":
            changed = [axes for pair in zip(spec.dims, target.dims) if pair[0] != pair[1] for axes in pair]
            whole = {axis.split(":")[0] for axes in changed for axis in axes}
            yield collective_permute(held, sorted(whole), mesh)
        elif name != "all_slice":
            raise AssertionError(f"Shardy made a collective of unknown kind: {name}")
        spec = target
