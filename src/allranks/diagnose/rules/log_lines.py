"""Lines of logs that a row knows are what it says, for the rank or node whose line it is.

Equal causes are one candidate: the earliest line speaks, later ones are further evidence. Where every rank says
the same, no rank is to blame.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from allranks.findings import Where, place_of
from allranks.text import group, join_words, plural

from ..accusations import PARAMETERS, accusation
from ..candidate import Candidate, Strength
from ..logs.ends import after_abort
from ..logs.sightings import BELOW_FRAME, Evidence, Sighting, first, name_place, quoted
from ..out_of_memory import MemorySetting, gpu_levers, read_gpu
from ..signatures import Row, Sign, row_by_words, row_of_exception
from ..signatures.files import OFFLINE
from ..words import DECIDE_AT_START, LEFT_AT_START, LINE, STARTING_CALLS, name_by_node, short, without_numbers

STRENGTH = {
    Sign.SITE: Strength.SITE,
    Sign.ROOT: Strength.ROOT,
    Sign.WEAK: Strength.WEAK,
    Sign.SYMPTOM: Strength.SYMPTOM,
}
BEFORE = 40  # characters of a long line that are quoted before what tells
ALSO = 0.6  # of its confidence, for the second cause that a text can have


def read_candidate(evidence: Evidence, sightings: Sequence[Sighting]) -> Candidate:
    """Make a candidate of the earliest of the surest sightings, with the lines of the others."""
    surest = max(s.row.confidence for s in sightings)
    head = next(s for s in sightings if s.row.confidence >= surest - 0.05)
    where = _place(head, sightings)
    if "late" in head.groups and where.rank is not None:
        where = where._replace(node=evidence.node_of_rank(where.rank))
    ranks = frozenset(s.line.rank for s in sightings if s.line.rank is not None)
    if "late" in head.groups:  # by another
        ranks = frozenset(int(n) for n in re.findall(r"\d+", head.groups["late"]))
    is_everybody = "late" not in head.groups and len(ranks) > 1 and ranks >= evidence.ranks
    name = name_place(where) or name_place(head.place)
    if is_everybody:
        name = every_rank(ranks)
        where = where._replace(rank=None)
    message = ": ".join(filter(None, (name, short(_telling_part(head)).rstrip(" :"))))
    if head.row.means:
        message += f" ({head.row.means})"
    remedy = head.row.fix
    memory = read_gpu(head.line.text)
    if head.row.cause == "cuda-out-of-memory" and memory is not None:
        remedy = gpu_levers(memory, MemorySetting(), evidence.worlds)
    return Candidate(
        head.row.cause,
        head.row.confidence,
        message,
        remedy,
        STRENGTH.get(head.row.role, Strength.SYMPTOM),
        evidence=tuple(dict.fromkeys(quoted(s.line) for s in (head, *_others(sightings, head))))[:3],
        culprits=frozenset() if is_everybody or head.complains else ranks,
        where=where,
        rule=head.row.id,
        line=head.order,
        values={name: value for name, value in head.groups.items() if name not in ("type", "text")},
    )


def _telling_part(sighting: Sighting) -> str:
    """Give a long line from shortly before what its row has found: a quotation from its beginning would not hold it."""
    text = sighting.line.text
    match = sighting.row.find(text)
    if match is None or match.end() <= LINE:
        return text
    start = text.rfind(" ", 0, max(0, match.start() - BEFORE)) + 1
    return f"… {text[start:]}"


def read_by_cause(
    evidence: Evidence, rule: str, read: Callable[[Sighting], Candidate]
) -> dict[str, list[tuple[Sighting, Candidate]]]:
    """Read the sightings that a rule weighs, by the cause that each one says."""
    pairs = [(sighting, read(sighting)) for sighting in evidence.weighed_by(rule)]
    return group(pairs, lambda pair: pair[1].cause)


def every_rank(ranks: Collection[int | None]) -> str:
    """Write the subject where all ranks of the logs say the same."""
    return f"every rank in the logs ({len(ranks)})"


def _place(head: Sighting, sightings: Sequence[Sighting]) -> Where:
    """Add to the first line's place what all other lines agree on, without ranks that report another's failure."""
    where = head.place
    if head.complains:
        named = first(head.groups.get("node"), head.groups.get("node2")) or None
        where = where._replace(rank=None, gpu=None, node=named)
    places = [s.place for s in sightings]
    keys = ("peer", "interface", "port") if head.complains else ("node", "peer", "interface", "port", "gpu")
    for key in keys:
        values = {getattr(place, key) for place in places} - {None}
        if getattr(where, key) is None and len(values) == 1:
            where = where._replace(**{key: values.pop()})
    nodes = tuple(dict.fromkeys(place.node for place in places if place.node))
    if len(nodes) > 1 and where.rank is None and not head.complains:
        where = where._replace(node=None, nodes=nodes)
    return where


def _others(sightings: Sequence[Sighting], head: Sighting) -> list[Sighting]:
    newest = {(s.line.rank, s.row.id): s for s in reversed(sightings)}
    newest.pop((head.line.rank, head.row.id), None)
    return [*sorted(newest.values(), key=lambda s: s.order), *sightings]


def by_table(evidence: Evidence) -> list[Candidate]:
    """Make a candidate for each cause and role of the rows that no other rule weighs."""
    weighed = [s for s in evidence.sightings if s.row.role in STRENGTH and not s.row.rule]
    if evidence.of_rows("peer-closed", "store-lost", "rendezvous-shutdown"):  # the store was there before it was lost
        weighed = [s for s in weighed if s.row.id != "c10d-store"]
    candidates = []
    for sightings in group(weighed, lambda s: (s.row.cause, s.row.role)).values():
        candidate = read_candidate(evidence, sightings)
        if _ends_an_abort(evidence, candidate, sightings):
            candidate = replace(candidate, strength=Strength.SYMPTOM, confidence=0.3)
        candidates.append(candidate)
        doubtful = [s for s in sightings if s.row.also]
        if doubtful:  # the other cause that the same text can have: for the runners-up
            row = doubtful[0].row
            other = replace(read_candidate(evidence, doubtful), cause=row.also, remedy="")
            candidates.append(replace(other, strength=Strength.SYMPTOM, confidence=row.confidence * ALSO))
    return candidates


def _ends_an_abort(evidence: Evidence, candidate: Candidate, sightings: Sequence[Sighting]) -> bool:
    """Tell whether a crash only follows from what was aborted: by a complaint before it, or by a failed transport.

    NCCL frees its buffers when a transport fails, while its kernels still run: it then reports their illegal access.
    """
    if candidate.cause == "segfault-native" and candidate.strength is Strength.WEAK:
        return after_abort(evidence, next(s for s in sightings if s.order == candidate.line))
    if candidate.cause == "cuda-kernel-fault" and all("NCCL WARN Cuda failure" in s.line.text for s in sightings):
        return any(s.order < sightings[0].order for s in evidence.weighed_by("ib-completion"))
    return False


def hub(evidence: Evidence) -> list[Candidate]:
    """Explain a name that does not resolve by the site that was to be downloaded from just before."""
    fetched = evidence.of_rows("hub-download")
    failed = [
        s for s in evidence.of_rows("gai", "resolve", "refused", "connect-timeout", "no-route") if not s.place.node
    ]
    if not fetched or not failed or fetched[0].order > failed[0].order:
        return []
    candidate = read_candidate(evidence, [replace(s, row=OFFLINE) for s in failed])
    return [replace(candidate, values={"host": fetched[-1].groups["host"]})]


# -- exceptions that no row knows ------------------------------------------------------------------------

NOT_OWN = frozenset(
    {
        *("DistBackendError", "DistStoreError", "DistNetworkError", "DistError", "SignalException"),
        *("SystemExit", "KeyboardInterrupt", "ChildFailedError", "CalledProcessError", "BrokenPipeError"),
        *("ConnectionResetError", "ConnectionAbortedError", "EOFError", "StopIteration", "Empty"),
        *("RemoteTraceback", "ConnectionError", "NCCLError", "ProcessRaisedException", "RayActorError"),
        *("ActorDiedError", "NodeDiedError", "WorkerCrashedError"),
    }
)
_TRANSPORT = re.compile(
    r"NCCL (?:error|Error)|NCCL communicator|gloo/|\[c10d\]|Connection (?:closed|reset)|Broken pipe"
    r"|Caught \w+ in DataLoader worker|Engine core|EngineCore|[Ss]ee (?:stack trace|root cause|the (?:\w+ )?log)"
)


def _is_of_program(sighting: Sighting) -> bool:
    return sighting.kind not in NOT_OWN and not _TRANSPORT.search(sighting.line.text)


def exceptions(evidence: Evidence) -> list[Candidate]:
    """Make one candidate for each exception of the program: all ranks that raise alike are one."""
    # allranks' own agent writes what has failed there to its node's log
    raised = [s for s in evidence.weighed_by("exception") if not _OF_AGENT.search("".join(s.modules[-1:]))]
    of_program = filter(_is_of_program, raised)
    groups = group(of_program, lambda s: (s.kind, without_numbers(s.line.text)[:200]))
    return [_raised(evidence, sightings) for sightings in groups.values()]


_OF_AGENT = re.compile(r"\ballranks/(?:agent|protocol)/\w+\.py$")


def logged_exceptions(evidence: Evidence) -> list[Candidate]:
    """Make a candidate of the last exception that a message has in it: it may have been caught."""
    of_program = [*filter(_is_of_program, evidence.weighed_by("exception-logged"))]
    if not of_program:
        return []
    last = of_program[-1]
    candidate = read_candidate(evidence, [last])
    row = row_by_words(last.kind, last.groups.get("text", ""))
    return [candidate if row is None else by_words(candidate, row, last, candidate.confidence)]


def _raised(evidence: Evidence, sightings: list[Sighting]) -> Candidate:
    head = next((s for s in sightings if s.frame), sightings[0])
    candidate = read_candidate(evidence, sightings)
    ranks = {s.line.rank for s in sightings}
    name = name_place(candidate.where) or "the program"
    if candidate.where.rank is None and len(ranks) > 1:
        name = every_rank(ranks)
    message = f"{name} raised {short(head.exception).rstrip(' :')}"
    if head.frame:
        message += f" at {short(head.frame, 200)}"
    candidate = replace(candidate, message=message)
    text = head.groups.get("text", "")
    row = row_of_exception(head.kind, text, _trace(head))
    if row is None or not row.trace:  # without one its line would have shown it
        row = row_by_words(head.kind, text, _trace(head))
    unset = dict.fromkeys(_OPTION.findall(_code_above(evidence, head)) if "NoneType" in text else ())
    if row is None and unset:
        message = f"{message} (an option is not set: {join_words([*unset], 'or')})"
        remedy = f"Give the option, or correct its name: {join_words([f'`{name}`' for name in unset], 'or')}"
        return replace(candidate, cause="bad-launch-arguments", message=message, remedy=remedy)
    return candidate if row is None else by_words(candidate, row, head, row.confidence)


_OPTION = re.compile(r"\b(?:args|cfg|conf(?:ig)?|opts?|hparams)\.([a-z]\w{2,60})(?!\w*\()")


def _code_above(evidence: Evidence, raised: Sighting) -> str:
    """Find the line of code above an exception, behind which only marks may stand; empty where the log's end is cut."""
    numbers = range(raised.line.number - BELOW_FRAME, raised.line.number)
    above = [t.text for t in evidence.tail if t.file == raised.line.file and t.number in numbers]
    code = [text for text in above if text.startswith("    ") and text.strip(" ~^")]
    return code[-1] if code else ""


