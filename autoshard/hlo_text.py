"""Optimised HLO text, read into modules, computations and instructions.

The text is what `compiled.as_text()` prints on CPU, GPU and TPU. Only its structure is read here: one instruction a
line, its result shape, opcode, operands and attributes kept as text and taken apart on request, because a program of a
hundred thousand instructions has a few hundred that anybody asks about.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from autoshard.errors import InputError

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (?=\S)")
_COMMENT = re.compile(r"/\*[^*]*\*/")  # tuple elements are numbered by comments: /*index=5*/
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]')
_ARRAY = re.compile(r"\b([a-z]\w*)\[([^\]]*)\](\{[^}]*\})?")
_PACKED = re.compile(r"E\((\d+)\)")  # a layout that packs elements of less than a byte
_STRING = r'"((?:[^"\\]|\\.)*)"'


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """An array as one device holds it: element type, dimensions, and bits of memory an element takes."""

    dtype: str
    dims: tuple[int, ...]
    bits: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without the padding of tiled layouts."""
        return -(-self.size * self.bits // 8)


@dataclass(frozen=True, slots=True)
class Metadata:
    """Where an instruction comes from: JAX's name for the operation, and the user's file and line."""

    op_name: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One line of HLO: `%name = shape opcode(arguments), attributes`."""

    name: str
    shape: str
    opcode: str
    arguments: str
    attributes: str
    is_root: bool

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operand instructions, without the percent sign."""
        if "%" in self.arguments:
            return tuple(re.findall(r"%([\w.\-]+)", self.arguments))
        return tuple(part.split()[-1] for part in split_top_level(self.arguments) if part)

    def attribute(self, key: str) -> str | None:
        """Text of the attribute `key=...`, or None where the instruction has none of that name."""
        prefix = key + "="
        if prefix not in self.attributes:
            return None
        for part in split_top_level(self.attributes):
            if part.startswith(prefix):
                return part[len(prefix) :]
        return None

    def integers(self, key: str) -> tuple[int, ...]:
        """The integers of an attribute such as `lhs_contracting_dims={1,2}`; empty where it is missing."""
        return tuple(int(number) for number in re.findall(r"-?\d+", self.attribute(key) or ""))

    def metadata(self, lines_by_frame: Mapping[int, str]) -> Metadata:
        """Where the instruction comes from, empty where the compiler left nothing.

        Args:
            lines_by_frame: The module's source lines by stack frame.
        """
        text = self.attribute("metadata")
        if text is None:
            return Metadata()
        return Metadata(op_name=_quoted(text, "op_name"), source=_source(text, lines_by_frame))


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """A named list of instructions, by name and in schedule order."""

    name: str
    instructions: Mapping[str, Instruction]
    is_entry: bool

    @property
    def root(self) -> Instruction:
        """The instruction whose value the computation returns."""
        return next(instruction for instruction in self.instructions.values() if instruction.is_root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A parsed HLO module: its computations by name, its entry, its device count and its source lines."""

    computations: Mapping[str, Computation]
    entry: str
    num_devices: int
    lines_by_frame: Mapping[int, str]


@lru_cache(maxsize=1)  # collectives, FLOPs and source lines are asked of one program in a row
def parse_module(text: str) -> Module:
    """Read the text of one HLO module.

    Args:
        text: What `compiled.as_text()` returns: one module, entry computation included.

    Raises:
        InputError: The text has no entry computation.
    """
    computations = {computation.name: computation for computation in _computations(text)}
    entry = next((computation.name for computation in computations.values() if computation.is_entry), None)
    if entry is None:
        raise InputError(
            "not optimised HLO: no ENTRY computation found; pass the text of `lowered.compile().as_text()`"
        )
    return Module(
        computations=computations,
        entry=entry,
        num_devices=_header_number(text, "num_partitions") * _header_number(text, "replica_count"),
        lines_by_frame=_lines_by_frame(text),
    )


def parse_instruction(line: str) -> Instruction:
    """Read one instruction, `%name = shape opcode(arguments), attributes`.

    Raises:
        InputError: The line is no instruction.
    """
    match = _INSTRUCTION.match(line)
    if match is None:
        raise InputError(f"not an HLO instruction: {line[:200]!r}")
    return _instruction(match, line[match.end() :])


def split_top_level(text: str) -> list[str]:
    """Split at the commas outside of brackets and strings.

    >>> split_top_level('a={1,2}, b="x,y", c=[3,4]<=[12]')
    ['a={1,2}', 'b="x,y"', 'c=[3,4]<=[12]']
    """
    parts, start, depth = [], 0, 0
    for token in _NESTING.finditer(text):
        symbol = token[0]
        if symbol in "({[":
            depth += 1
        elif symbol in ")}]":
            depth -= 1
        elif symbol == "," and depth == 0:
            parts.append(text[start : token.start()].strip())
            start = token.end()
    tail = text[start:].strip()
    return [*parts, tail] if tail else parts


def array_shapes(text: str) -> tuple[ArrayShape, ...]:
    """All arrays of a shape, nested tuples flattened; tokens and opaque values are left out.

    >>> [shape.nbytes for shape in array_shapes("(f32[4,8]{1,0}, (bf16[3]{0}, pred[]))")]
    [128, 6, 1]
    """
    found = []
    for dtype, dims, layout in _ARRAY.findall(text):
        bits = _element_bits(dtype, layout)
        if bits:
            found.append(ArrayShape(dtype, tuple(int(d) for d in re.findall(r"\d+", dims)), bits))
    return tuple(found)


def tuple_elements(shape: str) -> tuple[str, ...]:
    """The shapes inside a tuple shape, one level deep; a shape that is no tuple is its own only element."""
    if not shape.startswith("("):
        return (shape,)
    return tuple(split_top_level(shape[1:-1]))


def _element_bits(dtype: str, layout: str) -> int:
    """Bits an element takes in memory: the first number in the type's name, in whole bytes unless packed."""
    if dtype == "pred":
        return 8
    number = re.search(r"\d+", dtype)
    if number is None:  # token, opaque
        return 0
    packed = _PACKED.search(layout)
    return int(packed[1]) if packed else max(8, int(number[0]))


def _computations(text: str) -> Iterator[Computation]:
    header: re.Match[str] | None = None
    body: dict[str, Instruction] = {}
    for line in text.splitlines():
        if header is None:
            header = _HEADER.match(line)
        elif line.startswith("}"):
            yield Computation(name=header[2], instructions=body, is_entry=bool(header[1]))
            header, body = None, {}
        elif match := _INSTRUCTION.match(line):
            body[match[2]] = _instruction(match, line[match.end() :])


def _instruction(match: re.Match[str], definition: str) -> Instruction:
    definition = _COMMENT.sub("", definition)
    shape_end = _closing(definition, 0) if definition.startswith("(") else definition.index(" ")
    open_paren = definition.index("(", shape_end)
    close_paren = _closing(definition, open_paren)
    return Instruction(
        name=match[2],
        shape=definition[:shape_end],
        opcode=definition[shape_end:open_paren].strip(),
        arguments=definition[open_paren + 1 : close_paren - 1],
        attributes=definition[close_paren:].lstrip(", "),
        is_root=bool(match[1]),
    )


def _closing(text: str, start: int) -> int:
    """Index just behind the bracket that closes the one at `start`."""
    depth = 0
    for token in _NESTING.finditer(text, start):
        if token[0] in "({[":
            depth += 1
        elif token[0] in ")}]":
            depth -= 1
            if depth == 0:
                return token.end()
    raise InputError(f"unbalanced brackets in an HLO instruction: {text[start : start + 200]!r}")


def _source(metadata: str, lines_by_frame: Mapping[int, str]) -> str:
    """The `file:line` of a metadata attribute, in today's spelling (a stack frame) or the older one."""
    if frame := re.search(r"stack_frame_id=(\d+)", metadata):
        return lines_by_frame.get(int(frame[1]), "")
    line = re.search(r"source_line=(\d+)", metadata)
    file = _quoted(metadata, "source_file")
    return f"{file}:{line[1]}" if line and file else ""


def _header_number(text: str, key: str) -> int:
    match = re.search(rf"\b{key}=(\d+)", text[: text.find("\n")])
    return int(match[1]) if match else 1


def _lines_by_frame(text: str) -> dict[int, str]:
    """The module's source tables, joined: stack frame -> file location -> file name.

    A frame also names its parent; only the innermost frame is kept, which is the line that wrote the operation.
    """
    files = {int(i): name for i, name in re.findall(rf"^(\d+) {_STRING}$", _section(text, "FileNames"), re.M)}
    locations = {
        int(i): f"{files[int(file)]}:{line}"
        for i, file, line in re.findall(
            r"^(\d+) \{file_name_id=(\d+)\b.*?\bline=(\d+)", _section(text, "FileLocations"), re.M
        )
    }
    frames = re.findall(r"^(\d+) \{file_location_id=(\d+)", _section(text, "StackFrames"), re.M)
    return {int(i): locations[int(location)] for i, location in frames if int(location) in locations}


def _section(text: str, title: str) -> str:
    match = re.search(rf"^{title}\n((?:\d+ .*\n)+)", text, re.M)
    return match[1] if match else ""


def _quoted(text: str, key: str) -> str:
    match = re.search(rf"\b{key}={_STRING}", text)
    return re.sub(r"\\(.)", r"\1", match[1]) if match else ""
