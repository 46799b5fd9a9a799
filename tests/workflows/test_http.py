"""HttpCall blocks: what they send, what they give, and what is known when a connection breaks."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block
from tests.agents.crashing import advance
from tests.workflows.reaching import block, carry_out, crashing, flow, opened, result
from tests.workflows.web import Web, serving

HERE = "memory://"


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as served:
        yield served


def http(url: str, id: str = "it", **inputs: Any) -> Block:
    options = {key: inputs.pop(key) for key in ("timeout", "retries") if key in inputs}
    return block("HttpCall", id, options=options, url=url, **inputs)


@async_test
async def test_a_request_is_sent_as_it_is_told(store: str, tmp_path: Path, web: Web) -> None:
    made = http(
        f"{web.url}/echo",
        method="POST",
        headers={"X-Own": "1"},
        params={"q": "a b", "n": 2},
        json={"text": "ä", "list": [1]},
        auth={"username": "u", "password": "p"},
    )
    async with opened(store, tmp_path) as hf:
        outcome = await hf.workflows.run(flow(made), run_id="r")
    outputs = outcome.blocks["it"].outputs
    (seen,) = web.seen
    assert outputs["status"] == 200
    assert outputs["json"] == seen
    assert outputs["headers"]["content-type"] == "application/json"
    assert seen["query"] == {"q": ["a b"], "n": ["2"]}
    assert seen["body"] in ('{"text":"ä","list":[1]}', '{"text": "ä", "list": [1]}')
    assert seen["headers"]["x-own"] == "1"
    assert seen["headers"]["authorization"] == "Basic dTpw"
    assert seen["headers"]["idempotency-key"]


@async_test
async def test_all_attempts_of_a_block_carry_one_key_and_two_blocks_do_not(
    tmp_path: Path, web: Web
) -> None:
    """An answer such as 504 does not say that nothing was done."""
    one, two = (http(f"{web.url}/status/504", id, method="POST", retries=1) for id in ("a", "b"))
    await carry_out(HERE, tmp_path, one, two)
    keys = [request["headers"]["idempotency-key"] for request in web.seen]
    assert len(keys) == 4
    assert sorted(map(keys.count, set(keys))) == [2, 2]


@async_test
async def test_a_request_that_reads_has_no_key_and_an_own_key_is_kept(
    tmp_path: Path, web: Web
) -> None:
    await result(HERE, tmp_path, http(f"{web.url}/echo"))
    own = http(f"{web.url}/echo", method="PUT", body="raw", headers={"idempotency-key": "mine"})
    await result(HERE, tmp_path, own)
    got, put = web.seen
    assert "idempotency-key" not in got["headers"]
    assert (put["headers"]["idempotency-key"], put["body"]) == ("mine", "raw")


@async_test
async def test_a_status_that_is_not_expected_is_a_failure_with_outputs(
    tmp_path: Path, web: Web
) -> None:
    bad = await result(HERE, tmp_path, http(f"{web.url}/status/418"))
    assert (bad.status, bad.error) == ("failed", "the answer was 418: as asked")
    assert (bad.outputs["status"], bad.outputs["body"]) == (418, "as asked")
    good = await result(HERE, tmp_path, http(f"{web.url}/status/418", expect=[418]))
    assert good.status == "completed"


@async_test
async def test_redirects_are_followed_only_if_that_is_told(tmp_path: Path, web: Web) -> None:
    stays = await result(HERE, tmp_path, http(f"{web.url}/moved"))
    assert (stays.status, stays.outputs["headers"]["location"]) == ("failed", "/echo")
    goes = await result(HERE, tmp_path, http(f"{web.url}/moved", follow_redirects=True))
    assert goes.outputs["json"]["path"] == "/echo"


@async_test
async def test_bodies_are_bounded_and_what_is_no_json_is_a_text(tmp_path: Path, web: Web) -> None:
    large = await result(HERE, tmp_path, http(f"{web.url}/large"))
    text = large.outputs["body"]
    assert text.startswith("firstxxx")
    assert text.endswith("xxxlast")
    assert len(text) < 300_000
    broken = await result(HERE, tmp_path, http(f"{web.url}/broken"))
    assert broken.outputs["body"] == "{no json"
    assert "json" not in broken.outputs


@async_test
async def test_json_of_more_than_16_megabytes_is_not_read(tmp_path: Path, web: Web) -> None:
    """What it holds would be stored whole; the ends of its text are kept as those of any other."""
    found = await result(HERE, tmp_path, http(f"{web.url}/huge"))
    assert (found.status, found.outputs["status"]) == ("completed", 200)
    assert found.outputs["headers"]["content-type"] == "application/json"
    assert "bytes are left out here" in found.outputs["body"]
    assert "json" not in found.outputs


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"url": "{{ 'ftp://host/x' }}"}, "no address of http"),
        ({"url": "{{ 'nowhere' }}"}, "no address of http"),
        ({"url": "http://host:port"}, "cannot be sent"),
        ({"url": "http://no-such-host.invalid/"}, "nothing was sent"),
        ({"url": "http://x", "json": 1, "body": "b"}, "json or body, not both"),
        ({"url": "http://x", "verify": {"url": "http://x"}}, "verify is for calls that mutate"),
        ({"url": "http://127.0.0.1:1", "headers": {"a": "b\r\nc: d"}}, "sent"),
    ],
)
@async_test
async def test_what_cannot_be_sent_is_told(
    tmp_path: Path, inputs: dict[str, Any], reason: str
) -> None:
    method = "GET" if "verify" in inputs else "POST"
    found = await result(HERE, tmp_path, block("HttpCall", method=method, **inputs))
    assert found.status == "failed"
    assert reason in found.error


@async_test
async def test_a_refused_connection_is_a_failure_that_is_known(store: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/pay"
        async with opened(store, tmp_path) as hf:
            made = flow(http(url, method="POST", retries=1))
            outcome = await hf.workflows.run(made, run_id="r")
            statuses = [effect.status.value for effect in await hf.effects.of_run("r")]
    assert outcome.status == "failed"
    assert "nothing was sent" in outcome.error
    assert statuses == ["not_done", "not_done"]


@async_test
async def test_a_connection_that_broke_leaves_a_person_to_find_out(
    store: str, tmp_path: Path, web: Web
) -> None:
    async with opened(store, tmp_path) as hf:
        made = flow(http(f"{web.url}/pay/lost", method="POST"))
        outcome = await hf.workflows.run(made, run_id="r")
        assert outcome.status == "blocked"
        assert "nobody knows whether HttpCall happened" in outcome.error
        (effect,) = await hf.effects.of_run("r")
        assert web.done == [web.seen[0]["headers"]["idempotency-key"]]
        answer = {"status": 201, "headers": {}, "body": "paid"}
        await hf.effects.settle(effect.effect_id, "completed", result=answer)
        outcome = await hf.workflows.run(made, run_id="r")
        assert (outcome.status, outcome.blocks["it"].outputs) == ("completed", answer)
    assert len(web.done) == 1


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("lost", "completed", ""),
        ("503", "completed", ""),
        ("never", "failed", "the connection broke"),
    ],
)
@async_test
async def test_verify_finds_out(
    tmp_path: Path, web: Web, path: str, status: str, said: str
) -> None:
    verify = {"url": f"{web.url}/paid"}
    found = await result(
        HERE, tmp_path, http(f"{web.url}/pay/{path}", method="POST", verify=verify)
    )
    assert found.status == status
    assert said in found.error
    if status == "completed":
        assert (found.outputs["status"], found.outputs["body"]) == (200, f"paid {web.done[0]}")
    assert len(web.done) == (status == "completed")


@async_test
async def test_an_answer_that_does_not_come_in_time_is_in_doubt_if_it_mutates(
    tmp_path: Path, web: Web
) -> None:
    read = await result(HERE, tmp_path, http(f"{web.url}/slow", timeout=0.3))
    assert (read.status, "no answer in 0.3 s" in read.error) == ("failed", True)
    async with opened(HERE, tmp_path) as hf:
        made = flow(http(f"{web.url}/slow", method="POST", timeout=0.3))
        outcome = await hf.workflows.run(made, run_id="r")
    assert outcome.status == "blocked"


@async_test
async def test_a_call_that_was_made_is_verified_after_a_crash_and_not_made_again(
    store: str, tmp_path: Path, web: Web
) -> None:
    made = flow(http(f"{web.url}/pay", method="POST", verify={"url": f"{web.url}/paid"}))
    async with opened(store, tmp_path) as hf:
        await hf.workflows.start(made, run_id="r")
        with crashing("tool.after_call"):
            assert await advance(hf, "r") is None
        await advance(hf, "r")
        outcome = await hf.workflows.status("r")
    assert outcome.status == "completed"
    assert len(web.done) == 1
