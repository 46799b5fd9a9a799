"""Tokens in a file of digests: what is accepted, and what is refused."""

import hashlib
import os
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.edges.mcp import TokenFile
from holdfast.edges.mcp.access import tokens
from holdfast.errors import MisuseError, NotFoundError
from holdfast.testing.store_suite import async_test

GOOD = hashlib.sha256(b"s3cret").hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def write(file: Path, *lines: str) -> None:
    file.write_text("".join(f"{line}\n" for line in lines))
    file.chmod(0o600)


@async_test
async def test_a_token_is_known_by_its_digest_alone(file: Path) -> None:
    made, line = tokens.add(file, "ann", scopes=["operator"], lifetime=timedelta(days=30))
    other, _ = tokens.add(file, "ann")
    assert made not in file.read_text()
    assert line.digest == hashlib.sha256(made.encode()).hexdigest()
    assert file.stat().st_mode & 0o777 == 0o600
    known = TokenFile(file)
    found, plain = await known.verify_token(made), await known.verify_token(other)
    assert found is not None
    assert plain is not None
    assert (found.client_id, found.scopes, found.expires_at) == (
        "ann",
        ["operator"],
        line.expires_at,
    )
    assert (plain.client_id, plain.scopes, plain.expires_at) == ("ann", [], None)
    assert await known.verify_token(made[:-1]) is None
    assert await known.verify_token("") is None


@async_test
async def test_a_file_is_read_again_when_it_changes(file: Path) -> None:
    write(file, f"ann - {GOOD}  # her laptop", "", "# nobody else")
    known = TokenFile(file)
    assert await known.verify_token("s3cret") is not None
    write(file, f"ann - {GOOD} 2020-01-01T00:00:00Z")
    assert await known.verify_token("s3cret") is None
    write(file, f"bob - {GOOD} 2999-01-01T00:00:00Z")
    found = await known.verify_token("s3cret")
    assert found is not None
    assert found.client_id == "bob"
    file.write_text("ann - torn")
    assert await known.verify_token("s3cret") is None
    write(file, f"bob - {GOOD}")
    assert await known.verify_token("s3cret") is not None
    file.unlink()
    assert await known.verify_token("s3cret") is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ann", "NAME SCOPES SHA256"),
        ("ann - s3cret", "64 hex digits"),
        (f"ann op/erator {GOOD}", "no scope"),
        (f"ann - {GOOD} tomorrow", "no moment"),
        (f"ann - {GOOD} 2030-01-01T00:00:00", "time zone"),
    ],
)
def test_a_line_that_cannot_be_read_is_told_with_its_place(
    file: Path, line: str, said: str
) -> None:
    write(file, f"bob - {GOOD}", line)
    with pytest.raises(MisuseError, match=f"line 2: .*{said}"):
        TokenFile(file)
    with pytest.raises(MisuseError, match="line 2"):
        tokens.add(file, "carl")
    assert len(file.read_text().splitlines()) == 2


def test_a_file_that_others_write_or_that_is_not_there_is_refused(file: Path) -> None:
    with pytest.raises(NotFoundError, match="holdfast mcp token"):
        TokenFile(file)
    write(file, f"ann - {GOOD}")
    os.chmod(file, 0o660)
    with pytest.raises(MisuseError, match="chmod go-w"):
        TokenFile(file)
    with pytest.raises(MisuseError, match="chmod go-w"):
        tokens.add(file, "bob")


@pytest.mark.parametrize("name", ["", "two words", "a#b", "x" * 256, "a\nb - c"])
def test_a_name_that_would_break_a_line_is_refused(file: Path, name: str) -> None:
    with pytest.raises(MisuseError, match="a name is"):
        tokens.add(file, name)
    assert not file.exists()


def test_a_line_is_added_after_one_without_an_end(file: Path) -> None:
    file.write_text(f"ann - {GOOD}")
    file.chmod(0o600)
    _, line = tokens.add(file, "bob")
    assert file.read_text() == f"ann - {GOOD}\nbob - {line.digest}\n"
