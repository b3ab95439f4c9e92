"""What a compiled program does: its collectives, matrix FLOPs and memory, read from optimised HLO.

Wire bytes are bytes sent per device, by ring formulas over a group of n devices and the bytes b of the result on one
device: all-gather and all-to-all b (n-1)/n, all-reduce 2 b (n-1)/n, reduce-scatter b (n-1), collective-permute b.

What the backends write differently is settled here, so that a reader sees one vocabulary:

- GPU and TPU split collectives into a start and a done; they count once, with the bytes of the result.
- TPU writes a reduce-scatter as a fusion calling `%all-reduce-scatter...`, which holds an all-reduce and a slice, and
  spreads one asynchronous collective over a chain of fusions with one channel and chain id.
- Several collectives may be combined into one with a tuple for a result; its bytes are summed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import jax

from autoshard.compiler_log import Rematerialization as Rematerialization
from autoshard.compiler_log import captured_stderr as captured_stderr
from autoshard.compiler_log import compile_with_log as compile_with_log
from autoshard.compiler_log import involuntary_rematerializations as involuntary_rematerializations
from autoshard.device_groups import axes_of_groups, axes_of_pairs, replica_groups, source_target_pairs
from autoshard.errors import InputError
from autoshard.hlo_flops import flops as flops
from autoshard.hlo_text import Computation, Instruction, Metadata, Module, array_shapes, parse_module, tuple_elements
from autoshard.hlo_trips import Execution, executions

Kind = Literal[
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_KIND_OF_OPCODE: dict[str, Kind] = {opcode: kind for kind in KINDS for opcode in (kind, f"{kind}-start")}
_PROVENANCE_HOPS = 8  # slices, converts and copies that the compiler put between a named operation and a collective
_START_RESULT_IS_OUTPUT = frozenset({"all-reduce"})  # its start has no (operand, result) tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
        kind: What it does.
        axes: Mesh axes it runs over, in mesh order, sub-axes as `x:(1)2`; for a permute those along which data moves.
            Empty without a mesh, or where the groups follow no axes of it.
        group_size: Devices that exchange data with each other; 2 for a permute.
        nbytes: Bytes of the result on one device, per execution.
        wire_bytes: Bytes one device sends, per execution.
        trips: Executions per call of the program.
        trips_known: False where a loop around it runs as often as data says; its trips are assumed.
        conditional: Whether it stands in a branch of a conditional, and may not run at all.
        op_name: JAX's name of the operation it was made for.
        source: The user's `file:line`, empty where the compiler lost it.
    """

    kind: Kind
    axes: tuple[str, ...]
    group_size: int
    nbytes: int
    wire_bytes: float
    trips: int = 1
    trips_known: bool = True
    conditional: bool = False
    op_name: str = ""
    source: str = ""

    @property
    def call_wire_bytes(self) -> float:
        """Bytes one device sends per call of the program."""
        return self.wire_bytes * self.trips


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUsage:
    """Memory of a compiled program on one device, in bytes.

    Attributes:
        arguments: Arguments.
        outputs: Outputs.
        aliases: Outputs that take the place of donated arguments.
        temporaries: Everything else that lives while it runs.
    """

    arguments: int
    outputs: int
    aliases: int
    temporaries: int

    @property
    def total(self) -> int:
        """Arguments and temporaries, and the outputs that do not reuse an argument."""
        return self.arguments + self.temporaries + self.outputs - self.aliases


def collectives(
    text: str,
    mesh_axes: Mapping[str, int] | None = None,
    num_devices: int | None = None,
    *,
    assumed_trips: int = 1,
) -> tuple[Collective, ...]:
    """The collectives of a compiled program in the order of its text, those spread over several fusions last.

    Args:
        text: Optimised HLO, as `compiled.as_text()` gives it.
        mesh_axes: Axis names and sizes of the mesh the program was compiled for, in mesh order; without it the
            collectives have no axes.
        num_devices: Devices of the program, if its text does not say.
        assumed_trips: Trips of a loop that runs as often as data says.

    Raises:
        InputError: The text is not optimised HLO, or has a collective of unknown form.
    """
    module = parse_module(text)
    devices = num_devices or module.num_devices
    found: list[Collective] = []
    chains: dict[tuple[str, ...], Collective] = {}
    runs = executions(module, assumed_trips)
    for name, computation in module.computations.items():
        if name not in runs:
            continue
        for instruction in computation.instructions.values():
            collective = _collective(module, computation, runs[name], instruction, mesh_axes, devices)
            if collective is None:
                continue
            chain = _chain(instruction)
            if chain is None:
                found.append(collective)
            # The start may stand outside of a loop that only advances the chain: the rarest piece is the true count.
            elif chain not in chains or collective.trips < chains[chain].trips:
                chains[chain] = collective
    return (*found, *chains.values())


