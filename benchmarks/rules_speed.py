"""How fast strategies are enumerated: a GPT block on meshes of three axes, and the same block for the 32nd time.

    python benchmarks/rules_speed.py
    python benchmarks/rules_speed.py --mesh 8,4,4 --layers 32

Processor seconds of `enumerate_strategies` over all operations, forward and backward, of a network of equal blocks.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import jax
import jax.numpy as jnp

from autoshard.costs import MeshModel
from autoshard.graph import Graph
from autoshard.strategies import enumerate_strategies
from autoshard.trace import build_graph, trace

WIDTH, HEADS, LENGTH, BATCH = 1024, 16, 1024, 32


def main() -> None:
    """Prints the time of the whole network's operations, by how often their kind was seen before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", default="8,4,4", help="sizes of the axes")
    parser.add_argument("--layers", type=int, default=32)
    options = parser.parse_args()
    sizes = dict(zip("xyz", map(int, options.mesh.split(","))))
    mesh = MeshModel.preset("tpu-v5e", sizes)
    for layers in (1, options.layers - 1, options.layers):
        graph = _graph(layers)
        enumerate_strategies.cache_clear()
        seconds, count = _enumerated(graph, mesh)
        again, _ = _enumerated(graph, mesh)
        print(
            f"{layers} blocks on {options.mesh}: {len(graph.ops)} operations, {count} strategies, "
            f"{seconds:.3f} s cold, {again:.3f} s again"
        )


def _enumerated(graph: Graph, mesh: MeshModel) -> tuple[float, int]:
    start = time.process_time()
    count = 0
    for op in graph.ops:
        facts = op.equation.operands, op.equation.results
        traffic = (True,) * (len(facts[0]) + len(facts[1]))
        count += len(enumerate_strategies(op.rule, *facts, traffic, mesh))
    return time.process_time() - start, count


def _graph(layers: int) -> Graph:
    shapes = {"qkv": (3, WIDTH, HEADS, WIDTH // HEADS), "out": (HEADS, WIDTH // HEADS, WIDTH)}
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH), "scales": (2, WIDTH)}
    weights = [{k: jax.ShapeDtypeStruct(s, "float32") for k, s in shapes.items()} for _ in range(layers)]
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), "bfloat16")
    return build_graph(trace(jax.value_and_grad(_loss), (weights, tokens), {}))


def _loss(weights: Any, x: Any) -> Any:
    for w in weights:
        x = _block({name: leaf.astype(jnp.bfloat16) for name, leaf in w.items()}, x)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def _block(w: Any, x: Any) -> Any:
    h = _norm(x, w["scales"][0])
    q, k, v = jnp.einsum("btd,cdnh->cbtnh", h, w["qkv"])
    scores = jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e30)
    mixed = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores).astype(x.dtype), v)
    x = x + jnp.einsum("btnh,nhd->btd", mixed, w["out"])
    return x + jax.nn.gelu(_norm(x, w["scales"][1]) @ w["up"]) @ w["down"]


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


if __name__ == "__main__":
    main()
