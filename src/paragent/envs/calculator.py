"""The calculator of the environment `math`: evaluates an expression exactly. Runs in a child process with limits.

The expression is parsed by Python, and every node must be in the tables below, so that it cannot reach anything else. The time
of a computation cannot be predicted from its text, so the child process has limits.
"""

from __future__ import annotations

import ast
from typing import Any

import sympy

__all__ = ["compute"]

_BINARY: dict[type[ast.AST], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: sympy.floor(a / b),
    ast.Mod: lambda a, b: sympy.Mod(a, b),
    ast.Pow: lambda a, b: a**b,
}
_COMPARED = {ast.Eq: sympy.Eq, ast.Lt: sympy.Lt, ast.LtE: sympy.Le, ast.Gt: sympy.Gt, ast.GtE: sympy.Ge}
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "E": sympy.E, "i": sympy.I, "I": sympy.I, "oo": sympy.oo, "inf": sympy.oo}
_OF_SYMPY = (
    "sqrt",
    "cbrt",
    "root",
    "exp",
    "log",
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "floor",
    "ceiling",
    "sign",
    "gamma",
    "factorial",
    "binomial",
    "gcd",
    "lcm",
    "isprime",
    "nextprime",
    "factorint",
    "divisors",
    "totient",
    "fibonacci",
    "simplify",
    "expand",
    "factor",
    "cancel",
    "apart",
    "together",
    "diff",
    "integrate",
    "limit",
    "series",
    "summation",
    "product",
    "solve",
    "linsolve",
    "roots",
    "N",
    "re",
    "im",
    "arg",
    "conjugate",
)
_WITH_RANGES = {"integrate", "summation", "product", "limit", "diff"}
"""Functions that take a range as a tuple: (k, 1, 10)."""
_FUNCTIONS: dict[str, Any] = {name: getattr(sympy, name) for name in _OF_SYMPY}
_FUNCTIONS |= {
    "ln": sympy.log,
    "log10": lambda x: sympy.log(x, 10),
    "log2": lambda x: sympy.log(x, 2),
    "abs": sympy.Abs,
    "min": sympy.Min,
    "max": sympy.Max,
    "ceil": sympy.ceiling,
    "comb": sympy.binomial,
    "perm": lambda n, k: sympy.ff(n, k),
    "degrees": sympy.deg,
    "radians": sympy.rad,
}


def compute(expression: str) -> str:
    """Return the exact value of an expression, followed by a decimal approximation where it helps.

    Raises:
        ValueError: the text is not a supported expression.
        ArithmeticError: the value is undefined.
    """
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval")
    except SyntaxError as error:
        raise ValueError(f"this is not an expression: {error.msg}") from None
    value = _value(tree.body)
    if isinstance(value, sympy.Basic) and value.has(sympy.zoo, sympy.nan):
        raise ArithmeticError("the value is not defined (a division by zero?)")
    exact = str(value)
    if isinstance(value, sympy.Expr) and value.is_number and not value.is_Integer and not value.is_Float:
        return f"{exact} ≈ {sympy.N(value, 15)}"
    return exact


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("True and False are not numbers")
        case ast.Constant(value=int() as whole):
            return sympy.Integer(whole)
        case ast.Constant(value=float() as number):
            return sympy.Rational(str(number))
        case ast.Name(id=name):
            return _CONSTANTS.get(name) or _symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _BINARY[type(sign)](_value(left), _value(right))
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _COMPARED:
            return _COMPARED[type(sign)](_value(left), _value(right))
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [_value(part) for part in parts]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _call(name, [_value(argument) for argument in arguments])
    raise ValueError(f"{type(node).__name__} is not supported; use numbers, + - * / ** %, and functions")


def _symbol(name: str) -> Any:
    if len(name) > 1 and not name[1:].isdigit():
        raise ValueError(f"{name!r} is not a known constant; variables have one letter, such as x or x1")
    return sympy.Symbol(name)


def _call(name: str, arguments: list[Any]) -> Any:
    function = _FUNCTIONS.get(name)
    if function is None:
        raise ValueError(f"there is no function {name!r}; there are: {', '.join(sorted(_FUNCTIONS))}")
    ranges = [tuple(one) if isinstance(one, list) and name in _WITH_RANGES else one for one in arguments]
    value: Any = function(*ranges)
    return value