def wire_bytes(kind: Kind, nbytes: float, group_size: int) -> float:
    """Bytes one device sends in a collective, by the ring formulas above.

    Args:
        kind: What the collective does.
        nbytes: Bytes of the result on one device.
        group_size: Devices that exchange data with each other.

    >>> wire_bytes("all-reduce", 800.0, 4), wire_bytes("reduce-scatter", 200.0, 4), wire_bytes("all-gather", 800.0, 4)
    (1200.0, 600.0, 600.0)
    """
    share = (group_size - 1) / group_size
    match kind:
        case "all-gather" | "all-to-all" | "ragged-all-to-all":
            return nbytes * share
        case "all-reduce":
            return 2 * nbytes * share
        case "reduce-scatter":
            return nbytes * (group_size - 1)
        case "collective-permute" | "collective-broadcast":
            return nbytes


def optimized_hlo(compiled: jax.stages.Compiled) -> str:
    """Text of a compiled program.

    Raises:
        InputError: The backend does not show its programs.
    """
    text = compiled.as_text()
    if text is None:
        raise InputError("the backend shows no text of compiled programs; compile for CPU, GPU or TPU")
    return text


def memory(compiled: jax.stages.Compiled) -> MemoryUsage:
    """Memory of a compiled program on one device, from `memory_analysis()`.

    Raises:
        InputError: The backend gives no memory analysis.
    """
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise InputError("the backend gives no memory analysis of compiled programs; compile for CPU, GPU or TPU")
    return MemoryUsage(
        arguments=analysis.argument_size_in_bytes,
        outputs=analysis.output_size_in_bytes,
        aliases=analysis.alias_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
    )


def _collective(
    module: Module,
    computation: Computation,
    execution: Execution,
    instruction: Instruction,
    mesh_axes: Mapping[str, int] | None,
    num_devices: int,
) -> Collective | None:
    """The instruction as a collective; None if it is none, or joins no two devices."""
    kind = _KIND_OF_OPCODE.get(instruction.opcode)
    if kind is None:
        return None
    axes, group_size = _axes_and_group_size(instruction, kind, mesh_axes, num_devices)
    if group_size <= 1:
        return None
    nbytes = _result_nbytes(instruction, kind)
    if kind == "all-reduce" and computation.name.startswith("all-reduce-scatter"):
        kind, nbytes = "reduce-scatter", nbytes // group_size
    own = _provenance(module, computation, instruction)
    return Collective(
        kind=kind,
        axes=axes,
        group_size=group_size,
        nbytes=nbytes,
        wire_bytes=wire_bytes(kind, nbytes, group_size),
        trips=execution.times,
        trips_known=execution.times_known,
        conditional=execution.conditional,
        op_name=own.op_name or execution.caller.op_name,
        source=own.source or execution.caller.source,
    )


def _provenance(module: Module, computation: Computation, instruction: Instruction) -> Metadata:
    """Metadata of an instruction, or of the nearest one that its data comes from."""
    nearest = instruction
    for _ in range(_PROVENANCE_HOPS):
        metadata = nearest.metadata(module.lines_by_frame)
        if metadata.op_name or metadata.source or not nearest.operands:
            return metadata
        nearest = computation.instructions.get(nearest.operands[0], nearest)
    return Metadata()


def _axes_and_group_size(
    instruction: Instruction, kind: Kind, mesh_axes: Mapping[str, int] | None, num_devices: int
) -> tuple[tuple[str, ...], int]:
    if kind == "collective-permute":
        pairs = source_target_pairs(instruction)
        return axes_of_pairs(pairs, mesh_axes or {}) or (), 2
    groups = replica_groups(instruction, num_devices)
    return axes_of_groups(groups, mesh_axes or {}) or (), max(map(len, groups))


def _result_nbytes(instruction: Instruction, kind: Kind) -> int:
    """Bytes of the result; the start of an asynchronous collective has it second: (operands, results, ...)."""
    shape = instruction.shape
    if instruction.opcode.endswith("-start") and kind not in _START_RESULT_IS_OUTPUT:
        shape = tuple_elements(shape)[1]
    return sum(array.nbytes for array in array_shapes(shape))


def _chain(instruction: Instruction) -> tuple[str, ...] | None:
    """What the pieces of one asynchronous collective have in common on TPU; None for a collective of one piece."""
    chain_id = re.search(r'chain_id="(\d+)"', instruction.attributes)
    if chain_id is None:
        return None
    return instruction.opcode, instruction.attribute("channel_id") or "", chain_id[1]
