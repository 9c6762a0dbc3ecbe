"""Expressions over numbers and names."""

import math
import re

from ..near import nearest
from ..operations import FUNCTIONS
from .line import Line, Token
from .tree import Call, Expression, Name, Number, Text

MAX_DEPTH = 24
MAX_NUMBER = 2**63


def expression(line: Line, depth: int = 0) -> Expression:
    """The longest expression that the line goes on with."""
    left = _term(line, depth)
    while line.peek.text in ("+", "-") and line.peek.kind == "mark":
        left = _call(line, line.next().text, left, _term(line, depth))
    return left


def _term(line: Line, depth: int) -> Expression:
    left = _factor(line, depth)
    while line.peek.text in ("*", "/") and line.peek.kind == "mark":
        operator, column = line.next().text, line.peek.column
        right = _factor(line, depth)
        if operator == "/" and isinstance(right, Number) and right.value == 0:
            raise line.error("division by zero", column)
        left = _call(line, operator, left, right)
    return left


def _call(line: Line, function: str, *arguments: Expression) -> Call:
    for argument in arguments:
        if isinstance(argument, Text):
            raise line.error(f"the text {argument.value!r} stands where a number is wanted", argument.column)
    return Call(function, arguments)


def _factor(line: Line, depth: int) -> Expression:
    if depth > MAX_DEPTH:
        raise line.error(f"an expression nested more than {MAX_DEPTH} deep")
    if line.take("-"):
        return _call(line, "neg", _factor(line, depth + 1))
    if line.take("("):
        inner = expression(line, depth + 1)
        line.expect(")", "to close the bracket")
        return inner
    token = line.next()
    if token.kind == "number":
        return Number(number(line, token))
    if token.kind == "text":
        return Text(token.text, token.column)
    if token.kind != "word":
        raise line.error(f"expected a number or a name, found {token.text!r}", token.column)
    if not line.take("("):
        if "." in token.text:
            message = f"{token.text!r} can't stand in an expression: give the key a name in 'parameters' first"
            raise line.error(message, token.column)
        return Name(token.text, token.column)
    if token.text not in FUNCTIONS:
        hint = nearest(token.text, FUNCTIONS)
        raise line.error(f"no function {token.text!r}; there are {', '.join(FUNCTIONS)}{hint}", token.column)
    arguments = [expression(line, depth + 1)]
    while line.take(","):
        arguments.append(expression(line, depth + 1))
    line.expect(")", f"to close {token.text}(")
    if len(arguments) != FUNCTIONS[token.text]:
        message = f"{token.text} takes {FUNCTIONS[token.text]} argument(s), found {len(arguments)}"
        raise line.error(message, token.column)
    return _call(line, token.text, *arguments)


def number(line: Line, token: Token) -> int | float:
    """What a literal is worth."""
    value = float(token.text) if any(c in token.text for c in ".eE") else int(token.text)
    vanished = value == 0 and any(c in "123456789" for c in re.split("[eE]", token.text)[0])
    if not math.isfinite(value) or value > MAX_NUMBER or vanished:
        raise line.error(f"the number {token.text} is out of range: up to {MAX_NUMBER}, from 5e-324", token.column)
    return value
