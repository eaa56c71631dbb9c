"""Steps in what ranks print, without a pattern of the user's (pure).

`StepFinder` looks at one rank's output. It knows the lines of frameworks and the usual words of own loops, and keeps
to the first source whose numbers grow. It looks for literals from the end of each piece, and gives patterns a few
short windows, whatever comes: the controller has no time for more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from allranks.protocol.orders import LARGEST_STEP

BEFORE = 640  # bytes of a line before a literal that are looked at: bars are drawn with three bytes a cell
AFTER = 320
TRIES = 6  # places of one literal in a piece that are looked at
LOOKED_AT = 16 << 10  # bytes at the end of a piece in which a source is looked for
FRUITLESS = 10  # looks for a source that found nothing, until the next one waits PAUSE seconds
PAUSE = 0.1
LONGEST_PAUSE = 0.8
KEPT = 1 << 10  # bytes at the end of a piece that the next one may continue
MOST_CANDIDATES = 8
SURE_AFTER = 3  # growing numbers in lines that are alike, where nothing else says that they count steps

_NUMBER = rb"(?P<count>\d{1,15})"
_TOTAL = rb"(?P<total>\d{1,15})"
_EPOCH_NUMBER = rb"(?P<epoch>\d{1,6})"
_UNIT = rb"(?:it|iter|iters|batch|batches|step|steps)"
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,16}m")
_NUMBERS = re.compile(rb"[-+]?\d[\d.,:eE+-]*|\bnan\b|-?\binf\b")
_EPOCH = re.compile(
    rb"(?i)(?<![a-z_])epoch['\"]?[ :=\[#('\"]{0,4}(?P<epoch>\d{1,6}(?:\.\d{1,6})?)(?![\d.])(?:/(?P<epochs>\d{1,6}))?"
)
_OTHER_WORK = re.compile(
    rb"(?i)(?<![a-z])(?:eval|valid|val(?![a-z])|test|predict|sanity|infer|load|sav|checkp|generat)"
)
_OTHER_BARS = re.compile(rb"(?i)token|process|prepar|build|download|fetch|map|filter|cach|shard|read|writ|pars|split")
_OF_TRAINING = re.compile(rb"(?i)train|epoch|step|iter|batch|loss|optim")
_MEASURES = re.compile(
    rb"(?i)loss|\blr\b|learning|ppl|perplex|\bacc|grad|\btime|\btok|/s\b|\bms\b|reward|elbo|\bmse\b|\belapsed|\beta\b"
)


class StepFormat(NamedTuple):
    """Lines of one kind: each contains one of `literals`, and `pattern` finds the numbers in a window around it.

    `first_epoch`: nothing but a training loop of that framework prints it, its numbers begin again with every epoch,
    and this is the number of the first. `is_bar`: a bar of tqdm, of which the text before counts too."""

    name: str
    literals: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    first_epoch: int | None = None
    is_bar: bool = False

    @property
    def is_own(self) -> bool:
        """Tell whether it is a framework's own line."""
        return self.first_epoch is not None


