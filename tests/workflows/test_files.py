"""Blocks that read, create and edit files: within their folder, whole or not at all, and once."""

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BlockFailed
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Dependency, Kit
from holdfast.workflows.access.files import Folder
from holdfast.workflows.blocks.edits import Edit, apply
from tests.agents.crashing import advance
from tests.workflows.reaching import block, carry_out, crashing, flow, opened, result

HERE = "memory://"


@async_test
async def test_files_are_read_by_paths_and_patterns(store: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ä")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("b")
    (tmp_path / "sub" / "raw.bin").write_bytes(b"\xff\0")
    outcome = await carry_out(
        store,
        tmp_path,
        block("ReadFiles", "texts", paths=["**/*.txt", "a.txt"]),
        block("ReadFiles", "raw", paths=["sub/raw.bin"], encoding="base64"),
    )
    assert outcome.blocks["texts"].outputs["files"] == [
        {"path": "a.txt", "content": "ä", "bytes": 2},
        {"path": "sub/b.txt", "content": "b", "bytes": 1},
    ]
    (raw,) = outcome.blocks["raw"].outputs["files"]
    assert base64.b64decode(raw["content"]) == b"\xff\0"


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"paths": ["missing"]}, "there is no file missing"),
        ({"paths": ["{{ '../secret' }}"]}, "outside the folder"),
        ({"paths": ["{{ '/etc/passwd' }}"]}, "outside the folder"),
        ({"paths": ["{{ '../*' }}"]}, "outside the folder"),
        ({"paths": ["link"]}, "outside the folder"),
        ({"paths": ["linked/secret"]}, "outside the folder"),
        ({"paths": ["raw"]}, "is no text in UTF-8"),
        ({"paths": ["large"], "max_bytes": 10}, "has over 10 bytes"),
        ({"paths": ["pipe"]}, "is no file"),
        ({"paths": ["."]}, "not a file in it"),
        ({"paths": ["a\0b"]}, "is no path"),
    ],
)
@async_test
async def test_what_cannot_be_read_is_told(
    tmp_path: Path, inputs: dict[str, Any], reason: str
) -> None:
    root = prepared(tmp_path)
    (root / "raw").write_bytes(b"\xff")
    (root / "large").write_text("x" * 100)
    os.mkfifo(root / "pipe")
    found = await result(HERE, root, block("ReadFiles", **inputs))
    assert found.status == "failed"
    assert reason in found.error


@async_test
async def test_a_pattern_leaves_out_what_lies_outside(tmp_path: Path) -> None:
    root = prepared(tmp_path)
    (root / "own").write_text("own")
    found = await result(HERE, root, block("ReadFiles", paths=["*", "linked/*"]))
    assert [file["path"] for file in found.outputs["files"]] == ["own"]


@async_test
async def test_a_file_is_created_once_and_told_by_its_digest(store: str, tmp_path: Path) -> None:
    made = block("CreateFile", path="new/deep/file", content="hello", mode="600")
    found = await result(store, tmp_path, made)
    file = tmp_path / "new" / "deep" / "file"
    digest = hashlib.sha256(b"hello").hexdigest()
    assert found.outputs == {"path": "new/deep/file", "bytes": 5, "sha256": digest}
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("hello", 0o600)
    assert [each.name for each in file.parent.iterdir()] == ["file"]


@async_test
async def test_a_file_that_is_there_is_kept_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "same").write_text("same")
    outcome = await carry_out(
        HERE,
        tmp_path,
        block("CreateFile", "refused", path="file", content="new"),
        block("CreateFile", "same", path="same", content="same"),
        block(
            "CreateFile",
            "over",
            path="file",
            content="bmV3",
            encoding="base64",
            overwrite=True,
            options={"depends_on": [Dependency(block="refused", required=False)]},
        ),
    )
    assert "overwrite: true" in outcome.blocks["refused"].error
    assert outcome.blocks["same"].status == "completed"
    assert outcome.blocks["over"].status == "completed"
    file = tmp_path / "file"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o640)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"path": "{{ '../x' }}"}, "outside the folder"),
        ({"path": "linked/x"}, "outside the folder"),
        ({"path": "."}, "not a file in it"),
        ({"path": "x", "mode": "rw"}, "mode 'rw' is none"),
        ({"path": "x", "encoding": "base64", "content": "%"}, "no base64"),
    ],
)
@async_test
async def test_what_cannot_be_created_is_told(
    tmp_path: Path, inputs: dict[str, Any], reason: str
) -> None:
    root = prepared(tmp_path)
    found = await result(HERE, root, block("CreateFile", **{"content": "x", **inputs}))
    assert found.status == "failed"
    assert reason in found.error
    assert sorted(each.name for each in tmp_path.iterdir()) == ["outside", "root"]
    assert [each.name for each in (tmp_path / "outside").iterdir()] == ["secret"]