def by_words(candidate: Candidate, row: Row, sighting: Sighting, confidence: float) -> Candidate:
    """Give a candidate the cause that its words or its traceback tell, with the values of both."""
    found = row.find(f"{sighting.kind}: {sighting.groups.get('text', sighting.line.text)}")
    values = {} if found is None else {name: value for name, value in found.groupdict().items() if value}
    packages = [match[1] for match in map(_PACKAGE.search, sighting.modules) if match]
    if packages:
        values["package"] = packages[-1]
    return replace(
        candidate,
        cause=row.cause,
        strength=STRENGTH[row.role],
        confidence=confidence,
        message=f"{candidate.message} ({row.means})" if row.means else candidate.message,
        remedy=row.fix,
        values={**candidate.values, **values},
    )


_PACKAGE = re.compile(r"/(?:site|dist)-packages/(\w+)")


def _trace(raised: Sighting) -> str:
    frames = zip(raised.modules, raised.calls, strict=True)
    return "\n".join(f'  File "{file}", line 0, in {function}' for file, function in frames)


# -- rows that need a second look ------------------------------------------------------------------------


def accused(evidence: Evidence) -> list[Candidate]:
    """Name the rank that others accuse: it did not come to a barrier, or gives DDP another model."""
    reports = evidence.weighed_by("accused")
    read = accusation(((s.line.rank, s.line.text) for s in reports), evidence.ranks)
    if read is None:
        return _without_answers(evidence, reports)
    telling = [s for s in reports if s.row.cause == read.cause]
    candidate = read_candidate(evidence, telling)
    nodes = {rank: evidence.node_of_rank(rank) for rank in read.culprits}
    name = name_by_node(read.culprits, lambda rank: nodes[rank] or "")
    where = Where(node=next(iter(nodes.values()))) if len(set(nodes.values())) == 1 else Where()
    if len(nodes) == 1:
        where = where._replace(rank=min(nodes))
    named = replace(candidate, rule="accused", cause=read.cause, where=where, culprits=read.culprits)
    return [replace(named, confidence=0.8 if nodes else 0.72, message=f"{name} {read.message}".lstrip())]


