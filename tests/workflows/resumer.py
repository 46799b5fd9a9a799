"""A process that pauses a workflow, and is killed while it goes on with it."""

import json
import sys
import time
from typing import Any

from holdfast.settings import Settings
from holdfast.sync.checkpoint_store import SqlCheckpointStore, resume_workflow
from tests.workflows.checkpointing import LittleExecutor, waves


class Hanging(LittleExecutor):
    def execute_from_wave(self, wave: int) -> Any:
        tell(self.waves[wave][0].id)
        time.sleep(60)


def tell(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(url: str) -> None:
    with SqlCheckpointStore(url, settings=Settings(lease_seconds=0.5)) as store:
        for line in sys.stdin:
            match json.loads(line):
                case "pause":
                    executor = LittleExecutor("release", {}, store, [])
                    executor.waves = waves()
                    tell(executor.execute_from_wave(0).value["paused"])
                case ["resume", str(checkpoint_id), str(response)]:
                    resume_workflow(
                        checkpoint_id,
                        response,
                        make_executor=lambda name, inputs: Hanging(name, inputs, store, []),
                        store=store,
                    )
                case other:
                    tell(f"what is {other}?")


if __name__ == "__main__":
    main(sys.argv[1])
