"""Events, findings, verdicts and the end of a run in words (pure)."""

from __future__ import annotations

import os.path
import shlex
from typing import Any

from allranks.text import count_of, format_ranks, name_with, plural

Document = dict[str, Any]
_SPARES = {
    "spare-ready": "spare     {node} is ready",
    "node-replaced": "{by} takes the place of {node}",
    "node-anew": "reaching {node} again",
}


def opening_lines(info: Document) -> list[str]:
    """What `run` opens with."""
    nodes = info["nodes"]
    names = ", ".join(_node(n) for n in nodes[:8]) + (f", … {len(nodes)} in all" if len(nodes) > 8 else "")
    spares = ", ".join(_node(n) for n in info.get("spares") or [])
    return [
        f"run       {info['run']}",
        f"directory {info['directory']}",
        f"command   {shlex.join(info['command'])}"
        + ("" if info["launcher"] == "direct" else f"   ({info['launcher']})"),
        f"nodes     {names}   (from {info['source']})",
        *([f"spares    {spares}"] if spares else []),
    ]


def _node(node: Document) -> str:
    name = name_with(node["name"], "" if node["host"] == "localhost" else node["host"])
    slots = f" slots={node['slots']}" if node.get("slots") else ""
    return f"{name}{slots}"


def event_line(event: Document, nodes: int) -> str | None:
    """The line for an event that a person wants to see; None for the others."""
    kind = event.get("event")
    node = event.get("node")
    if kind == "tree":
        return _tree_line(event)
    if kind == "gate-proved":
        who = f"all {nodes} nodes" if nodes > 1 else "the node"
        master = f"master    {node} {event['address']}:{event['port']}, reached by {who} in {event['seconds']:.2f} s"
        return f"{master}\nranks     {counts_text(event.get('ranks') or {})}"
    if kind == "all-initialised":
        return f"{_all_ranks(event['ranks'])} initialised in {event['seconds']:.1f} s"
    if kind == "test-passed":
        ranks = count_of(event["ranks"], "rank")
        return f"collective tests passed on {ranks} in {event['seconds']:.1f} s: starting the program"
    if kind == "hang-suspected":
        return f"nothing has moved for {event['quiet']:.0f} s: looking at every rank"
    if kind == "first-step":
        return f"first step after {event['seconds']:.1f} s"
    if kind == "attempt-start" and event.get("attempt"):
        return f"attempt {event['attempt']}"
    if kind == "finding":
        return finding_line(event)
    if kind == "fault":
        return f"note: {node}: {event['message']}"
    if kind == "signal":
        return f"{event['signal']} sent to {count_text(int(event['ranks']), 'rank')}"
    if kind == "job":
        return f"job       {event.get('job')}: {event.get('message')}"
    if kind == "note":
        return f"note: {event.get('message')}"
    if kind == "dropped":
        return _dropped_line(event)
    if kind == "launcher-paused":
        how = "this machine slept" if event["slept"] else "this process did not run"
        return f"note: {how} for {event['seconds']:.0f} s"
    if kind == "outputs-temporary":
        return _outputs_line(event)
    if kind == "node-silent":
        return f"{node} is silent: reconnecting"
    if kind == "node-back":
        return f"{node} is back"
    if kind == "node-lost":
        return f"{node} is lost: nothing heard for the whole lease"
    return _ending_line(event)


def _outputs_line(event: Document) -> str:
    """Where the program's files go that nobody fetches, and may be lost there."""
    places = [f"{node}:{path}" for node, path in list(event["nodes"].items())[:3]]
    more = f" and on {count_of(len(event['nodes']) - 3, 'more node')}" if len(event["nodes"]) > 3 else ""
    return f"note: ALLRANKS_OUTPUT_DIR is temporary: {', '.join(places)}{more}\n    keep files with --output-dir PATH"


