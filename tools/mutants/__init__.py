"""Mutation testing: change one place of the source, and see whether a test turns red.

    python -m tools.mutants map    [--area "unit contract"] [--shard 2/4]
    python -m tools.mutants run    [--count 20] [--area kernel] [--shard 2/4] [--again]
    python -m tools.mutants report

`make mutants-map`, `make mutants` and `make mutants-report` call it. Every run works in a copy of
the tree, so the working tree is never changed. CONTRIBUTING.md says how to use it.
"""
