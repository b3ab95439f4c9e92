"""Train a decoder transformer on eight virtual devices with nothing but `autoshard(train_step, mesh)`.

The model is written for one device: no sharding is named anywhere in it. The script prints the plan's report, then the
losses of the sharded run beside those of the same function run unsharded on one device, and fails if they part.

    python examples/train_gpt.py                                      # bf16 compute, mesh 4x2, 20 steps
    python examples/train_gpt.py --dtype f32 --mesh 2x2x2
    python examples/train_gpt.py --memory-budget 64                   # MiB per device
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # both are read when jax starts its backend
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np

from autoshard import autoshard

TEXT = Path(__file__).parent / "data" / "alice.txt"
DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}
FIRST_STEP_RTOL = 1e-5  # f32: the same sums, taken in another order
EVERY_STEP_RTOL = 2e-2  # bf16: eight bits of mantissa, and Adam feeds the rounding back

State = dict[str, Any]
Step = Callable[[State, jax.Array], tuple[State, jax.Array]]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of the model and of a batch; the defaults make 12.9 million parameters."""

    layers: int = 4
    width: int = 512
    heads: int = 8
    hidden: int = 2048
    vocabulary: int = 256  # bytes
    context: int = 64
    batch: int = 16
    dtype: Any = jnp.bfloat16  # of the computation; parameters and optimizer state are float32
    learning_rate: float = 1e-3


