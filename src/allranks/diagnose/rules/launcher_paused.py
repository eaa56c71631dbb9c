"""The launching machine slept, or the controller was stopped, for longer than the lease: nodes ended their ranks."""

from __future__ import annotations

from ..candidate import Candidate, Strength
from ..incident import Incident
from ..words import utc

ID = "launcher-paused"
SOURCE = "CLOCK_BOOTTIME against CLOCK_MONOTONIC on the launching machine, see `allranks.gang.clocks`"
OF_LEASE = {"lease-over", "ended-alone"}
MARGIN = 6.0  # seconds between the last word that a node had heard and the pause: one beat, and its own ticks
AWAKE = "keep it awake meanwhile: systemd-inhibit --what=sleep allranks run …"
RUN_ON = "do not stop allranks run (Ctrl-Z, kill -STOP); allranks attach and --detach leave the terminal instead"
REMEDY = "start it with --detach on a machine that stays awake, or with a --lease longer than such a pause; or {}"


def apply(incident: Incident) -> Candidate | None:
    """A pause as long as the lease, and after it nodes that were lost or had ended their ranks by themselves."""
    long = [p for p in incident.pauses if incident.lease and p.seconds + MARGIN >= incident.lease]
    faults = [f.node for f in incident.faults if f.id in OF_LEASE]
    ended = {*faults, *(n.node for n in incident.lost)}
    nodes = [node for node in incident.ranks_by_node if node in ended]
    nodes += sorted(ended.difference(nodes))
    if not long or not nodes:
        return None
    pause = max(long, key=lambda p: p.seconds)
    began = pause.t - pause.seconds
    what = "the launching machine slept" if pause.slept else "allranks itself did not run on the launching machine"
    message = f"{what} for {pause.seconds:.0f} s, so the lease of {incident.lease:g} s was over: "
    message += "the nodes ended their ranks, as they do when nothing is heard from it"
    how = "suspended, by CLOCK_BOOTTIME" if pause.slept else "stopped by a signal, frozen, or starved of its CPU"
    first = min([began, *(n.last_heard for n in incident.lost)])
    return Candidate(
        ID,
        "unknown",
        Strength.ROOT,
        message,
        0.95,
        first,
        REMEDY.format(AWAKE if pause.slept else RUN_ON),
        evidence=(f"from {utc(began)} to {utc(pause.t)}: {how}", f"lease over on: {', '.join(nodes[:8])}"),
    )
