"""allranks attach: follow a run, or take it over where its controller is gone."""

from __future__ import annotations

from allranks.report.live import choose_view

from .chosen_run import find_run


def command(run: str | None, runs_dir: str | None, take_over: bool, quiet: bool, json_: bool) -> int:
    """Follow a run, or take it over."""
    # Imported late: `attach --help` needs no engine.
    from allranks.engines.following import follow_run

    from .follow import follow_to_end, print_end

    directory = find_run(run, runs_dir)
    view = choose_view(json_, quiet=quiet)
    result = directory.read_result()
    if result is not None:
        return print_end(directory, result, view, json_, page=False)
    return follow_to_end(follow_run(directory, view, take_over), view, json_)
