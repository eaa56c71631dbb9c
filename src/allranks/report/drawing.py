"""What drawings share: the frame that their lines stand in, and the ticks of an axis (pure).

The templates timeline.html and overlap.html draw with these figures alone: no script, no style sheet,
nothing fetched. Names are escaped there.
"""

from __future__ import annotations

from typing import NamedTuple


class PlotFrame(NamedTuple):
    """The part of a drawing between its axes, in the drawing's own units."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Give the place of the right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Give the place of the lower edge."""
        return self.top + self.height


class GridLine(NamedTuple):
    """A line of the grid, and what it means."""

    at: float
    text: str
