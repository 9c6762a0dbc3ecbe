"""The decoders, one builder each: sizes and options to metadata and tensors."""

from math import sqrt
from typing import Any

from .pieces import (
    LOGIT_STD,
    Sizes,
    attention,
    biases,
    decoder,
    embedding,
    ends,
    experts,
    ffn,
    fused_attention,
    fused_ffn,
    head,
    linear,
    norm,
    norms,
    stack,
)
from .vocabulary import TOKENS
from .writer import Fixed, Model, Weight, Weights

_LONGROPE = {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 256}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.attn_factor": 1.1,
}
_PRE_NORMS = ("attn_norm", "ffn_norm")
_POST_NORMS = ("post_attention_norm", "post_ffw_norm")


def llama(sizes: Sizes, *, tied: bool = False, biased: bool = False, mixture: int = 0, factors: str = "") -> Model:
    """Llama, Mistral; with `mixture` experts, of which two are used, Mixtral.

    `factors` of the angles are those of Llama 3 ("freqs"), or two tables for short and long contexts ("longrope").
    """
    keys: dict[str, Any] = decoder(sizes)
    keys |= {"rope.freq_base": 10000.0, "rope.dimension_count": sizes.head_dim}
    if mixture:
        keys |= {"expert_count": mixture, "expert_used_count": 2}

    def block(_: int) -> Weights:
        weights = norms(sizes.width, *_PRE_NORMS) | attention(sizes)
        weights |= experts(sizes, mixture, sizes.ffn) if mixture else ffn(sizes)
        every = [name.removesuffix(".weight") for name in weights if "norm" not in name]
        return biases(weights, *every) if biased else weights

    weights, after = ends(sizes, tied=tied)
    pairs = sizes.head_dim // 2
    if factors == "freqs":
        weights["rope_freqs.weight"] = _factors(pairs, 0.4)
    if factors == "longrope":
        keys |= _LONGROPE
        weights |= _long_and_short(pairs)
    return keys, weights | stack(sizes.layers, block) | after


def _factors(pairs: int, step: float) -> Fixed:
    """What the angle of each pair is divided by: more from pair to pair."""
    return Fixed(tuple(1.0 + step * i for i in range(pairs)))


def _long_and_short(pairs: int) -> Weights:
    return {"rope_factors_long.weight": _factors(pairs, 0.5), "rope_factors_short.weight": _factors(pairs, 0.02)}


def qwen2(sizes: Sizes, *, tied: bool = False) -> Model:
    """Qwen 2 and 2.5: biases on Q, K and V, and on an untied head. The width is that of all heads."""

    def block(_: int) -> Weights:
        weights = norms(sizes.width, *_PRE_NORMS) | attention(sizes) | ffn(sizes)
        return biases(weights, "attn_q", "attn_k", "attn_v")

    before, after = ends(sizes, tied=tied)
    weights = before | stack(sizes.layers, block) | after
    keys = decoder(sizes) | {"rope.freq_base": 1e6}
    return keys, weights if tied else biases(weights, "output")


def _head_norms(head_dim: int) -> Weights:
    return norms(head_dim, "attn_q_norm", "attn_k_norm", mean=1.3)


def qwen3(sizes: Sizes, *, tied: bool = False, mixture: int = 0) -> Model:
    """Qwen 3; with `mixture` experts, of which three are used, qwen3moe."""
    keys = decoder(sizes) | {"rope.freq_base": 1e6, "rope.dimension_count": sizes.head_dim}
    if mixture:
        keys |= {"expert_count": mixture, "expert_used_count": 3, "expert_feed_forward_length": 32}

    def block(_: int) -> Weights:
        weights = norms(sizes.width, *_PRE_NORMS) | attention(sizes) | _head_norms(sizes.head_dim)
        return weights | (experts(sizes, mixture, 32) if mixture else ffn(sizes))

    before, after = ends(sizes, tied=tied)
    return keys, before | stack(sizes.layers, block) | after