# The more a line says, the earlier its row. Each has the place that prints it.
FORMATS = (
    # Lightning-AI/pytorch-lightning src/lightning/pytorch/callbacks/progress/tqdm_progress.py: the bar of training is
    # called `Epoch 0`, and ends in the logger's version
    StepFormat(
        "Lightning",
        (b"v_num=",),
        re.compile(rb"Epoch " + _EPOCH_NUMBER + rb": [^\r\n]{0,600}?\| " + _NUMBER + rb"/(?:" + _TOTAL + rb"|\?) \["),
        first_epoch=0,
    ),
    # pytorch/vision references/classification/utils.py (MetricLogger), pytorch/examples imagenet/main.py
    StepFormat(
        "torchvision",
        (b"Epoch: [",),
        re.compile(rb"Epoch: \[" + _EPOCH_NUMBER + rb"\] {0,4}\[ *" + _NUMBER + rb"/ *" + _TOTAL + rb"\]"),
        first_epoch=0,
    ),
    # open-mmlab/mmengine mmengine/runner/log_processor.py, get_log_after_iter
    StepFormat(
        "mmengine",
        (b"(train)",),
        re.compile(
            rb"(?:Iter\(train\) {1,4}|Epoch\(train\) {1,4}\[ *" + _EPOCH_NUMBER + rb"\])\[ *" + _NUMBER + rb"/ *"
            + _TOTAL + rb"\]"
        ),
        first_epoch=1,
    ),
    # tqdm/tqdm tqdm/std.py, format_meter: `desc:  12%|█▏        | 12/100 [00:05<00:40,  2.10it/s]`. It is what Hugging
    # Face's Trainer shows (transformers/trainer_callback.py, ProgressCallback), without a description
    StepFormat(
        "tqdm",
        (b"<",),
        re.compile(
            rb"\d{1,3}%\|[^|\r\n]{0,600}\| " + _NUMBER + rb"/" + _TOTAL + rb" \[[\d:]{4,12}<[\d:?]{1,12}, {1,4}"
            + rb"(?:\?|[\d.]{1,12})(?:" + _UNIT + rb"/s|s/" + _UNIT + rb")[^\r\n\]]{0,300}\]"
        ),
        is_bar=True,
    ),
    # a loop of one's own: `step 5`, `[Step 5/100]`, `iter 100: loss 2.1`, {"global_step": 5}, `Batch 3 of 90`
    StepFormat(
        "words",
        (b"tep", b"TEP", b"ter", b"TER", b"atch"),
        re.compile(
            rb"(?i)(?<![a-z_-])(?P<word>global[_ -]?step|steps?|iter|iteration|batch)"
            + rb"['\"]?[ \t]{0,8}[:=#\[(]?[ \t]{0,8}['\"]?"
            + _NUMBER + rb"(?: {0,4}(?:/|of) {0,8}" + _TOTAL + rb")?(?!/\d|:\d|\.\d|%| ?[KMG]?i?B\b)[^\d]"
        ),
    ),
    # `[5/100] loss 2.1`; samples, as `[640/60000 (1%)]` of pytorch/examples mnist/main.py, are not steps
    StepFormat(
        "fraction",
        (b"/",),
        re.compile(rb"(?:^|[\[( |])" + _NUMBER + rb"/ {0,4}" + _TOTAL + rb"(?! \(\d)[\]) |,]"),
    ),
)  # fmt: skip


class StepSighting(NamedTuple):
    """A line with a number of a step. `key`: what is the same in all lines of one source; `text`: the line's form.

    `trust`: 0 is a framework's own line, 1 says that it is of training, 2 does not."""

    format: StepFormat
    key: bytes
    trust: int
    number: int
    total: int | None
    epoch: int | None
    epochs: int | None
    text: bytes
    at: float
    t: float


class StepSeen(NamedTuple):
    """A step that was reached, of `total` where that is known, with the two times at which its line came.

    `is_first`: what was seen before was of another source and does not count."""

    step: int
    total: int | None
    at: float
    t: float
    is_first: bool = False


class _Candidate(NamedTuple):
    """A source that may count steps: its first and last line, and how often its number has grown."""

    first: StepSighting
    last: StepSighting
    grown: int = 1

    @property
    def is_sure(self) -> bool:
        """Tell whether enough has been seen."""
        if self.last.format.is_own:
            return self.last.number > 0
        if self.last.format.is_bar or self.last.trust == 1:
            return self.grown >= 2
        return self.grown >= SURE_AFTER


