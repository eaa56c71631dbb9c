"""Plays the rounds of a seed: `python -m bench.chaos [--rounds N] [--seed N] [--only FAULT]` (`make chaos`).

Each round adds a line to the file of its seed in bench/out/. A round that has its line is not played again, so a call
goes on where the last one ended. What a round with a breach has left is kept beside the file. `--again` plays rounds
whose last line has a breach or an error once more: after something was mended. The table has the last line of each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.hosts.bed import Bed, BedError, missing
from tests.ports import free_port
from tests.slurm.bed import SlurmBed
from tests.slurm.bed import missing as slurm_missing

from bench.chaos.elsewhere import ElsewherePlay, JoinPlay, SlurmPlay
from bench.chaos.faults import BY_NAME, Way
from bench.chaos.judge import Seen, judge, unknown, worst
from bench.chaos.looking import (
    accused_of,
    dropped_of,
    out_of_order_in,
    printed_in,
    trained_in,
    unreachable_logs,
    unreadable,
)
from bench.chaos.plan import PAUSE, STEPS, Round, draw, fault_of
from bench.chaos.playing import PROGRAM, Play, Unplayable
from bench.chaos.table import Line, last_lines, summary
from bench.table import OUT

HOSTS = 6
SLURM_HOSTS = 4
HOURS = 4.0


class Beds:
    """One bed for all rounds, made again where a round has left it in a state that cannot be healed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bed: Bed | None = None
        self._slurm: SlurmBed | None = None

    def play(self, place: Path, round_: Round) -> Play:
        """A round on hosts that are ready for it."""
        way = fault_of(round_).way
        if way is Way.SLURM:
            return SlurmPlay(self._clean_slurm(), place, round_)
        if way is Way.JOIN:
            return JoinPlay(self.clean(), place, round_)
        if way is Way.ELSEWHERE:
            return ElsewherePlay(self.clean(), place, round_)
        return Play(self.clean(), place, round_)

    def _clean_slurm(self) -> SlurmBed:
        """Idle nodes of Slurm."""
        if self._slurm is not None:
            try:
                self._slurm.heal()
                return self._slurm
            except (BedError, AssertionError, OSError, subprocess.SubprocessError) as error:
                print(f"  the bed of Slurm is made again: {error}", file=sys.stderr)
                self._slurm.down()
                self._slurm = None
        why = slurm_missing()
        if why:
            raise Unplayable(why)
        self._slurm = SlurmBed.up(SLURM_HOSTS, self._directory / "slurm-bed")
        return self._slurm

    def clean(self) -> Bed:
        """Hosts that are on, without faults, on which nothing runs."""
        if self._bed is not None:
            try:
                self._bed.heal()
                for host in self._bed.hosts:
                    host.run("rm -rf /tmp/allranks-*")
                return self._bed
            except (BedError, AssertionError, OSError, subprocess.SubprocessError) as error:
                print(f"  the bed is made again: {error}", file=sys.stderr)
                self.down()
        self._bed = Bed.up(HOSTS, self._directory / "bed", own_tmp=True, shared=[self._directory])
        return self._bed

    def down(self) -> None:
        """Take the hosts away."""
        if self._bed is not None:
            self._bed.down()
            self._bed = None
        if self._slurm is not None:
            self._slurm.down()
            self._slurm = None


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that all hosts see; hosts have a /tmp of their own, so it is elsewhere."""
    directory = Path(tempfile.mkdtemp(prefix="allranks-chaos-", dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Unbroken:
    """The losses of runs without faults and without allranks, by their number of ranks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._losses: dict[int, dict[int, str]] = {}

    def of(self, world_size: int) -> dict[int, str]:
        """The loss of each step."""
        if world_size not in self._losses:
            self._losses[world_size] = self._train(world_size)
        return self._losses[world_size]

    def _train(self, world_size: int) -> dict[int, str]:
        place = self._directory / f"unbroken-{world_size}"
        place.mkdir()
        common = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world_size),
            "ALLRANKS_OUTPUT_DIR": str(place),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), str(STEPS), str(PAUSE)],
                cwd=place,
                env={**common, "RANK": str(rank)},
                stdout=subprocess.DEVNULL,
            )
            for rank in range(world_size)
        ]
        codes = [rank.wait(600) for rank in ranks]
        losses = {trained.step: trained.loss for trained in trained_in(place)}
        if any(codes) or len(losses) != STEPS:
            raise RuntimeError(f"the unbroken run of {world_size} ranks ended with {codes}")
        return losses


