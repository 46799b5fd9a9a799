"""The named statements of this backend, and the shapes of its rows."""

from typing import Final

from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.journal import Entry
from holdfast.kernel.leases import Worker
from holdfast.kernel.runs import Run
from holdfast.kernel.waits import Group, Wait
from holdfast.stores import rows
from holdfast.stores.rows import Shape
from holdfast.stores.sqlfiles import load_migrations, load_queries

PACKAGE: Final = "holdfast.stores.sqlite"
SQL: Final = load_queries(PACKAGE)
MIGRATIONS: Final = load_migrations(PACKAGE)

# Bodies up to this size stay in their entry's row; larger ones are stored apart.
INLINE_BYTES: Final = 256
BODY_COLUMN: Final = Entry.__struct_fields__.index("body")

Row = rows.Row
RUN: Final = Shape(Run, uuid_as_bytes=True)
ENTRY: Final = Shape(Entry, uuid_as_bytes=True)
CHECKPOINT: Final = Shape(Checkpoint, uuid_as_bytes=True)
EFFECT: Final = Shape(Effect, uuid_as_bytes=True)
GROUP: Final = Shape(Group, uuid_as_bytes=True)
WAIT: Final = Shape(Wait, uuid_as_bytes=True)
WORKER: Final = Shape(Worker, uuid_as_bytes=True)