def init(config: Config, seed: int = 0) -> State:
    """Float32 parameters, one leading dimension for the layers, and zeroed Adam moments."""
    c, depth = config, config.layers
    shapes = {
        "embedding": (c.vocabulary, c.width),
        "position": (c.context, c.width),
        "unembedding": (c.width, c.vocabulary),
        "layers": {
            "query": (depth, c.width, c.heads, c.width // c.heads),
            "key": (depth, c.width, c.heads, c.width // c.heads),
            "value": (depth, c.width, c.heads, c.width // c.heads),
            "output": (depth, c.heads, c.width // c.heads, c.width),
            "up": (depth, c.width, c.hidden),
            "down": (depth, c.hidden, c.width),
        },
    }
    leaves, tree = jax.tree.flatten(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    params = jax.tree.unflatten(
        tree, [0.02 * jax.random.normal(key, shape) for key, shape in zip(keys, leaves, strict=True)]
    )
    params["gain"] = jnp.ones(c.width)
    params["layers"] |= {"attention_gain": jnp.ones((depth, c.width)), "feedforward_gain": jnp.ones((depth, c.width))}
    return {"params": params, "mean": zeros(params), "square": zeros(params), "step": jnp.zeros((), jnp.int32)}


def zeros(tree: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, tree)


def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * gain.astype(jnp.float32)).astype(x.dtype)


def attention(x: jax.Array, layer: State) -> jax.Array:
    query, key, value = (jnp.einsum("btd,dnh->btnh", x, layer[name]) for name in ("query", "key", "value"))
    scores = jnp.einsum("btnh,bsnh->bnts", query, key).astype(jnp.float32) / math.sqrt(query.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30)).astype(x.dtype)
    return jnp.einsum("btnh,nhd->btd", jnp.einsum("bnts,bsnh->btnh", weights, value), layer["output"])


def block(x: jax.Array, layer: State) -> jax.Array:
    layer = jax.tree.map(lambda weight: weight.astype(x.dtype), layer)
    x = x + attention(rms_norm(x, layer["attention_gain"]), layer)
    hidden = jax.nn.gelu(jnp.dot(rms_norm(x, layer["feedforward_gain"]), layer["up"]))
    return x + jnp.dot(hidden, layer["down"])


def next_token_loss(config: Config, params: State, tokens: jax.Array) -> jax.Array:
    """Mean cross entropy, in nats a byte, of `tokens[:, 1:]` given what is before them."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = (params["embedding"][inputs] + params["position"]).astype(config.dtype)
    x, _ = jax.lax.scan(lambda x, layer: (jax.checkpoint(block)(x, layer), None), x, params["layers"])
    logits = (rms_norm(x, params["gain"]) @ params["unembedding"].astype(config.dtype)).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def make_train_step(config: Config) -> Step:
    """One step of Adam on one batch of tokens, shape (batch, context + 1)."""

    def train_step(state: State, tokens: jax.Array) -> tuple[State, jax.Array]:
        loss, grads = jax.value_and_grad(lambda params: next_token_loss(config, params, tokens))(state["params"])
        step = state["step"] + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
        square = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, state["square"], grads)
        t = step.astype(jnp.float32)
        rate = config.learning_rate * jnp.sqrt(1 - 0.95**t) / (1 - 0.9**t)
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), state["params"], mean, square)
        return {"params": params, "mean": mean, "square": square, "step": step}, loss

    return train_step


def batches(config: Config, steps: int) -> Iterator[np.ndarray]:
    """Windows of the book at random places, as bytes; the same ones on every run."""
    text = np.frombuffer(TEXT.read_bytes(), np.uint8)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        starts = rng.integers(0, len(text) - config.context, config.batch)
        yield np.stack([text[start : start + config.context + 1] for start in starts]).astype(np.int32)


def train(step: Step, config: Config, steps: int) -> tuple[list[float], float]:
    """Losses of all steps, and the seconds they took, planning and compilation included."""
    started, state, losses = time.perf_counter(), init(config), []
    for tokens in batches(config, steps):
        state, loss = step(state, jnp.asarray(tokens))
        losses.append(float(loss))
    return losses, time.perf_counter() - started


def disagreements(config: Config, expected: list[float], actual: list[float]) -> list[str]:
    """What the two runs may not differ in: step 1 in float32, every step in bfloat16."""
    exact = config.dtype == jnp.float32
    rtol, checked = (FIRST_STEP_RTOL, 1) if exact else (EVERY_STEP_RTOL, len(expected))
    return [
        f"step {index}: {found:.6f} differs from {wanted:.6f} by more than rtol {rtol:g}"
        for index, (wanted, found) in enumerate(zip(expected[:checked], actual[:checked], strict=True), start=1)
        if not math.isclose(wanted, found, rel_tol=rtol, abs_tol=0.0)
    ]


def compare(config: Config, mesh: jax.sharding.Mesh, steps: int, memory_budget: int | None = None) -> list[str]:
    """Plan, print the report, train both ways unless for no steps, print the losses; returns the disagreements."""
    train_step = make_train_step(config)
    state = jax.eval_shape(lambda: init(config))
    tokens = jax.ShapeDtypeStruct((config.batch, config.context + 1), jnp.int32)
    print(f"{sum(leaf.size for leaf in jax.tree.leaves(state['params'])) / 1e6:.1f} million parameters\n")

    sharded_step = autoshard(train_step, mesh, donate_argnums=0, memory_budget=memory_budget)
    print(sharded_step.plan(state, tokens).report())
    if not steps:
        return []

    expected, seconds = train(jax.jit(train_step, donate_argnums=0), config, steps)
    actual, sharded_seconds = train(sharded_step, config, steps)
    print(f"\n{'step':>4}  {'unsharded':>10}  {'autoshard':>10}  {'relative difference':>20}")
    for index, (wanted, found) in enumerate(zip(expected, actual, strict=True), start=1):
        print(f"{index:4}  {wanted:10.6f}  {found:10.6f}  {abs(found - wanted) / abs(wanted):20.2e}")
    print(f"\n{steps} steps: {seconds:.0f} s on one device, {sharded_seconds:.0f} s on {mesh.size} virtual devices")
    return disagreements(config, expected, actual)


def parse_mesh(text: str) -> jax.sharding.Mesh:
    """`4x2` as a mesh of 4 by 2 devices with axes x and y."""
    sizes = tuple(int(size) for size in text.split("x"))
    return jax.make_mesh(sizes, tuple("xyz"[: len(sizes)]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16", help="of the computation")
    parser.add_argument("--steps", type=int, default=20, help="0 to plan and print the report only")
    parser.add_argument("--mesh", type=str, default="4x2", help="sizes of one to three mesh axes, such as 8 or 2x2x2")
    parser.add_argument("--memory-budget", type=float, metavar="MIB", help="per device; without it, the device's own")
    options = parser.parse_args()
    budget = None if options.memory_budget is None else int(options.memory_budget * 2**20)
    faults = compare(Config(dtype=DTYPES[options.dtype]), parse_mesh(options.mesh), options.steps, budget)
    if options.steps:
        print("\n".join(faults) or "the two runs agree")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
