"""A research agent that reads a small library, takes notes, and writes a report.

    python examples/research/main.py --crash-after 6
    python examples/research/main.py

Each call of a model or a tool is told, and counted: the process can be killed after any of them.
See README.md.
"""

import argparse
import asyncio
import os
import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import holdfast
from holdfast import Happened, Key, NotDone, Run, ToolCall
from holdfast.errors import HoldfastError

LIBRARY = Path(__file__).parent / "library"
# On another machine, a killed process keeps its run for as long as its lease.
SETTINGS = holdfast.Settings(lease_seconds=3)


class Calls:
    """Tells each call as it is done, and kills the process after so many of them."""

    def __init__(self) -> None:
        self.left = 0
        self._lock = threading.Lock()  # tools that block run in threads

    def done(self, what: str) -> None:
        with self._lock:
            print(f"  {what}", flush=True)
            self.left -= 1
            if self.left == 0:
                print("  kill -9", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)  # what it did is there, its result is not


CALLS = Calls()


@dataclass(frozen=True)
class Question:
    """Something to find out, and what was found."""

    text: str
    word: str
    answer: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What the report will be made of."""

    topic: str
    questions: tuple[Question, ...]

    @property
    def open_questions(self) -> list[Question]:
        return [question for question in self.questions if not question.answer]

    def with_answer(self, question: Question) -> "Plan":
        questions = [question if q.text == question.text else q for q in self.questions]
        return replace(self, questions=tuple(questions))

    @property
    def report(self) -> str:
        parts = [f"# {self.topic}\n"]
        parts += [
            f"## {q.text}\n\n{q.answer}\n\nSources: {', '.join(q.sources)}\n"
            for q in self.questions
        ]
        return "\n".join(parts)


# The model. This one is scripted; a real one is called in the same way.


async def make_plan(topic: str) -> Plan:
    CALLS.done("model: a plan")
    words = ("kelp", "urchins", "tide")
    return Plan(topic, tuple(Question(f"What is known of {w}?", w) for w in words))


async def summarize(word: str, texts: list[str]) -> str:
    CALLS.done(f"model: a summary about {word}")
    lines = [line for text in texts for line in text.splitlines()]
    return " ".join(line for line in lines if word in line.lower())


# The tools.


@holdfast.tool(effect="read")
def search(word: str) -> list[str]:
    """The files of the library in which a word stands."""
    CALLS.done(f"search {word}")
    files = sorted(LIBRARY.glob("*.txt"))
    return [file.name for file in files if word in file.read_text(encoding="utf-8").lower()]


@holdfast.tool(effect="read")
def read(file: str) -> str:
    """The text of a file."""
    CALLS.done(f"read {file}")
    return (LIBRARY / Path(file).name).read_text(encoding="utf-8")


@holdfast.tool(effect="idempotent")
def take_note(name: str, text: str) -> str:
    """Keep a note; the same note again changes nothing."""
    Path("notes").mkdir(exist_ok=True)
    Path("notes", f"{name}.txt").write_text(text + "\n", encoding="utf-8")
    CALLS.done(f"note {name}")
    return name


def find_report(file: str, key: Key) -> Happened[str] | NotDone:
    """Asked after a crash: the report that this very call wrote says so in its last line."""
    path = Path(file)
    if path.exists() and path.read_text(encoding="utf-8").endswith(f"<!-- {key} -->\n"):
        return Happened(file)
    return NotDone()


@holdfast.tool(effect="mutate", verify=find_report, limit_seconds=5)
def publish(file: str, text: str, *, key: Key) -> str:
    """Append a report to a file that others read."""
    with Path(file).open("a", encoding="utf-8") as out:
        out.write(f"{text}\n<!-- {key} -->\n")
        out.flush()
        os.fsync(out.fileno())
    CALLS.done(f"publish {file}")
    return file


@holdfast.agent(tools=[search, read, take_note, publish])
async def research(run: Run, topic: str) -> str:
    plan = run.value("plan", Plan)
    if not plan.is_set:
        plan.set(await run.model(make_plan, topic))
        await run.checkpoint(phase="planned")
    for question in plan.get().open_questions:
        files = await run.call(search, question.word)
        calls = [ToolCall(id=file, name="read", args={"file": file}) for file in files]
        texts = [message.results[0].content for message in await run.tools(calls)]  # at once
        answer = await run.model(summarize, question.word, texts)
        await run.call(take_note, question.word, answer)
        found = replace(question, answer=answer, sources=tuple(files))
        plan.set(plan.get().with_answer(found))
        await run.checkpoint(phase=f"answered: {question.word}")
    return await run.call(publish, "report.md", plan.get().report)


async def work(args: argparse.Namespace) -> str:
    async with holdfast.Holdfast("research.db", agents=[research], settings=SETTINGS) as hf:
        return await hf.run(research, args.topic, run_id=args.run)


def main() -> None:
    parser = argparse.ArgumentParser(description="Research that survives kill -9.")
    parser.add_argument("topic", nargs="?", default="Life on a rocky coast")
    parser.add_argument("--run", default="coast", help="which run [coast]")
    parser.add_argument("--crash-after", type=int, default=0, metavar="N", help="calls until kill")
    args = parser.parse_args()
    CALLS.left = args.crash_after
    print(f"process {os.getpid()} works on run {args.run}", flush=True)
    try:
        print(f"the report is in {asyncio.run(work(args))}")
    except HoldfastError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