def _without_answers(evidence: Evidence, reports: Sequence[Sighting]) -> list[Candidate]:
    """Suspect the ranks whose numbers of parameters DDP never got: they were late, or had failed."""
    silent = {int(rank) for s in reports for _, _, rank, count in PARAMETERS.findall(s.line.text) if int(count) == 0}
    if not silent:
        return []
    name = f"{plural(len(silent), 'rank', 'ranks')} {join_words(sorted(map(str, silent)))}"
    message = f"{name} had not answered when DDP compared the models of all ranks: late, or failed before"
    candidate = read_candidate(evidence, reports)
    where = Where(rank=min(silent) if len(silent) == 1 else None)
    late = replace(candidate, rule="accused", cause="straggler", strength=Strength.SYMPTOM, confidence=0.45)
    return [replace(late, message=message, where=where, culprits=frozenset(silent))]


def registration(evidence: Evidence) -> list[Candidate]:
    """Explain RDMA memory that could not be registered: GPU memory, where neither dmabuf nor peermem is there."""
    failed = evidence.of_rows("ib-register", "ib-register-refused")
    without = evidence.of_rows("dmabuf-symbol", "peermem", "gdr")
    if not failed or not without:
        return []
    candidate = read_candidate(evidence, failed)
    why = " (GPU memory cannot be registered: no dmabuf in the library, or no peermem module)"
    return [
        replace(
            candidate,
            rule="registration",
            cause="nccl-p2p-error",
            strength=Strength.ROOT,
            confidence=0.85,
            message=candidate.message + why,
            evidence=(quoted(failed[0].line), *(quoted(s.line) for s in without[:2])),
        )
    ]