def test_a_folder_that_is_swapped_for_a_link_does_not_lead_outside(tmp_path: Path) -> None:
    root = prepared(tmp_path)
    (root / "sub").mkdir()

    class Swapped(Folder):
        """The link is put there when the path was looked up and found to be fine."""

        def path(self, name: str) -> Path:
            found = super().path(name)
            (root / "sub").rmdir()
            (root / "sub").symlink_to(tmp_path / "outside")
            return found

    with pytest.raises(BlockFailed, match="cannot be written"):
        Swapped(root).write("sub/secret", b"mine")
    assert (tmp_path / "outside" / "secret").read_text() == "hidden"


@async_test
async def test_a_file_is_edited_as_a_whole(store: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one two two\n")
    edits = [
        {"old": "one", "new": "1"},
        {"old": "two", "new": "2", "all": True},
        {"operation": "insert_after", "anchor": "1", "new": "+"},
        {"operation": "insert_before", "anchor": "1", "new": "<"},
        {"operation": "append", "new": "end"},
        {"operation": "prepend", "new": "begin "},
    ]
    found = await result(store, tmp_path, block("EditFile", path="file", edits=edits))
    assert (tmp_path / "file").read_text() == "begin <1+ 2 2\nend"
    assert found.outputs["sha256"] == hashlib.sha256(b"begin <1+ 2 2\nend").hexdigest()


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"old": "x"}, "is there 2 times; say more of it"),
        ({"old": "z"}, "is there 0 times"),
        ({"old": ""}, "must say what is there: old"),
        ({"operation": "insert_after", "new": "n"}, "must say what is there: anchor"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused(edit: dict[str, Any], reason: str) -> None:
    with pytest.raises(BlockFailed, match=reason):
        apply("x x", [Edit(operation="append", new="!"), Edit(**edit)])


@pytest.mark.parametrize("point", ["tool.before_call", "tool.after_call"])
@async_test
async def test_an_edit_is_not_made_twice_after_a_crash(
    store: str, tmp_path: Path, point: str
) -> None:
    (tmp_path / "file").write_text("x")
    made = flow(block("EditFile", path="file", edits=[{"operation": "append", "new": "+"}]))
    async with opened(store, tmp_path) as hf:
        await hf.workflows.start(made, run_id="r")
        with crashing(point):
            assert await advance(hf, "r") is None
        assert (tmp_path / "file").read_text() == ("x" if point == "tool.before_call" else "x+")
        await advance(hf, "r")
        outcome = await hf.workflows.status("r")
    assert outcome.status == "completed"
    assert (tmp_path / "file").read_text() == "x+"


@async_test
async def test_a_file_that_somebody_else_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    made = flow(block("EditFile", path="file", edits=[{"operation": "append", "new": "+"}]))
    async with opened(HERE, tmp_path) as hf:
        await hf.workflows.start(made, run_id="r")
        with crashing("tool.before_call"):
            assert await advance(hf, "r") is None
        (tmp_path / "file").write_text("theirs")
        await advance(hf, "r")
        outcome = await hf.workflows.status("r")
    assert outcome.status == "failed"
    assert "changed by somebody else" in outcome.error
    assert (tmp_path / "file").read_text() == "theirs"


def test_a_kit_works_in_the_folder_of_the_process_unless_another_is_told() -> None:
    assert Kit().folder.root == Path.cwd()


def prepared(folder: Path) -> Path:
    """A folder with links that lead out of it."""
    root = folder / "root"
    root.mkdir()
    (folder / "outside").mkdir()
    (folder / "outside" / "secret").write_text("hidden")
    (root / "link").symlink_to(folder / "outside" / "secret")
    (root / "linked").symlink_to(folder / "outside")
    return root
