"""Fuzzers of log diagnosis: hostile lines made of what real logs say."""

import gzip
import io
import random
from pathlib import Path

import pytest
from tests.campaign import Campaign
from tests.diagnose.test_cases import CASES
from tests.fuzz.nasty import flipped
from tests.outcome import outcome

from allranks.diagnose.causes import CAUSES
from allranks.diagnose.verdict import judge_logs
from allranks.errors import UsageError
from allranks.findings import Verdict
from allranks.protocol.codec import encode
from allranks.runs import logdiagnosis

pytestmark = pytest.mark.fuzz
EXAMPLES = Path(__file__).parent.parent / "diagnose" / "examples.txt"
LINES = [line.split(": ", 1)[1].encode() for line in EXAMPLES.read_text().splitlines() if not line.startswith("#")]
LINES += [line.encode() for case in CASES for line in case.log.splitlines() if line.strip()]
DIGITS = str.maketrans("0123456789", "٠١²³۴۵६७⑧9")
HEADS = (
    b"", b"[rank9]: ", b"[rank99999999999999999999]: ", "[rank²]: ".encode(), b"h1:123:456 [0] NCCL INFO ", b"7: ",
    "[default٣]:".encode(), b"[2026-11-22 10:00:00.123] ", b"[9999-99-99 99:99:99] ", b"(RayWorker pid=1, ip=::1) ",
    b"W1122 99:99:99.999999 7 a.py:1] ", b"Nov 31 25:61:61 h1 kernel: ", b"\x1b[31m", b"0" * 5000 + b": ",
    b"[[[[[[", b"\xff\xfe", "\u2028".encode(), b"99999999999999999999: ", b"1e999 ", b"0000-00-00T00:00:00Z ",
)  # fmt: skip


def line(rng: random.Random) -> bytes:
    """A line of a log, a mixture of several, or what was made of one."""
    made = rng.choice(LINES)
    for _ in range(rng.randrange(3)):
        kind, other = rng.randrange(8), rng.choice(LINES)
        if kind == 0:
            made = made[: rng.randrange(len(made) + 1)] + other[rng.randrange(len(other) + 1) :]
        elif kind == 1:
            made = made.decode("utf-8", "replace").translate(DIGITS).encode()
        elif kind == 2:
            made = flipped(made, rng)
        elif kind == 3:
            words = made.split(b" ")
            rng.shuffle(words)
            made = b" ".join(words)
        elif kind == 4:
            made += b" " + rng.choice((made, b"9" * 5000, b"[" * 5000, b"\0" * 50, b"x" * 100_000))
        elif kind == 5:
            made = b"".join(b"9" * 400 if byte in b"0123456789" else bytes((byte,)) for byte in made[:100])
        elif kind == 6:
            made = made.replace(b" ", rng.choice((b"\t", b"\r", b"\0", b"  ", "\u00a0".encode(), b"\x1b[K")))
        else:
            made = rng.randbytes(rng.randrange(300))
    return rng.choice(HEADS) + made if rng.random() < 0.5 else made


def log(rng: random.Random) -> bytes:
    """A log of such lines; some are one line without an end."""
    ends = rng.choice((b"\n", b"\n", b"\n", b"\r\n", b"\r", b""))
    return ends.join(line(rng) for _ in range(rng.randrange(1, 25)))


def check(verdict: Verdict) -> None:
    """A verdict that can be shown: a cause of ours, one line of words, evidence that is short."""
    assert verdict.cause in CAUSES
    assert 0 <= verdict.confidence <= 1
    assert "\n" not in verdict.finding.message and len(verdict.finding.message) < 2000
    assert len(verdict.finding.evidence) <= 3
    document = encode(verdict)
    assert document["cause"] == verdict.cause
    rank = verdict.finding.where.rank
    assert rank is None or rank >= 0
    assert all(isinstance(one, int) and one >= 0 for one in verdict.victims)


def test_a_hostile_log_gives_a_verdict(campaign: Campaign) -> None:
    known = 0
    for chance in campaign.cases(60):
        verdict = judge_logs(logdiagnosis.read_stream(io.BytesIO(log(chance))))
        check(verdict)
        known += verdict.cause != "unknown"
    campaign.counts["of a known cause"] = known
    assert known or campaign.done < 30


def test_hostile_files_give_a_verdict_or_are_refused(campaign: Campaign, tmp_path: Path) -> None:
    """Several at once, plain, compressed, and cut while they were compressed."""
    for chance in campaign.cases(30):
        files = []
        for number in range(chance.randrange(1, 4)):
            data, packed = log(chance), chance.random() < 0.3
            path = tmp_path / chance.choice((f"{number}.log", f"rank_{number}.log", f"rank_{'9' * 30}_{number}.log"))
            if packed:
                path = path.with_suffix(".log.gz")
                data = gzip.compress(data, 1)
                data = flipped(data, chance) if chance.random() < 0.5 else data
            path.write_bytes(data)
            files.append(path)
        evidence = outcome(UsageError, logdiagnosis.read_logs, files)
        if isinstance(evidence, UsageError):
            assert str(tmp_path) in str(evidence)
            campaign.counts["refused"] = campaign.counts.get("refused", 0) + 1
        else:
            check(judge_logs(evidence))
        for path in files:
            path.unlink(missing_ok=True)
