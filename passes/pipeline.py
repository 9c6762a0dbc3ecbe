"""The entry points of a model, each made from the run without a cache by a fixed list of passes."""

from collections.abc import Callable
from dataclasses import replace

from ..frontend.errors import GgufcError
from ..graph.ir import Graph, renumber
from ..graph.model import Model
from ..graph.verify import VerifyError, verify
from .cse import EliminateCommonSubexpressions
from .dce import EliminateDeadCode
from .fuse_glu import FuseGlu
from .fuse_norm_add import FuseNormAdd
from .fuse_norm_linear import FuseNormLinear
from .fuse_norm_rope import FuseNormRope
from .greedy import Greedy
from .last_row import LastRow
from .prove_kv import ProveKv
from .set_tokens import SetTokens
from .tie_weights import TieWeights
from .wire_kv import WireKv

Pass = Callable[[Graph], Graph]

CLEAN_UP: tuple[Pass, ...] = (EliminateCommonSubexpressions(), EliminateDeadCode(), ProveKv())

FUSE: tuple[Pass, ...] = (FuseGlu(), FuseNormLinear(), FuseNormRope(), FuseNormAdd(), EliminateDeadCode(), ProveKv())
"""Saves passes over memory and calls of kernels. The order matters: a gate is seen before norms join its products."""


def run(graph: Graph, passes: tuple[Pass, ...]) -> Graph:
    """Runs the passes in order; the graph verifies after each.

    Raises:
        VerifyError: a pass failed or left a graph that breaks a rule; it says which.
        KvError: the finished graph breaks law 3.
    """
    verified = None
    for step in passes:
        try:
            graph = verified = verify(step(graph), verified)
        except GgufcError:
            raise
        except Exception as error:
            raise VerifyError(f"pass {type(step).__name__} on @{graph.name}: {error}") from error
    return renumber(graph)


def forward(graph: Graph) -> Graph:
    """`@forward(tokens) -> logits of every position`: the run without a cache."""
    return run(replace(graph, name="forward"), (TieWeights(), *CLEAN_UP))


def encode(graph: Graph) -> Graph:
    """`@encode(tokens) -> embeddings`, pooled as the definition says."""
    return run(replace(graph, name="encode"), (TieWeights(), *CLEAN_UP))


def prefill(graph: Graph, kv_type: str) -> Graph:
    """`@prefill(tokens, position, caches...) -> logits of the last position, caches...`."""
    return run(replace(graph, name="prefill"), (TieWeights(), WireKv(kv_type), LastRow(), *CLEAN_UP))


def decode(graph: Graph, kv_type: str) -> Graph:
    """`@decode(token, position, caches...) -> logits, caches...`: prefill of one token, with kernels of its own."""
    return run(replace(graph, name="decode"), (TieWeights(), WireKv(kv_type), SetTokens(1), *CLEAN_UP))


def decode_greedy(graph: Graph, kv_type: str) -> Graph:
    """`@decode_greedy(token, position, caches...) -> the likeliest token, caches...`."""
    return run(replace(decode(graph, kv_type), name="decode_greedy"), (Greedy(), *CLEAN_UP))


ENTRIES: dict[str, Callable[[Graph, str], Graph]] = {
    "prefill": prefill,
    "decode": decode,
    "decode_greedy": decode_greedy,
}
"""The entry points of a decoder, from the run without a cache and the type of the caches."""


def fused(graph: Graph) -> Graph:
    """An entry point with operations joined that kernels do in one go; the same values but for rounding."""
    return run(graph, FUSE)


def entry_graphs(model: Model, kv: str, fuse: bool = True) -> dict[str, Graph]:
    """The entry points by name: `prefill`, `decode` and `decode_greedy` of a decoder, `encode` of what gives an
    embedding; with their operations joined where kernels do several in one, or as they are."""
    entries: dict[str, Graph] = {}
    if model.definition.kind == "decoder":
        entries = {name: entry(model.graph, kv) for name, entry in ENTRIES.items()}
    if model.embedding:
        entries["encode"] = encode(model.embedding)
    return {name: fused(graph) for name, graph in entries.items()} if fuse else entries
