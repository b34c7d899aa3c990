"""Strings of settings read as the literals that they are, where fairseq would evaluate them.

fairseq writes some settings as Python (``[(512, 3)] * 20`` for the layers of its convolutional
models, ``(0.9, 0.98)`` for the betas of Adam) and hands them to ``eval``, which runs whatever else
stands there. This module needs nothing but Python: the edited fairseq has a copy of it.
"""

from __future__ import annotations

import ast
import operator
from typing import Any

LONGEST = 10_000
"""Most characters of a literal, and most items that a product of it may have."""

_SIGNS: dict[type[ast.unaryop], Any] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_SUMS: dict[type[ast.operator], Any] = {ast.Add: operator.add, ast.Sub: operator.sub}


def read_literal(text: str, *_: Any) -> Any:
    """What ``eval`` would make of a literal: numbers, strings, tuples, lists, sets, dictionaries.

    Sums and products of literals are computed; nothing is called and no name is looked up.

    Args:
        text: a string; ``eval`` takes namespaces besides, which have no use here.

    Raises:
        TypeError: it is no string (as ``eval`` has it), or an operand is of the wrong type.
        ValueError: it is no literal, or too long.
    """
    if not isinstance(text, str):
        raise TypeError(f"a literal must be a string, not {type(text).__name__}")
    try:
        if len(text) <= LONGEST:
            return _value(ast.parse(text.lstrip(" \t"), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        pass
    raise _refusal(text)


def _refusal(text: str) -> ValueError:
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    return ValueError(f"{shown!r} is no number, string, list or other literal of Python")


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Tuple():
            return tuple(map(_value, node.elts))
        case ast.List():
            return list(map(_value, node.elts))
        case ast.Set():
            return set(map(_value, node.elts))
        case ast.Dict() if None not in node.keys:
            pairs = zip(node.keys, node.values, strict=True)
            return {_value(key): _value(value) for key, value in pairs if key is not None}
        case ast.UnaryOp() if type(node.op) in _SIGNS:
            return _SIGNS[type(node.op)](_value(node.operand))
        case ast.BinOp() if type(node.op) in _SUMS:
            left, right = _value(node.left), _value(node.right)
            if sum(len(each) for each in (left, right) if hasattr(each, "__len__")) > LONGEST:
                raise ValueError("a literal is too long")
            return _SUMS[type(node.op)](left, right)
        case ast.BinOp(op=ast.Mult()):
            return _product(_value(node.left), _value(node.right))
    raise _refusal(ast.unparse(node))


def _product(left: Any, right: Any) -> Any:
    for items, times in ((left, right), (right, left)):
        if hasattr(items, "__len__") and isinstance(times, int) and len(items) * times > LONGEST:
            raise ValueError(f"a literal of {len(items) * times} items is too long")
    return left * right
