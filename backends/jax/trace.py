"""Traces a graph through JAX with symbolic rows; the result is a StableHLO module of one function."""

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, export

from ...frontend.ggml_types import by_name
from ...graph.ir import Attribute, Graph, Op, Value, Weight
from ...graph.ops import MATRIX_READERS, OPS
from ...graph.types import TensorType
from .ops import RULES

COMPOSITES = (
    *("embed", "linear", "rms_norm", "layer_norm", "rope", "attention", "kv_update", "short_conv", "conv_update"),
    *("part", "half", "top_k", "route", "expert_linear", "expert_gain", "mix"),
    *("norm_linear", "glu", "norm_glu", "norm_add", "norm_rope"),
    *("bias", "gain", "add", "mul", "scale", "gelu", "silu", "relu", "tanh", "softcap", "argmax"),
)
"""Operations that become composites: a backend may put its own kernel in their place."""


@dataclass(frozen=True)
class Traced:
    """A graph as JAX sees it.

    `text` is the StableHLO that `jax.export` prints; its main function takes the graph's arguments, then `weights` in
    order. `composites` tells for each private function which operation it decomposes and with which attributes.
    """

    graph: Graph
    text: str
    weights: tuple[Weight, ...]
    composites: dict[str, tuple[str, dict[str, Attribute]]]


def weight_spec(weight: Weight) -> jax.ShapeDtypeStruct:
    """How a weight enters a module: f32 as it is, a quantized type as rows of raw block bytes."""
    rows = weight.type.shape
    if weight.type.dtype == "f32":
        return jax.ShapeDtypeStruct(rows, jnp.float32)
    return jax.ShapeDtypeStruct((*rows[:-1], by_name(weight.type.dtype).nbytes(int(rows[-1]))), jnp.uint8)


def trace(graph: Graph) -> Traced:
    """Exports one graph with its symbols as dynamic dimensions; caches are donated, to be updated in place."""
    weights = tuple(graph.weights().values())
    composites: dict[str, tuple[str, dict[str, Attribute]]] = {}
    functions: dict[object, jax.stages.Wrapped] = {}

    def run(*arrays: Array) -> tuple[Array, ...]:
        known: dict[object, Array] = dict(zip((*graph.arguments, *weights), arrays, strict=True))
        for op in graph.ops:
            known[op.result] = _call(op, [known[o] for o in op.operands], composites, functions)
        return tuple(known[r] for r in graph.results)

    symbols = sorted({d for a in graph.arguments for d in a.type.shape if isinstance(d, str)})
    sizes = dict(zip(symbols, export.symbolic_shape(", ".join(symbols)), strict=True)) if symbols else {}
    specs = [_spec(a.type, sizes) for a in graph.arguments] + [weight_spec(w) for w in weights]
    donated = tuple(n for n, a in enumerate(graph.arguments) if a in graph.caches())
    jitted = jax.jit(run, donate_argnums=donated, keep_unused=True)
    text = export.export(jitted, platforms=["cpu"])(*specs).mlir_module()
    return Traced(graph, text, weights, composites)


def _spec(type_: TensorType, sizes: Mapping[str, object]) -> jax.ShapeDtypeStruct:
    shape = tuple(sizes[d] if isinstance(d, str) else d for d in type_.shape)
    if type_.dtype == "q8_0":  # a cache, as the bytes of its blocks
        return jax.ShapeDtypeStruct((*shape[:-1], by_name("q8_0").nbytes(int(type_.shape[-1]))), jnp.int8)
    return jax.ShapeDtypeStruct(shape, {"f32": jnp.float32, "f16": jnp.float16, "i32": jnp.int32}[type_.dtype])


def _call(
    op: Op,
    operands: list[Array],
    composites: dict[str, tuple[str, dict[str, Attribute]]],
    functions: dict[object, jax.stages.Wrapped],
) -> Array:
    """One operation; the composites as named inner functions, one for each set of attributes."""
    keywords = dict(op.attributes)
    if op.name in MATRIX_READERS:
        keywords["type_name"] = op.weights[-1].type.dtype
    # which optional operands are there: rope(x, factors) is not rope(x, position)
    kinds = tuple("weight" if isinstance(o, Weight) else "value" for o in op.operands)
    key = (op.name, tuple(sorted(keywords.items())), kinds)
    if key not in functions:
        rule = functools.partial(_bind, op, keywords)
        if op.name not in COMPOSITES:
            return rule(*operands)
        name = f"ggufc.{op.name}.{len(composites)}"
        rule.__name__ = name  # type: ignore[attr-defined] # jit names the inner function by it
        composites[name] = (f"ggufc.{op.name}", keywords)
        functions[key] = jax.jit(rule, inline=False)
    return functions[key](*operands)


def _bind(op: Op, keywords: Mapping[str, Attribute], *operands: Array) -> Array:
    """Calls the rule with values and weights under the parameters that the graph means."""
    rule = RULES[op.name]
    parameters = [n for n, p in inspect.signature(rule).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    values = [a for a, o in zip(operands, op.operands, strict=True) if isinstance(o, Value)]
    weights = [a for a, o in zip(operands, op.operands, strict=True) if isinstance(o, Weight)]
    # an optional value that is absent stands before the weights
    values += [None] * (OPS[op.name].values[1] - len(values))  # type: ignore[list-item]
    named = dict(zip(parameters, [*values, *weights], strict=False))
    return rule(**named, **keywords)
