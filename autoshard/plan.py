"""A plan: the sharding of every value of a program, what it costs, and how sure the solver is of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import jax
import pydantic
from jax.sharding import AbstractMesh, Mesh

from autoshard.costs import MeshModel, ShardingSpec
from autoshard.errors import PlanMismatchError
from autoshard.graph import ASSUMED_WHILE_TRIPS
from autoshard.placing import Place, at_path, global_arrays, initialise, places_of, shardings_for
from autoshard.shardings import named_shardings
from autoshard.tables import nbytes_text

if TYPE_CHECKING:
    from autoshard.verify import Verification

if TYPE_CHECKING:
    from autoshard.report import Report

SpecDims = tuple[tuple[str, ...], ...]
"""A sharding as plain data: per tensor dimension the mesh axes, major first."""

PLAN_VERSION = 2


class Model(pydantic.BaseModel):
    """Frozen, strict, and closed: an unknown field is an error with its path."""

    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(
        frozen=True, strict=True, extra="forbid", ser_json_inf_nan="constants"
    )


Role = Literal["reduction", "resharding"]
"""Why a collective runs: it ends partial sums, or it moves a value between shardings."""


class PlannedCollective(Model):
    """One collective that the plan runs.

    Attributes:
        kind: ``all-gather``, ``all-reduce``, ``reduce-scatter``, ``all-to-all`` or ``permute``.
        axes: Mesh axes it runs over.
        wire_bytes: Bytes sent per device and execution.
        seconds: Time of one execution.
        trips: Executions per call, every branch of a cond counted as taken.
        value: Name of the value that is moved or reduced.
        source: The user's file and line.
        role: Why it runs.
        likelihood: How likely the branches of conds around it are to be taken.
    """

    kind: str
    axes: tuple[str, ...]
    wire_bytes: float
    seconds: float
    trips: float
    value: str
    source: str
    role: Role
    likelihood: float = 1.0

    @property
    def call_seconds(self) -> float:
        """Expected time per call."""
        return self.seconds * self.trips * self.likelihood


class Route(Model):
    """How an operand gets from the sharding it is held in to the one required.

    Attributes:
        shared: It starts from the value's shared copy rather than from the value itself.
        steps: The shardings to constrain it to, one after the other.
    """

    shared: bool
    steps: tuple[SpecDims, ...]


class Ending(Model):
    """One collective that ends an operation's partial sums; ``dimension`` is where a reduce-scatter splits, else -1."""

    kind: str
    axes: tuple[str, ...]
    dimension: int