def _dropped_line(event: Document) -> str | None:
    """Once a source: how much it was in the end stands in the closing lines."""
    if event["bytes"] < event.get("total", event["bytes"]):
        return None
    why = "what waits there has its share of the disk" if event.get("why") == "bound" else "it finds no room there"
    return f"rank {event.get('rank')}'s output on {event.get('node')} is being dropped: {why}"


def _tree_line(event: Document) -> str:
    """What --sync ships, and what it leaves out."""
    files = f"{event['files']:,} {plural(event['files'], 'file')}"
    line = f"sync      {files}, {event['bytes'] / (1 << 20):.1f} MB of {event['root']}"
    left_out = event.get("left_out") or []
    more = f", … {len(left_out)} in all" if len(left_out) > 4 else ""
    return line + (f"\nnote: left out as large: {', '.join(left_out[:4])}{more}" if left_out else "")


def count_text(number: int, noun: str) -> str:
    """ "1 rank", "2 ranks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def counts_text(ranks: Document) -> str:
    """The world size, with the ranks of each node where they differ."""
    total = sum(ranks.values())
    each = set(ranks.values())
    if len(each) == 1:
        return f"{total} in all, {each.pop()} a node"
    return f"{total} in all: " + ", ".join(f"{name} {count}" for name, count in ranks.items())


def _ending_line(event: Document) -> str | None:
    kind = event.get("event")
    if kind == "retry":
        return "\n".join([*verdict_lines(event["verdict"]), f"attempt {event['attempt'] + 1} follows"])
    if kind in _SPARES:
        return _SPARES[kind].format(**event)
    if kind == "ending" and event["reason"] not in ("done", "failure"):
        return _stop_line(event)
    if kind == "ending" and event["reason"] == "failure" and event.get("ranks"):
        return f"ending the other {event['ranks']} ranks" if event["ranks"] > 1 else "ending the other rank"
    if kind == "rank-exit" and not event.get("expected") and event.get("code") != 0:
        how = f"signal {event['signal']}" if "signal" in event else f"code {event.get('code')}"
        return f"rank {event['rank']} on {event.get('node')} ended with {how}"
    if kind == "node-clean" and event.get("left"):
        left = ", ".join(f"pid {p['pid']} in state {p['state']} ({p['command']})" for p in event["left"])
        return f"{event.get('node')}: could not be ended: {left}"
    return None


def _stop_line(event: Document) -> str:
    """An orderly end: how long the ranks have to save."""
    ranks = event.get("ranks")
    if ranks == 0:
        return f"{event['reason']}: ending the run"
    who = "all ranks" if ranks is None else count_of(ranks, "rank")
    return f"{event['reason']}: ending {who}, with {event['grace']:g} s to save"


def _all_ranks(count: int) -> str:
    return f"all {count} ranks" if count > 1 else "the rank"


def finding_line(finding: Document) -> str:
    """A finding as one or two lines."""
    sign = {"fail": "FAIL", "warn": "warning", "unknown": "unknown"}.get(str(finding.get("status")), "note")
    remedy = str(finding.get("remedy") or "")
    return f"{sign}: {finding.get('message')}" + (f"\n    {remedy}" if remedy and sign == "warning" else "")


def verdict_lines(verdict: Document) -> list[str]:
    """Cause and culprit in a sentence, its process, up to three lines of evidence, the fix, the victims."""
    doubt = f" (confidence {verdict['confidence']:.0%})" if verdict.get("confidence", 1) < 0.9 else ""
    lines = [f"VERDICT   {verdict['message']}", f"  cause   {verdict['cause']}{doubt}"]
    where = verdict.get("where") or {}
    if "pid" in where:
        gpu = f", GPU {where['gpu']}" if "gpu" in where else ""
        lines.append(f"  culprit rank {where['rank']} on {where.get('node', '?')}, pid {where['pid']}{gpu}")
    lines += [f"  saw     {item}" for item in verdict.get("evidence", [])[:3]]
    fix = [line for line in str(verdict.get("remedy") or "").splitlines() if line.strip()]
    lines += [f"  fix     {line}" if i == 0 else f"          {line}" for i, line in enumerate(fix)]
    victims = verdict.get("victims") or []
    if victims:
        lines.append(f"  victims {format_ranks(victims)} ended because of it")
    return lines + ([f"  next    {verdict['decision']}"] if verdict.get("decision") else [])


def _left_line(place: str, left: list[Document]) -> str:
    """What is left on a node; without a process id, an object of an engine."""
    if any(not item["pid"] for item in left):
        return f"LEFT {place}: " + ", ".join(str(item["command"]) for item in left)
    return f"LEFT on {place}: " + ", ".join(f"pid {item['pid']} ({item['command']})" for item in left)


def closing_lines(result: Document, verdict: Document | None) -> list[str]:
    """The end of a run: the verdict first, the run directory last."""
    lines: list[str] = []
    if verdict is not None:
        lines += ["", *verdict_lines(verdict)]
    lines += data_lines(result)
    for node, left in (result.get("left") or {}).items():
        lines.append(_left_line(node, left))
    for node, found in (result.get("unfetched") or {}).items():
        total = sum(found["fetched_bytes"].values())
        arrived = f"{total:,} {plural(total, 'byte')} arrived"
        lines.append(f"{node}'s logs end early ({arrived}); the rest, if it lives, is in {found['node_dir']}")
    for node, ranks in (result.get("dropped") or {}).items():
        lines += [
            f"{count:,} {plural(count, 'byte')} of rank {rank}'s output on {node} were dropped: no room there"
            for rank, count in ranks.items()
        ]
    elsewhere = {n: p for n, p in (result.get("outputs") or {}).items() if not p.startswith(_top(result))}
    if elsewhere:
        lines.append(
            "outputs   "
            + ", ".join(f"{n}:{p}" for n, p in list(elsewhere.items())[:4])
            + (" …" if len(elsewhere) > 4 else "")
        )
    lines += attempt_lines(result.get("attempts") or [])
    words = {0: "done", 130: "stopped by Ctrl-C", 143: "stopped"}.get(result["exit"], "failed")
    seconds = (result.get("timing") or {}).get("total", 0.0)
    tries = len(result.get("attempts") or [])
    note = f", {count_of(tries, 'attempt')}" if tries > 1 else ""
    lines.append(f"{words} after {seconds:.1f} s{note} (exit {result['exit']}); logs in {result.get('directory')}/logs")
    return lines


def attempt_lines(attempts: list[Document]) -> list[str]:
    """A line an attempt, where there were several."""
    lines = []
    for one in attempts if len(attempts) > 1 else []:
        culprit = one.get("culprit") or {}
        rank = f"rank {culprit['rank']}" if culprit.get("rank") is not None else ""
        place = culprit.get("node") or ", ".join(culprit.get("nodes") or [])
        who = " on ".join(word for word in (rank, place) if word)
        step = f" at step {one['step']}" if one.get("step") is not None else ""
        line = f"attempt {one['attempt']}  {one['outcome']} after {one['seconds']:.1f} s{step}"
        if one.get("cause"):
            line += f": {one['cause']}" + (f", {who}" if who else "")
        again = {"retry": "tried again: ", "finish": "not tried again: "}.get(str(one.get("decision")), "")
        lines.append(line + (f"; {again}{one['reason']}" if one.get("reason") else ""))
    return lines


def data_lines(result: Document) -> list[str]:
    """What --audit-data has found wrong, once more: in a long log the first warning is far away."""
    told = [f for f in result.get("findings") or [] if f.get("check") == "data-audit" and f.get("status") == "warn"]
    lines = []
    for one in told:
        lines += [f"DATA      {one.get('message')}", *([f"  fix     {one['remedy']}"] if one.get("remedy") else [])]
    return lines


def _top(result: Document) -> str:
    return os.path.abspath(str(result.get("directory")))