def play(round_: Round, beds: Beds, place: Path) -> tuple[Seen, Play]:
    """One round from its start to its judgement."""
    place.mkdir()
    (place / "work").mkdir()
    played = beds.play(place, round_)
    try:
        played.start()
        is_hit = played.strike()
        seconds = played.wait()
        left = played.left()
        result = played.result()
        code = played.code
        if round_.fault in ("abandoned", "join-kill-controller") and code == 0 and result is not None:
            code = result.exit
        is_full = round_.fault == "run-disk"
        seen = Seen(
            code=code,
            seconds=seconds,
            load=played.load,
            cores=os.cpu_count() or 1,
            is_hit=is_hit,
            steps_before=played.steps_before,
            attempts=len(result.attempts) if result is not None else 0,
            accused=tuple(accused_of(result)) if result is not None else (),
            left=tuple(left),
            printed=tuple(printed_in(played.launch)),
            unfetched=tuple(unreachable_logs(result)) if result is not None else (),
            dropped=dropped_of(result) if result is not None else {},
            directory=tuple(unreadable(played.launch, result, code, is_full)),
            out_of_order=tuple(out_of_order_in(played.launch)),
            trained=tuple(trained_in(played.launch.work)),
            first_steps={a.attempt: a.first_step for a in result.attempts if a.first_step is not None}
            if result is not None
            else {},
        )
    finally:
        played.close()
    return seen._replace(directory=(*seen.directory, *played.complaints)), played


def line_of(round_: Round, seed: int, commit: str, seen: Seen, breaches: str, is_unknown: bool) -> Line:
    """A round that was played."""
    return Line(
        seed=seed,
        number=round_.number,
        fault=round_.fault,
        moment=round_.moment.text,
        hosts=round_.hosts,
        world_size=round_.world_size,
        commit=commit,
        t=round(time.time(), 1),
        code=seen.code,
        seconds=round(seen.seconds, 2),
        load=round(seen.load, 1),
        is_hit=seen.is_hit,
        attempts=seen.attempts,
        causes=tuple(accused.cause for accused in seen.accused),
        unknown=is_unknown,
        lines=sum(printed.taken for printed in seen.printed),
        unreached_lines=seen.unreached_lines,
        dropped_lines=seen.dropped_lines,
        breaches=tuple(filter(None, [breaches])),
    )


def keep(place: Path, where: Path) -> None:
    """What a round with a breach has left."""
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(place, where, ignore=shutil.ignore_patterns("*.pt", "filler"), ignore_dangling_symlinks=True)


def commit_now() -> str:
    """The last commit that has changed what is tried, with + where files differ from it."""
    git = ["git", "-C", str(Path(__file__).parents[2])]
    last = subprocess.run([*git, "log", "-1", "--format=%h", "--abbrev=8", "--", "src"], capture_output=True, text=True)
    differs = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src"])
    return (last.stdout.strip() or "unknown") + ("+" if differs.returncode else "")