class StepFinder:
    """Finds the steps in one rank's output; `is_absolute` tells whether numbers mean the same in every attempt."""

    def __init__(self) -> None:
        self.source: StepSighting | None = None  # a line of it: in the attempts that follow too
        self._starts_over: bool | None = None  # its counts begin again with every epoch; None: not known yet
        self._origin: int | None = None  # the number of its first epoch
        self.is_absolute = True
        self.epoch: float | None = None
        self._candidates: dict[bytes, _Candidate] = {}
        self._rest = b""
        self._next_look = 0.0
        self._fruitless = 0  # looks that have shown nothing
        self._forget_counts()

    def begin_attempt(self) -> None:
        """Forget the counts of the attempt before, and keep where they stood."""
        self._candidates.clear()
        self._rest = b""
        self._fruitless = 0
        self.is_absolute = True
        self.epoch = None
        self._forget_counts()

    def _forget_counts(self) -> None:
        self._base = 0
        self._start: int | None = None
        self._count: int | None = None
        self._epoch_of_count: int | None = None
        self._total: int | None = None
        self._grown_epochs = 0  # epochs that began with a larger count

    def feed(self, data: bytes, at: float, t: float) -> list[StepSeen]:
        """Look at the next piece of a rank's log, of any length; `at` and `t` are when it came."""
        piece = self._rest + data if self._rest else data
        last = max(piece.rfind(b"\n", -KEPT), piece.rfind(b"\r", -KEPT))
        self._rest = piece[max(last + 1, len(piece) - KEPT) :]
        self._read_epoch(piece)
        source = self.source
        if source is not None:
            for _, sighting in _sightings(source.format, piece, at, t):
                if sighting.key == source.key:
                    return self._reached(sighting)
            if source.trust == 0:
                return []
        if at < self._next_look:
            return []
        self._next_look = at + min(LONGEST_PAUSE, PAUSE * self._fruitless / FRUITLESS)
        return self._look_for_source(piece, at, t)

    def _read_epoch(self, piece: bytes) -> None:
        place = piece.rfind(b"poch", max(0, len(piece) - LOOKED_AT))
        if place >= 0:
            match = _EPOCH.search(piece, max(0, place - 1), place + 40)
            if match is not None:
                self.epoch = float(match["epoch"])

    def _may_change(self, sighting: StepSighting) -> bool:
        source = self.source
        if source is None or sighting.trust < source.trust:
            return True
        is_complete = self._count is not None and self._total is not None and self._count >= self._total
        return is_complete and sighting.trust == source.trust and (sighting.total or 0) > (self._total or 0)

    def _look_for_source(self, piece: bytes, at: float, t: float) -> list[StepSeen]:
        last = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        lines = piece[max(0, last - LOOKED_AT) : last]
        self._fruitless += 1
        for step_format in FORMATS:
            sightings = [sighting for _, sighting in sorted(_sightings(step_format, lines, at, t), key=itemgetter(0))]
            for number, sighting in enumerate(sightings):
                if self._may_change(sighting) and self._is_source(sighting):
                    steps = self._chosen(sighting)
                    rest = [one for one in sightings[number + 1 :] if one.key == sighting.key]
                    return steps + (self._reached(rest[-1]) if rest else [])
        return []

    def _is_source(self, sighting: StepSighting) -> bool:
        self._fruitless = 0
        known = self._candidates.pop(sighting.text, None)
        if known is None or sighting.number < known.last.number:  # a number that falls begins again
            candidate = _Candidate(sighting, sighting)
        elif sighting.number > known.last.number:
            candidate = _Candidate(known.first, sighting, known.grown + 1)
        else:
            candidate = known._replace(last=sighting)
        self._candidates[sighting.text] = candidate  # the newest is the last
        if len(self._candidates) > MOST_CANDIDATES:
            del self._candidates[next(iter(self._candidates))]
        return candidate.is_sure

    def _chosen(self, sighting: StepSighting) -> list[StepSeen]:
        first = self._candidates[sighting.text].first
        self._candidates.clear()
        self._forget_counts()
        self.is_absolute = True
        self.source = sighting
        self._origin = sighting.format.first_epoch
        self._starts_over = sighting.format.is_own or None
        steps = self._reached(first)
        if sighting.number > first.number:
            steps += self._reached(sighting)
        return [one._replace(is_first=number == 0) for number, one in enumerate(steps)]

    def _reached(self, sighting: StepSighting) -> list[StepSeen]:
        """Give the step of a line of the source; its counts may begin again with every epoch."""
        place = (sighting.number, sighting.total, sighting.epoch)
        is_repeated = place == (self._count, self._total, self._epoch_of_count)
        if is_repeated or (sighting.format.is_bar and sighting.number == 0):
            return []  # a bar at 0 has done nothing, and begins there after a checkpoint too
        if sighting.epoch is not None:
            self.epoch = float(sighting.epoch)
        self._learn(sighting)
        total = sighting.total
        is_bar_of_epoch = sighting.format.is_bar and sighting.epoch is not None  # most likely, until it is seen
        if self._starts_over or (self._starts_over is None and is_bar_of_epoch):
            total = self._begin_epoch(sighting)
        elif self._starts_over is None and sighting.epoch is not None:
            total = None  # of the run, or of the epoch
        if self._start is None:
            self._start = sighting.number
        self._count = sighting.number
        self._total = sighting.total
        self._epoch_of_count = sighting.epoch
        step = self._base + sighting.number
        if step <= LARGEST_STEP:
            return [StepSeen(step, total, sighting.at, sighting.t)]
        return []

    def _learn(self, sighting: StepSighting) -> None:
        if sighting.epoch is None:
            self._starts_over = self._has_started_over(sighting) or self._starts_over
            return
        if self._origin is None:
            self._origin = min(sighting.epoch, 1)
        if self._count is None or self._epoch_of_count is None or sighting.epoch <= self._epoch_of_count:
            return
        if sighting.number <= self._count:
            self._starts_over = True
            return
        self._grown_epochs += 1  # lines between them may not have been looked at
        if self._grown_epochs >= SURE_AFTER and sighting.format.first_epoch is None:
            self._starts_over = False

    def _has_started_over(self, sighting: StepSighting) -> bool:
        if self._count is None or sighting.number >= self._count or sighting.format.is_own:
            return False
        return sighting.format.is_bar or sighting.number <= max(1, self._start or 0)

    def _begin_epoch(self, sighting: StepSighting) -> int | None:
        """Know how many steps the epochs before had; give all of the run where that is known."""
        if sighting.epoch is not None and sighting.total is not None and self._origin is not None:
            self._base = max(0, sighting.epoch - self._origin) * sighting.total
            if sighting.epochs is None:
                return None
            return sighting.epochs * sighting.total
        self.is_absolute = False  # nothing says which epoch this is
        if self._count is not None and sighting.number < self._count:
            self._base += self._total or self._count
        return None


