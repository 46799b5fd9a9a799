"""Generates the classes of `holdfast.sync` from those of the async face: `make sync`.

- `faces`: which classes are translated, and into which modules.
- `sources`: the source of the async classes, and what names mean there.
- `names`: what a generated module imports, and code of a source with the names of that module.
- `methods`, `classes`, `modules`: the translation, from one method to the text of a module.
- `project`: writes the modules, or compares them with what is there (`make check`).
"""
