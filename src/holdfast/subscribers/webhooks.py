"""Webhooks: subscriptions that the store keeps. Each is a run; its progress is the run's state.

Nothing but runs is stored: they are listed, verified, blocked and audited like any other. Their own
entries are no events. The secret of a signature is named (`secret://NAME`), never stored.
"""

import builtins
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from holdfast import names, settings
from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.context import Context
from holdfast.engine.reading.events import SUBSCRIBER, Feed, wanted_of
from holdfast.engine.runs import Runs
from holdfast.errors import ConflictError, IllegalMove, MisuseError, RunExists, WebhookNotFound
from holdfast.kernel.events import FeedPosition
from holdfast.kernel.runs import ENDED, RunRow, RunStatus
from holdfast.stores.reads import RunFilter
from holdfast.subscribers import http_post

SECRET: Final = "secret://"
TRANSPORT: Final = "transport:"
PROGRESS: Final = "progress"
_PREFIX: Final = "webhook:"
_SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_LONGEST_NAME: Final = 200
DAY_SECONDS: Final = 86_400.0
_PAGE: Final = 1000


class WebhookSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants which events; those left empty mean any."""

    url: str
    secret: str = ""
    kinds: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    give_up_seconds: float = DAY_SECONDS

    @property
    def queue(self) -> str:
        """The queue of the transport that gets the events; "" if they are posted."""
        return self.url.removeprefix(TRANSPORT) if self.url.startswith(TRANSPORT) else ""


class WebhookInput(msgspec.Struct, frozen=True):
    """What the run of a webhook is given: its spec, and the place in the feed to begin after."""

    spec: WebhookSpec
    after: FeedPosition


class WebhookProgress(msgspec.Struct, frozen=True):
    """How far a webhook is; `failing_since` is 0 while it is well."""

    position: FeedPosition
    delivered: int = 0
    failing_since: int = 0
    error: str = ""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook's present state: `status` is that of its run, `note` why that is blocked."""

    name: str
    url: str
    secret: str
    kinds: tuple[str, ...]
    agents: tuple[str, ...]
    give_up_seconds: float
    run_id: str
    status: RunStatus
    note: str
    position: str
    delivered: int
    failing_since: int
    error: str


def secret_of(reference: str) -> str:
    """The value of the secret that a reference names; raises NotDelivered if it is not here."""
    name = reference.removeprefix(SECRET)
    found = settings.secret(name)
    if not found:
        raise http_post.NotDelivered(f"the secret {name} is not set where this worker is")
    return found


