"""One model for every path through every family: the table that the parity tests go through."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import ARCHITECTURES, LINEAR, YARN, Sizes, Types, Weight, Weights, tiny_model
from .encoders import CLS, LAST, MEAN, NONE

_SMALL = Sizes(layers=3)
_SQUARE = Sizes(layers=3, width=128)  # as wide as all heads together, which some families want
_NARROW = Sizes(width=35, heads=4, kv_heads=1, head_dim=16, ffn=32)
_LARGE = {"width": 256, "head_dim": 64, "ffn": 256}  # rows of whole blocks of 256

_HUGE = 1e3
_SATURATED: dict[str, float] = {
    "ffn_gate": _HUGE,
    "ffn_gate_exps": _HUGE,
    "ffn_gate_up_exps": _HUGE,
    "inp_gate": _HUGE,
    "ffn_down": 1 / _HUGE,
    "ffn_down_exps": 1 / _HUGE,
    "proj": 1 / _HUGE,
}


@dataclass(frozen=True)
class Variant:
    """Options of one model: its architecture's builder, the sizes, and metadata that adds to the builder's.

    `gelu` says that the model has that activation, which llama.cpp takes from a float16 table.
    """

    architecture: str
    sizes: Sizes = _SMALL
    options: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    gelu: bool = False

    def write(self, path: Path, *, types: Types = "f32", large: bool = False, saturated: bool = False) -> Path:
        """Writes the model.

        `large` gives it rows of whole blocks of 256; `saturated` gates so large that an activation is all or nothing,
        which leaves no trace of the float16 table.
        """
        sizes = replace(self.sizes, **_LARGE) if large else self.sizes
        weights = _saturated(ARCHITECTURES[self.architecture](sizes, **self.options)[1]) if saturated else {}
        return tiny_model(
            path, self.architecture, sizes, metadata=self.metadata, weights=weights, types=types, **self.options
        )


def _saturated(weights: Weights) -> Weights:
    """Gates (and what is fused with them) `_HUGE` times as large, and the next matrix so much smaller."""
    factors = dict(_SATURATED)
    if not any(".ffn_gate." in name for name in weights):  # up is the gate, or the gate is fused with it
        up, down = (next(w for name, w in weights.items() if f".ffn_{part}.weight" in name) for part in ("up", "down"))
        factors |= {"ffn_up": _HUGE, "ffn_down": _HUGE ** -(up.shape[0] // down.shape[1])}
    found: Weights = {}
    for name, weight in weights.items():
        part = name.removesuffix(".weight").split(".")[-1]
        if part in factors and isinstance(weight, Weight) and name.endswith(".weight"):
            found[name] = replace(weight, std=weight.std * factors[part])
    return found


_NO_SHARING = {"shared": 0, "per_layer": 0}
_GEMMA3_KEYS = {"rope.freq_base_swa": 20000.0, "final_logit_softcapping": 10.0}
DECODERS: dict[str, Variant] = {
    "llama": Variant("llama"),
    "llama-tied": Variant("llama", options={"tied": True}),
    "llama-biases": Variant("llama", options={"biased": True}),
    "llama-rope-freqs": Variant("llama", options={"factors": "freqs"}),
    "llama-longrope": Variant("llama", options={"factors": "longrope"}),
    "llama-longrope-short": Variant("llama", Sizes(layers=3, context=256), {"factors": "longrope"}),
    "llama-linear": Variant("llama", metadata=LINEAR),
    "llama-yarn": Variant("llama", metadata=YARN),
    "llama-experts": Variant("llama", options={"mixture": 4}),
    "qwen2": Variant("qwen2", _SQUARE),
    "qwen2-tied": Variant("qwen2", _SQUARE, {"tied": True}),
    "qwen2-yarn": Variant("qwen2", _SQUARE, metadata=YARN),
    "qwen3": Variant("qwen3"),
    "qwen3-tied": Variant("qwen3", options={"tied": True}),
    "qwen3moe": Variant("qwen3moe"),
    "qwen3moe-tied": Variant("qwen3moe", options={"tied": True}),
    "gemma": Variant("gemma", gelu=True),
    "gemma2": Variant("gemma2", gelu=True),
    "gemma2-defaults": Variant("gemma2", options={"caps": None}, metadata={"rope.freq_base": 20000.0}, gelu=True),
    "gemma3": Variant("gemma3", Sizes(), gelu=True),
    "gemma3-scaled": Variant(
        "gemma3",
        Sizes(),
        {"tied": False},
        LINEAR | {"rope.freq_base_swa": 20000.0, "final_logit_softcapping": 10.0},
        True,
    ),
    "gemma3-pattern": Variant(
        "gemma3", Sizes(layers=4), metadata={"attention.sliding_window_pattern": [False, True, True, False]}, gelu=True
    ),
    "gemma3-global": Variant("gemma3", options={"window": None}, gelu=True),
    "gemma4": Variant("gemma4", Sizes(layers=6), gelu=True),
    "gemma4-one-shared": Variant("gemma4", Sizes(layers=3), {"shared": 1, "leftovers": True}, gelu=True),
    "gemma4-plain": Variant("gemma4", Sizes(layers=4), _NO_SHARING | {"tied": False, "global_v": True}, gelu=True),
    "gemma4-experts": Variant("gemma4", Sizes(layers=4), _NO_SHARING | {"mixture": 4}, gelu=True),
    "gemma4-experts-apart": Variant(
        "gemma4", Sizes(layers=2), _NO_SHARING | {"mixture": 4, "merged": False}, gelu=True
    ),
    "phi3": Variant("phi3", _SQUARE),
    "phi3-short": Variant("phi3", replace(_SQUARE, context=256)),
    "phi3-plain": Variant("phi3", _SQUARE, {"tied": True, "factors": False}),
    "phi3-apart": Variant("phi3", _SQUARE, {"fused": False}),
    "glm4": Variant("glm4"),
    "glm4-plain": Variant("glm4", options={"biased": False, "tied": True}),
    "glm4-nextn": Variant("glm4", Sizes(layers=4), {"nextn": 1}),
    "lfm2": Variant("lfm2", replace(_SQUARE, layers=5)),
    "lfm2-window": Variant("lfm2", replace(_SQUARE, layers=5), {"window": 8, "tied": False}),
    "olmo2": Variant("olmo2", _SQUARE),
    "olmo2-window": Variant("olmo2", replace(_SQUARE, layers=5), {"window": 8}, YARN),
    "granite": Variant("granite"),
    "granite-plain": Variant("granite", options={"scales": False, "tied": False}),
    "granite-no-rope": Variant("granite", options={"rope": False}),
    "smollm3": Variant("smollm3", Sizes(layers=5)),
    "smollm3-untied": Variant("smollm3", Sizes(layers=5), {"tied": False}),
}

DEEP: dict[str, Variant] = {  # as many layers as the models of 27 billion have, which scale scores otherwise
    "gemma2-27b": Variant("gemma2", replace(_NARROW, layers=46), gelu=True),
    "gemma3-27b": Variant("gemma3", replace(_NARROW, layers=62), gelu=True),
}

_BERT = Sizes(layers=3, width=128, context=128)
ENCODERS: dict[str, Variant] = {
    "bert": Variant("bert", _BERT, {"pooling": MEAN}, gelu=True),
    "bert-cls": Variant("bert", _BERT, {"pooling": CLS}, gelu=True),
    "bert-last": Variant("bert", _BERT, {"pooling": LAST}, gelu=True),
    "bert-none": Variant("bert", _BERT, {"pooling": NONE}, gelu=True),
    "bert-silent": Variant("bert", _BERT, {"pooling": None, "biased": False}, gelu=True),
    "nomic-bert": Variant("nomic-bert", _BERT),
    "nomic-bert-cls": Variant("nomic-bert", _BERT, {"pooling": CLS}),
    "modern-bert": Variant("modern-bert", replace(_BERT, layers=5), gelu=True),
    "modern-bert-silu": Variant("modern-bert", replace(_BERT, layers=4), {"activation": "silu", "pooling": CLS}),
    "gemma-embedding": Variant("gemma-embedding", Sizes(), gelu=True),
    "gemma-embedding-each": Variant("gemma-embedding", Sizes(), {"pooling": NONE}, gelu=True),
    "gemma-embedding-plain": Variant("gemma-embedding", Sizes(), {"dense": False}, gelu=True),
    "qwen3-last": Variant("qwen3", options={"tied": True}, metadata={"pooling_type": LAST}),
    "llama-last": Variant("llama", metadata={"pooling_type": LAST}),
    "qwen2-mean": Variant("qwen2", _SQUARE, metadata={"pooling_type": MEAN}),
}