def qwen3moe(sizes: Sizes, *, tied: bool = False, mixture: int = 8) -> Model:
    """Qwen 3 with experts in every layer."""
    return qwen3(sizes, tied=tied, mixture=mixture)


def gemma(sizes: Sizes) -> Model:
    """Gemma 1."""

    def block(_: int) -> Weights:
        return norms(sizes.width, *_PRE_NORMS) | attention(sizes) | ffn(sizes)

    # A small table and a large last norm, for a tied head favours the token that it was given.
    weights = embedding(sizes, sizes.width**-0.5 / 4) | stack(sizes.layers, block)
    return decoder(sizes), weights | head(sizes, tied=True, size=4 * LOGIT_STD)


def gemma2(sizes: Sizes, *, window: int = 8, caps: tuple[float, float] | None = (3.0, 10.0)) -> Model:
    """Gemma 2: every second layer local, soft-caps of the scores and the logits (`caps`; None leaves both out)."""
    keys: dict[str, Any] = decoder(sizes) | {"attention.sliding_window": window}
    if caps:
        keys |= {"attn_logit_softcapping": caps[0], "final_logit_softcapping": caps[1]}

    def block(_: int) -> Weights:
        return norms(sizes.width, *_PRE_NORMS) | attention(sizes) | ffn(sizes) | _large_post_norms(sizes)

    return keys, embedding(sizes, sizes.width**-0.5) | stack(sizes.layers, block) | head(sizes, tied=True)


def _large_post_norms(sizes: Sizes) -> Weights:
    """A tied head favours the token that it was given; large post norms leave little of it in the residual stream."""
    return norms(sizes.width, *_POST_NORMS, mean=3.0)


def gemma3(sizes: Sizes, *, tied: bool = True, window: int | None = 8) -> Model:
    """Gemma 3: five local layers, then a global one. `window` None leaves the key out: all are global."""
    keys: dict[str, Any] = decoder(sizes) | {"rope.freq_base": 1e6}
    if window is not None:
        keys["attention.sliding_window"] = window

    def block(_: int) -> Weights:
        weights = norms(sizes.width, *_PRE_NORMS) | attention(sizes) | ffn(sizes)
        return weights | _head_norms(sizes.head_dim) | _large_post_norms(sizes)

    return keys, embedding(sizes, sizes.width**-0.5) | stack(sizes.layers, block) | head(sizes, tied=tied)


