"""The order of blocks: waves, each of blocks that depend on earlier waves only."""

from collections.abc import Sequence

from holdfast.workflows.definitions.definition import Block


def waves_of(blocks: Sequence[Block]) -> list[list[str]]:
    """The ids of the blocks, wave by wave, in their order; raises ValueError for a cycle.

    Dependencies on blocks that are not there are passed over.
    """
    known = {block.id for block in blocks}
    waits_for = {
        block.id: {each.block for each in block.dependencies} & known - {block.id}
        for block in blocks
    }
    found: list[list[str]] = []
    done: set[str] = set()
    while len(done) < len(waits_for):
        wave = [each for each, needed in waits_for.items() if each not in done and needed <= done]
        if not wave:
            raise ValueError(f"a cycle: {' -> '.join(cycle_in(blocks))}")
        found.append(wave)
        done.update(wave)
    return found


def cycle_in(blocks: Sequence[Block]) -> list[str]:
    """Blocks that depend on each other in a circle, the first one also at the end; else empty."""
    needs = {block.id: [each.block for each in block.dependencies] for block in blocks}
    ended: set[str] = set()
    for start in needs:
        path: list[str] = []
        stack = [(start, iter(needs[start]))] if start not in ended else []
        path = [start] if stack else []
        while stack:
            block, left = stack[-1]
            following = next((n for n in left if n in needs and n not in ended), None)
            if following is None:
                ended.add(block)
                stack.pop()
                path.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            else:
                stack.append((following, iter(needs[following])))
                path.append(following)
    return []


def ancestors_of(blocks: Sequence[Block]) -> dict[str, set[str]]:
    """All blocks that each one comes after; of blocks in a cycle those reached."""
    needs = {block.id: {each.block for each in block.dependencies} for block in blocks}
    found: dict[str, set[str]] = {}
    for block in needs:
        seen: set[str] = set()
        ahead = list(needs[block])
        while ahead:
            each = ahead.pop()
            if each not in seen:
                seen.add(each)
                ahead += needs.get(each, ())
        found[block] = seen
    return found
