"""A measure of our own."""


def last_ratio(frame, metric: str = "gap") -> float:
    """Last value over the first one."""
    return float(frame[metric].iloc[-1] / frame[metric].iloc[0])