def gemma4(
    sizes: Sizes,
    *,
    tied: bool = True,
    shared: int = 2,
    per_layer: int = 32,
    global_v: bool = False,
    leftovers: bool = False,
    mixture: int = 0,
    merged: bool = True,
) -> Model:
    """Gemma 4: local and global layers in turn, the global ones with larger heads, fewer of K, and V = K.

    The last `shared` layers have no K and V of their own (their file may hold some: `leftovers`) and a feed-forward of
    twice the width; the layer before them is global, so that the last two owners are of both kinds. `per_layer` is the
    width of the per-layer embeddings; `global_v` gives global layers a V. With `mixture` experts, each layer has them
    beside the dense feed-forward, gate and up in one tensor where `merged`.
    """
    own = sizes.layers - shared
    local = [(own - i) % 2 == 0 for i in range(sizes.layers)]
    kv_heads = [sizes.kv_heads if is_local else 1 for is_local in local]
    head_dim = [sizes.head_dim if is_local else 2 * sizes.head_dim for is_local in local]
    rows = [sizes.ffn if i < own else 2 * sizes.ffn for i in range(sizes.layers)]
    keys = decoder(sizes) | {
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": local,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": 2 * sizes.head_dim,
        "attention.value_length": 2 * sizes.head_dim,
        "attention.key_length_swa": sizes.head_dim,
        "attention.value_length_swa": sizes.head_dim,
        "attention.shared_kv_layers": shared,
        "rope.dimension_count": 2 * sizes.head_dim,
        "rope.dimension_count_swa": sizes.head_dim,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 10000.0,
        "feed_forward_length": rows,
        "embedding_length_per_layer_input": per_layer,
        "final_logit_softcapping": 10.0,
    }
    expert_rows = 32
    if mixture:
        keys |= {"expert_count": mixture, "expert_used_count": 2, "expert_feed_forward_length": expert_rows}

    def block(i: int) -> Weights:
        weights = norms(sizes.width, *_PRE_NORMS) | attention(sizes, kv_heads=kv_heads[i], head_dim=head_dim[i])
        # Attention isn't divided by the root of the head size: smaller norms keep the softmax from saturating.
        weights |= norms(head_dim[i], "attn_q_norm", "attn_k_norm", mean=0.5)
        weights |= ffn(sizes, rows[i]) | _large_post_norms(sizes)
        without = () if local[i] or global_v else ("attn_v",)
        if i >= own and not leftovers:
            without = ("attn_k", "attn_v", "attn_k_norm")
        weights = {name: weight for name, weight in weights.items() if name.removesuffix(".weight") not in without}
        weights["layer_output_scale.weight"] = Weight((1,), 0.1, 0.8)
        if per_layer:
            weights["inp_gate.weight"] = linear(per_layer, sizes.width, 1.5)
            weights["proj.weight"] = linear(sizes.width, per_layer)
            weights |= norms(sizes.width, "post_norm", mean=2.0)
        return weights | (_gemma4_experts(sizes, mixture, expert_rows, merged) if mixture else {})

    weights = embedding(sizes, sizes.width**-0.5)
    if per_layer:
        columns = per_layer * sizes.layers
        weights |= {
            "per_layer_token_embd.weight": Weight((len(TOKENS), columns), per_layer**-0.5),
            "per_layer_model_proj.weight": linear(columns, sizes.width, sqrt(sizes.width)),
            "per_layer_proj_norm.weight": norm(per_layer),
        }
    rotated = sizes.head_dim // 4  # a quarter of the pairs of a global head turn
    factors = (1.0,) * rotated + (1e30,) * (sizes.head_dim - rotated)
    weights["rope_freqs.weight"] = Fixed(factors)
    return keys, weights | stack(sizes.layers, block) | head(sizes, tied=tied)


def _gemma4_experts(sizes: Sizes, count: int, rows: int, merged: bool) -> Weights:
    weights = experts(sizes, count, rows)
    if merged:
        del weights["ffn_gate_exps.weight"], weights["ffn_up_exps.weight"]
        weights["ffn_gate_up_exps.weight"] = Weight((count, 2 * rows, sizes.width), 1.3 / sizes.width**0.5)
    weights["ffn_gate_inp.scale"] = Weight((sizes.width,), 1.0, sqrt(sizes.width))
    weights["ffn_down_exps.scale"] = Weight((count,), 0.2, 1.0)
    return weights | norms(sizes.width, "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")


