"""What `import holdfast` costs a new process, beside `import asyncio`."""

import statistics

from benchmarks.contract import Place
from benchmarks.processes import ask
from benchmarks.report import Row, judged
from benchmarks.sizes import Sizes


async def imports(place: Place, sizes: Sizes) -> list[Row]:
    """Milliseconds of both imports, each in processes of its own."""
    ours: list[float] = []
    floor: list[float] = []
    for _ in range(sizes.imports):
        ours.append(await ask("benchmarks.importing", "holdfast"))
        floor.append(await ask("benchmarks.importing", "asyncio"))
    value = statistics.median(ours)
    note = "the floor is `import asyncio`"
    return [judged("import", value, "ms", floor=statistics.median(floor), note=note)]