def shared_memory(evidence: Evidence) -> list[Candidate]:
    """Say that the disk that is full is /dev/shm, where a worker of a loader ended by a bus error too."""
    full = evidence.of_rows("no-space")
    ended = evidence.of_rows("loader-bus")
    if not full or not ended:
        return []
    candidate = replace(read_candidate(evidence, ended), rule="shared-memory", cause="shm-too-small", confidence=0.9)
    return [replace(candidate, evidence=(quoted(full[0].line), quoted(ended[0].line)))]


# Without a name a survivor's words are true of any failure elsewhere: they decide nothing.
SOME_PEER = 0.45
NAMED_PEER = 0.52


def peer_gone(evidence: Evidence) -> list[Candidate]:
    """Read what the surviving side says of a peer: surer where torch's own transports say it."""
    complaints = evidence.of_rows("remote-error", "remote-closed", "peer-closed", "store-lost", "net-recv")
    if not complaints or evidence.weighed_by("ib-completion"):  # that rule knows more
        return []
    of_torch = [s for s in complaints if s.row.id != "peer-closed" or _TORCH.search(s.line.text)]
    telling = of_torch or complaints
    candidate = read_candidate(evidence, telling)
    candidate = replace(
        candidate,
        rule="peer-gone",
        cause="peer-died",
        strength=Strength.SYMPTOM,
        confidence=SOME_PEER if of_torch else 0.31,
        message=candidate.message + " (a peer went away, and its own log must say why)",
    )
    if any(s.row.id == "store-lost" and STARTING_CALLS & set(s.calls) for s in telling):
        message = f"before any step, inside init_process_group: {candidate.message}. {LEFT_AT_START}"
        return [replace(candidate, message=message, remedy=DECIDE_AT_START)]
    return [_with_peer(evidence, candidate, telling)]


