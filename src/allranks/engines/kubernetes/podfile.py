"""The files that a spec's pod settings name."""

from __future__ import annotations

from pathlib import Path

from allranks.errors import UsageError
from allranks.settings import RunSpec

LIMIT = 1 << 20
WANT = "Set a YAML file with a pod's metadata and spec"


def read_texts(spec: RunSpec) -> dict[str, str]:
    """{name as the user gave it: text} of --pod."""
    if spec.cloud.pod is None:
        return {}
    try:
        with Path(spec.cloud.pod).open("rb") as file:
            data = file.read(LIMIT + 1)
    except OSError as error:
        raise UsageError(f"--pod {spec.cloud.pod}: {error.strerror}. {WANT}") from None
    if len(data) > LIMIT:
        raise UsageError(f"--pod {spec.cloud.pod}: larger than 1 MiB. {WANT}")
    return {spec.cloud.pod: data.decode("utf-8", "replace")}