def _sightings(step_format: StepFormat, piece: bytes, at: float, t: float) -> Iterator[tuple[int, StepSighting]]:
    """Look at the last lines of a piece that contain a literal of a format, the newest first; few, whatever it has.

    Give where they begin, too."""
    for literal in step_format.literals:
        end = len(piece)
        for _ in range(TRIES):
            place = piece.rfind(literal, 0, end)
            if place < 0:
                break
            first, last = _line_around(piece, place)
            sighting = _sighting(step_format, piece[first:last], at, t)
            if sighting is not None:
                yield first, sighting
            end = min(place, first)


def _line_around(piece: bytes, place: int) -> tuple[int, int]:
    """Give where the line around a place begins and ends, with its end of line; a long one is cut."""
    first = max(0, place - BEFORE)
    last = min(len(piece), place + AFTER)
    start = max(piece.rfind(b"\n", first, place), piece.rfind(b"\r", first, place), first - 1) + 1
    ends = [end for end in (piece.find(b"\n", place, last), piece.find(b"\r", place, last)) if end >= 0]
    return start, min(ends, default=last - 1) + 1


def _sighting(step_format: StepFormat, window: bytes, at: float, t: float) -> StepSighting | None:
    line = _COLOUR.sub(b"", window) if b"\x1b" in window else window
    match = step_format.pattern.search(line)
    if match is None:
        return None
    parts = match.groupdict()
    count = int(parts["count"])
    total = int(parts["total"]) if parts.get("total") else None
    if total is not None and (total == 0 or count > total):
        return None
    epoch = int(parts["epoch"]) if step_format.is_own and parts.get("epoch") else None
    sighting = StepSighting(step_format, b"", 0, count, total, epoch, None, b"", at, t)
    if step_format.is_own:
        return sighting
    return _guessed(step_format, line, match, sighting)


def _guessed(
    step_format: StepFormat, line: bytes, match: re.Match[bytes], sighting: StepSighting
) -> StepSighting | None:
    """Say more of a line that need not be one of training; None where it is not."""
    head = line[: match.start()]
    if _OTHER_WORK.search(head):
        return None
    says_training = bool(_OF_TRAINING.search(head) if step_format.is_bar else _MEASURES.search(line))
    if step_format.is_bar and not says_training and head.strip(b" \t:"):
        return None
    if step_format.is_bar and _OTHER_BARS.search(head):
        return None
    if step_format.name == "fraction" and (not says_training or b"%|" in line):
        return None
    key = _NUMBERS.sub(b"0", head) + (match.groupdict().get("word") or b"")
    text = _NUMBERS.sub(b"0", line)
    if step_format.is_bar:
        key = text = b"%s %d" % (key.strip(b" \t:"), sighting.total or 0)
    named = _EPOCH.search(head)
    if named is not None and b"." not in named["epoch"]:
        epochs = int(named["epochs"]) if named["epochs"] else None
        sighting = sighting._replace(epoch=int(named["epoch"]), epochs=epochs)
    trust = 1 if says_training else 2
    return sighting._replace(key=key, trust=trust, text=step_format.name.encode() + b" " + text)
