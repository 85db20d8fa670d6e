"""A helper that a method uses."""


def scaled(value: float, factor: float) -> float:
    """Product of value and factor."""
    return value * factor
