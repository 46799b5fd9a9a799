"""The names of a generated module: what it imports, and how it calls what the source names."""

import ast
import copy
from collections.abc import Collection, Mapping
from typing import Final, TypeVar

from tools.blocking_face.faces import Face
from tools.blocking_face.sources import Origin, Source, Untranslatable

Node = TypeVar("Node", bound=ast.AST)
ASYNC_ITERATOR: Final = Origin("collections.abc", "AsyncIterator")


class Imports:
    """What a generated module imports; each name has one meaning in it."""

    def __init__(self, module: str, faces: Collection[Face]) -> None:
        self._module = module
        self._names = {face.name: Origin(module, face.name) for face in faces}

    def name_of(self, origin: Origin, wanted: str) -> str:
        """The name for something in this module: the one it has in its source if that is free."""
        if not self._is_free(wanted, origin):
            wanted = origin.module.rpartition(".")[2].title().replace("_", "") + origin.name
            if not self._is_free(wanted, origin):
                raise Untranslatable(f"{wanted} has two meanings in {self._module}")
        for_types = origin.for_types and self._names.get(wanted, origin).for_types
        self._names[wanted] = origin._replace(for_types=for_types)
        return wanted

    def _is_free(self, name: str, origin: Origin) -> bool:
        taken = self._names.get(name, origin)
        return taken._replace(for_types=origin.for_types) == origin

    def add(self, module: str, name: str) -> str:
        return self.name_of(Origin(module, name), name)

    def statements(self) -> list[str]:
        """All import statements, and after them what is made from what they import."""
        found = {
            local: origin
            for local, origin in sorted(self._names.items())
            if origin.module != self._module
        }
        for_types = [each for each in found if found[each].for_types]
        made = [each for each in found if found[each].statement]
        plain = [each for each in found if each not in for_types and each not in made]
        lines = [found[each].import_as(each) for each in plain]
        if made:
            lines.append("from typing import TypeVar")
        if for_types:
            lines += ["from typing import TYPE_CHECKING", "if TYPE_CHECKING:"]
            lines += [f"    {found[each].import_as(each)}" for each in for_types]
        return [*lines, *(found[each].import_as(each) for each in made)]


class Renamer(ast.NodeTransformer):
    """Rewrites code of a source so that it means the same in a generated module.

    Async classes that have a face become their faces, and async iterators become iterators.
    """

    def __init__(
        self, source: Source, imports: Imports, faces: Mapping[tuple[str, str], str]
    ) -> None:
        self._source = source
        self._imports = imports
        self._faces = faces
        self._local: Collection[str] = ()
        self._is_annotation = False

    def annotation(self, node: ast.expr) -> ast.expr:
        """A copy of an annotation; a quoted one stays quoted."""
        self._is_annotation, self._local = True, ()
        return self.visit(copy.deepcopy(node))

    def code(self, node: Node, *, local: Collection[str] = ()) -> Node:
        """A copy of other code, whose `local` names are left alone."""
        self._is_annotation, self._local = False, local
        return self.visit(copy.deepcopy(node))

    def face_of(self, node: ast.expr) -> str | None:
        """The module of the face that an annotation names, if it names one."""
        name = node.value if isinstance(node, ast.Subscript) else node
        origin = self.origin_of(name)
        return None if origin is None else self._faces.get((origin.module, origin.name))

    def has_async(self, annotation: ast.expr) -> bool:
        """Whether an annotation names something that the caller of the face must not get."""
        nodes = [node for node in ast.walk(parsed(annotation)) if isinstance(node, ast.Name)]
        return any(
            self.face_of(node) is not None or self.origin_of(node) == ASYNC_ITERATOR
            for node in nodes
        )

    def origin_of(self, node: ast.expr) -> Origin | None:
        return self._source.names.get(node.id) if isinstance(node, ast.Name) else None

    def visit_Name(self, node: ast.Name) -> ast.Name:
        origin = self.origin_of(node)
        if origin is None or node.id in self._local:
            return node
        name = node.id
        if (face := self._faces.get((origin.module, origin.name))) is not None:
            origin = origin._replace(module=face)
        elif origin == ASYNC_ITERATOR:
            origin, name = Origin(origin.module, "Iterator"), "Iterator"
        name = self._imports.name_of(origin, name)
        return ast.copy_location(ast.Name(name, node.ctx), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        is_literal = isinstance(node.value, ast.Name) and node.value.id == "Literal"
        if not is_literal:
            return self.generic_visit(node)
        node.value = self.visit(node.value)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if self._is_annotation and isinstance(node.value, str):
            return ast.Constant(ast.unparse(self.visit(parsed(node))))
        return node


def parsed(annotation: ast.expr) -> ast.expr:
    """An annotation without the quotes that it may have."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation
