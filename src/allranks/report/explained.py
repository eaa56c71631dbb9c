"""The page of a cause or of a check, out of the tables: `allranks explain` prints it, docs/reference has it (pure)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allranks.diagnose.causes import CAUSES, OF_THE_PROGRAM, Cause, Charge, in_place
from allranks.diagnose.signatures import site
from allranks.exitcodes import MEANINGS, PROGRAM_FAILED
from allranks.gang.policy import ROWS
from allranks.preflight.check import Check
from allranks.text import cut, group, join_words

# What --retries does, by the condition that gang.policy knows by name.
_AGAIN = {
    "always": "`--retries N` tries again",
    "never": "`--retries N` does not try again",
    "progress": "`--retries N` tries again once a step, or five minutes, have passed",
    "hang": "`--on-hang restart` uses one of the `--retries N`",
}
_NAMES = ("allranks", "ssh", "torch")  # they begin a sentence as they are
_LEVELS = {
    "quick": "Before every run, and with `allranks check`.",
    "full": "With `allranks check`, but not before a run or with `--level quick`.",
}


# States that `ps`, `status`, `top` and status.json have: whose each is, what it says, and what can be done about it.
STATES = {
    "starting": ("a run", "nodes are reached and looked at", ""),
    "gating": ("a run", "each node connects to the master's address and port", ""),
    "proving": ("a run", "all nodes have reached the master, and ranks begin", ""),
    "ending": ("a run", "its processes are being ended on all nodes", ""),
    "running": ("a run or a node", "ranks are there and go on", ""),
    "done": ("a run", "all ranks ended with code 0", ""),
    "stopped": ("a run", "a person or a service asked it to end", ""),
    "orphaned": (
        "a run",
        "the allranks that controlled it has died, and nothing says yet that its ranks have ended",
        "`allranks attach RUN` takes it over within the lease. After it the nodes have ended the ranks.",
    ),
    "connecting": ("a node", "it is being reached", ""),
    "ready": ("a node", "it was reached, and no rank of it has begun", ""),
    "silent": ("a node", "nothing has been heard from it for some beats, and its lease goes on", ""),
    "lost": (
        "a node or a rank",
        "nothing was heard from its node for the whole lease. The node has ended the ranks by itself",
        "See whether the node is up with `ssh NODE uptime`. `--node-wait` waits for one that comes back.",
    ),
    "unreachable": ("a node", "it could not be reached", "`allranks check` says why."),
    "ended": ("a node", "its ranks have ended, and its agent has left", ""),
    "spare": ("a node", "it stands by, and takes the place of a node that fails", ""),
    "unfit": ("a spare", "a check has failed on it, so it takes no node's place", "`allranks check` says which."),
    "away": (
        "a node",
        "it is lost or did not come, the others go on, and it is reached again for as long as the run lasts",
        "It gets its place back as --regrow says. `allranks check` says why it cannot be reached.",
    ),
    "replaced": ("a node", "a spare has taken its place", ""),
    "waiting": ("a rank", "it has not been started yet", ""),
    "started": ("a rank", "its process is there, and it is in no process group yet", ""),
    "initialised": ("a rank", "it is through init_process_group", ""),
    "exited": ("a rank", "it ended with code 0", ""),
    "killed": ("a rank", "a signal ended it", "The verdict says whose."),
    "failed": ("a run or a rank", "it ended with another code than 0", "`allranks diagnose RUN` says why."),
}


class Section(NamedTuple):
    """A heading and the paragraphs below it."""

    heading: str
    paragraphs: tuple[str, ...]


class ExplainedPage(NamedTuple):
    """What is said of a cause, a check or a state, which is its `kind`."""

    name: str
    kind: str
    summary: str
    sections: tuple[Section, ...]


def explained(name: str, checks: Mapping[str, Check]) -> ExplainedPage | None:
    """Give the page of a cause, one of the checks, or a state; None for another name."""
    if name in CAUSES:
        return cause_page(CAUSES[name])
    if name in checks:
        return check_page(checks[name])
    if name not in STATES:
        return None
    whose, meaning, step = STATES[name]
    sections = (Section("Next step", (step,)),) if step else ()
    return ExplainedPage(name, "state", f"Of {whose}: {meaning}.", sections)


def cause_page(cause: Cause) -> ExplainedPage:
    """Say when a verdict names the cause, what to do, and what follows."""
    sections = [
        Section("Next step", (_sentence(in_place(cause.next_step)),)),
        Section("Fix", (_sentence(in_place(cause.fix)),)),
        *_in_worlds(cause),
        Section("Exit code", _exit_codes(cause)),
        Section("Another attempt", _another_attempt(cause)),
    ]
    of_site = [f"{row.id}: `{row.pattern}` (of {row.source})." for row in site.rows() if row.cause == cause.id]
    if of_site:
        sections.append(Section("Signatures of this site", tuple(of_site)))
    if cause.explains:
        follow = join_words(sorted(cause.explains))
        sections.append(Section("Explains", (f"Where they are seen too, these only follow from it: {follow}.",)))
    explained_by = sorted(other.id for other in CAUSES.values() if cause.id in other.explains)
    if explained_by:
        other = join_words(explained_by, "or")
        sections.append(Section("Explained by", (f"Where it is seen too, the fault is {other}.",)))
    return ExplainedPage(cause.id, "cause", _sentence(_capitalised(cause.meaning)), tuple(sections))


def _in_worlds(cause: Cause) -> list[Section]:
    """Give a section to each column of the cause, one to those that say the same."""
    by_text = group(cause.worlds, lambda world: cause.worlds[world])
    return [
        Section(
            f"On {join_words([world.value for world in worlds])}",
            tuple(
                _sentence(in_place(text, worlds=frozenset(worlds))) for text in (column.next_step, column.fix) if text
            ),
        )
        for column, worlds in by_text.items()
    ]


def _exit_codes(cause: Cause) -> tuple[str, ...]:
    failed, not_failed = cause.ends.value
    codes = [f"{failed} ({MEANINGS[failed]})"]
    if failed != not_failed:
        codes.append(f"{not_failed} ({MEANINGS[not_failed]}) where no rank failed")
    if cause.id in OF_THE_PROGRAM:
        codes.append(f"{PROGRAM_FAILED} ({MEANINGS[PROGRAM_FAILED]}) where the program ended and did not hang")
    return (f"{', '.join(codes)}.",)


def _another_attempt(cause: Cause) -> tuple[str, ...]:
    if cause.id == "program-exception":
        outside = "`--retries N` tries again where the exception speaks of a connection, a file server or a service."
        return (outside, f"After another one it does not. The reason: {ROWS[Charge.PROGRAM].why}.")
    row = ROWS[cause.charge]
    if row.again == "hang":
        return (f"{_AGAIN[row.again]}.",)
    texts = [f"{_AGAIN[row.again]}. The reason: {row.why}."]
    if row.replace:
        texts.append("With `--spares K` a hot spare takes the place of the node.")
    return tuple(texts)


def check_page(check: Check) -> ExplainedPage:
    """Say what passes, when the check is made, and how to choose it."""
    sections = []
    if check.about:
        sections.append(Section("How it judges", check.about))
    made = [_LEVELS[check.level]]
    if check.between_machines:
        made.append("It says nothing of virtual nodes on one machine.")
    sections.append(Section("When", (" ".join(made),)))
    chosen = f"`allranks check --only {check.name} …` makes this check alone."
    allowed = f"`--allow {check.name}` turns its failures into warnings."
    sections.append(Section("Options", (f"{chosen} {allowed}",)))
    return ExplainedPage(check.name, "check", f"{check.title}.", tuple(sections))


def text_of(page: ExplainedPage, width: int) -> str:
    """Write a page for a terminal of so many columns."""
    lines = [f"{page.name} ({page.kind})", *_wrapped(page.summary, width, "  ")]
    for section in page.sections:
        lines += ["", section.heading]
        for paragraph in section.paragraphs:
            lines += _wrapped(paragraph, width, "  ")
    return "\n".join(lines)


_HEADINGS = (("cause", "Causes of a verdict"), ("check", "Checks of the nodes"), ("state", "States"))


def list_lines(pages: Sequence[ExplainedPage], width: int) -> list[str]:
    """Write a line a page for a terminal of so many columns, each kind apart."""
    column = max(len(page.name) for page in pages)
    lines: list[str] = []
    kinds = {page.kind for page in pages}
    for kind, heading in _HEADINGS:
        if kind in kinds:
            lines += ["", heading]
        named = [f"  {page.name:<{column}}  {page.summary}" for page in pages if page.kind == kind]
        lines += [cut(line, width) for line in named]
    return [*lines[1:], "", "`allranks explain NAME` prints one of them."]


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Break lines at spaces alone: a path or an option is not torn."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _capitalised(text: str) -> str:
    """Begin a sentence; a program's name keeps its form."""
    first = text.partition(" ")[0]
    return text if first in _NAMES or not first.islower() else text[:1].upper() + text[1:]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "…")) else f"{text}."
