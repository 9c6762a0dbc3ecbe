"""The proof of law 3: a sound graph, and the same graph broken in each way."""

import pytest
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


# what to replace in SOUND, by what, and what the error says
BROKEN = {
    "keys of the cache itself": (
        "kv_update(%k.0, %5, %position)",
        "kv_update(%k.0, %k.0, %position)",
        "%k.0 comes from %k.0 without a projection",
    ),
    "keys of another cache": (
        "%4: f32[T, 1, 4] = rms_norm(%2)",
        "%4: f32[S, 1, 4] = rms_norm(%v.0)",
        "%5 comes from %v.0 without a projection",
    ),
    "a cache in its old state": (
        "attention(%1, %6, %7,",
        "attention(%1, %k.0, %7,",
        "attention reads %k.0, which is no updated cache",
    ),
    "rows that are not cached": (
        "attention(%1, %6, %7,",
        "attention(%1, %5, %3,",
        "attention reads %5, which is no updated cache",
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
    "a cache updated twice": (
        "  %8:",
        "  %9: f32[S, 1, 4] = kv_update(%k.0, %3, %position)\n  %8:",
        "%k.0",
    ),
    "a cache that is never updated": (
        "kv_update(%k.0, %5, %position)",
        "kv_update(%v.0, %5, %position)",
        "%k.0 is never updated",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_graph_is_refused(old: str, new: str, message: str) -> None:
    assert old in SOUND
    body = SOUND.replace(old, new)
    if "%4: f32[S" in new:
        body = body.replace("%5: f32[T", "%5: f32[S")
    broken = graph(SIGNATURE, body)
    with pytest.raises(KvError, match=r"^@f: ") as error:
        ProveKv()(broken)
    assert message in str(error.value)
