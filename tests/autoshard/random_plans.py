"""Plans made of arbitrary strategies: whatever is chosen must be carried out exactly, not only what is best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from autoshard.costs import MeshModel
from autoshard.emit import emit
from autoshard.liveness import Liveness
from autoshard.lower import Lowered, lower
from autoshard.plan import Plan, spec_of
from autoshard.planner import PlanningOptions, assemble
from autoshard.shardings import named_shardings
from autoshard.solver import Solution, Status, check_solution
from autoshard.trace import abstract, build_graph, trace
from tests.autoshard.zoo import Program


@dataclass(frozen=True)
class Lab:
    """A program lowered on a mesh, ready to try any choice of strategies."""

    program: Program
    mesh: Mesh
    model: MeshModel

    def plans(self, count: int, seed: int) -> list[tuple[Plan, Any]]:
        """Plans of random choices, each with its compiled function and placed arguments."""
        rng = np.random.default_rng(seed)
        args = jax.tree.map(abstract, self.program.args)
        traced = trace(self.program.fn, args, {}, jit_options={"donate_argnums": self.program.donate})
        graph = build_graph(traced)
        graph.verify()
        lowered = lower(graph, Liveness(graph, traced.donated), self.model)
        options = PlanningOptions(mesh=self.model)
        found = []
        for _ in range(count):
            choice = random_choice(lowered, rng)
            while math.isinf(check_solution(lowered.problem, choice).cost):  # a loop's carry contradicts itself
                choice = random_choice(lowered, rng)
            solution = Solution(choice=choice, cost=0.0, bound=0.0, status=Status.FEASIBLE, peak_bytes=0.0)
            plan = assemble(traced, graph, lowered, solution, options, {}, ())
            found.append((plan, self._run(plan, traced)))
        return found

    def _run(self, plan: Plan, traced: Any) -> Any:
        def shardings(leaves: Any) -> list[Any]:
            return list(named_shardings(self.mesh, [spec_of(leaf.spec) for leaf in leaves], _list_tree(len(leaves))))

        ins, outs = shardings(plan.arguments), shardings(plan.results)
        flat = jax.jit(emit(plan, traced.jaxpr, self.mesh), in_shardings=tuple(ins), out_shardings=outs)
        placed = jax.device_put([jax.numpy.asarray(a) for a in jax.tree.leaves(self.program.args)], ins)
        compiled = flat.lower(*placed).compile()
        return compiled, compiled(*placed)


def _list_tree(size: int) -> Any:
    return jax.tree.structure([0] * size)


def random_choice(lowered: Lowered, rng: np.random.Generator) -> tuple[int, ...]:
    """Any strategy for every operation, and any of the shared copies that go with them.

    Partial sums are passed on along chains, so what is possible is found forward and drawn backward.
    """
    choice = np.zeros(len(lowered.problem.costs), dtype=int)
    operations = sorted(node for node in lowered.nodes if node >= 0)
    edges = [e for e in lowered.problem.edges if e.u in operations and e.v in operations and e.u < e.v]
    into = {node: [e for e in edges if e.v == node] for node in operations}
    onward = {node: [e for e in edges if e.u == node] for node in operations}
    possible = {}
    for node in operations:
        possible[node] = np.isfinite(lowered.problem.costs[node])
        for edge in into[node]:
            possible[node] &= np.isfinite(edge.cost[possible[edge.u]]).any(axis=0)
    for node in reversed(operations):
        for edge in onward[node]:
            possible[node] &= np.isfinite(edge.cost[:, choice[edge.v]])
        choice[node] = rng.choice(np.flatnonzero(possible[node]))
    for value, supplier in lowered.suppliers.items():
        if supplier.node in operations:
            continue
        position, k = lowered.graph.values[value].producer
        strategies = lowered.sets[position]
        assert strategies is not None
        produced = strategies.strategies[choice[lowered.nodes[position]]].results[k]
        fitting = [i for i, spec in enumerate(supplier.first) if supplier.specs[spec] == produced]
        choice[supplier.node] = rng.choice(fitting)
    return tuple(int(i) for i in choice)
