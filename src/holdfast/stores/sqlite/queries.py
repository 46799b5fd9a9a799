"""The named statements of this backend, and the shapes of its rows."""

from typing import Final

from holdfast.kernel.journal import Entry
from holdfast.stores import rows
from holdfast.stores.rows import Shapes
from holdfast.stores.sqlfiles import load_migrations, load_queries

PACKAGE: Final = "holdfast.stores.sqlite"
SQL: Final = load_queries(PACKAGE)
MIGRATIONS: Final = load_migrations(PACKAGE)

# Bodies up to this size stay in their entry's row; larger ones are stored apart.
INLINE_BYTES: Final = 256
BODY_COLUMN: Final = Entry.__struct_fields__.index("body")

Row = rows.Row
SHAPES: Final = Shapes(uuid_as_bytes=True)