class Decision(Model):
    """What was chosen for one operation or boundary of a region.

    Attributes:
        path: Where its equation stands in the program.
        slot: Which boundary of a region it is.
        primitive: Its primitive or boundary kind.
        operands: Required sharding of each operand.
        results: Sharding of each result.
        routes: Operand number to the way it is resharded, where it is.
        shared: Result number to the steps that make its shared copy, where there is one.
        pinned: Per result, whether XLA is told its sharding.
        local: It runs as a per-shard region.
        endings: Collectives that end its partial sums.
        arriving: Mesh axes over which its operands arrive as partial sums.
        left: Mesh axes over which its result is left as a partial sum.
    """

    path: tuple[int, ...]
    slot: int
    primitive: str
    operands: tuple[SpecDims, ...]
    results: tuple[SpecDims, ...]
    routes: dict[int, Route]
    shared: dict[int, tuple[SpecDims, ...]]
    pinned: tuple[bool, ...]
    local: bool
    endings: tuple[Ending, ...]
    arriving: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Leaf(Model):
    """Sharding of one flat argument or result.

    Attributes:
        name: Its path, such as ``params['w']``.
        shape: Shape of the whole array.
        dtype: Element type.
        spec: Its sharding.
        shard_bytes: Bytes on each device.
        donated: For arguments, whether its memory is given away.
        route: For results, the steps from where it is produced.
        memory_kind: The memory that it lives in between calls, such as ``pinned_host``; None for the devices' own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: SpecDims
    shard_bytes: float
    donated: bool = False
    route: Route | None = None
    memory_kind: str | None = None


class Totals(Model):
    """Cost of one call, per device.

    Attributes:
        compute_seconds: Arithmetic and memory traffic.
        reduction_seconds: Collectives that end partial sums.
        resharding_seconds: Collectives that move values between shardings.
        wire_bytes: Bytes sent.
        peak_memory_bytes: Largest sum of live arguments, temporaries and results.
        flops: Floating-point operations.
    """

    compute_seconds: float
    reduction_seconds: float
    resharding_seconds: float
    wire_bytes: float
    peak_memory_bytes: float
    flops: float

    @property
    def communication_seconds(self) -> float:
        """All collectives."""
        return self.reduction_seconds + self.resharding_seconds

    @property
    def step_seconds(self) -> float:
        """The plain sum: no overlap of compute and communication is assumed."""
        return self.compute_seconds + self.communication_seconds


class SolverSummary(Model):
    """How the plan was found.

    Attributes:
        status: ``optimal``, ``feasible`` or ``replicated`` (the fallback of ``on_failure="replicate"``).
        cost_seconds: Objective of the plan.
        bound_seconds: No plan in this space costs less.
        gap: Their relative distance.
        seconds: Wall time per phase of planning.
        message: What the solver has to say.
    """

    status: str
    cost_seconds: float
    bound_seconds: float
    gap: float
    seconds: dict[str, float]
    message: str = ""


class OpCost(Model):
    """What one operation costs per call, for the report."""

    name: str
    primitive: str
    source: str
    spec: SpecDims
    trips: float
    compute_seconds: float
    communication_seconds: float


class Plan(Model):
    """The sharding of every value of a program on a mesh.

    Made by ``autoshard(fn, mesh).plan(*args)``. Equal programs, meshes and options give equal plans.

    Example:
        >>> import jax
        >>> from autoshard import autoshard
        >>> mesh = jax.make_mesh((4, 2), ("x", "y"))
        >>> plan = autoshard(lambda x: x * 2, mesh).plan(jax.ShapeDtypeStruct((64, 64), "float32"))
        >>> plan.predicted.wire_bytes, plan.in_shardings[0].shard_shape((64, 64))
        (0.0, (8, 64))

    Attributes:
        version: Version of this format.
        function: Name of the planned function.
        fingerprint: Hash of the traced program, the mesh's axes and the donated arguments.
        mesh: The mesh model that prices were taken from.
        memory_budget_bytes: Limit per device that the plan was made under; None for none.
        arguments: Sharding of every flat argument.
        results: Sharding of every flat result.
        decisions: What was chosen for every operation.
        collectives: All communication that the plan expects.
        costs: Costs per operation.
        predicted: Totals per device and call.
        solver: How the plan was found.
        unruled: Operations whose primitive has no rule, what each falls back on, and the user's line.
        notes: Assumptions that the prediction rests on.
        reopened: Whether constraints in the function's own code were planned as if they were not there.
        axis_parts: Axes that values inside the function are split over in parts, with the sizes of those, major first;
            decisions name them such as ``y:(1)2``. Arguments and results are split over whole axes.
    """

    version: int
    function: str
    fingerprint: str
    mesh: MeshModel
    memory_budget_bytes: float | None
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    decisions: tuple[Decision, ...]
    collectives: tuple[PlannedCollective, ...]
    costs: tuple[OpCost, ...]
    predicted: Totals
    solver: SolverSummary
    unruled: tuple[str, ...]
    notes: tuple[str, ...]
    reopened: bool = False
    axis_parts: dict[str, tuple[int, ...]] = {}

    _binding: Binding | None = pydantic.PrivateAttr(default=None)

    def __repr__(self) -> str:
        peak = nbytes_text(self.predicted.peak_memory_bytes)
        sent = nbytes_text(self.predicted.wire_bytes)
        return f"<Plan of {self.function} on {dict(self.mesh.sizes)}: {self.solver.status}, {sent} sent, peak {peak}>"

    def __eq__(self, other: object) -> bool:
        """Whether two plans say the same; devices, which are not part of a plan, do not matter."""
        return isinstance(other, Plan) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def in_shardings(self) -> Any:
        """NamedShardings of the arguments, in the tree of ``(args, kwargs)``'s positional part.

        For a function called with positional arguments only it is the tuple that `jax.jit` takes as ``in_shardings``.
        """
        args, kwargs = self.shardings_on(self._bound().mesh)[0]
        return (args, kwargs) if kwargs else args

    @property
    def out_shardings(self) -> Any:
        """NamedShardings of the results, in the tree that the function returns."""
        return self.shardings_on(self._bound().mesh)[1]

    def shardings_on(self, mesh: Mesh | AbstractMesh) -> tuple[Any, Any]:
        """NamedShardings of ``(args, kwargs)`` and of the results on another mesh with the same axes.

        Example:
            >>> import jax
            >>> from autoshard import autoshard
            >>> mesh = jax.make_mesh((8,), ("x",))
            >>> plan = autoshard(lambda x: x * 2, mesh).plan(jax.ShapeDtypeStruct((64,), "float32"))
            >>> (args, kwargs), out = plan.shardings_on(mesh.abstract_mesh)
            >>> args[0].spec == out.spec
            True
        """
        binding = self._bound()
        ins, outs = (
            named_shardings(mesh, [spec_of(leaf.spec) for leaf in leaves], tree, [leaf.memory_kind for leaf in leaves])
            for leaves, tree in ((self.arguments, binding.in_tree), (self.results, binding.out_tree))
        )
        return ins, outs

    def shardings_for(self, tree: Any) -> Any:
        """NamedShardings for a tree that is an argument, a result, or a part of one.

        Leaves are found by path, shape and type, so a state that a checkpoint was restored to as plain dictionaries,
        or only its parameters, will do: for `jax.device_put`, or as the target of a restore.

        Args:
            tree: Arrays or `jax.ShapeDtypeStruct`s; or a path as the report prints it, such as ``"state['params']"``
                or ``"result[0]"``.

        Returns:
            A tree of the same structure; for a path, the subtree that stands there.

        Raises:
            InputError: The plan has no such leaves, or has them in several places with different shardings.

        Example:
            >>> import jax
            >>> from autoshard import autoshard
            >>> mesh = jax.make_mesh((4, 2), ("x", "y"))
            >>> state = {"w": jax.ShapeDtypeStruct((8, 8), "float32"), "n": jax.ShapeDtypeStruct((), "int32")}
            >>> plan = autoshard(lambda s: {"w": s["w"] * 2, "n": s["n"] + 1}, mesh).plan(state)
            >>> plan.shardings_for({"n": state["n"]})["n"].is_fully_replicated
            True
            >>> plan.shardings_for("s['w']") == plan.in_shardings[0]["w"]
            True
        """
        if isinstance(tree, str):
            return at_path(self._places, self._trees, tree)
        return shardings_for(self._places, tree)

    def init(self, init_fn: Callable[..., Any], *args: Any) -> Any:
        """Make a state where the plan wants it: every device computes its own part.

        Args:
            init_fn: Returns a state that is an argument of the planned function, or a part of one.
            *args: Its arguments. Those without arrays in them, such as sizes, are not traced.

        Returns:
            What ``init_fn(*args)`` returns, sharded; it never exists whole on one device.

        Raises:
            InputError: The plan does not know such a state.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from autoshard import autoshard
            >>> mesh = jax.make_mesh((4, 2), ("x", "y"))
            >>> plan = autoshard(lambda w, x: x @ w, mesh).plan(jnp.ones((8, 8)), jnp.ones((16, 8)))
            >>> w = plan.init(jax.random.normal, jax.random.key(0), (8, 8))
            >>> w.sharding == plan.in_shardings[0]
            True
        """
        jitted, dynamic = initialise(init_fn, args, self.shardings_for)
        return jitted(*dynamic)

    def global_arrays(self, local: Any, *, at: str | None = None) -> Any:
        """Global arrays out of what this process has read, when every process has read its own part.

        Args:
            local: A tree of host arrays: an argument of the planned function, or a part of one. Each leaf is this
                process's part of it under the plan, in the order of its devices; or an equal share of its rows, in
                the order of processes; or the whole, alike everywhere. Where the plan wants rows on several hosts
                that only one has read, they are exchanged.
            at: Path of that argument, such as ``"batch"``, where its leaves alone do not tell.

        Returns:
            The same tree of global arrays in the plan's shardings.

        Raises:
            InputError: The plan does not know such a tree.
            SpecError: One line per leaf that is not this process's part.

        Example:
            >>> import jax, numpy as np
            >>> from autoshard import autoshard
            >>> mesh = jax.make_mesh((8,), ("data",))
            >>> step = autoshard(lambda batch: batch["tokens"].sum(), mesh)
            >>> plan = step.plan({"tokens": jax.ShapeDtypeStruct((64, 16), "int32")})
            >>> batch = plan.global_arrays({"tokens": np.ones((64, 16), "int32")})  # one process: its part is all
            >>> int(step(batch))
            1024
        """
        return global_arrays(self._places[: len(self.arguments)], local, at)

    @property
    def _trees(self) -> list[Any]:
        """NamedShardings of every argument and of the results."""
        (args, kwargs), outs = self.shardings_on(self._bound().mesh)
        return [*args, *(kwargs[name] for name in sorted(kwargs)), outs]

    @property
    def _places(self) -> list[Place]:
        """All arguments, then all results."""
        leaves = (*self.arguments, *self.results)
        return places_of([leaf.name for leaf in leaves], [(leaf.shape, leaf.dtype) for leaf in leaves], self._trees)

    def verify(self, *, topology: str | None = None) -> Verification:
        """Compile the planned function and compare what XLA made of it with the plan.

        Args:
            topology: Compile for a TPU slice instead of the mesh's own devices, such as ``"v5e:4x4"``; no TPU is
                needed, but the ``tpu`` extra is. The slice must have as many devices as the mesh.

        Returns:
            Planned and compiled collectives, bytes and memory side by side, and everything that differs.

        Example:
            >>> import jax
            >>> from autoshard import autoshard
            >>> mesh = jax.make_mesh((8,), ("x",))
            >>> autoshard(lambda x: x * 2, mesh).plan(jax.ShapeDtypeStruct((64,), "float32")).verify().ok
            True
        """
        from autoshard.topology import tpu_mesh
        from autoshard.verify import PredictedCollective, verify_lowered

        binding = self._bound()
        mesh = binding.mesh if topology is None else tpu_mesh(topology, dict(self.mesh.sizes))
        predicted = [
            PredictedCollective(kind=c.kind, axes=c.axes, wire_bytes=c.wire_bytes, trips=c.trips, source=c.source)
            for c in self.collectives
        ]
        return verify_lowered(
            predicted,
            binding.lower_on(mesh),
            self.mesh.cut(self.axis_parts).sizes,
            whole_axes=self.mesh.sizes,
            out_shardings=self.shardings_on(mesh)[1],
            predicted_peak_memory_bytes=self.predicted.peak_memory_bytes,
            assumed_trips=ASSUMED_WHILE_TRIPS,
        )

    def report(self, *, baselines: bool = True, against: Mapping[str, Any] | None = None) -> Report:
        """What the plan costs and why: print it, show it in a notebook, or take its fields.

        Args:
            baselines: Price "replicated", "data parallel" and "fully sharded" beside the plan (solves two smaller
                problems, once).
            against: More plans to set beside it, by the name of their column: shardings of the arguments, as
                ``in_shardings`` of `autoshard` takes them; what happens in between is optimised. Those of
                `infer_sharding` make it a comparison with a rule.

        Returns:
            The report.

        Example:
            >>> import jax
            >>> from autoshard import autoshard
            >>> mesh = jax.make_mesh((8,), ("x",))
            >>> plan = autoshard(lambda x: x * 2, mesh).plan(jax.ShapeDtypeStruct((64,), "float32"))
            >>> "8 devices (x=8)" in str(plan.report(baselines=False))
            True

        Raises:
            SpecError: Shardings in ``against`` do not fit the arguments.
        """
        from autoshard.report import build_report

        columns = self._baselines() if baselines else {}
        own = {name: self._bound().price_fixed(shardings) for name, shardings in (against or {}).items()}
        return build_report(self, baselines={**columns, **own})

    def _repr_html_(self) -> str:
        return self.report(baselines=False)._repr_html_()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, with a checksum by which `load` refuses it if it is edited or damaged.

        Example:
            >>> import jax, tempfile, pathlib
            >>> from autoshard import Plan, autoshard
            >>> mesh = jax.make_mesh((8,), ("x",))
            >>> plan = autoshard(lambda x: x * 2, mesh).plan(jax.ShapeDtypeStruct((64,), "float32"))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     plan.save(pathlib.Path(folder, "plan.json"))
            ...     Plan.load(pathlib.Path(folder, "plan.json")) == plan
            True
        """
        content = json.loads(self.model_dump_json())
        text = json.dumps({"checksum": _checksum(content), **content}, separators=(",", ":"))
        FilePath(path).write_text(text, encoding="utf-8")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Read a plan that `save` wrote; give it to ``autoshard(fn, mesh, plan=...)``.

        Args:
            path: The file.

        Returns:
            The plan, not yet bound to devices.

        Raises:
            PlanMismatchError: The file is damaged, edited, or of another version of the format.

        Example:
            >>> import pathlib, tempfile
            >>> from autoshard import Plan
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = pathlib.Path(folder, "plan.json").write_text("{}")
            ...     Plan.load(pathlib.Path(folder, "plan.json"))
            Traceback (most recent call last):
            autoshard.errors.PlanMismatchError: ...plan.json is not a plan that this version can read: it has no version
        """
        name = os.fspath(path)
        try:
            content = json.loads(FilePath(path).read_text(encoding="utf-8"))
        except ValueError as error:  # of JSON and of UTF-8
            raise PlanMismatchError(f"{name} is not a plan that this version can read: {error}") from error
        if not isinstance(content, dict) or "version" not in content:
            raise PlanMismatchError(f"{name} is not a plan that this version can read: it has no version")
        version = content["version"]
        if version != PLAN_VERSION:
            raise PlanMismatchError(f"{name} has plan format {version}, this version reads {PLAN_VERSION}: plan again")
        if content.pop("checksum", None) != _checksum(content):
            raise PlanMismatchError(
                f"{name} was edited or damaged since it was saved (its checksum differs): plan again"
            )
        try:
            return Plan.model_validate_json(json.dumps(content))
        except pydantic.ValidationError as error:
            raise PlanMismatchError(f"{name} is not a plan that this version can read: {error}") from error

    def bind(self, binding: Binding) -> Plan:
        """Attach the JAX mesh and trees, which are not part of the saved plan."""
        self._binding = binding
        return self

    def _bound(self) -> Binding:
        if self._binding is None:
            raise PlanMismatchError(
                "a loaded plan knows no devices: give it to autoshard(fn, mesh, plan=...) and call .plan(*args)"
            )
        return self._binding

    def _baselines(self) -> dict[str, Totals]:
        return self._binding.baselines if self._binding is not None else {}


@dataclass(frozen=True)
class Binding:
    """What ties a plan to a process.

    Attributes:
        mesh: The JAX mesh.
        in_tree: Tree of ``(args, kwargs)``.
        out_tree: Tree of the results.
        price_baselines: Prices what the plan is compared with.
        price_fixed: Prices the best plan with given shardings of the arguments.
        lower_on: Lowers the planned function for the devices of a mesh.
    """

    mesh: Mesh | AbstractMesh
    in_tree: Any
    out_tree: Any
    price_baselines: Callable[[], dict[str, Totals]]
    price_fixed: Callable[[Any], Totals]
    lower_on: Callable[[Mesh | AbstractMesh], jax.stages.Lowered]

    @cached_property
    def baselines(self) -> dict[str, Totals]:
        """Totals of the baselines by name, priced once."""
        return self.price_baselines()


def _checksum(content: dict[str, Any]) -> str:
    """Hash of a plan's JSON, whatever its order and spacing."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def spec_of(dims: SpecDims) -> ShardingSpec:
    """The spec of plain data."""
    return ShardingSpec.of(*dims)
