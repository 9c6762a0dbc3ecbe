"""The operations a step of an archdef may name, with the arguments each one takes.

The table is closed: the parser refuses any other word, and the graph has a shape rule for each of these
(`graph/ops.py`). Arguments are given in this order: values of earlier steps, tensors of the file, attributes.
"""

from dataclasses import dataclass
from typing import Literal

AttributeKind = Literal["number", "whole", "word"]


@dataclass(frozen=True)
class Attribute:
    """A named constant of a step: a number or a whole number from an expression, or one of a closed set of words."""

    name: str
    kind: AttributeKind = "number"
    default: float | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signature:
    """What one operation takes: `values` earlier results, then tensors (the last ones optional), then attributes."""

    name: str
    values: tuple[str, ...]
    tensors: tuple[str, ...] = ()
    optional_tensors: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    vanishes: bool = False  # the step is left out where its optional tensor is absent
    shaped: bool = False  # takes a bracketed shape of one row of its result
    doc: str = ""

    @property
    def all_tensors(self) -> tuple[str, ...]:
        """The names of the tensors that it can take, the optional ones last."""
        return (*self.tensors, *self.optional_tensors)

    @property
    def required(self) -> tuple[str, ...]:
        """The names of attributes that have no default."""
        return tuple(a.name for a in self.attributes if a.default is None)


EPS = Attribute("eps")
WHOLE = -1
"""The default of `dims` of a rope: the whole head."""

OPERATIONS: dict[str, Signature] = {
    s.name: s
    for s in (
        Signature("embed", ("tokens",), ("table",), doc="rows of the table, one for each token id"),
        Signature(
            "linear",
            ("x",),
            ("weight",),
            ("bias",),
            shaped=True,
            doc="x W^T (+ bias), x being flattened, the product reshaped to `[shape]`",
        ),
        Signature(
            "rms_norm",
            ("x",),
            (),
            ("weight",),
            (EPS,),
            vanishes=True,
            doc="x / sqrt(mean(x^2) + eps) * weight, last axis",
        ),
        Signature(
            "rope",
            ("x",),
            (),
            ("factors",),
            (
                Attribute("style", "word", words=("neox", "norm")),
                Attribute("base"),
                Attribute("scale", default=1.0),
                Attribute("dims", "whole", default=WHOLE),
                Attribute("magnitude", default=1.0),
                Attribute("yarn", "whole", default=0),
            ),
            doc="rotary position embedding of the first `dims` elements of every head; 0 is no step",
        ),
        Signature(
            "layer_norm",
            ("x",),
            (),
            ("weight", "bias"),
            (EPS,),
            vanishes=True,
            doc="(x - mean) / sqrt(variance + eps) * weight (+ bias), last axis",
        ),
        Signature(
            "attention",
            ("q", "k", "v"),
            attributes=(
                Attribute("scale"),
                Attribute("window", "whole", default=0),
                Attribute("cap", default=0.0),
                Attribute("ahead", "whole", default=0),
            ),
            doc="softmax(scale q k^T) v over the last `window` positions (0: all earlier) and `ahead` later ones",
        ),
        Signature(
            "part",
            ("x",),
            attributes=(Attribute("start", "whole"),),
            shaped=True,
            doc="elements of a row from `start` on; of what is read in parts alone, the parts must take everything",
        ),
        Signature(
            "half",
            ("x",),
            attributes=(Attribute("number", "whole"),),
            doc="half 0 or 1 of the last axis; of what is read in halves alone, both must be",
        ),
        Signature(
            "gain",
            ("x",),
            (),
            ("weight",),
            vanishes=True,
            doc="x * weight, for a weight of one element or of the last axes",
        ),
        Signature(
            "add_row",
            ("x",),
            (),
            ("table",),
            (Attribute("row", "whole"),),
            vanishes=True,
            doc="x + one row of the table",
        ),
        Signature(
            "top_k",
            ("logits",),
            attributes=(Attribute("k", "whole"),),
            doc="numbers of the k largest, ties to the lower; what reads them must have as many experts",
        ),
        Signature(
            "route",
            ("logits", "experts"),
            attributes=(Attribute("normalize", "whole", default=1), Attribute("by", default=1.0)),
            doc="softmax over all logits at the chosen experts, made to sum to 1 unless `normalize` is 0, times `by`",
        ),
        Signature(
            "expert_linear",
            ("x", "experts"),
            ("weight",),
            doc="x W^T with the matrix of each chosen expert, for one x or one of each",
        ),
        Signature("expert_gain", ("x", "experts"), (), ("weight",), vanishes=True, doc="x times each expert's number"),
        Signature("mix", ("x", "weights"), doc="sum over the chosen experts of weight times x"),
        Signature(
            "short_conv",
            ("x",),
            ("kernel",),
            doc="causal depthwise convolution over positions, state carried; the last tap is the row's own",
        ),
        Signature(
            "pool", ("x",), attributes=(Attribute("kind", "whole"),), doc="rows to one: 0 none, 1 mean, 2 first, 3 last"
        ),
        Signature("copy", ("x",), doc="x under another name"),
        Signature("add", ("a", "b"), doc="a + b"),
        Signature("mul", ("a", "b"), doc="a * b"),
        Signature("scale", ("x",), attributes=(Attribute("by"),), doc="x * by"),
        Signature("gelu", ("x",), doc="0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))"),
        Signature("silu", ("x",), doc="x * sigmoid(x)"),
        Signature("relu", ("x",), doc="max(x, 0)"),
        Signature("tanh", ("x",), doc="tanh(x)"),
        Signature("softcap", ("x",), attributes=(Attribute("cap"),), doc="cap * tanh(x / cap); a cap of 0 is no step"),
    )
}

FUNCTIONS: dict[str, int] = {"sqrt": 1, "log": 1, "floor": 1, "min": 2, "max": 2}
"""The functions an expression may call, with the number of their arguments."""
