"""The addresses of what can be read. Ids in them are percent-encoded: they may be any text."""

from typing import Final

from mcp.shared.uri_template import UriTemplate

TIMELINE: Final = UriTemplate.parse("holdfast://runs/{run_id}/timeline{?after}")
TRANSCRIPT: Final = UriTemplate.parse("holdfast://runs/{run_id}/transcript")
RESULT: Final = UriTemplate.parse("holdfast://runs/{run_id}/result")
WORKFLOW: Final = UriTemplate.parse("holdfast://workflows/{name}")


def timeline(run_id: str, *, after: int | None = None) -> str:
    """Where the record of a run is read, from an entry on if one is named."""
    paged = {} if after is None else {"after": str(after)}
    return TIMELINE.expand({"run_id": run_id} | paged)


def transcript(run_id: str) -> str:
    return TRANSCRIPT.expand({"run_id": run_id})


def result(run_id: str) -> str:
    return RESULT.expand({"run_id": run_id})


def workflow(name: str) -> str:
    return WORKFLOW.expand({"name": name})


def parts_of(uri: str, template: UriTemplate) -> dict[str, str] | None:
    """Return the values of a template's variables in an address; None if it does not match."""
    found = template.match(uri)
    if found is None:
        return None
    return {name: each for name, each in found.items() if isinstance(each, str)}
