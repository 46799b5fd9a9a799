"""What an agent is made of: recorded with its turns, to be compared when a run resumes later."""

import msgspec


class Versions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of VERSIONS_RECORDED. A digest is hexadecimal, and empty where there is nothing."""

    agent_version: str = ""
    model: str = ""
    prompt_digest: str = ""
    tools_digest: str = ""


def changes(before: Versions, after: Versions) -> dict[str, tuple[str, str]]:
    """The fields that differ: what each was, and what it is."""
    return {
        name: (getattr(before, name), getattr(after, name))
        for name in Versions.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    }