def _with_peer(evidence: Evidence, candidate: Candidate, complaints: Sequence[Sighting]) -> Candidate:
    peers = Counter(s.groups["peer"] for s in complaints if s.groups.get("peer"))
    if not peers:
        return candidate
    peer = peers.most_common(1)[0][0]
    node = evidence.node_of_address(peer)
    candidate = replace(candidate, confidence=max(candidate.confidence, NAMED_PEER))
    if node is None:
        return replace(candidate, where=candidate.where._replace(peer=peer))
    culprits = evidence.ranks_of_node(node) - {s.line.rank for s in complaints}
    where = place_of([node], culprits)
    name = name_place(where)
    if node != peer:
        name += f" ({peer})"
    return replace(candidate, message=f"{name} went away: {candidate.message}", where=where, culprits=culprits)


_TORCH = re.compile(
    r"gloo|NCCL|nccl|ocketProgress|c10d|TCPStore|DistNetworkError|socket\.(?:cpp|cc)|\[rank\d+\]|RuntimeError|DistBackendError"
    r"|Utils\.hpp"
)


def slurm_end(evidence: Evidence) -> list[Candidate]:
    """Read Slurm's CANCELLED without a reason: sure where it is of the job and nothing had failed before."""
    ends = evidence.weighed_by("slurm-end")
    if not ends:
        return []
    of_job = [s for s in ends if s.groups.get("what") == "JOB" or "state" in s.groups or "by" in s.groups]
    failed = [s for s in evidence.of_rows("srun-task", "watchdog", "agent-exit") if s.order < ends[0].order]
    confidence = 0.25  # Slurm ends the other tasks of a step after a failed one
    if not failed:
        confidence = 0.8 if of_job else 0.6
    return [replace(read_candidate(evidence, of_job or ends), strength=Strength.SYMPTOM, confidence=confidence)]


ONE_CAME = (
    "Look how many processes have started on each node, and run `nc -vz {master} {port}` from the other nodes. Start "
    "one "
    "a rank with `torchrun` on every node. Under Slurm start them with `srun`, as a plain `python` is one task in all. "
    "Slow nodes take a longer --init-timeout, and all one --rdzv-endpoint and --rdzv-id"
)


