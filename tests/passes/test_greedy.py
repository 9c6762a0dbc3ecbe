"""Greedy decoding."""

from ggufc.passes.dce import EliminateDeadCode
from ggufc.passes.greedy import Greedy

from .graphs import after, written

X = "%x: f32[1, 4]"


def test_the_order_of_logits_is_all_that_counts() -> None:
    body = """
        %0: f32[1, 9] = linear(%x, @head: f32[9, 4]) {shape = [9]}
        %1: f32[1, 9] = scale(%0) {by = 0.5}
        %2: f32[1, 9] = softcap(%1) {cap = 30.0}
        return %2, %x
        """
    expected = """
        %0: f32[1, 9] = linear(%x, @head: f32[9, 4]) {shape = [9]}
        %3: i32[1] = argmax(%0)
        return %3, %x
        """
    assert after(lambda graph: EliminateDeadCode()(Greedy()(graph)), X, body) == written(X, expected)


def test_a_scale_that_turns_the_order_round_stays() -> None:
    body = """
        %0: f32[1, 4] = scale(%x) {by = -0.5}
        return %0
        """
    expected = """
        %0: f32[1, 4] = scale(%x) {by = -0.5}
        %1: i32[1] = argmax(%0)
        return %1
        """
    assert after(Greedy(), X, body) == written(X, expected)
