"""`make pictures`: the live view and the page of a failure as they really look, for README and the docs.

One real run on virtual nodes fails at a step. Its terminal is recorded, and a screen from the middle becomes an SVG.
The page that it leaves is looked at in headless Chromium. Without Chromium that picture stays as it is.

`tests/docs/test_pictures_drawn.py` makes such a run, and fails where it shows something else than the pictures. What
the page had when it was photographed stands in `failure-page.txt`: its style by hash, its sections, its verdict.
"""

import argparse
import base64
import fcntl
import hashlib
import html
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from tests.browser.chromium import Chromium, find

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
LIVE_VIEW = "live-view.svg"
LIVE_VIEW_LABEL = "allranks run on a terminal, with a table of nodes below the lines"
FAILURE_PAGE = "failure-page.webp"
FAILURE_WORDS = "failure-page.txt"
MOST_BYTES = 100_000  # of a picture
COLUMNS, ROWS = 96, 40  # of the terminal
PAGE_WIDTH, PAGE_HEIGHT = 1100, 980  # pixels that are shown of the page
NODES, RANKS_A_NODE, SHOWN_STEP, LAST_STEP, FAILING_RANK = 4, 2, 30, 60, 5
PROGRAM = f'''\
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
metrics = open(f"{{os.environ['ALLRANKS_OUTPUT_DIR']}}/rank_{{rank:02d}}_metrics.jsonl", "a", buffering=1)

for step in range(1, {LAST_STEP + 1}):
    inputs = torch.randn(32, 8)
    if rank == {FAILING_RANK} and step == {LAST_STEP - 5}:
        raise ValueError(f"batch {{step}} has no labels")
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.1)
    print(json.dumps({{"step": step, "loss": loss.item()}}), file=metrics)
    if rank == 0 and step % 10 == 0:
        print(f"step {{step}} loss {{loss.item():.4f}}", flush=True)

dist.destroy_process_group()
'''
_TABLE_AGAIN = re.compile(r"\x1b\[(\d+)A\x1b\[J")  # rows up, and everything below is removed (report/screen.py)
STEP_OF_NODE = re.compile(r"local\d +\w+ +\d+ \w+ +(\d+)(?:/\d+)? ")
_TEXT = re.compile(r'<text x="([\d.]+)" y="(\d+)"[^>]*>(.*?)</text>')
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# What a run shows or does not, by its time and its machine: lines, words of the table's head, a section of the page.
_SOMETIMES_LINE = re.compile(r"first step after |note: ")
_SOMETIMES_WORDS = re.compile(r", (?:about .* left|goodput .*)")
_SOMETIMES_SECTION = "Findings"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# An SVG in an <img> fetches no font, so each row is stretched to the width that its characters have here.
CHARACTER, LINE, MARGIN = 8.4, 19, 18
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}">
<rect width="100%" height="100%" rx="9" fill="#16191f"/>
<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="14" fill="#d7dae0">
{rows}
</g>
</svg>
"""


def screens(recording: str) -> Iterator[list[str]]:
    """Give each screen that a recorded terminal showed, as its lines."""
    lines: list[str] = []
    position = 0
    for again in [*_TABLE_AGAIN.finditer(recording), None]:
        end = again.start() if again else len(recording)
        text = _ESCAPE.sub("", recording[position:end]).replace("\r", "")
        lines += text.split("\n")[:-1]
        yield list(lines)
        if again:
            position = again.end()
            del lines[len(lines) - int(again[1]) :]


def choose_screen(recording: str) -> list[str]:
    """Choose the first screen on which every node has come to a step in the middle of the run."""
    for lines in screens(recording):
        steps = [int(found[1]) for line in lines if (found := STEP_OF_NODE.match(line))]
        if len(steps) == NODES and min(steps) >= SHOWN_STEP:
            return lines
    raise SystemExit("no screen of the run shows all nodes at work")


def draw(lines: list[str], label: str) -> str:
    """Draw a terminal's lines as an SVG."""
    rows = []
    for number, line in enumerate(lines):
        if line.strip():
            blanks = len(line) - len(line.lstrip())
            x = MARGIN + blanks * CHARACTER
            y = MARGIN + 14 + number * LINE
            text = html.escape(line.strip()).replace(" ", "\u00a0")  # several blanks would become one
            length = len(line.strip()) * CHARACTER
            stretched = f'textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"'
            rows.append(f'<text x="{x:.1f}" y="{y}" {stretched}>{text}</text>')
    width = 2 * MARGIN + max(map(len, lines)) * CHARACTER
    height = 2 * MARGIN + len(lines) * LINE
    return SVG.format(width=width, height=height, label=html.escape(label), rows="\n".join(rows))


