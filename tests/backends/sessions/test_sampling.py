"""Choosing a token: llama.cpp's samplers, chances as softmax gives them, and never a token past the vocabulary."""

import ctypes
import math
from typing import Any

import numpy as np
import pytest
from ggufc.backends.sessions.sampling import Sampling, candidates, penalised, sample
from ggufc.frontend.errors import DamagedModelError, InputError

ANY = Sampling(temperature=1.0)


class Fixed(np.random.Generator):
    """A source of chance that always gives the same number."""

    def __init__(self, value: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, *_: object, **__: object) -> float:  # type: ignore[override]
        return self.value


@pytest.mark.parametrize("size", [3, 1000, 262_144])
def test_the_highest_draw_is_the_last_token_with_a_chance(size: int) -> None:
    """A running sum may end below the pairwise sum of the same weights."""
    random = np.random.default_rng(size)
    highest = np.nextafter(1.0, 0.0)
    for _ in range(5):
        logits = random.normal(size=size).astype(np.float32)
        assert sample(logits, ANY, Fixed(highest)) < size
        logits[-1] = -np.inf
        assert sample(logits, ANY, Fixed(highest)) < size - 1


def test_the_lowest_draw_is_the_first_token_with_a_chance() -> None:
    logits = np.array([-np.inf, -np.inf, 0.0, 1.0], np.float32)
    assert sample(logits, ANY, Fixed(0.0)) == 2


def test_tokens_come_as_often_as_softmax_says() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    random = np.random.default_rng(1)
    counts = np.bincount([sample(logits, ANY, random) for _ in range(4000)], minlength=3)
    np.testing.assert_allclose(counts / 4000, [0.5, 0.3, 0.2], atol=0.03)


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-300, 1e-30])
def test_a_tiny_temperature_takes_the_likeliest(temperature: float) -> None:
    for logits in ([-30.0, 4.0, 3.9, -np.inf], [-1e30, -2.0, -3.0, 0.0]):
        found = np.array(logits, np.float32)
        assert sample(found, Sampling(temperature), np.random.default_rng(0)) == found.argmax()


def test_a_huge_temperature_takes_any() -> None:
    random = np.random.default_rng(3)
    assert {sample(np.array([0.0, 30.0], np.float32), Sampling(1e300), random) for _ in range(40)} == {0, 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", 10**400),
        ("temperature", "hot"),
        ("top_k", 1.5),
        ("top_k", -1),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("repeat_penalty", 0.0),
        ("seed", -1),
        ("top_q", 1),
    ],
)
def test_settings_out_of_their_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        Sampling.of({name: value})


