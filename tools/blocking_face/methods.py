"""One method of the async face as one that blocks.

- What is awaited is handed over to the loop, and waited for.
- An async iterator becomes an iterator, each step of which is waited for.
- Properties and methods that do not wait are passed on.
- What is returned and has a face itself is wrapped in that.
"""

import ast
import copy
from typing import Final, NamedTuple

from tools.blocking_face.faces import LOOP, OPENING, Face, Table
from tools.blocking_face.names import ASYNC_ITERATOR, Imports, Renamer, parsed
from tools.blocking_face.sources import Function, Untranslatable

_PROPERTIES: Final = {"property", "functools.cached_property"}
_DECORATORS: Final = {*_PROPERTIES, "overload", "classmethod"}


class Returned(NamedTuple):
    """What a method returns: an iterator, an object of a face, or anything else.

    A face that the source imports for its types only is imported when it is used: `is_lazy`.
    """

    is_iterator: bool = False
    face: ast.expr | None = None
    module: str = ""
    is_optional: bool = False
    is_lazy: bool = False


class Methods:
    """Translates the methods of one class."""

    def __init__(self, face: Face, renamer: Renamer, imports: Imports, table: Table) -> None:
        self._face = face
        self._renamer = renamer
        self._imports = imports
        self._table = table

    def translate(self, method: Function) -> ast.FunctionDef:
        decorators = {ast.unparse(each) for each in method.decorator_list}
        if unknown := decorators - _DECORATORS:
            raise self._untranslatable(method, f"there is no rule for @{min(unknown)}")
        if "classmethod" in decorators:
            return self.copied(method, with_doc=False)
        if "overload" in decorators:
            self._classify(method)
            return self.declared(method, "...")
        body = self._body(method, self._classify(method), decorators)
        return self.declared(method, body)

    def declared(self, method: Function, body: str) -> ast.FunctionDef:
        """The same name, parameters and types, with another body."""
        made = parse_function("def f(): ...")
        made.name = method.name
        made.args = self._parameters(method)
        made.body = ast.parse(body).body
        made.decorator_list = [self._renamer.code(each) for each in method.decorator_list]
        made.returns = self._renamer.annotation(_returns(method))
        return made

    def copied(self, function: Function, *, with_doc: bool) -> ast.FunctionDef:
        """The same body too: it makes what it returns, and waits for nothing."""
        if any(isinstance(node, ast.Await) for node in ast.walk(function)):
            raise self._untranslatable(function, "it awaits, so that its body cannot be copied")
        made = self.declared(function, "...")
        has_doc = ast.get_docstring(function) is not None
        body = function.body[1:] if has_doc and not with_doc else function.body
        local = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)} | {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        made.body = [self._renamer.code(each, local=local) for each in body]
        return made

    def _parameters(self, method: Function) -> ast.arguments:
        given = copy.deepcopy(method.args)
        for each in _all_parameters(given):
            if each.annotation is None:
                continue
            if self._renamer.has_async(each.annotation):
                raise self._untranslatable(method, f"{each.arg} takes what only the async face has")
            each.annotation = self._renamer.annotation(each.annotation)
        given.defaults = [self._renamer.code(each) for each in given.defaults]
        given.kw_defaults = [
            None if each is None else self._renamer.code(each) for each in given.kw_defaults
        ]
        return given

    def _classify(self, method: Function) -> Returned:
        returned = parsed(_returns(method))
        is_optional = isinstance(returned, ast.BinOp) and ast.unparse(returned.right) == "None"
        if isinstance(returned, ast.BinOp) and is_optional:
            returned = returned.left
        name = returned.value if isinstance(returned, ast.Subscript) else returned
        origin, module = self._renamer.origin_of(name), self._renamer.face_of(returned)
        if origin == ASYNC_ITERATOR and isinstance(returned, ast.Subscript):
            self._check_iterates(method, returned.slice)
            return Returned(is_iterator=True)
        if origin is not None and module is not None:
            return Returned(
                face=name, module=module, is_optional=is_optional, is_lazy=origin.for_types
            )
        self._check_plain(method, returned)
        return Returned()

    def _check_iterates(self, method: Function, items: ast.expr) -> None:
        self._check_plain(method, items)
        is_awaited = isinstance(method, ast.AsyncFunctionDef)
        if is_awaited and not any(isinstance(node, ast.Yield) for node in ast.walk(method)):
            raise self._untranslatable(method, "there is no rule for an iterator that is awaited")

    def _check_plain(self, method: Function, returned: ast.expr) -> None:
        if self._renamer.has_async(returned):
            wanted = ast.unparse(_returns(method))
            raise self._untranslatable(method, f"there is no rule to wrap {wanted}")

    def _body(self, method: Function, returned: Returned, decorators: set[str]) -> str:
        value = self._passed_on(method, returned, decorators)
        if returned.face is None:
            return f"return {value}"
        face = ast.unparse(self._renamer.code(returned.face))
        lines = [f"from {returned.module} import {face}"] if returned.is_lazy else []
        if returned.is_optional:
            wrapped = self._wrapped(returned.module, face, "found")
            lines += [f"found = {value}", f"return None if found is None else {wrapped}"]
        else:
            lines.append(f"return {self._wrapped(returned.module, face, value)}")
        return "\n".join(lines)

    def _wrapped(self, module: str, face: str, value: str) -> str:
        if (module, face) == self._table.openable:
            return f"{self._imports.add(OPENING, 'around')}({face}, {value}, self._loop)"
        return f"{face}(self._loop, {value})"

    def _passed_on(self, method: Function, returned: Returned, decorators: set[str]) -> str:
        target = f"self._inner.{method.name}"
        if decorators & _PROPERTIES:
            return target
        given = forwarded(method)
        if returned.is_iterator:
            return f"self._loop.each({target}({given}))"
        if isinstance(method, ast.AsyncFunctionDef):
            return f"self._call({target}, {given})"
        if method.name in self._face.on_loop:
            return f"self._call({self._imports.add(LOOP, 'on_loop')}({target}), {given})"
        return f"{target}({given})"

    def _untranslatable(self, method: Function, why: str) -> Untranslatable:
        where = f"{self._face.module}.{self._face.name}.{method.name}"
        return Untranslatable(f"{where} (line {method.lineno}): {why}")


def forwarded(method: Function, **replaced: str) -> str:
    """Arguments that pass a method's parameters on; those `replaced` as another expression."""
    given = method.args
    named = [each.arg for each in (*given.posonlyargs, *given.args)][1:]
    parts = [replaced.get(name, name) for name in named]
    if given.vararg is not None:
        parts.append(f"*{given.vararg.arg}")
    parts += [f"{each.arg}={replaced.get(each.arg, each.arg)}" for each in given.kwonlyargs]
    if given.kwarg is not None:
        parts.append(f"**{given.kwarg.arg}")
    return ", ".join(parts)


def parse_function(text: str) -> ast.FunctionDef:
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef), "it is the text of a function"
    return node


def _all_parameters(given: ast.arguments) -> list[ast.arg]:
    more = [each for each in (given.vararg, given.kwarg) if each is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *more]


def _returns(method: Function) -> ast.expr:
    if method.returns is None:
        raise Untranslatable(f"{method.name} (line {method.lineno}) does not say what it returns")
    return method.returns