def lines_of(drawing: str) -> list[str]:
    """Return the terminal's lines that a drawing shows."""
    lines: dict[int, str] = {}
    for x, y, text in _TEXT.findall(drawing):
        blanks = " " * round((float(x) - MARGIN) / CHARACTER)
        lines[(int(y) - MARGIN - 14) // LINE] = blanks + html.unescape(text).replace("\u00a0", " ")
    return [lines.get(number, "") for number in range(max(lines) + 1)]


def wording(lines: list[str]) -> list[str]:
    """Return what is the same in every run: lines without figures and blanks, the program's own once."""
    words: list[str] = []
    for line in lines:
        if line.startswith("──"):
            line = _SOMETIMES_WORDS.sub("", line)
        text = " ".join(_NUMBER.sub("N", line).replace("─", "").split()).replace("N min N s", "N s")
        if text and text not in words[-1:] and not _SOMETIMES_LINE.match(line):
            words.append(text)
    return words


class PageWords(HTMLParser):
    """Reads of a page what its picture shows of every such run: the style, the sections, the rows of the verdict."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._taken = ""  # the element whose text is taken
        self._text = ""
        self._in_verdict = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin to take a text."""
        self._in_verdict = (self._in_verdict or ("id", "verdict") in attrs) and tag != "h2"
        is_of_verdict = self._in_verdict and (tag == "th" or ("class", "text") in attrs)
        if tag in ("style", "h2") or is_of_verdict:
            self._taken, self._text = tag, ""

    def handle_data(self, data: str) -> None:
        """Take a part of a text."""
        if self._taken:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        """Keep a text."""
        if tag != self._taken:
            return
        self._taken = ""
        text = " ".join(_NUMBER.sub("N", self._text).split())
        if tag == "style":
            text = f"style {hashlib.sha256(self._text.encode()).hexdigest()}"
        if text not in ("", "or", _SOMETIMES_SECTION):
            self.words.append(text)


def words_of_page(page: Path) -> str:
    """Return what stands beside the picture of a page."""
    reader = PageWords()
    reader.feed(page.read_text(encoding="utf-8"))
    return "".join(f"{words}\n" for words in reader.words)


class Shown(NamedTuple):
    """What a run has shown: the drawing of its terminal, and its page."""

    live_view: str
    page: Path


def show_run(directory: Path) -> Shown:
    """Make the run in a directory, and draw its terminal."""
    (directory / "train.py").write_text(PROGRAM)
    words = ["run", "--local", str(NODES), "--nproc", str(RANKS_A_NODE), "train.py"]
    recording = record([sys.executable, "-m", "allranks", *words], directory)
    lines = [f"$ allranks {' '.join(words)}", *choose_screen(recording)]
    pages = list(directory.glob("runs/*/report.html"))
    if len(pages) != 1:
        raise SystemExit(f"the run left {len(pages)} pages, expected 1:\n{recording}")
    return Shown(draw(lines, LIVE_VIEW_LABEL), pages[0])


def record(argv: list[str], directory: Path) -> str:
    """Run a command on a terminal of its own, and return all that it wrote there."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.environ.pop("NO_COLOR", None)
        os.execvp(argv[0], argv)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written = b""
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # Linux: the other end is closed
            data = b""
        if not data:
            break
        written += data
    os.waitpid(pid, 0)
    os.close(terminal)
    return written.decode("utf-8", "replace")


def photograph(page: Path, profile: Path) -> bytes:
    """Show a page in headless Chromium, and return its upper part as WebP."""
    browser = Chromium(profile)
    try:
        browser.call("Emulation.setDeviceMetricsOverride", width=PAGE_WIDTH, height=PAGE_HEIGHT, deviceScaleFactor=1,
                     mobile=False)  # fmt: skip
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(page)
        picture = browser.call("Page.captureScreenshot", format="webp", quality=82)["data"]
    finally:
        browser.close()
    return base64.b64decode(picture)


def main() -> int:
    """Write both pictures into docs/pictures, or into a directory that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=PICTURES)
    into: Path = parser.parse_args().into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures-") as place:
        directory = Path(place)
        shown = show_run(directory)
        (into / LIVE_VIEW).write_text(shown.live_view)
        if find() is None:
            print(f"pictures: Chromium not found, {FAILURE_PAGE} is left as it is. hint: make browser")
        else:
            (into / FAILURE_PAGE).write_bytes(photograph(shown.page, directory / "profile"))
            (into / FAILURE_WORDS).write_text(words_of_page(shown.page))
    for picture in sorted(into.iterdir()):
        size = picture.stat().st_size
        print(f"pictures: {picture.name} {size} bytes")
        if size > MOST_BYTES:
            raise SystemExit(f"{picture} has more than {MOST_BYTES} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
