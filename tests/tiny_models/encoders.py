"""The encoders, one builder each: sizes and options to metadata and tensors."""

from typing import Any

from .decoders import gemma3
from .pieces import (
    Sizes,
    attention,
    biases,
    embedding,
    encoder,
    ffn,
    fused_attention,
    fused_ffn,
    layer_norms,
    linear,
    norm,
    norms,
    stack,
)
from .writer import Model, Weight, Weights

NONE, MEAN, CLS, LAST = range(4)


def bert(sizes: Sizes, *, pooling: int | None = MEAN, biased: bool = True) -> Model:
    """BERT: learnt positions, segments, a norm after each residual sum. The width is that of all heads."""
    keys = encoder(sizes, pooling) | {"tokenizer.ggml.token_type_count": 2}

    def block(_: int) -> Weights:
        weights = attention(sizes, kv_heads=sizes.heads) | ffn(sizes)
        del weights["ffn_gate.weight"]
        every = [name.removesuffix(".weight") for name in weights]
        weights = biases(weights, *every) if biased else weights
        return weights | layer_norms(sizes.width, "attn_output_norm", "layer_output_norm")

    weights = embedding(sizes) | {
        "token_types.weight": Weight((2, sizes.width), 0.5),
        "position_embd.weight": Weight((sizes.context, sizes.width), 0.5),
    }
    return keys, weights | layer_norms(sizes.width, "token_embd_norm") | stack(sizes.layers, block)


def nomic_bert(sizes: Sizes, *, pooling: int | None = MEAN) -> Model:
    """Nomic BERT: rotation in place of positions, gated feed-forward, fused QKV, no biases but the norms'."""
    keys = encoder(sizes, pooling) | {"tokenizer.ggml.token_type_count": 2, "rope.freq_base": 1000.0}

    def block(_: int) -> Weights:
        weights = _fused(sizes) | ffn(sizes)
        return weights | layer_norms(sizes.width, "attn_output_norm", "layer_output_norm")

    weights = embedding(sizes) | {"token_types.weight": Weight((2, sizes.width), 0.5)}
    return keys, weights | layer_norms(sizes.width, "token_embd_norm") | stack(sizes.layers, block)


def modern_bert(sizes: Sizes, *, pooling: int | None = MEAN, activation: str | None = None, window: int = 8) -> Model:
    """ModernBERT: local layers see half of `window` to each side; every third is global; layer 0 has no first norm."""
    keys: dict[str, Any] = encoder(sizes, pooling) | {"attention.sliding_window": window, "rope.freq_base": 160000.0}
    keys["rope.scaling.type"] = "none"
    if activation:
        keys["hidden_activation"] = activation

    def block(i: int) -> Weights:
        weights = norms(sizes.width, *(("attn_norm", "ffn_norm") if i else ("ffn_norm",)))
        return weights | _fused(sizes) | fused_ffn(sizes)

    weights = embedding(sizes) | norms(sizes.width, "token_embd_norm")
    return keys, weights | stack(sizes.layers, block) | norms(sizes.width, "output_norm")


def gemma_embedding(sizes: Sizes, *, pooling: int | None = MEAN, dense: bool = True) -> Model:
    """EmbeddingGemma: Gemma 3 that sees both ways, and two matrices after pooling (`dense`)."""
    keys, weights = gemma3(sizes)
    if pooling is not None:
        keys["pooling_type"] = pooling
    if dense:
        middle = 3 * sizes.width
        keys |= {"dense_2_feat_in": sizes.width, "dense_2_feat_out": middle}
        keys |= {"dense_3_feat_in": middle, "dense_3_feat_out": sizes.width}
        weights |= {"dense_2.weight": linear(middle, sizes.width), "dense_3.weight": linear(sizes.width, middle)}
    return keys, weights | {"output_norm.weight": norm(sizes.width)}


def _fused(sizes: Sizes) -> Weights:
    return fused_attention(Sizes(**vars(sizes) | {"kv_heads": sizes.heads}))
