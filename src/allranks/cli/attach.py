"""allranks attach: follow a run, or take it over where its controller has died."""

from __future__ import annotations

from allranks.report.live import choose_view

from .chosen_run import find_run


def command(run: str | None, on: str | None, runs_dir: str | None, take_over: bool, quiet: bool, json_: bool) -> int:
    """Follow a run, or take it over."""
    # Imported late: `attach --help` needs no engine.
    from allranks.engines.following import FollowedRun, OnCtrlC, follow_run
    from allranks.settings.document import from_document

    from .follow import follow_to_end, print_end
    from .outlets import Outlets

    directory = find_run(run, runs_dir, on, prefers_here=take_over)
    view = choose_view(json_, quiet=quiet, began=directory.started or None)
    result = directory.read_result()
    if result is not None:
        return print_end(directory, result, view, json_, page=False)
    followed = follow_run(directory, view, take_over)
    on_ctrl_c = followed.on_ctrl_c if isinstance(followed, FollowedRun) else OnCtrlC.STOP
    view.say("attached", f"{directory.name}. {on_ctrl_c.value}")
    if not followed.awaits_ranks:
        return follow_to_end(followed, view, json_)
    # The controller is this process now, and notifies those whom the one before it has notified.
    outlets = Outlets(from_document(directory.read_run().spec))
    announcing = outlets.view_of(view)
    followed.show_in(announcing)
    return follow_to_end(followed, announcing, json_)
