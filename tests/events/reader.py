"""A process that follows the events of a store and notes each, with its position, in a file."""

import asyncio
import json
import os
import sys
from pathlib import Path

import holdfast


async def follow(url: str, path: Path) -> None:
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    with path.open("ab") as file:
        # What a kill has cut off was never noted.
        os.truncate(path, sum(len(line) + 1 for line in lines[:-1]))
        after = json.loads(lines[-2])["position"] if len(lines) > 1 else "start"
        async with holdfast.open(url) as hf:
            async for event in hf.events(after):
                file.write(json.dumps(event.to_cloudevent()).encode() + b"\n")
                file.flush()


if __name__ == "__main__":
    asyncio.run(follow(sys.argv[1], Path(sys.argv[2])))
