"""One model for every path through every family: the table that the parity tests go through."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import LINEAR, YARN, Sizes, Types, tiny_model
from .encoders import CLS, LAST, MEAN, NONE

_SMALL = Sizes(layers=3)
_SQUARE = Sizes(layers=3, width=128)  # as wide as all heads together, which some families want
_LARGE = {"width": 256, "head_dim": 64, "ffn": 256}  # rows of whole blocks of 256


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

    def write(self, path: Path, *, types: Types = "f32", large: bool = False) -> Path:
        """Writes the model; `large` gives it rows of whole blocks of 256."""
        sizes = replace(self.sizes, **_LARGE) if large else self.sizes
        return tiny_model(path, self.architecture, sizes, metadata=self.metadata, types=types, **self.options)


_GEMMA3_KEYS = {"rope.freq_base_swa": 20000.0, "final_logit_softcapping": 10.0}
DECODERS: dict[str, Variant] = {
    "llama": Variant("llama"),
    "llama-tied": Variant("llama", options={"tied": True}),
    "llama-biases": Variant("llama", options={"biased": True}),
    "llama-rope-freqs": Variant("llama", options={"rope_freqs": True}),
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
    "gemma4-one-shared": Variant("gemma4", Sizes(layers=3), {"shared": 1}, gelu=True),
    "gemma4-plain": Variant("gemma4", Sizes(layers=4), {"shared": 0, "per_layer": 0, "tied": False}, gelu=True),
    "gemma4-experts": Variant("gemma4", Sizes(layers=4), {"shared": 0, "per_layer": 0, "mixture": 4}, gelu=True),
    "gemma4-experts-apart": Variant(
        "gemma4", Sizes(layers=2), {"shared": 0, "per_layer": 0, "mixture": 4, "merged": False}, gelu=True
    ),
    "gemma3n": Variant("gemma3n", Sizes(layers=22), gelu=True),
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
}