def phi3(sizes: Sizes, *, tied: bool = False, factors: bool = True, fused: bool = True) -> Model:
    """Phi 3 and 4: fused matrices, heads that turn in part, and long and short `factors` of the angles."""
    rotated = 3 * sizes.head_dim // 4
    keys: dict[str, Any] = decoder(sizes) | {"rope.dimension_count": rotated, "attention.sliding_window": 8}
    weights, after = ends(sizes, tied=tied)
    if factors:
        keys |= {"rope.scaling.original_context_length": 256, "rope.scaling.attn_factor": 1.2}
        weights |= _long_and_short(rotated // 2)

    def block(_: int) -> Weights:
        projections = fused_attention(sizes) if fused else attention(sizes)
        return norms(sizes.width, *_PRE_NORMS) | projections | fused_ffn(sizes)

    return keys, weights | stack(sizes.layers, block) | after


def glm4(sizes: Sizes, *, tied: bool = False, biased: bool = True, nextn: int = 0) -> Model:
    """GLM-4-0414: half of each head turns; the last `nextn` blocks guess further tokens and don't take part."""
    keys: dict[str, Any] = decoder(sizes) | {"rope.dimension_count": sizes.head_dim // 2}
    if nextn:
        keys["nextn_predict_layers"] = nextn

    def block(i: int) -> Weights:
        weights = norms(sizes.width, *_PRE_NORMS, *_POST_NORMS) | attention(sizes) | fused_ffn(sizes)
        weights = biases(weights, "attn_q", "attn_k", "attn_v") if biased else weights
        if i < sizes.layers - nextn:
            return weights
        weights["nextn.eh_proj.weight"] = linear(sizes.width, 2 * sizes.width)
        return weights | norms(sizes.width, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")

    before, after = ends(sizes, tied=tied)
    return keys, before | stack(sizes.layers, block) | after


def lfm2(
    sizes: Sizes, *, tied: bool = True, window: int = 0, attends: tuple[int, ...] = (1, 3), taps: int = 3
) -> Model:
    """LFM2: the layers in `attends` have attention, the others a short convolution over `taps` tokens."""
    kv_heads = [sizes.kv_heads if i in attends else 0 for i in range(sizes.layers)]
    keys: dict[str, Any] = decoder(sizes) | {"attention.head_count_kv": kv_heads, "rope.freq_base": 1e6}
    keys["shortconv.l_cache"] = taps
    if window:
        keys["attention.sliding_window"] = window

    def block(i: int) -> Weights:
        weights = norms(sizes.width, *_PRE_NORMS) | ffn(sizes)
        if i in attends:
            return weights | attention(sizes) | _head_norms(sizes.head_dim)
        return weights | {
            "shortconv.conv.weight": Weight((sizes.width, taps), taps**-0.5),
            "shortconv.in_proj.weight": linear(3 * sizes.width, sizes.width),
            "shortconv.out_proj.weight": linear(sizes.width, sizes.width),
        }

    before, after = ends(sizes, tied=tied, final_norm="token_embd_norm")
    return keys, before | stack(sizes.layers, block) | after


def olmo2(sizes: Sizes, *, window: int = 0) -> Model:
    """OLMo 2; with a `window` on three layers of four, OLMo 3."""
    keys: dict[str, Any] = decoder(sizes) | {"rope.freq_base": 500000.0}
    if window:
        keys |= {"attention.sliding_window": window}

    def block(_: int) -> Weights:
        weights = norms(sizes.width, *_POST_NORMS) | attention(sizes) | ffn(sizes)
        weights |= norms(sizes.heads * sizes.head_dim, "attn_q_norm", mean=1.3)
        return weights | norms(sizes.kv_heads * sizes.head_dim, "attn_k_norm", mean=1.3)

    before, after = ends(sizes, tied=False)
    return keys, before | stack(sizes.layers, block) | after


def granite(sizes: Sizes, *, tied: bool = True, scales: bool = True, rope: bool = True) -> Model:
    """Granite: scales of embedding, residuals, scores and logits (`scales` False leaves out what may be)."""
    keys, _ = llama(sizes)
    keys |= {"logit_scale": 0.5}
    if scales:
        keys |= {"embedding_scale": 12.0, "residual_scale": 0.6, "attention.scale": 0.3}
    if not rope:
        keys["rope.scaling.finetuned"] = False

    def block(_: int) -> Weights:
        return norms(sizes.width, *_PRE_NORMS) | attention(sizes) | ffn(sizes)

    size = 1 / (12 * LOGIT_STD) if tied else 1.0
    weights = embedding(sizes, size) | stack(sizes.layers, block)
    return keys, weights | head(sizes, tied=tied, size=2 * LOGIT_STD if tied else LOGIT_STD / 2)


def smollm3(sizes: Sizes, *, tied: bool = True) -> Model:
    """SmolLM3: every fourth layer does without rotation."""
    return llama(sizes, tied=tied)
