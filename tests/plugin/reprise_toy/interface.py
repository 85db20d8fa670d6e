"""What methods and tasks of the kind `toy` agree on."""

from typing import Protocol


class Method(Protocol):
    """Moves a point."""

    def move(self, x: float, slope: float) -> float:
        """Next point from a point and the slope there."""