def clients_joined(evidence: Evidence) -> list[Candidate]:
    """Compare how many ranks came to the store with the world size; too many means that another run uses the store."""
    reports = evidence.weighed_by("clients-joined")
    if not reports:
        return []
    last = reports[-1]
    joined = int(last.groups["joined"])
    world = int(last.groups["world"])
    candidate = replace(read_candidate(evidence, [last]), rule="clients-joined")
    other_size = replace(candidate, cause="world-size-mismatch", strength=Strength.SYMPTOM)
    if joined > world:
        message = f"{joined} ranks came to a store of {world}: two runs use it, or nodes count differently"
        return [replace(other_size, strength=candidate.strength, confidence=0.7, message=message)]
    message = f"{world - joined} of {world} ranks never came to the rendezvous, and nothing here says why"
    absent = replace(candidate, cause="rendezvous-timeout", confidence=0.63, message=message)
    if joined > 1:
        return [absent]
    message = "only one of the announced ranks was started, or no other reaches the master"
    absent = replace(absent, remedy=ONE_CAME)
    return [absent, replace(other_size, confidence=0.4, message=message)]


FLUSHED = 5
PROTECTION = 4
# NCCL's troubleshooting guide on PCI Access Control Services: they send what goes to a GPU's memory through the host.
PROTECTED = (
    "Run `lspci -vvv | grep ACSCtl; nvidia-smi topo -m` on {node}. Switch ACS off (BIOS, hypervisor, `setpci`), or "
    "avoid GPUDirect with NCCL_NET_GDR_LEVEL=LOC. Use NCCL 2.8 or newer, and leave other adapters out with "
    "NCCL_IB_HCA. NCCL_IB_DISABLE=1 runs over sockets meanwhile"
)
STATUS = {
    4: "local protection error",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "retries are used up: the link or the peer is lost",
    13: "the receiver was never ready",
}


def ib_completion(evidence: Evidence) -> list[Candidate]:
    """Read InfiniBand completions with errors: 12 is a link or a peer that no longer answers, 5 only follows."""
    completions = evidence.weighed_by("ib-completion")
    telling = [s for s in completions if int(s.groups["status"]) != FLUSHED]
    if telling:
        status = int(telling[0].groups["status"])
        candidate = read_candidate(evidence, telling)
        why = f" (status {status}: {STATUS.get(status, 'see ibv_wc_status')})"
        remedy = PROTECTED if status == PROTECTION else candidate.remedy
        return [replace(candidate, confidence=0.75, message=candidate.message + why, remedy=remedy)]
    if not completions:
        return []
    candidate = replace(read_candidate(evidence, completions), strength=Strength.SYMPTOM)
    peer = candidate.where.peer or "the peer"
    why = " (status 5, flushed: the queue had failed before, on this side or the other's)"
    remedy = f"read the log and dmesg of {peer} at the same second: it ended, or its link did"
    flushed = replace(candidate, cause="unknown", confidence=0.58, message=candidate.message + why, remedy=remedy)
    return [flushed, replace(candidate, cause="nccl-ib-error", confidence=0.33)]


RULES = {
    "hub": ("torch hub.py, urllib", hub),
    "signature-table": ("each row names its own", by_table),
    "exception": ("CPython traceback, torch torch/csrc/Exceptions.cpp", exceptions),
    "exception-logged": ("CPython logging, whose format is the program's own", logged_exceptions),
    "registration": ("NCCL transport/net_ib/reg.cc, nvidia-peermem, ibv_reg_dmabuf_mr(3)", registration),
    "shared-memory": ("torch utils/data/_utils/signal_handling.py, tmpfs(5), errno 28 ENOSPC", shared_memory),
    "accused": (
        "torch ProcessGroupGloo.cpp (monitoredBarrier), reducer.cpp (verify_params_across_processes)",
        accused,
    ),
    "ib-completion": ("verbs.h enum ibv_wc_status, NCCL transport/net_ib.cc", ib_completion),
    "clients-joined": ("torch TCPStore.cpp waitForWorkers, distributed_c10d.py", clients_joined),
    "peer-gone": ("NCCL nccl.h (ncclRemoteError), gloo transport/tcp/pair.cc, torch TCPStore.cpp", peer_gone),
    "slurm-end": ("Slurm slurmstepd/req.c (job and step cancellation), srun --kill-on-bad-exit", slurm_end),
}
