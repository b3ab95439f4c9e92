"""`autoshard`, the public function, and the callable that it returns."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import jax
from jax.sharding import AbstractMesh, Mesh

from autoshard.arguments import Options, flat_fixed, flat_memory, parse_bytes
from autoshard.baselines import price_baselines, price_fixed
from autoshard.constraints import Constraints, Leaves, resolve
from autoshard.costs import MeshModel
from autoshard.errors import CapturedValuesError, InputError, OptionError, SpecError, did_you_mean, raise_all
from autoshard.exploring import Exploration, explore_program
from autoshard.given import given_plan
from autoshard.hardware import mesh_model
from autoshard.hosts import check_agreement, spans_processes
from autoshard.jaxprs import primitives
from autoshard.plan import Binding, Plan
from autoshard.planner import PlanningOptions, fed_back, make_plan, over_parts
from autoshard.progress import show_progress
from autoshard.running import (
    BOUND_TO_DEVICES,
    NewSignature,
    abstract_key,
    config_key,
    dynamic_shardings,
    is_another_tree,
    is_indivisible,
    is_misplaced,
    jitted,
)
from autoshard.shardings import (
    HOST_MEMORY,
    abstract_twin,
    foreign_memory,
    has_explicit_axes,
    planning_mesh,
)
from autoshard.signatures import Call, signature_of
from autoshard.trace import Program, abstract, foreign_constraints, lift, trace

logger: logging.Logger = logging.getLogger("autoshard")

P = ParamSpec("P")
R = TypeVar("R")


_Numbers = int | Sequence[int] | None
_Names = str | Iterable[str] | None


@overload
def autoshard(
    fn: Callable[P, R],
    mesh: Mesh | AbstractMesh | None = None,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: _Numbers = None,
    static_argnames: _Names = None,
    donate_argnums: _Numbers = None,
    donate_argnames: _Names = None,
    memory_budget: float | str | None = None,
    hardware: str | MeshModel | None = None,
    time_limit_s: float = 20.0,
    on_failure: str = "raise",
    strict: bool = False,
    plan: Plan | str | os.PathLike[str] | None = None,
    constraints: Constraints | None = None,
    axis_parts: bool = True,
) -> Autosharded[P, R]: ...


@overload
def autoshard(
    fn: None = None,
    mesh: Mesh | AbstractMesh | None = None,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: _Numbers = None,
    static_argnames: _Names = None,
    donate_argnums: _Numbers = None,
    donate_argnames: _Names = None,
    memory_budget: float | str | None = None,
    hardware: str | MeshModel | None = None,
    time_limit_s: float = 20.0,
    on_failure: str = "raise",
    strict: bool = False,
    plan: Plan | str | os.PathLike[str] | None = None,
    constraints: Constraints | None = None,
    axis_parts: bool = True,
) -> Callable[[Callable[P, R]], Autosharded[P, R]]: ...


def autoshard(
    fn: Callable[P, R] | None = None,
    mesh: Mesh | AbstractMesh | None = None,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: _Numbers = None,
    static_argnames: _Names = None,
    donate_argnums: _Numbers = None,
    donate_argnames: _Names = None,
    memory_budget: float | str | None = None,
    hardware: str | MeshModel | None = None,
    time_limit_s: float = 20.0,
    on_failure: str = "raise",
    strict: bool = False,
    plan: Plan | str | os.PathLike[str] | None = None,
    constraints: Constraints | None = None,
    axis_parts: bool = True,
    **misspelt: Any,
) -> Autosharded[P, R] | Callable[[Callable[P, R]], Autosharded[P, R]]:
    """Shard a function over a mesh as well as a cost model and an integer program can.

    The function is traced and planned on its first call (or by ``.plan``), then runs at the speed of `jax.jit`.

    Args:
        fn: A function of pytrees of arrays. Left out, a decorator is returned: ``@autoshard(mesh=mesh)``.
        mesh: The devices: a `Mesh` (Auto or Explicit axes), or an `AbstractMesh` to plan without devices. Left out,
            the mesh of `jax.set_mesh` is used.
        in_shardings: As of `jax.jit`: a prefix tree of PartitionSpecs or NamedShardings over the positional arguments.
            ``None`` leaves, and dimensions that are ``PartitionSpec.UNCONSTRAINED``, are free; leaves made by
            `prefer_sharding` are wishes.
        out_shardings: The same for the results.
        static_argnums: As of `jax.jit`.
        static_argnames: As of `jax.jit`.
        donate_argnums: As of `jax.jit`. Donated arguments that come back as results share their memory.
        donate_argnames: As of `jax.jit`.
        memory_budget: Bytes per device, or a string such as ``"1.5GiB"``. By default what the hardware has.
        hardware: Name of a preset (``"tpu-v5e"``), a `MeshModel`, or None to follow the devices' kind.
        time_limit_s: Time for the solver; when it runs out the best plan so far is taken.
        on_failure: ``"raise"``, or ``"replicate"`` to run unsharded when no plan is found.
        strict: Raise for primitives without a sharding rule rather than run them replicated.
        plan: A plan made before, or the path of a saved one. It is refused if it is for another program or mesh, or
            contradicts ``in_shardings``, ``out_shardings``, ``constraints`` or ``memory_budget``.
        constraints: What else the plan has to keep to; see `Constraints`.
        axis_parts: Whether values inside the function may be split over a part of a mesh axis, such as two key-value
            heads over half of an axis of four; arguments and results are split over whole axes all the same. Explicit
            axes, those that ``constraints`` reserves, and all axes of functions with callbacks are always used whole,
            and so are those of meshes with three axes or more.
        **misspelt: No option: an error that names the nearest one.

    Returns:
        A callable with the signature of ``fn`` and the methods of `Autosharded`.

    Raises:
        InputError: ``fn`` is not callable, or an option is wrong; subclasses say which.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from autoshard import autoshard
        >>> mesh = jax.make_mesh((4, 2), ("x", "y"))
        >>> step = autoshard(lambda w, x: jnp.tanh(x @ w).sum(), mesh)
        >>> plan = step.plan(jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((512, 64), "float32"))
        >>> plan.solver.status
        'optimal'
    """
    raise_all(OptionError, "autoshard has no such option:", [_misspelt(name) for name in misspelt])
    options = Options.checked(
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        memory_budget=None if memory_budget is None else parse_bytes(memory_budget),
        hardware=hardware,
        time_limit_s=time_limit_s,
        on_failure=on_failure,
        strict=strict,
        plan=plan,
        constraints=constraints,
        axis_parts=axis_parts,
    )
    if fn is None:
        return lambda function: Autosharded(function, mesh, options)
    return Autosharded(fn, mesh, options)


def _context_mesh() -> Mesh | AbstractMesh:
    """The mesh of `jax.set_mesh`; without its devices while something is traced."""
    mesh: Mesh | AbstractMesh
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:  # inside of a trace
        mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        raise InputError("autoshard has no mesh: pass mesh=, or call the function inside jax.set_mesh(mesh)")
    return mesh


def _misspelt(name: str) -> str:
    return f"{name!r}" + did_you_mean(name, Options.model_fields)


_INSIDE: ContextVar[bool] = ContextVar("inside of a function that is being planned", default=False)


@contextmanager
def _inside() -> Iterator[None]:
    """While a function is traced to be planned: planned functions inside of it write whole axes only."""
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A program planned for one abstract signature, ready to run."""

    plan: Plan
    run: Any