class Webhooks:
    """The webhooks of the tenant."""

    def __init__(self, context: Context, runs: Runs) -> None:
        self._context = context
        self._runs = runs
        self._checkpoints = Checkpoints(context)

    async def add(
        self,
        url: str,
        *,
        name: str,
        secret: str = "",
        kinds: Iterable[str] = (),
        agents: Iterable[str] = (),
        after: str | None = None,
        give_up_seconds: float = DAY_SECONDS,
    ) -> Webhook:
        """Deliver events to a URL, signed, at least once each and in order for each run.

        `url` may also be `transport:QUEUE`, a queue of the transport that workers have. `secret` is
        where theirs is found: `secret://NAME`. Begins now, or as `hf.events(after)` does. The same
        again changes nothing; a webhook of this name that differs raises ConflictError. Workers
        deliver; what fails for `give_up_seconds` is blocked until `resume`.
        """
        spec = _checked(url, secret, kinds, agents, give_up_seconds)
        if len(names.check(name, what="the name of a webhook")) > _LONGEST_NAME:
            raise MisuseError(f"the name of a webhook has at most {_LONGEST_NAME} characters")
        begin = WebhookInput(spec, await Feed(self._context).position(after))
        earlier = await self._context.store.runs.page(_of_name(name))
        alive = [run for run in earlier if run.status not in ENDED]
        if not alive:
            run_id = f"{_PREFIX}{name}#{len(earlier) + 1}"
            with suppress(RunExists):  # somebody adds it at the same time
                await self._runs.create(run_id, agent=SUBSCRIBER, input=begin, subject=name)
        found = await self.get(name)
        if (await self._beginning(found.run_id)).spec != spec:
            raise ConflictError(
                f"there is a webhook {name!r} already, which differs; remove it first: "
                f"`holdfast webhooks remove {name}`"
            )
        return found

    async def list(self) -> "list[Webhook]":
        """All webhooks that are not removed, by name."""
        found: builtins.list[RunRow] = []
        page: builtins.list[RunRow] | None = None
        while page is None or len(page) == _PAGE:
            before = page[-1] if page else None
            page = await self._runs.list(agent=SUBSCRIBER, limit=_PAGE, before=before)
            found += [run for run in page if run.status not in ENDED]
        shown = [await self._shown(run) for run in found]
        return sorted(shown, key=lambda each: each.name)

    async def get(self, name: str) -> Webhook:
        """One webhook; raises WebhookNotFound."""
        found = await self._context.store.runs.page(_of_name(name))
        alive = [run for run in found if run.status not in ENDED]
        if not alive:
            raise WebhookNotFound(
                f"there is no webhook {name!r}; `holdfast webhooks list` shows those that are"
            )
        return await self._shown(alive[0])

    async def remove(self, name: str, *, by: str = "") -> None:
        """Deliver nothing more. What it did stays on the record; its name can be used again."""
        await self._runs.cancel((await self.get(name)).run_id, by=by, note="removed")

    async def resume(self, name: str, *, by: str = "") -> Webhook:
        """Deliver again from where it was given up, with nothing left out."""
        found = await self.get(name)
        if found.status is not RunStatus.BLOCKED:
            raise IllegalMove(f"webhook {name!r} is not blocked, so there is nothing to resume")
        await self._runs.unblock(found.run_id, by=by, note="resumed")
        return await self.get(name)

    async def _beginning(self, run_id: str) -> WebhookInput:
        return msgspec.convert(await self._runs.input(run_id), WebhookInput)

    async def _shown(self, run: RunRow) -> Webhook:
        begin = await self._beginning(run.run_id)
        stored = (await self._checkpoints.load(run.run_id)).get(PROGRESS)
        known = (
            WebhookProgress(begin.after)
            if stored is None
            else msgspec.convert(stored, WebhookProgress)
        )
        feed = Feed(self._context)
        await feed.position(None)
        return Webhook(
            name=run.subject,
            **msgspec.structs.asdict(begin.spec),
            run_id=run.run_id,
            status=run.status,
            note=await self._runs.note(run.run_id) if run.status is RunStatus.BLOCKED else "",
            position=feed.text_of(known.position),
            delivered=known.delivered,
            failing_since=known.failing_since,
            error=known.error,
        )


def _of_name(name: str) -> RunFilter:
    return RunFilter(agent=SUBSCRIBER, subject=name, limit=_PAGE)


def _checked(
    url: str, secret: str, kinds: Iterable[str], agents: Iterable[str], give_up_seconds: float
) -> WebhookSpec:
    wanted = wanted_of(None, kinds, agents)
    spec = WebhookSpec(
        url=url,
        secret=secret,
        kinds=wanted.kinds,
        agents=wanted.agents,
        give_up_seconds=float(give_up_seconds),
    )
    if give_up_seconds <= 0:
        raise MisuseError(f"give_up_seconds is a time above 0, not {give_up_seconds!r}")
    if spec.queue:
        names.check(spec.queue, what="queue")
        return spec
    http_post.check_url(url)
    if not secret.startswith(SECRET) or not _SECRET_NAME.fullmatch(secret.removeprefix(SECRET)):
        # Not quoted: it may be the secret itself.
        raise MisuseError(
            "posts to a URL are signed: name the secret with --secret secret://HOOK, in Python "
            "secret='secret://HOOK'. It is the value of HOLDFAST_SECRET_HOOK where workers run, "
            "and is not stored. Only transport:QUEUE needs none"
        )
    return spec
