"""Evaluate a parsed template with given data.

No template is ever compiled or run as Python: this walks the tree that Jinja's parser made, reaches nothing but data,
and counts every step, so that no template can escape or run forever.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from jinja2 import nodes

from shoal.pipeline.problems import Position, key, nearest
from shoal.pipeline.templates import filters
from shoal.pipeline.templates.filters import (
    BadTemplate,
    check_number,
    is_so,
    join_texts,
    kind,
    list_items,
    text_of,
    weight,
)
from shoal.pipeline.templates.syntax import OPTIONAL_FILTERS, OPTIONAL_TESTS, path_of

MAX_WORK = 250_000
MAX_RANGE = 1000
LETTERS = 1024  # of a text, or items of a list, that are as much work as one step

Scope = Mapping[str, object]

_REFUSED = "the template asks for too much work; loop over less"
_RECKONED: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
}
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda value, values: value in values,
    "notin": lambda value, values: value not in values,
}


class UnknownValue(BadTemplate):
    """A name, key or item that does not exist."""


class Evaluation:
    """One rendering, with its remaining work."""

    def __init__(self) -> None:
        self.left = MAX_WORK

    def write(self, body: Iterable[nodes.Node], scope: Scope) -> Iterator[str]:
        """Write a template's body, piece by piece."""
        for node in body:
            self._charge(1)
            match node:
                case nodes.Output():
                    yield from (text_of(self.value(part, scope)) for part in node.nodes)
                case nodes.If():
                    yield from self._if(node, scope)
                case nodes.For():
                    yield from self._for(node, scope)
                case _:
                    raise BadTemplate(f"{type(node).__name__} is not part of templates")

    def value(self, node: nodes.Node, scope: Scope) -> object:
        """Evaluate an expression."""
        found = self._value(node, scope)
        self._charge(1 + (len(found) // LETTERS if isinstance(found, str | list | tuple) else 0))
        return found

    def _value(self, node: nodes.Node, scope: Scope) -> object:
        match node:
            case nodes.TemplateData():
                return node.data
            case nodes.Const():
                return node.value
            case nodes.Name():
                return scope[node.name] if node.name in scope else self._unknown(node, scope)
            case nodes.Getattr():
                return self._inside(self.value(node.node, scope), node.attr, node)
            case nodes.Getitem():
                return self._item(node, scope)
            case nodes.List() | nodes.Tuple():
                return [self.value(item, scope) for item in node.items]
            case nodes.Dict():
                return {text_of(self.value(item.key, scope)): self.value(item.value, scope) for item in node.items}
            case _:
                return self._operation(node, scope)

    def _operation(self, node: nodes.Node, scope: Scope) -> object:
        match node:
            case nodes.CondExpr():
                return self._either(node, scope)
            case nodes.And():
                left = self.value(node.left, scope)
                return self.value(node.right, scope) if is_so(left) else left
            case nodes.Or():
                left = self.value(node.left, scope)
                return left if is_so(left) else self.value(node.right, scope)
            case nodes.Not():
                return not is_so(self.value(node.node, scope))
            case nodes.Neg() | nodes.Pos():
                number = self._number(self.value(node.node, scope), node)
                return -number if isinstance(node, nodes.Neg) else number
            case nodes.Compare():
                return self._compare(node, scope)
            case nodes.Concat():
                return join_texts(text_of(self.value(part, scope)) for part in node.nodes)
            case nodes.BinExpr():
                return self._compute(node, scope)
            case nodes.Filter():
                return self._filter(node, scope)
            case nodes.Test():
                return self._test(node, scope)
            case nodes.Call():
                return self._call(node, scope)
            case _:
                raise BadTemplate(f"{type(node).__name__} is not part of templates", _at(node))

    def _if(self, node: nodes.If, scope: Scope) -> Iterator[str]:
        for branch in (node, *node.elif_):
            if is_so(self.value(branch.test, scope)):
                yield from self.write(branch.body, scope)
                return
        yield from self.write(node.else_, scope)

    def _for(self, node: nodes.For, scope: Scope) -> Iterator[str]:
        items = list_items(self.value(node.iter, scope))
        scopes = [{**scope, **_bind(node.target, item)} for item in self._count_items(items, len(scope))]
        kept = [inner for inner in scopes if node.test is None or is_so(self.value(node.test, inner))]
        for index, inner in enumerate(kept):
            inner["loop"] = _loop(index, len(kept), scope.get("loop"))
            yield from self.write(node.body, inner)
        if not kept:
            yield from self.write(node.else_, scope)

    def _count_items(self, items: Iterable[object], cost: int) -> Iterator[object]:
        for item in items:
            self._charge(4 + cost // 16)
            yield item

    def _either(self, node: nodes.CondExpr, scope: Scope) -> object:
        if is_so(self.value(node.test, scope)):
            return self.value(node.expr1, scope)
        return "" if node.expr2 is None else self.value(node.expr2, scope)

    def _item(self, node: nodes.Getitem, scope: Scope) -> object:
        whole = self.value(node.node, scope)
        if not isinstance(node.arg, nodes.Slice):
            return self._inside(whole, self.value(node.arg, scope), node)
        if not isinstance(whole, str | list | tuple):
            raise BadTemplate(f"{kind(whole)} cannot be cut; only a text or a list can", _at(node))
        if node.arg.step is not None:
            raise BadTemplate("a cut is `[first:end]`, without steps", _at(node))
        return whole[self._end(node.arg.start, scope) : self._end(node.arg.stop, scope)]

    def _end(self, node: nodes.Node | None, scope: Scope) -> int | None:
        found = None if node is None else self.value(node, scope)
        if found is None or isinstance(found, int):
            return found
        raise BadTemplate(f"a cut is `[first:end]` with whole numbers, not {kind(found)}", _at(node))

    def _inside(self, whole: object, part: object, node: nodes.Node) -> object:
        if isinstance(whole, Mapping) and isinstance(part, str) and part in whole:
            return whole[part]
        if isinstance(whole, list | tuple) and isinstance(part, int) and -len(whole) <= part < len(whole):
            return whole[part]
        where, named = key(path_of(getattr(node, "node", node)) or kind(whole)), key(text_of(part))
        if isinstance(whole, Mapping):
            raise UnknownValue(f"no {named} in {where}; {nearest(text_of(part), map(text_of, whole))}", _at(node))
        if isinstance(whole, list | tuple):
            raise UnknownValue(f"no {named} in {where}, which is a list of {len(whole)}, counted from 0", _at(node))
        raise UnknownValue(f"no {named} in {where}, which is {kind(whole)}; take that alone", _at(node))

    def _compare(self, node: nodes.Compare, scope: Scope) -> bool:
        left = self.value(node.expr, scope)
        for operand in node.ops:
            right = self.value(operand.expr, scope)
            self._weigh(left)
            self._weigh(right)
            if not self._call_safely(node, _COMPARED[operand.op], left, right):
                return False
            left = right
        return True

    def _compute(self, node: nodes.BinExpr, scope: Scope) -> object:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        if isinstance(node, nodes.Add) and isinstance(left, str) and isinstance(right, str):
            return join_texts((left, right))
        if isinstance(node, nodes.Add) and isinstance(left, list) and isinstance(right, list):
            return [*left, *right]
        numbers = self._number(left, node), self._number(right, node)
        return check_number(self._call_safely(node, _RECKONED[type(node).__name__], *numbers))

    def _filter(self, node: nodes.Filter, scope: Scope) -> object:
        given = node.node or nodes.Const("")
        args = [self.value(arg, scope) for arg in node.args]
        options = {str(option.key): self.value(option.value, scope) for option in node.kwargs}
        if node.name in OPTIONAL_FILTERS:
            return self._call_safely(node, self._default, given, scope, *args, **options)
        value = self.value(given, scope)
        self._weigh(value)
        return self._call_safely(node, filters.FILTERS[node.name], value, *args, **options)

    def _default(self, node: nodes.Node, scope: Scope, otherwise: object = "", boolean: object = False) -> object:
        try:
            found = self.value(node, scope)
        except UnknownValue:
            return otherwise
        return otherwise if found is None or (boolean and not is_so(found)) else found

    def _test(self, node: nodes.Test, scope: Scope) -> bool:
        if node.name not in OPTIONAL_TESTS:
            return filters.TESTS[node.name](self.value(node.node, scope))
        try:
            self.value(node.node, scope)
        except UnknownValue:
            return node.name == "undefined"
        return node.name == "defined"

    def _call(self, node: nodes.Call, scope: Scope) -> object:
        args = [self.value(arg, scope) for arg in node.args]
        options = {str(option.key): self.value(option.value, scope) for option in node.kwargs}
        if isinstance(node.node, nodes.Name):
            return self._range(node, args)
        assert isinstance(node.node, nodes.Getattr)  # noqa: S101 - the parse refused everything else
        whole, name = self.value(node.node.node, scope), node.node.attr
        table = filters.TEXT_METHODS if isinstance(whole, str) else filters.MAPPING_METHODS
        if not isinstance(whole, str | Mapping) or name not in table:
            raise BadTemplate(f"{kind(whole)} has no {key(name + '()')}; {nearest(name, table)}", _at(node))
        return self._call_safely(node, table[name], whole, *args, **options)

    def _range(self, node: nodes.Call, args: list[object]) -> object:
        found = self._call_safely(node, range, *args)
        if len(found) > MAX_RANGE:
            raise BadTemplate(f"`range` gives at most {MAX_RANGE} numbers; ask for fewer", _at(node))
        return list(found)

    def _number(self, value: object, node: nodes.Node) -> int | float:
        if isinstance(value, int | float):
            return check_number(value)
        raise BadTemplate(f"{kind(value)} cannot be reckoned with; use the filter `int`", _at(node))

    def _call_safely(self, node: nodes.Node, what: Callable[..., Any], *args: object, **options: object) -> Any:  # noqa: ANN401
        """Call one of our own small functions, and describe data that did not fit."""
        try:
            made = what(*args, **options)
        except (TypeError, ValueError, ArithmeticError, MemoryError, AttributeError):
            of = ", ".join(map(kind, args)) or "nothing"
            raise BadTemplate(f"{_node_name(node)} does not work on {of}; check the values", _at(node)) from None
        self._charge(len(made) >> 4 if isinstance(made, list) else 0)
        return made

    def _unknown(self, node: nodes.Name, scope: Scope) -> NoReturn:
        raise UnknownValue(f"no name {key(node.name)} here; {nearest(node.name, scope)}", _at(node))

    def _weigh(self, value: object) -> None:
        """Charge for reading every part of *value*."""
        self._charge(weight(value, self.left, letters=LETTERS))

    def _charge(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise BadTemplate(_REFUSED)


def _bind(target: nodes.Node, value: object) -> dict[str, object]:
    """Bind the names of a loop: `for a in …`, `for a, b in …`."""
    if isinstance(target, nodes.Name):
        return {target.name: value}
    assert isinstance(target, nodes.Tuple)  # noqa: S101 - the parser knows no other target
    values = value if isinstance(value, list | tuple) else ()
    if len(values) != len(target.items):
        raise BadTemplate(f"the loop takes {len(target.items)} parts of each item, and {kind(value)} has not so many")
    return {
        name: bound
        for item, part in zip(target.items, values, strict=True)
        for name, bound in _bind(item, part).items()
    }


def _loop(index: int, length: int, outer: object) -> dict[str, object]:
    """Return the variables of a loop; those of an outer `loop` stay available."""
    above = dict(outer) if isinstance(outer, Mapping) else {}
    own = {"index": index + 1, "index0": index, "revindex": length - index, "revindex0": length - index - 1}
    return {**above, **own, "first": index == 0, "last": index == length - 1, "length": length}


def _node_name(node: nodes.Node) -> str:
    match node:
        case nodes.Filter() | nodes.Test():
            return key(node.name)
        case nodes.Call(node=nodes.Getattr(attr=name)) | nodes.Call(node=nodes.Name(name=name)):
            return key(f"{name}()")
        case nodes.Compare():
            return "the comparison"
        case _:
            return key(str(getattr(node, "operator", "the expression")))


def _at(node: nodes.Node | None) -> Position | None:
    return Position(node.lineno) if node is not None and node.lineno else None