class Autosharded(Generic[P, R]):
    """A function that plans its shardings on the first call; made by `autoshard`.

    Attributes:
        mesh: The mesh it was given; None if the mesh of `jax.set_mesh` is to be used.
    """

    __name__: str

    def __init__(self, fn: Callable[P, R], mesh: Mesh | AbstractMesh | None, options: Options) -> None:
        if not callable(fn):
            raise InputError(f"autoshard needs a function as its first argument, not {type(fn).__name__}")
        self.mesh = mesh
        if mesh is not None:
            planning_mesh(mesh)
        self._fn = fn
        self._options = options
        self._plans: dict[Any, _Planned] = {}
        self._agreed: set[int] = set()
        self._last: Any = None
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn)
        self._signature = signature_of(fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the planned function; plan it first if these argument shapes are new."""
        if self._last is not None and not kwargs and not _INSIDE.get():
            try:
                return cast(R, self._last(*args))
            except NewSignature:
                pass
            except ValueError as error:
                if not (is_misplaced(error) or is_another_tree(error) or is_indivisible(error)):
                    raise
        return cast(R, self._call_slowly(args, kwargs))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: bound to its instance, which is the first argument."""
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"autoshard({self.__name__}, {self.mesh})"

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments: arrays or `jax.ShapeDtypeStruct`; nothing is run.

        Example:
            >>> import jax
            >>> from autoshard import autoshard
            >>> step = autoshard(lambda x: x * 2, jax.make_mesh((8,), ("x",)))
            >>> step.plan(jax.ShapeDtypeStruct((64,), "float32")).arguments[0].shape
            (64,)
        """
        return self._planned(args, kwargs)[0].plan

    def explore(self, *args: Any, **kwargs: Any) -> Exploration:
        """What the plan for these arguments was chosen from: every operation's strategies, their costs, the choice.

        Plans anew, under the options of this function; nothing is compiled or run.

        Example:
            >>> import jax
            >>> from autoshard import autoshard
            >>> step = autoshard(lambda x: x * 2, jax.make_mesh((8,), ("x",)), in_shardings=(jax.P("x"),))
            >>> found = step.explore(jax.ShapeDtypeStruct((64,), "float32"))
            >>> [str(row.operands[0]) for row in found.find("mul").strategies if row.chosen]
            ['[x]']
        """
        call = self._signature.call(args, kwargs, self._options)
        mesh = self._mesh()
        program = self._trace(call, mesh)
        return explore_program(program, self._planning_options(program, mesh, self._memory(call)))

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower the planned function for these arguments, as `jax.jit` does.

        Example:
            >>> import jax
            >>> from autoshard import autoshard
            >>> step = autoshard(lambda x: x * 2, jax.make_mesh((8,), ("x",)))
            >>> step.lower(jax.ShapeDtypeStruct((64,), "float32")).compile().memory_analysis().output_size_in_bytes
            32
        """
        planned, dynamic = self._planned(args, kwargs)
        return cast(jax.stages.Lowered, planned.run.lower(*jax.tree.map(abstract, dynamic)))

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Trace the planned function for these arguments, as `jax.jit` does.

        Example:
            >>> import jax
            >>> from autoshard import autoshard
            >>> step = autoshard(lambda x: x * 2, jax.make_mesh((8,), ("x",)))
            >>> step.trace(jax.ShapeDtypeStruct((64,), "float32")).out_info.shape
            (64,)
        """
        planned, dynamic = self._planned(args, kwargs)
        return cast(jax.stages.Traced, planned.run.trace(*jax.tree.map(abstract, dynamic)))

    def clear_cache(self) -> None:
        """Forget all plans and compiled functions.

        Example:
            >>> import jax
            >>> from autoshard import autoshard
            >>> step = autoshard(lambda x: x * 2, jax.make_mesh((8,), ("x",)))
            >>> shape = jax.ShapeDtypeStruct((64,), "float32")
            >>> before = step.plan(shape)
            >>> step.clear_cache()
            >>> step.plan(shape) is before
            False
        """
        with self._lock:
            self._plans.clear()
            self._agreed.clear()
            self._last = None

    def _call_slowly(self, args: Any, kwargs: Any) -> Any:
        try:
            planned, dynamic = self._planned(args, kwargs)
        except CapturedValuesError:
            return self._call_lifted(args, kwargs)
        self._agree(planned)
        if self._mesh() is self.mesh and not kwargs and len(dynamic) == len(args) and not _INSIDE.get():
            self._last = planned.run
        try:
            return self._run(planned, dynamic)
        except ValueError as error:
            if not (planned.plan.axis_parts and is_indivisible(error)):
                raise
        logger.warning(
            "%s is differentiated outside of jit, where JAX has no name for inner values over parts of axes: it is "
            "planned over whole axes from now on; put jax.grad inside of jit, or inside of the planned function",
            self.__name__,
        )
        with self._lock:
            self._options = self._options.model_copy(update={"axis_parts": False, "plan": None})
            self.clear_cache()
        return self._call_slowly(args, kwargs)

    def _run(self, planned: _Planned, dynamic: tuple[Any, ...]) -> Any:
        try:
            return planned.run(*dynamic)
        except ValueError as error:
            if not is_misplaced(error):
                raise
        return planned.run(*jax.device_put(dynamic, dynamic_shardings(planned.plan, self._mesh())))

    def _call_lifted(self, args: Any, kwargs: Any) -> Any:
        """Inside of an enclosing trace: plan with the values that are used from there as an argument of their own."""
        call, mesh = self._signature.call(args, kwargs, self._options), self._mesh()
        static = sorted(call.static_numbers)
        named = {k: v for k, v in call.kwargs.items() if k not in call.static_names}
        fn = functools.partial(self._fn, **{k: call.kwargs[k] for k in call.static_names})
        shapes = {k: jax.tree.map(abstract, v) for k, v in named.items()}
        with jax.sharding.use_abstract_mesh(abstract_twin(mesh)):
            lifted, captured = lift(fn, call.abstract_args, shapes, static)
        lifted.__name__, lifted.__signature__ = self.__name__, self._signature.lifted(call)
        rest = [a for i, a in enumerate(call.args) if i not in call.static_numbers]
        shardings = self._options.in_shardings
        if shardings is not None:
            shardings = (None, *(shardings if isinstance(shardings, tuple) else [shardings] * len(rest)))
        update = {"in_shardings": shardings, "static_argnums": (), "static_argnames": ()}
        update |= {"donate_argnums": (), "donate_argnames": ()}  # nothing is given away inside of a trace
        return Autosharded(lifted, mesh, self._options.model_copy(update=update))(captured, *rest, **named)

    def _agree(self, planned: _Planned) -> None:
        """Before a plan first runs on several processes: have they all made the same?"""
        with self._lock:
            if id(planned) in self._agreed or not spans_processes(self._mesh()):
                return
            check_agreement(planned.plan)
            self._agreed.add(id(planned))

    def _mesh(self) -> Mesh | AbstractMesh:
        """The mesh to plan for; inside of another planned function, where all axes are Auto, its twin."""
        mesh = self.mesh if self.mesh is not None else _context_mesh()
        context = jax.sharding.get_abstract_mesh()
        if has_explicit_axes(mesh) and context.axis_names == mesh.axis_names and not has_explicit_axes(context):
            return planning_mesh(mesh)
        return mesh

    def _planned(self, args: Any, kwargs: Any) -> tuple[_Planned, tuple[Any, ...]]:
        call = self._signature.call(args, kwargs, self._options)
        mesh = self._mesh()
        memory = self._memory(call)
        key = (mesh, call.static, abstract_key(call.dynamic), memory, config_key(), _INSIDE.get())
        with self._lock:
            if key not in self._plans:
                self._plans[key] = self._make(call, mesh, memory)
                self._warn_if_many()
            return self._plans[key], call.dynamic

    def _warn_if_many(self) -> None:
        count = len(self._plans)
        if count in (4, 16, 64):
            logger.warning(
                "%s has been planned for %d different signatures; pad batches to one shape, or pass static arguments "
                "that change rarely",
                self.__name__, count,
            )  # fmt: skip

    def _memory(self, call: Call) -> tuple[str | None, ...]:
        """The memory of every dynamic leaf: as ``in_shardings`` says, else where it is; empty if all on devices."""
        own = [foreign_memory(getattr(leaf, "sharding", None)) for leaf in jax.tree.leaves(call.dynamic)]
        shardings = self._options.in_shardings
        kept = own if shardings is None or call.kwargs else flat_memory(shardings, call.dynamic, own)
        return tuple(kept) if any(kept) else ()

    def _trace(self, call: Call, mesh: Mesh | AbstractMesh) -> Program:
        with jax.sharding.use_abstract_mesh(abstract_twin(mesh)), _inside():
            return trace(
                self._fn,
                call.abstract_args,
                call.abstract_kwargs,
                signature_names=self._signature.names,
                jit_options=self._signature.jit_options(self._options),
            )

    def _make(self, call: Call, mesh: Mesh | AbstractMesh, memory: tuple[str | None, ...]) -> _Planned:
        program = self._trace(call, mesh)
        planning = self._planning_options(program, mesh, memory)
        plan = given_plan(self._options, program, planning) or self._search(program, planning)
        out_tree = jax.tree.structure(program.out_info)
        shapes = jax.tree.map(abstract, call.dynamic)
        compared = over_parts(planning, plan.axis_parts)
        plan.bind(
            Binding(
                mesh,
                jax.tree.structure(program.args_info),
                out_tree,
                price_baselines=lambda: price_baselines(program, compared),
                price_fixed=lambda fixed: price_fixed(
                    program, compared, flat_fixed(fixed, program.args_info[0], program.argument_names, mesh, "against")
                ),
                lower_on=lambda devices: jitted(plan, program, devices, shapes, out_tree).lower(*shapes),
            )
        )
        logger.info("%s", _summary(plan))
        return _Planned(plan, jitted(plan, program, mesh, shapes, out_tree))

    def _planning_options(
        self, program: Program, mesh: Mesh | AbstractMesh, memory: tuple[str | None, ...]
    ) -> PlanningOptions:
        options = self._options
        model = mesh_model(mesh, options.hardware)
        if options.constraints.in_code == "keep":
            raise_all(
                SpecError,
                f"shardings in the code of {program.name} are not of its mesh, {dict(model.sizes)}:",
                foreign_constraints(program, model.sizes),
            )
        budget = options.memory_budget
        asked = (options.in_shardings, program.args_info[0], program.argument_names, mesh, "in_shardings")
        fixed = flat_fixed(*asked, hints="skipped")
        outputs = flat_fixed(options.out_shardings, program.out_info, program.output_names, mesh, "out_shardings")
        jaxpr = program.jaxpr.jaxpr
        demands = resolve(
            options.constraints,
            Leaves(program.argument_names, tuple(_shape(var) for var in jaxpr.invars), fixed),
            Leaves(program.output_names, tuple(_shape(var) for var in jaxpr.outvars), outputs),
            mesh.axis_names,
        )
        ties = {**fed_back(program), **demands.ties}
        return PlanningOptions(
            mesh=model,
            budget_bytes=float(model.device.usable_memory_bytes if budget is None else budget),
            hinted_arguments=flat_fixed(*asked, hints="taken"),
            fixed_arguments=demands.arguments,
            fixed_outputs=demands.outputs,
            ties={out: argument for out, argument in ties.items() if out not in demands.outputs},
            same_arguments=demands.same_arguments,
            argument_memory=memory,
            result_memory=_result_memory(program, options.out_shardings, ties, memory),
            reopen=options.constraints.in_code == "reopen",
            cut_axes=self._cut_axes(program, mesh),
            time_limit_s=options.time_limit_s,
            on_failure=options.on_failure,
            strict=options.strict,
        )

    def _cut_axes(self, program: Program, mesh: Mesh | AbstractMesh) -> frozenset[str]:
        """The axes that may be used in parts; none where the constraints end up in a function that is planned anew."""
        off = not self._options.axis_parts or _INSIDE.get() or has_explicit_axes(mesh)
        if off or BOUND_TO_DEVICES & primitives(program.jaxpr):
            return frozenset()
        return frozenset(mesh.axis_names) - set(self._options.constraints.reserved_axes)

    def _search(self, program: Program, planning: PlanningOptions) -> Plan:
        with show_progress(program.name) as on_progress:
            return make_plan(program, replace(planning, on_progress=on_progress))


def _result_memory(
    program: Program, out_shardings: Any, ties: Mapping[int, int], memory: Sequence[str | None]
) -> tuple[str | None, ...]:
    """The memory of every flat result: as the caller or the function says, else that of the argument it replaces."""
    host = [getattr(var.aval, "memory_space", None) == jax.memory.Space.Host for var in program.jaxpr.jaxpr.outvars]
    own = [
        HOST_MEMORY if is_host else memory[ties[k]] if memory and k in ties else None for k, is_host in enumerate(host)
    ]
    kept = tuple(own) if out_shardings is None else flat_memory(out_shardings, program.out_info, own)
    return kept if any(kept) else ()


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


def _summary(plan: Plan) -> str:
    predicted, solver = plan.predicted, plan.solver
    return (
        f"{plan.function}: planned in {sum(solver.seconds.values()):.1f} s ({solver.status}, gap {solver.gap:.2%}), "
        f"{predicted.step_seconds * 1e3:.3g} ms a call, {predicted.wire_bytes / 2**20:,.1f} MiB on the wire, peak "
        f"{predicted.peak_memory_bytes / 2**30:.3g} GiB per device"
    )
