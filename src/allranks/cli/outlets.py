"""What goes out of a run besides its view: metrics and notifications, from settings and the user's own file (IO)."""

from __future__ import annotations

import importlib.util
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import ConfigError, UsageError
from allranks.protocol.jsontext import Json
from allranks.protocol.run_facts import Fact, Stamped
from allranks.report.notifier import Notifier
from allranks.runs.documents import ResultDocument, RunOpened, StatusDocument
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.layers import NOTIFY
from allranks.settings.parsers import split_address
from allranks.settings.table import suggestion
from allranks.text import join_words

from .config_files import ConfigFile, read_user_config

if TYPE_CHECKING:
    from allranks.report.metrics_out import MetricsPort

LIBRARIES = {"notify": "apprise", "metrics": "prometheus_client"}  # by the extra that installs them


class AnnouncingView(View):
    """Shows in a view, and passes on to outlets. One that fails is left out from then on: no run depends on one."""

    def __init__(self, view: View, outlets: Sequence[View]) -> None:
        self._view = view
        self._outlets = list(outlets)

    def say(self, label: str, text: str) -> None:
        """Show a line of the start."""
        self._view.say(label, text)

    def opening(self, opened: RunOpened) -> None:
        """Begin: what the run is."""
        self._view.opening(opened)

    def event(self, stamped: Stamped[Fact]) -> None:
        """Show a fact, and pass it on."""
        self._view.event(stamped)
        self._pass_on(lambda outlet: outlet.event(stamped))

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Show bytes of a rank, as they came."""
        self._view.output(node_name, rank, data, now)

    def status(self, status: StatusDocument, now: float) -> None:
        """Show the states of all ranks, and pass them on."""
        self._view.status(status, now)
        self._pass_on(lambda outlet: outlet.status(status, now))

    def tick(self, now: float) -> None:
        """Let time pass."""
        self._view.tick(now)
        self._pass_on(lambda outlet: outlet.tick(now))

    def pause(self) -> None:
        """Show nothing until `resume`."""
        self._view.pause()

    def resume(self) -> None:
        """Show again."""
        self._view.resume()

    def closing(self, result: ResultDocument) -> None:
        """End: how the run ended, and why."""
        self._view.closing(result)
        self._pass_on(lambda outlet: outlet.closing(result))

    def _pass_on(self, act: Callable[[View], None]) -> None:
        for outlet in list(self._outlets):
            try:
                act(outlet)
            except Exception as error:
                self._outlets.remove(outlet)
                say_note(f"{type(outlet).__name__} has ended ({type(error).__name__}: {error}). The run goes on")


class Outlets:
    """The outlets that the settings ask for. A port is open from here on, so that its refusal comes before the run."""

    def __init__(self, spec: RunSpec) -> None:
        """Raise UsageError or ConfigError for what cannot be had."""
        self._addresses: dict[str, list[str]] = {}
        self._metrics: View | None = None
        self._port: MetricsPort | None = None
        self._runs_dir = f"{socket.gethostname()}:{os.path.abspath(spec.places.runs_dir)}"
        if spec.output.notify:
            _require("notify", "--notify")
            config = read_user_config(os.environ)
            self._addresses = {name: _addresses_of(name, config, os.environ) for name in spec.output.notify}
        listen, path = spec.output.metrics_port, spec.output.metrics_file
        if listen or path:
            _require("metrics", "--metrics-port" if listen else "--metrics-file")
            # Imported late: prometheus-client takes 100 ms, and few runs ask for it.
            from allranks.report.metrics_out import MetricsFile, MetricsPort, RunMetrics

            file = MetricsFile(Path(path).expanduser()) if path else None
            self._port = MetricsPort(*split_address(listen)) if listen else None
            self._metrics = RunMetrics(self._port, file)

    def view_of(self, view: View) -> View:
        """Return a view that passes on what it shows; the same where nothing is asked for."""
        outlets: list[View] = [] if self._metrics is None else [self._metrics]
        if self._addresses:
            outlets.append(Notifier(self._addresses, self._runs_dir, say_note))
        if not outlets:
            return view
        if self._port is not None:
            view.say("metrics", self._port.url)
        return AnnouncingView(view, outlets)

    def close(self) -> None:
        """Give the port back: the controller is another process, which has the same settings."""
        if self._port is not None:
            self._port.close()


def say_note(text: str) -> None:
    """Tell the person at the run; standard output is for the answer."""
    sys.stderr.write(f"note: {text}\n")


def _require(extra: str, option: str) -> None:
    library = LIBRARIES[extra]
    if importlib.util.find_spec(library) is None:
        name = library.replace("_", "-")
        raise UsageError(
            f"{option} needs the package {name}, which {sys.executable} does not have\n"
            f"hint: pip install {name} (or allranks[{extra}])"
        )


def _addresses_of(name: str, config: ConfigFile, environ: Mapping[str, str]) -> list[str]:
    """Return the addresses that a name stands for: an entry of [notify] in the user's own file, or a variable.

    Raise ConfigError where other users can read the file: addresses hold tokens.
    """
    entries = config.values.get(NOTIFY) or {}
    if not isinstance(entries, Mapping):
        raise ConfigError(f'{config.source}: notify is {type(entries).__name__}, expected a table with NAME = "URL"')
    if name in entries:
        file = Path(config.source)
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            what = "has addresses with secrets, and other users may read it"
            raise ConfigError(f"{file}: {what}\nhint: chmod 600 {file}")
        return _texts(entries[name], f"{config.source}: [notify] {name}")
    if environ.get(name):
        return [environ[name]]
    meant = suggestion(name, [str(entry) for entry in entries])
    if meant:
        hint = f"hint: --notify {meant}"
    elif entries:
        hint = f"Known are {join_words([str(entry) for entry in entries])} of [notify] in {config.source}"
    else:
        hint = f'hint: write [notify] with {name} = "URL" into ~/.config/allranks/config.toml, or export {name}=URL'
    raise UsageError(f"--notify {name}: found neither an entry of [notify] nor a variable of this name\n{hint}")


def _texts(value: Json, where: str) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    addresses = [item for item in listed if isinstance(item, str) and "://" in item]
    if not addresses or len(addresses) < len(listed):
        raise ConfigError(f"{where}: expected the URL of a service, or a list of them")
    return addresses