class Candidate(ctypes.Structure):
    """`llama_token_data`."""

    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class Candidates(ctypes.Structure):
    """`llama_token_data_array`."""

    _fields_ = (
        ("data", ctypes.POINTER(Candidate)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


def llama_cpp(logits: np.ndarray, sampling: Sampling, recent: list[int]) -> dict[int, float]:
    """The chances that llama.cpp's own samplers leave, in the order of its common sampler."""
    xllamacpp = pytest.importorskip("xllamacpp.xllamacpp")
    lib = ctypes.CDLL(xllamacpp.__file__)
    f32, i32, size = ctypes.c_float, ctypes.c_int32, ctypes.c_size_t
    penalties = sampling.repeat_last_n, sampling.repeat_penalty
    steps = [
        (lib.llama_sampler_init_penalties, (i32, i32, f32, f32, f32), (len(logits), *penalties, 0, 0)),
        (lib.llama_sampler_init_top_k, (i32,), (sampling.top_k,)),
        (lib.llama_sampler_init_top_p, (f32, size), (sampling.top_p, 0)),
        (lib.llama_sampler_init_min_p, (f32, size), (sampling.min_p, 0)),
        (lib.llama_sampler_init_temp, (f32,), (sampling.temperature,)),
        (lib.llama_sampler_init_dist, (ctypes.c_uint32,), (1,)),  # which writes the probabilities
    ]
    lib.llama_sampler_accept.argtypes = (ctypes.c_void_p, i32)
    lib.llama_sampler_apply.argtypes = (ctypes.c_void_p, ctypes.POINTER(Candidates))
    lib.llama_sampler_free.argtypes = (ctypes.c_void_p,)
    rows = (Candidate * len(logits))(*((n, logit, 0) for n, logit in enumerate(logits)))
    given = Candidates(rows, len(logits), -1, False)
    for make, types, values in steps:
        make.argtypes, make.restype = types, ctypes.c_void_p
        sampler = make(*values)
        for token in recent:
            lib.llama_sampler_accept(sampler, token)
        lib.llama_sampler_apply(sampler, ctypes.byref(given))
        lib.llama_sampler_free(sampler)
    return {given.data[n].id: given.data[n].p for n in range(given.size)}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.8, top_k=40, top_p=0.95, min_p=0.05),
        Sampling(1.7, top_k=3),
        Sampling(0.3, top_p=0.5),
        Sampling(1.0, top_p=0.98),
        Sampling(1.0, top_p=0.0),
        Sampling(2.0, min_p=0.2),
        Sampling(1.0, min_p=1.0),
        Sampling(1.0, top_k=10_000, top_p=0.9, min_p=0.01),
        Sampling(0.7, repeat_penalty=1.3, top_k=20),
        Sampling(0.7, repeat_penalty=0.5, repeat_last_n=2),
        Sampling(0.7, repeat_penalty=1.5, repeat_last_n=0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("size", [5, 4000])
def test_what_is_left_is_what_llama_cpp_leaves(sampling: Sampling, size: int) -> None:
    random = np.random.default_rng(size)
    logits = (4 * random.normal(size=size)).astype(np.float32)
    recent = [int(np.argmax(logits)), 1, 3, 3, int(np.argmin(logits))]
    wanted = llama_cpp(logits, sampling, recent)
    changed = penalised(logits, recent[-sampling.repeat_last_n :] if sampling.repeat_last_n else [], sampling)
    tokens, chances = candidates(changed, sampling)
    ids = range(size) if tokens is None else tokens.tolist()
    found = dict(zip(ids, chances / chances.sum(), strict=True))
    assert found.keys() == wanted.keys()
    np.testing.assert_allclose([found[token] for token in wanted], list(wanted.values()), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", [41, 64 * 40, 64 * 40 + 7, 64 * 39])
def test_the_likeliest_are_found_among_groups(size: int) -> None:
    random = np.random.default_rng(size)
    for logits in (random.normal(size=size), np.zeros(size), np.sort(random.normal(size=size))):
        tokens, _ = candidates(logits.astype(np.float32), Sampling(1.0, top_k=40))
        assert tokens is not None
        assert len(tokens) == 40
        np.testing.assert_array_equal(logits[tokens], np.sort(logits)[::-1][: len(tokens)])


def test_the_penalty_reads_the_tokens_so_far() -> None:
    logits = np.array([1.0, 1.1, -3.0], np.float32)
    assert sample(logits, Sampling(repeat_penalty=2.0), np.random.default_rng(0), [1]) == 0
    assert sample(logits, Sampling(repeat_penalty=2.0, repeat_last_n=1), np.random.default_rng(0), [1, 2]) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"repeat_penalty": 2.0},
        *({"temperature": 1} | more for more in ({}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1})),
    ],
)
@pytest.mark.parametrize("logits", [[math.nan] * 5, [1, math.nan, 2], [0, math.inf, 1], [-math.inf] * 3])
def test_logits_without_a_choice_are_refused(logits: list[float], settings: dict[str, Any]) -> None:
    with pytest.raises(DamagedModelError, match="the model's logits are no finite numbers: its weights"):
        sample(np.array(logits, np.float32), Sampling(**settings), np.random.default_rng(0), [0])
