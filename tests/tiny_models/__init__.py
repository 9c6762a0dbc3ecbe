"""Tiny random GGUF models, written in a moment and loadable by llama.cpp.

Weights are random but of a trained model's scale: activations keep their size from layer to layer, logits spread
over several nats, and no norm weight is 1. So a step left out or done twice shows in the logits.

    tiny_model(path, "qwen2", tied=True, types={"*ffn_down*": "q6_k", "*": "q8_0"})

To add an architecture, write its builder in `decoders.py` or `encoders.py` and enter it in ARCHITECTURES.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import decoders, encoders
from .decoders import LINEAR, YARN
from .pieces import Sizes, linear, norm, untied
from .vocabulary import TOKENS, vocabulary
from .writer import Fixed, Model, Types, Weight, Weights, random_tensor, write_gguf

__all__ = [
    "ARCHITECTURES",
    "LINEAR",
    "TOKENS",
    "YARN",
    "Fixed",
    "Model",
    "Sizes",
    "Types",
    "Weight",
    "Weights",
    "linear",
    "norm",
    "random_tensor",
    "tiny_gemma3",
    "tiny_llama",
    "tiny_model",
    "untied",
]

_DECODERS = "llama qwen2 qwen3 qwen3moe gemma gemma2 gemma3 gemma4 phi3 glm4 lfm2 olmo2 granite smollm3"
ARCHITECTURES: dict[str, Callable[..., Model]] = {name: getattr(decoders, name) for name in _DECODERS.split()} | {
    "bert": encoders.bert,
    "nomic-bert": encoders.nomic_bert,
    "modern-bert": encoders.modern_bert,
    "gemma-embedding": encoders.gemma_embedding,
}
SIZES = {name: Sizes(width=128) for name in ("bert", "nomic-bert", "modern-bert")}
"""Of those that must be as wide as all heads together."""


def tiny_model(
    path: Path | str,
    architecture: str,
    sizes: Sizes | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
    weights: Mapping[str, Weight | Fixed] | None = None,
    types: Types = "f32",
    seed: int = 0,
    **options: Any,
) -> Path:
    """Writes a model of one of ARCHITECTURES and returns its path; without `sizes`, of such as it can have.

    `options` are the builder's. `metadata` and `weights` add to or replace what it gives; a key without `general.` or
    `tokenizer.` before it is the architecture's own. `types` and errors are those of `write_gguf`.
    """
    sizes = sizes or SIZES.get(architecture, Sizes())
    base_metadata, base_weights = ARCHITECTURES[architecture](sizes, **options)
    own = f"{architecture}."
    keys = base_metadata | {key.removeprefix(own): value for key, value in (metadata or {}).items()}
    shared = ("general.", "tokenizer.")
    named = {key if key.startswith(shared) else own + key: value for key, value in keys.items()}
    return write_gguf(path, architecture, vocabulary() | named, base_weights | dict(weights or {}), types, seed)


def tiny_gemma3(
    path: Path | str,
    *,
    window: int | None = 8,
    sliding_window_pattern: int | None = None,
    rope_scaling: float | None = None,
    softcap: float | None = None,
    tied: bool = True,
    types: Types = "f32",
    seed: int = 0,
    **sizes: int,
) -> Path:
    """Writes a Gemma 3. Every sixth layer sees everything (or every `sliding_window_pattern`-th): of 7, one does.

    `window` None leaves the key out, which makes every layer see everything; `rope_scaling` is a linear factor,
    `softcap` that of the final logits, `tied` False gives the head a matrix of its own; `sizes` are those of `Sizes`.
    """
    optional = {
        "attention.sliding_window_pattern": sliding_window_pattern,
        "rope.scaling.type": rope_scaling and "linear",
        "rope.scaling.factor": rope_scaling,
        "final_logit_softcapping": softcap,
    }
    metadata = {key: value for key, value in optional.items() if value is not None}
    chosen = replace(Sizes(), **sizes)
    return tiny_model(path, "gemma3", chosen, metadata=metadata, types=types, seed=seed, tied=tied, window=window)


def tiny_llama(path: Path | str, *, types: Types = "f32", seed: int = 0, **sizes: int) -> Path:
    """Writes a Llama of two layers; `sizes` are those of `Sizes`."""
    return tiny_model(path, "llama", replace(Sizes(layers=2), **sizes), types=types, seed=seed)