def read_lines(path: Path) -> list[Line]:
    """The rounds so far; a line that was cut short is none."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(Line(**json.loads(text)))
        except ValueError:
            continue
    return lines


def main() -> int:
    """Play what is not played yet, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--start", type=int, default=0, metavar="N", help="the first round")
    parser.add_argument("--only", default="", metavar="FAULT", help="rounds of this fault alone")
    parser.add_argument("--way", default="", choices=[way.value for way in Way], help="rounds whose nodes are had so")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: bench/out/chaos-SEED.jsonl")
    parser.add_argument(
        "--with",
        dest="beside",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="rounds of other files in the table, too",
    )
    parser.add_argument("--hours", type=float, default=HOURS, help="begin no round after so many")
    parser.add_argument("--again", action="store_true", help="play rounds with a breach or an error once more")
    parser.add_argument("--table", action="store_true", help="print the table of the rounds so far, and play none")
    options = parser.parse_args()
    out = options.out or OUT / f"chaos-{options.seed}.jsonl"
    if options.only and options.only not in BY_NAME:
        parser.error(f"no fault is called {options.only}; there are {', '.join(BY_NAME)}")
    if options.table:
        print(summary(last_lines([line for path in (out, *options.beside) for line in read_lines(path)])))
        return 0
    reason = missing()
    if reason:
        print(f"chaos is skipped: {reason}")
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):  # hosts and scratch files go in any case
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    numbers = to_play(options.seed, range(options.start, options.rounds), read_lines(out), options.only, options.again)
    if options.way:
        numbers = [number for number in numbers if fault_of(draw(options.seed, number)).way.value == options.way]
    return play_all(options.seed, numbers, out, options.hours)


def to_play(seed: int, numbers: Iterable[int], lines: Sequence[Line], only: str, again: bool) -> list[int]:
    """The rounds that have no line yet, of one fault where that is asked for; `again`: those that did not go well."""
    if again:
        broken = {line.number for line in last_lines(lines) if line.breaches or line.error}
        wanted = [number for number in numbers if number in broken]
    else:
        played = {line.number for line in lines if not line.error}
        wanted = [number for number in numbers if number not in played]
    return [number for number in wanted if not only or draw(seed, number).fault == only]


def play_all(seed: int, numbers: Sequence[int], out: Path, hours: float) -> int:
    """Play rounds in sequence; 1 where an invariant did not hold."""
    out.parent.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + hours * 3600
    with scratch() as directory:
        beds = Beds(directory)
        unbroken = Unbroken(directory)
        try:
            for number in numbers:
                round_ = draw(seed, number)
                if time.monotonic() > ends:
                    print(f"{hours:g} h are over before round {number}; the same command goes on there")
                    break
                line = play_one(round_, seed, beds, directory, unbroken, out)
                with out.open("a") as file:
                    file.write(json.dumps(line._asdict()) + "\n")
                print(_told(line), flush=True)
        finally:
            beds.down()
    lines = last_lines(read_lines(out))
    print(f"\n{summary(lines)}\nraw: {out}")
    return 1 if any(line.breaches for line in lines) else 0


def play_one(round_: Round, seed: int, beds: Beds, directory: Path, unbroken: Unbroken, out: Path) -> Line:
    """One round on clean hosts."""
    commit = commit_now()
    place = directory / f"round-{round_.number:03d}"
    kept = out.with_suffix("") / place.name
    try:
        losses = unbroken.of(round_.world_size)
        seen, _ = play(round_, beds, place)
        breaches = worst(judge(round_, seen, losses))
        line = line_of(round_, seed, commit, seen, breaches, unknown(round_, seen))
    except (
        AssertionError,
        OSError,
        RuntimeError,
        ValueError,
        BedError,
        Unplayable,
        subprocess.SubprocessError,
    ) as error:
        line = Line(
            seed, round_.number, round_.fault, round_.moment.text, round_.hosts, round_.world_size, commit,
            round(time.time(), 1), error=f"{type(error).__name__}: {error}",
        )  # fmt: skip
    if line.breaches or line.error or line.unknown:
        keep(place, kept)
    shutil.rmtree(place, ignore_errors=True)
    return line


def _told(line: Line) -> str:
    """A round in one line, for whoever watches."""
    outcome = f"exit {line.code} after {line.seconds:.1f} s, {line.attempts} attempts {', '.join(line.causes)}"
    verdict = line.error or "; ".join(line.breaches) or ("unknown" if line.unknown else "as it must")
    where = f"{line.number:3d} {line.fault} at {line.moment}, {line.hosts} hosts, {line.world_size} ranks"
    return f"{where} (load {line.load:.0f}): {outcome}: {verdict}"


if __name__ == "__main__":
    sys.exit(main())
