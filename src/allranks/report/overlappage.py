"""The page of `allranks overlap`: one file, nothing fetched from elsewhere, everything escaped (reads its template)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from allranks.overlap.verdict import percent, say_bytes, say_time

from .page import environment
from .testpage import NOT_TEXT

Row = Mapping[str, Any]

BARS = 64  # ranks in the plot
STEPS = 500  # rows of the table
NOTES = 100
LONGEST = 26  # characters of a rank's name
LEFT, WIDTH, RIGHT, BAR, ROW, TOP, BELOW = 190.0, 640.0, 70.0, 16.0, 24.0, 8.0, 44.0
TICKS = 5
# Okabe and Ito's. What is good is blue and green; what costs is orange; the rest is grey.
PARTS = (("computed", "#0072b2", "computation alone"), ("both", "#009e73", "computation and communication at once"),
         ("exposed", "#d55e00", "communication in the open"), ("copying", "#8a7000", "copies alone"),
         ("idle", "#9aa3b0", "idle"))  # fmt: skip
COLLECTIVES = ("size", "times", "median", "longest", "on", "hidden", "in the open", "waiting", "group")
HEADS = ("step", "length", "computing", "communicating", "both", "in the open", "copying", "idle")


def overlap_page(document: Row) -> str:
    """The page as HTML text, of the document that `--json` gives."""
    ranks, steps = document["ranks"], max(1, int(document["steps"]))
    rows = [step_row(rank, step) for rank in ranks for step in rank["steps"]]
    notes = [f"{rank['name']}: {note}" for rank in ranks for note in rank["notes"]] + list(document["notes"])
    text = environment().get_template("overlap.html").render(
        verdict=document["verdict"], summary=summary(document), plot=Markup(plot(ranks)),  # noqa: S704  (escapes)
        legend=[{"colour": colour, "text": words} for _, colour, words in PARTS],
        collective_heads=COLLECTIVES, collectives=[collective_row(c, steps) for c in document["collectives"]],
        left_out=document["collectives_left_out"], step_heads=HEADS, steps=rows[:STEPS],
        steps_left_out=max(0, len(rows) - STEPS), notes=notes[:NOTES],
    )  # fmt: skip
    return NOT_TEXT.sub("\ufffd", text)


def summary(document: Row) -> str:
    """`4 ranks, 8 steps of them, on gpu`."""
    ranks = document["ranks"]
    devices = " and ".join(sorted({str(rank["device"]).upper() for rank in ranks}))
    return f"{len(ranks)} traces, {document['steps']} steps of ranks, on {devices}; times are means of a rank's step"


def step_row(rank: Row, step: Row) -> tuple[str, ...]:
    """One step of one rank."""
    names = ("seconds", "computing", "communicating", "both", "exposed", "copying", "idle")
    number = "all" if step["step"] is None else str(step["step"])
    return (str(rank["name"])[:200], number, *(say_time(step[name]) for name in names))


def collective_row(group: Row, steps: int) -> tuple[str, ...]:
    """One kind of collective."""
    longest = group["longest"]
    where = longest["rank"] if longest["step"] is None else f"{longest['rank']}, step {longest['step']}"
    return (
        group["name"], say_bytes(group["size"]), str(group["count"]), say_time(group["median"]),
        say_time(longest["seconds"]), str(where)[:200], percent(group["hidden"]), say_time(group["exposed"] / steps),
        say_time(group["waiting"] / steps), group["group"],
    )  # fmt: skip


# -- the plot --------------------------------------------------------------------------------------


def plot(ranks: Sequence[Row]) -> str:
    """A bar a rank, its parts adding up to the mean step; as SVG, empty where there is nothing to draw."""
    shown = [rank for rank in ranks if rank["mean"]["seconds"] > 0]
    if not shown:
        return ""
    cut, longest = shown[:BARS], max(rank["mean"]["seconds"] for rank in shown)
    bottom = TOP + ROW * len(cut)
    width, height = LEFT + WIDTH + RIGHT, bottom + BELOW
    said = "Mean step of each rank: " + ", ".join(words for _, _, words in PARTS)
    parts = [
        f'<svg class="plot" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="currentColor" aria-label="{escape(said)}">',
        *_axis(longest, bottom),
    ]
    for at, rank in enumerate(cut):
        parts += _bar(rank, TOP + ROW * at, longest)
    if len(cut) < len(shown):
        parts.append(_text(LEFT, bottom + 38, f"and {len(shown) - len(cut)} more ranks", "start"))
    return "\n".join([*parts, "</svg>"])


def _axis(longest: float, bottom: float) -> list[str]:
    """Lines at round parts of the longest step."""
    parts = []
    for at in range(TICKS + 1):
        x = LEFT + WIDTH * at / TICKS
        parts.append(f'<path d="M{x:.1f} {TOP:g}V{bottom:g}" stroke="currentColor" stroke-opacity="0.15"/>')
        parts.append(_text(x, bottom + 16, say_time(longest * at / TICKS), "middle"))
    return parts


def _bar(rank: Row, y: float, longest: float) -> list[str]:
    mean, name = rank["mean"], str(rank["name"])
    lengths = {**mean, "computed": mean["computing"] - mean["both"]}
    short = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
    parts = [f"<g><title>{escape(name)}</title>{_text(LEFT - 8, y + BAR - 3, short, 'end')}</g>"]
    x = LEFT
    for key, colour, words in PARTS:
        length = WIDTH * max(0.0, lengths[key]) / longest
        if length > 0:
            title = f"{name}, {words}: {say_time(lengths[key])} ({percent(lengths[key] / mean['seconds'])})"
            parts.append(f'<rect class="{key}" x="{x:.2f}" y="{y:.1f}" width="{length:.2f}" height="{BAR:g}" '
                         f'fill="{colour}"><title>{escape(title)}</title></rect>')  # fmt: skip
        x += length
    return [*parts, _text(x + 6, y + BAR - 3, say_time(mean["seconds"]), "start")]


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
