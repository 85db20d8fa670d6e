"""``python -m tests.runners.sweep_only paper=... ``: a sweep that judges nothing, for tests that look at its runs."""

from runners import cli, reproduce


def run(arguments: list[str]) -> int:
    """What ``runners.reproduce`` does, without the report."""
    reproduce.report = lambda sweep, publish: int(bool(sweep.failures))
    return reproduce.run(arguments)


if __name__ == "__main__":
    cli.main(run, reproduce.USAGE)
