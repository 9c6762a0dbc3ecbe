"""One weight, one global."""

from ggufc.passes.tie_weights import TieWeights

from .graphs import after, graph, written


def test_a_tensor_that_stands_in_for_an_absent_one_is_named_as_itself() -> None:
    body = """
        %0: f32[T, 4] = embed(%tokens, @table: f32[9, 4])
        %1: f32[T, 9] = linear(%0, @head{tied}: f32[9, 4]) {{shape = [9]}}
        return %1
        """
    assert list(graph("%tokens: i32[T]", body.format(tied=" or @table")).weights()) == ["table", "head"]
    tied = after(TieWeights(), "%tokens: i32[T]", body.format(tied=" or @table"))
    assert tied == written("%tokens: i32[T]", body.format(tied="").replace("@head", "@table"))
    untied = after(TieWeights(), "%tokens: i32[T]", body.format(tied=""))
    assert untied == written("%tokens: i32[T]", body.format(tied=""))
