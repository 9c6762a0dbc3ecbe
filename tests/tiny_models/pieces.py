"""What families share: sizes, metadata, and groups of tensors of one block by their names within it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .vocabulary import TOKENS
from .writer import Weight, Weights

LOGIT_STD = 3.0  # nats


@dataclass(frozen=True)
class Sizes:
    """The sizes that all families share. Block-quantized types want rows that are multiples of their block."""

    layers: int = 7
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 96
    context: int = 1024


def _shared(sizes: Sizes) -> dict[str, Any]:
    return {
        "context_length": sizes.context,
        "embedding_length": sizes.width,
        "block_count": sizes.layers,
        "feed_forward_length": sizes.ffn,
        "attention.head_count": sizes.heads,
    }


def decoder(sizes: Sizes) -> dict[str, Any]:
    """The keys that every model with RMS norms has."""
    return _shared(sizes) | {
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }


def encoder(sizes: Sizes, pooling: int | None) -> dict[str, Any]:
    """The keys of the encoders with LayerNorms; `pooling` None leaves its key out."""
    keys = _shared(sizes) | {"attention.layer_norm_epsilon": 1e-5, "attention.causal": False}
    return keys if pooling is None else keys | {"pooling_type": pooling}


def norm(size: int, mean: float = 1.0) -> Weight:
    """The weight of a norm, well away from all ones."""
    return Weight((size,), 0.15, mean)


def linear(rows: int, columns: int, gain: float = 1.0) -> Weight:
    """A matrix that multiplies the size of what it is given by `gain`."""
    return Weight((rows, columns), gain / columns**0.5)


def norms(size: int, *names: str, mean: float = 1.0) -> Weights:
    """Norm weights by name."""
    return {f"{name}.weight": norm(size, mean) for name in names}


def layer_norms(size: int, *names: str) -> Weights:
    """Weights and biases of LayerNorms."""
    return norms(size, *names) | {f"{name}.bias": Weight((size,), 0.2) for name in names}


def attention(sizes: Sizes, *, heads: int = 0, kv_heads: int = 0, head_dim: int = 0) -> Weights:
    """The four projections, with the sizes of one layer where it has its own."""
    heads, kv_heads, head_dim = heads or sizes.heads, kv_heads or sizes.kv_heads, head_dim or sizes.head_dim
    q_rows, kv_rows = heads * head_dim, kv_heads * head_dim
    return {
        "attn_q.weight": linear(q_rows, sizes.width, 1.5),
        "attn_k.weight": linear(kv_rows, sizes.width, 1.5),
        "attn_v.weight": linear(kv_rows, sizes.width),
        "attn_output.weight": linear(sizes.width, q_rows),
    }


def fused_attention(sizes: Sizes) -> Weights:
    """One matrix of the rows of Q, K and V, and the projection back."""
    rows = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
    return {
        "attn_qkv.weight": linear(rows, sizes.width, 1.5),
        "attn_output.weight": linear(sizes.width, sizes.heads * sizes.head_dim),
    }


def ffn(sizes: Sizes, rows: int = 0) -> Weights:
    """Gate, up and down."""
    rows = rows or sizes.ffn
    return {
        "ffn_gate.weight": linear(rows, sizes.width, 1.5),
        "ffn_up.weight": linear(rows, sizes.width),
        "ffn_down.weight": linear(sizes.width, rows),
    }


def fused_ffn(sizes: Sizes) -> Weights:
    """Up, whose first half of rows is the gate, and down."""
    return {
        "ffn_up.weight": linear(2 * sizes.ffn, sizes.width, 1.3),
        "ffn_down.weight": linear(sizes.width, sizes.ffn),
    }


def experts(sizes: Sizes, count: int, rows: int) -> Weights:
    """A router and the experts' gate, up and down."""
    return {
        "ffn_gate_inp.weight": linear(count, sizes.width, 2.0),
        "ffn_gate_exps.weight": Weight((count, rows, sizes.width), 1.5 / sizes.width**0.5),
        "ffn_up_exps.weight": Weight((count, rows, sizes.width), sizes.width**-0.5),
        "ffn_down_exps.weight": Weight((count, sizes.width, rows), 1.5 / rows**0.5),
    }


def biases(weights: Weights, *names: str) -> Weights:
    """The weights, and a bias for each of those named."""
    return weights | {f"{name}.bias": Weight(weights[f"{name}.weight"].shape[:1], 0.3) for name in names}


def stack(count: int, block: Callable[[int], Weights]) -> Weights:
    """The tensors of all blocks under their names in the file."""
    return {f"blk.{i}.{name}": weight for i in range(count) for name, weight in block(i).items()}


def embedding(sizes: Sizes, scale: float = 1.0) -> Weights:
    """The table, of rows that are `scale` in size by element."""
    return {"token_embd.weight": Weight((len(TOKENS), sizes.width), scale)}


def head(sizes: Sizes, *, tied: bool, name: str = "output_norm", size: float = LOGIT_STD) -> Weights:
    """The last norm, which sets the spread of the logits, and the matrix of an untied head."""
    return {f"{name}.weight": norm(sizes.width, size)} | ({} if tied else untied(sizes))


def untied(sizes: Sizes) -> Weights:
    """A head of its own."""
    return {"output.weight": linear(len(TOKENS), sizes.width)}


def ends(sizes: Sizes, *, tied: bool, final_norm: str = "output_norm") -> tuple[Weights, Weights]:
    """What comes before and after the blocks where the embedding isn't scaled by the model.

    A table that is also the head has rows of length 1 for logits of the same spread; the blocks then outweigh it.
    """
    return embedding(sizes, sizes.width**-0.5 if tied else 1.0), head(sizes, tied=tied, name=final_norm)
