"""The proof of law 3: a sound graph, and the same graph broken in each way."""

from dataclasses import replace

import pytest
from ggufc.graph.ir import Op
from ggufc.passes.pipeline import fused
from ggufc.passes.prove_kv import KvError, ProveKv

from .graphs import ROPE, attention, graph

CACHES = "%k.0: f32[S, 1, 4], %v.0: f32[S, 1, 4]"
SIGNATURE = f"%tokens: i32[T], %position: i32[], {CACHES}"
SOUND = f"""
  %0: f32[T, 4] = embed(%tokens, @table: f32[9, 4])
  %1: f32[T, 1, 4] = linear(%0, @q: f32[4, 4]) {{shape = [1, 4]}}
  %2: f32[T, 1, 4] = linear(%0, @k: f32[4, 4]) {{shape = [1, 4]}}
  %3: f32[T, 1, 4] = linear(%0, @v: f32[4, 4]) {{shape = [1, 4]}}
  %4: f32[T, 1, 4] = rms_norm(%2) {{eps = 0.0}}
  %5: f32[T, 1, 4] = rope(%4, %position) {ROPE}
  %6: f32[S, 1, 4] = kv_update(%k.0, %5, %position)
  %7: f32[S, 1, 4] = kv_update(%v.0, %3, %position)
  %8: f32[T, 1, 4] = attention(%1, %6, %7, %position) {attention(0)}
  return %8, %6, %7
"""


def test_a_sound_graph_passes_unchanged() -> None:
    sound = graph(SIGNATURE, SOUND)
    assert ProveKv()(sound) == sound


def test_a_run_without_a_cache_reads_projections() -> None:
    body = SOUND.replace(", %position)", ")")
    for line in ("  %6: f32[S, 1, 4] = kv_update(%k.0, %5)\n", "  %7: f32[S, 1, 4] = kv_update(%v.0, %3)\n"):
        body = body.replace(line, "")
    body = body.replace("%1, %6, %7)", "%1, %5, %3)").replace("return %8, %6, %7", "return %8")
    ProveKv()(graph("%tokens: i32[T]", body))


def test_gated_keys_are_projections_when_they_are_one_operation_too() -> None:
    keys = "  %2: f32[T, 1, 4] = linear(%0, @k: f32[4, 4]) {shape = [1, 4]}\n"
    gated = """  %9: f32[T, 1, 4] = linear(%0, @gate: f32[4, 4]) {shape = [1, 4]}
  %10: f32[T, 1, 4] = linear(%0, @k: f32[4, 4]) {shape = [1, 4]}
  %11: f32[T, 1, 4] = silu(%9)
  %2: f32[T, 1, 4] = mul(%11, %10)
"""
    assert "glu" in {op.name for op in fused(graph(SIGNATURE, SOUND.replace(keys, gated))).ops}


