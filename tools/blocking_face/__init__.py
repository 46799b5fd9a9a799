"""Generates the classes of `holdfast.sync` from those of the async face: `make sync`.

- `faces`: which classes are translated, and into which modules.
- `sources`: the source of the async classes, and what names mean there.
- `methods`: one method of the async face as one that blocks.
- `modules`: a whole module as text.
- `project`: writes the modules, or compares them with what is there (`make check`).
"""
