"""Texts that are formatted: widths and precisions are bounded before anything is made."""

import tracemalloc
from datetime import UTC, datetime

import pytest

from holdfast.errors import BlockFailed
from holdfast.workflows.definitions.expressions import render


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("{{ '{:>6}|{:.2f}'.format('x', 1.5) }}", "     x|1.50"),
        ("{{ '{:>{width}}'.format('x', width=4) }}", "   x"),
        ("{{ '{name:5}|'.format_map({'name': 'a'}) }}", "a    |"),
        ("{{ '{0[a].b}'.format({'a': {'b': 1}}) }}", "1"),
        ("{{ '{:10000}'.format('x') | length }}", 10_000),
    ],
)
def test_ordinary_formats_are_made(text: str, made: object) -> None:
    assert render(text, {}) == made


@pytest.mark.parametrize(
    "text",
    [
        "{{ '{:4000000000}'.format('x') }}",
        "{{ '{:10001}'.format('x') }}",
        "{{ '{:>{width}}'.format('x', width=400000000) }}",
        "{{ '{:.{digits}f}'.format(1.5, digits=400000000) }}",
        "{{ '{a:400000000}'.format_map({'a': 'x'}) }}",
        "{{ '{:%400000000Y}'.format(moment) }}",
        "{{ ['x'] | map('string') | map(attribute='format') | list }}",
    ],
)
def test_width_that_makes_a_huge_text_is_refused_before_it_is_made(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BlockFailed):
            render(text, {"moment": datetime(2026, 1, 1, tzinfo=UTC)})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000


def test_many_wide_fields_share_one_allowance() -> None:
    with pytest.raises(BlockFailed, match="too much work"):
        render("{{ '" + "{0:10000}" * 9_000 + "'.format('x') | length }}", {})


def test_format_reaches_nothing_private() -> None:
    with pytest.raises(BlockFailed):
        render("{{ '{0.__class__}'.format('x') }}", {})