# what to replace in SOUND, by what, and what the error says
BROKEN = {
    "keys of the cache itself": (
        "kv_update(%k.0, %5, %position)",
        "kv_update(%k.0, %k.0, %position)",
        "%6 = kv_update reads %k.0, a cache in its old state, wanted rows of this call",
    ),
    "keys of another cache": (
        "%4: f32[T, 1, 4] = rms_norm(%2)",
        "%4: f32[S, 1, 4] = rms_norm(%v.0)",
        "%4 = rms_norm reads %v.0, a cache in its old state",
    ),
    "keys projected from an old cache": (
        "%2: f32[T, 1, 4] = linear(%0, @k: f32[4, 4])",
        "%2: f32[S, 1, 4] = linear(%v.0, @k: f32[4, 4])",
        "%2 = linear reads %v.0, a cache in its old state",
    ),
    "keys projected from an updated cache": (
        "  %8:",
        "  %9: f32[S, 1, 4] = linear(%7, @q: f32[4, 4]) {shape = [1, 4]}\n  %8:",
        "%9 = linear reads %7, an updated cache, wanted rows",
    ),
    "keys without a projection": (
        "%2: f32[T, 1, 4] = linear(%0, @k: f32[4, 4]) {shape = [1, 4]}",
        "%2: f32[T, 1, 4] = part(%0) {shape = [1, 4], start = 0}",
        "%6 = kv_update reads %5, which comes from the tokens without a projection",
    ),
    "a cache in its old state": (
        "attention(%1, %6, %7,",
        "attention(%1, %k.0, %7,",
        "%8 = attention reads %k.0, a cache in its old state, wanted an updated cache",
    ),
    "rows that are not cached": (
        "attention(%1, %6, %7,",
        "attention(%1, %5, %3,",
        "%8 = attention reads %5, rows of this call, wanted an updated cache",
    ),
    "keys that are values": (
        "attention(%1, %6, %7,",
        "attention(%1, %7, %7,",
        "%8 = attention reads keys from %v.0 and values from %v.0, wanted %k.N and %v.N of one N",
    ),
    "keys and values the other way round": (
        "attention(%1, %6, %7,",
        "attention(%1, %7, %6,",
        "%8 = attention reads keys from %v.0 and values from %k.0",
    ),
    "an attention that doesn't know its position": (
        "attention(%1, %6, %7, %position)",
        "attention(%1, %6, %7)",
        "%8 = attention takes rows of this call, an updated cache, an updated cache, the position; found 3 values",
    ),
    "a rotation that doesn't know its position": (
        "rope(%4, %position)",
        "rope(%4)",
        "%5 = rope takes rows of this call, the position; found 1 values",
    ),
    "rows left out before they are cached": (
        "%3: f32[T, 1, 4] = linear(%0,",
        "%9: f32[1, 4] = last_row(%0)\n  %3: f32[1, 1, 4] = linear(%9,",
        "%7 = kv_update reads %3: f32[1, 1, 4], wanted a row for each of T tokens",
    ),
    "a look at later rows": (
        attention(0),
        attention(0).replace("ahead = 0", "ahead = 4"),
        "%8 = attention looks 4 positions ahead, which aren't known yet when a text goes on: in a decoder ahead is 0",
    ),
    "a mean of a call's rows": (
        "  return %8,",
        "  %9: f32[1, 1, 4] = pool(%8) {kind = 1}\n  return %9,",
        "%9 = pool of kind 1 depends on where a call's rows begin: in a decoder's run to its logits kind is 0 or 3",
    ),
    "a cache that is returned as it came": (
        "return %8, %6, %7",
        "return %8, %k.0, %7",
        "result 1 is %k.0, wanted the updated %k.0",
    ),
    "caches returned in disorder": (
        "return %8, %6, %7",
        "return %8, %7, %6",
        "result 1 is %7, wanted the updated %k.0",
    ),
    "a cache in the place of the logits": (
        "return %8, %6, %7",
        "return %6, %6, %7",
        "result 0 is %6, an updated cache, wanted rows",
    ),
    "a result too many": ("return %8, %6, %7", "return %8, %6, %7, %7", "4 results, wanted 1 and the 2 caches"),
    "a result too few": ("return %8, %6, %7", "return %8, %6", "2 results, wanted 1 and the 2 caches"),
    "a cache updated twice": (
        "  %8:",
        "  %9: f32[S, 1, 4] = kv_update(%k.0, %3, %position)\n  %8:",
        "%9 = kv_update updates %k.0 a second time",
    ),
    "a cache that is never updated": ("return %8, %6, %7", "return %8, %6, %7, %c.0", "%c.0 is never updated"),
    "a cache of a fixed number of rows": ("f32[S, 1, 4]", "f32[8, 1, 4]", "%k.0 is f32[8, 1, 4], wanted a number"),
    "an argument from elsewhere": ("", "", "argument %x is neither tokens, position nor a cache"),
}
SIGNATURES = {
    "a cache that is never updated": f"{SIGNATURE}, %c.0: f32[2, 4]",
    "a cache of a fixed number of rows": SIGNATURE.replace("[S,", "[8,"),
    "an argument from elsewhere": f"{SIGNATURE}, %x: f32[T, 4]",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_graph_is_refused(case: str) -> None:
    old, new, message = BROKEN[case]
    assert old in SOUND
    body = SOUND.replace(old, new)
    for name in ("%4: f32[S", "%2: f32[S"):  # what follows has as many rows
        if name in new:
            for later in ("%4: f32[T", "%5: f32[T"):
                body = body.replace(later, later.replace("T", "S"))
    broken = graph(SIGNATURES.get(case, SIGNATURE), body)
    with pytest.raises(KvError, match=r"^@f: ") as error:
        ProveKv()(broken)
    assert message in str(error.value)


CONVOLUTION = """
  %0: f32[T, 4] = embed(%tokens, @table: f32[9, 4])
  %1: f32[T, 4] = gelu(%0)
  %2: f32[T, 4] = short_conv(%0, %c.0, @kernel: f32[4, 3])
  %3: f32[2, 4] = conv_update(%c.0, %0)
  return %2, %3
"""


def test_a_convolution_goes_on_from_the_rows_it_convolved() -> None:
    signature = "%tokens: i32[T], %position: i32[], %c.0: f32[2, 4]"
    ProveKv()(graph(signature, CONVOLUTION))
    for old, new, message in (
        ("conv_update(%c.0, %0)", "conv_update(%c.0, %1)", "%2 = short_conv convolves %0, but %c.0 is renewed by %1"),
        ("short_conv(%0, %c.0,", "short_conv(%0,", "%2 = short_conv takes rows of this call, a convolution's state"),
        ("return %2, %3", "return %2, %c.0", "result 1 is %c.0, wanted the updated %c.0"),
    ):
        with pytest.raises(KvError) as error:
            ProveKv()(graph(signature, CONVOLUTION.replace(old, new)))
        assert message in str(error.value)


def test_a_constant_is_no_row_of_the_tokens() -> None:
    sound = graph(SIGNATURE, SOUND)
    zeros = Op("zeros", (), (), sound.ops[0].result)
    with pytest.raises(KvError, match=r"%0 = zeros is a constant"):
        ProveKv()(replace(sound, ops=(zeros, *sound.ops[1:])))


def test_an_attention_without_caches_reads_projections_too() -> None:
    body = f"""
  %0: f32[T, 4] = embed(%tokens, @table: f32[9, 4])
  %1: f32[T, 1, 4] = part(%0) {{shape = [1, 4], start = 0}}
  %2: f32[T, 1, 4] = attention(%1, %1, %1) {attention(0)}  # layer 0
  return %2
"""
    with pytest.raises(KvError) as error:
        ProveKv()(graph("%tokens: i32[T]", body))
    wanted = "@f (layer 0): %2 = attention reads %1, which comes from the tokens without a projection"
    assert str(error.value).startswith(wanted)
