"""A class of the async face as one that blocks."""

import ast
import copy
from collections.abc import Iterator

from tools.blocking_face.faces import LOOP, OPENING, Face, Table
from tools.blocking_face.methods import Methods, forwarded, parse_function
from tools.blocking_face.names import Imports, Renamer
from tools.blocking_face.sources import Function, Origin, Source, Untranslatable


class ClassTranslation:
    """The way of one class, and of functions beside it, into a generated module."""

    def __init__(self, face: Face, source: Source, imports: Imports, table: Table) -> None:
        self._face = face
        self._source = source
        self._imports = imports
        self._table = table
        self._node = source.find_class(face.name)
        self._renamer = Renamer(source, imports, table.faces)
        self._methods = Methods(face, self._renamer, imports, table)
        self._inner = imports.name_of(Origin(face.module, face.name), f"Async{face.name}")

    def class_node(self) -> ast.ClassDef:
        made = _parse_class(f"class {self._face.name}: ...")
        made.bases = self._bases()
        made.decorator_list = [_expression(f"{self._imports.add(LOOP, 'blocking')}({self._inner})")]
        doc = self._face.doc or ast.get_docstring(self._node, clean=False) or self._face.name
        made.body = [
            ast.Expr(ast.Constant(doc)),
            *self._constructor(),
            *self._wiring(),
            *(self._methods.translate(each) for each in self._functions() if _is_public(each)),
        ]
        return made

    def function_node(self, name: str) -> ast.FunctionDef:
        return self._methods.copied(self._source.find_function(name), with_doc=True)

    def _functions(self) -> Iterator[Function]:
        return (node for node in self._node.body if isinstance(node, Function))

    def _bases(self) -> list[ast.expr]:
        if self._face.is_openable:
            return [_expression(self._imports.add(OPENING, "OpenableFace"))]
        base = self._imports.add(LOOP, "Face")
        own = [each for each in self._node.bases if ast.unparse(each) != self._face.base]
        generic = [ast.unparse(self._renamer.annotation(each)) for each in own]
        if not generic:
            return [_expression(f"{base}[{self._inner}]")]
        variables = generic[0].removeprefix("Generic")
        if len(generic) > 1 or variables == generic[0]:
            raise Untranslatable(f"{self._face.name}: there is no rule for its base classes")
        return [_expression(f"{base}[{self._inner}{variables}]"), _expression(generic[0])]

    def _constructor(self) -> Iterator[ast.FunctionDef]:
        """Only of faces that users make; the others are made of a loop and an object."""
        made_of, own = self._face.made_of, self._face.is_openable
        if not made_of and not own:
            return
        method = copy.deepcopy(next(each for each in self._functions() if each.name == "__init__"))
        loop = f"{self._imports.add(LOOP, 'Loop')}()" if own else f"{made_of}._loop"
        given = forwarded(method, **{made_of: f"{made_of}._inner"})
        for each in (each for each in method.args.args if each.arg == made_of):
            each.annotation = None  # the blocking Holdfast takes the place of the async one
        made = self._methods.declared(method, f"super().__init__({loop}, {self._inner}({given}))")
        for each in made.args.args:
            if each.arg == made_of:
                each.annotation = _expression(self._imports.add(*self._table.openable))
        yield made

    def _wiring(self) -> Iterator[ast.FunctionDef]:
        """Set the attributes of the face: those that the table names, and other faces."""
        lines = [f"self.{each} = self._inner.{each}" for each in self._face.attributes]
        for name, made in _assigned(self._node):
            if self._renamer.face_of(made) is not None:
                face = ast.unparse(self._renamer.code(made))
                lines.append(f"self.{name} = {face}(self._loop, self._inner.{name})")
        if lines:
            yield parse_function("def _wire(self) -> None:\n    " + "\n    ".join(lines))


def _assigned(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Public attributes that are set to what a call makes, and what is called."""
    for each in ast.walk(node):
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            owner, _, name = ast.unparse(each.targets[0]).partition(".")
            if owner == "self" and name and not name.startswith("_"):
                yield name, each.value.func


def _parse_class(text: str) -> ast.ClassDef:
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.ClassDef), "it is the text of a class"
    return node


def _is_public(method: Function) -> bool:
    return not method.name.startswith("_")


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
