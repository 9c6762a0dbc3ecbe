# The bindings in iree.compiler.ir are a native module without stubs.
# pyright: reportAttributeAccessIssue=false
"""Which dispatches are joined: IR in, IR out, with kernels that do nothing."""

import re

from ggufc.backends.iree.dispatches import Call, Dispatches, Operand
from ggufc.backends.iree.executables import executable
from ggufc.backends.native.kernel import Buffer, Kernel, Scalar
from ggufc.backends.native.target import host_target
from iree.compiler import ir

ROW = "tensor<1x8xf32>"


def kernel(name: str, *, updates: bool = False) -> Kernel:
    """A kernel of x to y in memory of its own, or one that updates a cache by x."""
    buffers = (
        (Buffer("cache", "f32", output=True), Buffer("x", "f32"))
        if updates
        else (Buffer("x", "f32"), Buffer("y", "f32", output=True))
    )
    return Kernel(name, buffers, (Scalar("count"),), (("count", 8),), lambda e, a: None)


class Program:
    """A function `(x, cache)` of calls, before and after they are joined."""

    def __init__(self) -> None:
        self.module = ir.Module.parse(f"""
            func.func @decode(%x: {ROW}, %cache: {ROW}) {{
              %few = arith.constant 8 : index
              %many = arith.constant 800 : index
              return
            }}""")
        self.block = self.module.body.operations[0].regions[0].blocks[0]
        self.x, self.cache = self.block.arguments
        few, many, self.end = self.block.operations
        self.few, self.many = few.results[0], many.results[0]
        self.dispatches = Dispatches()

    def call(self, name: str, x: ir.Value, *, cache: ir.Value | None = None, groups: int = 1) -> ir.Value:
        made = kernel(name, updates=cache is not None)
        buffers = (Operand(x), None) if cache is None else (Operand(cache), Operand(x))
        count = self.few if groups == 1 else self.many
        call = Call(made, buffers, (count,), ir.Type.parse(ROW), (), groups == 1)
        with ir.InsertionPoint(self.end):
            return self.dispatches.add(call)

    def joined(self) -> list[str]:
        """Each dispatch as its name, its operands and what it updates in place, in order."""
        self.dispatches.join(self.block)
        self.module.operation.verify()
        text = self.module.operation.get_asm(use_local_scope=True)
        return re.findall(r"(%\S+ = flow\.dispatch @\w+)::.*?(\(.*?\)) :.*?-> (.*)", text)


def names(found: list[str]) -> list[str]:
    return [re.sub(r".*@", "", head) for head, *_ in found]


def test_calls_of_one_group_become_one_dispatch() -> None:
    with ir.Context(), ir.Location.unknown():
        program = Program()
        normed = program.call("norm", program.x)
        program.call("update", normed, cache=program.cache)
        ((head, operands, results),) = program.joined()
    assert head == "%0:2 = flow.dispatch @norm_then_update"
    assert operands == "(%arg0, %arg1, %c8, %c8)"  # what one makes for the other is no operand
    assert results == f"({ROW}, %arg1)"  # the cache is updated in place


def test_those_with_more_groups_stay_apart_and_in_order() -> None:
    with ir.Context(), ir.Location.unknown():
        program = Program()
        normed = program.call("norm", program.x)
        product = program.call("product", normed, groups=100)
        scaled = program.call("scale", product)
        program.call("update", scaled, cache=program.cache)
        found = program.joined()
    assert names(found) == ["norm", "product", "scale_then_update"]


def test_what_nobody_between_reads_moves_behind_it() -> None:
    with ir.Context(), ir.Location.unknown():
        program = Program()
        first = program.call("norm", program.x)
        product = program.call("product", program.x, groups=100)
        program.call("update", product, cache=program.cache)
        program.call("product", first, groups=100)
        found = program.joined()
    assert names(found) == ["product", "norm_then_update", "product"]
    assert "%1#0" in found[2][1]


def test_what_a_chain_made_is_not_updated_in_it() -> None:
    """It has memory of its own only when the dispatch is over."""
    with ir.Context(), ir.Location.unknown():
        program = Program()
        made = program.call("norm", program.x)
        program.call("update", program.x, cache=made)
        assert names(program.joined()) == ["norm", "update"]


def test_the_same_kernels_may_be_linked_in_two_ways() -> None:
    with ir.Context(), ir.Location.unknown():
        program = Program()
        wide = program.call("wide", program.call("b", program.call("a", program.x)), groups=100)
        program.call("a", wide)
        program.call("b", wide)
        assert names(program.joined()) == ["a_then_b", "wide", "a_then_b_2"]
        assert set(program.dispatches.executables) == {"a_then_b", "wide", "a_then_b_2"}


def test_an_executable_calls_its_kernels_in_turn() -> None:
    with ir.Context(), ir.Location.unknown():
        program = Program()
        program.call("update", program.call("norm", program.x), cache=program.cache)
        program.joined()
        ((name, run),) = program.dispatches.executables.items()
        text = executable(name, run, host_target())
    assert 'path = "norm.o"' in text and 'path = "update.o"' in text
    calls = re.findall(r"func\.call @(\w+)\((.*?)\) :", text)
    assert calls == [("norm", "%p0, %o0, %p2, %o2, %s0, %c0"), ("update", "%p1, %o1, %p2, %o2, %s1, %c0")]
