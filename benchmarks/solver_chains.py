"""The solver on deep training graphs: chains of dense layers, and unrolled transformers, ever deeper.

Every program is traced and lowered as `autoshard` does it; then the solver alone is timed: without a memory limit, and
with a budget halfway between the least that the peak can be and what the plan without a limit holds. Time should grow
in proportion to depth; `t/t` is the ratio to the line before.

    python benchmarks/solver_chains.py [mlp|gpt] [LAYERS ...]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from autoshard import explore
from autoshard.costs import MeshModel
from autoshard.solver import Problem, Solution, memory_profile, solve

DEPTHS = {"mlp": (64, 256, 1024), "gpt": (12, 24, 48, 96)}
MLP_MESH, GPT_MESH = {"x": 4, "y": 8}, {"x": 4, "y": 2}
TIME_LIMIT_S = 60.0
BATCH, WIDTH = 4096, 8192
GPT_BATCH, LENGTH, MODEL, HEADS, VOCABULARY = 64, 1024, 1024, 16, 32_000


def mlp(layers: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A training step of a chain of dense layers, and the shapes of its arguments."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jax.nn.relu(x @ w)
        return jnp.mean(x**2)

    def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, jax.grad(loss)(weights, x))

    shape = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    return step, ([shape] * layers, jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32))


def gpt(layers: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A training step of an unrolled transformer, and the shapes of its arguments."""
    sizes = {"qkv": (MODEL, 3, HEADS, MODEL // HEADS), "out": (HEADS, MODEL // HEADS, MODEL)}
    sizes |= {"up": (MODEL, 4 * MODEL), "down": (4 * MODEL, MODEL)}

    def block(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        q, k, v = jnp.moveaxis(jnp.einsum("btm,mnhd->nbthd", x, w["qkv"]), 0, 0)
        scores = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / (MODEL // HEADS) ** 0.5, axis=-1)
        x = x + jnp.einsum("bhts,bshd,hdm->btm", scores, v, w["out"])
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"]

    def loss(weights: dict[str, Any], tokens: jax.Array) -> jax.Array:
        x = weights["embed"][tokens]
        for w in weights["blocks"]:
            x = block(w, x)
        logits = x @ weights["embed"].T
        return -jnp.mean(jax.nn.log_softmax(logits)[:, 0])

    def step(weights: dict[str, Any], tokens: jax.Array) -> dict[str, Any]:
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, jax.grad(loss)(weights, tokens))

    one = {name: jax.ShapeDtypeStruct(size, jnp.bfloat16) for name, size in sizes.items()}
    embed = jax.ShapeDtypeStruct((VOCABULARY, MODEL), jnp.bfloat16)
    tokens = jax.ShapeDtypeStruct((GPT_BATCH, LENGTH), jnp.int32)
    return step, ({"embed": embed, "blocks": [one] * layers}, tokens)


def problem_of(kind: str, layers: int) -> Problem:
    """The problem that planning the program comes to."""
    step, arguments = (mlp if kind == "mlp" else gpt)(layers)
    mesh = MeshModel.preset("tpu-v5e", MLP_MESH if kind == "mlp" else GPT_MESH)
    return explore(step, mesh, args=arguments, donate_argnums=0, time_limit_s=0.01).problem


def halfway(problem: Problem, free: Solution) -> float:
    """A budget between the least that the peak can be and the peak of a solution without a limit."""
    least = replace(
        problem,
        usages=tuple(replace(usage, nbytes=0 * usage.nbytes + usage.nbytes.min()) for usage in problem.usages),
        edge_usages=tuple(replace(copy, nbytes=0 * copy.nbytes + copy.nbytes.min()) for copy in problem.edge_usages),
    )
    _, held = memory_profile(least, free.choice)
    return float((held.max() + free.peak_bytes) / 2)


def row(kind: str, layers: int, before_s: float) -> tuple[str, float]:
    """One line of the table, and the seconds without a limit."""
    problem = problem_of(kind, layers)
    free, free_s = timed(replace(problem, budget=None))
    tight, tight_s = timed(replace(problem, budget=halfway(problem, free)))
    entries = sum(edge.cost.size for edge in problem.edges)
    growth = f"{free_s / before_s:6.2f}" if before_s else " " * 6
    text = (
        f"{kind} {layers:5} {len(problem.costs):7} {entries:10} {free.status:9} {100 * free.gap:8.4f} % {free_s:7.1f}"
        f" {growth}   {tight.status:9} {100 * tight.gap:8.4f} % {tight_s:7.1f}"
    )
    return text, free_s


def timed(problem: Problem) -> tuple[Solution, float]:
    """A solution, and the seconds that it took."""
    begin = time.monotonic()
    solution = solve(problem, time_limit_s=TIME_LIMIT_S)
    return solution, time.monotonic() - begin


def main(arguments: list[str]) -> None:
    """Print one line per depth."""
    kinds = arguments[:1] or list(DEPTHS)
    print("program layers  nodes    entries  no limit        gap seconds    t/t   tight            gap seconds")
    for kind in kinds:
        before_s = 0.0
        for layers in [int(text) for text in arguments[1:]] or DEPTHS[kind]:
            text, before_s = row(kind, layers, before_s)
            print(text, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
