"""Work that may be refused: what it returned, or the refusal."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")
Refusal = TypeVar("Refusal", bound=Exception)


def outcome(
    refusals: type[Refusal] | tuple[type[Refusal], ...], work: Callable[P, Result], *args: P.args, **options: P.kwargs
) -> Result | Refusal:
    """Return what `work` returns, or the error if it is one of `refusals`; any other one leaves."""
    try:
        return work(*args, **options)
    except refusals as error:
        return error
