"""Problems on a line: a noisy bowl, a duel with a finished run, a race of several methods in one run."""

import json
import os
import random
import time
from pathlib import Path


def note(word: str, run) -> None:
    """Append a line to the file that tests read to see what ran, how often and where."""
    if log := os.environ.get("REPRISE_TOY_LOG"):
        with open(log, "a") as file:
            file.write(f"{word} {run.dir.name} {os.getpid()}\n")


class Bowl:
    """f(x) = x^2 / 2 with noisy slopes; replicate i starts from its own point."""

    def __init__(self, steps: int = 20, noise: float = 0.1, repeats: int = 1, pause: float = 0.0):
        self.steps, self.noise, self.repeats, self.pause = steps, noise, repeats, pause

    def evaluate(self, method, run) -> None:
        note("begin", run)
        agent = method()
        finals = []
        for i in range(self.repeats):
            draws = random.Random(f"{run.seed}/{i}")
            x = draws.uniform(1, 2)
            for step in run.track(range(self.steps)):
                if self.pause:
                    time.sleep(self.pause)
                x = agent.move(x, x + self.noise * draws.gauss(0, 1))
                if i == 0:
                    run.log(step=step, gap=x * x / 2)
            finals.append(x * x / 2)
        if self.repeats > 1:
            run.rows("repeat", {"gap": finals})
        run.summary(gap=finals[0])
        note("end", run)


class Duel:
    """Plays against a finished run of Bowl."""

    def __init__(self, opponent=None, steps: int = 20):
        self.opponent, self.steps = opponent, steps

    def evaluate(self, method, run) -> None:
        agent, x = method(), 1.5
        for step in range(self.steps):
            x = agent.move(x, x)
            run.log(step=step, gap=x * x / 2)
        run.summary(gap=x * x / 2, margin=self.opponent.summary["gap"] - x * x / 2)


class Race:
    """Several methods in one run, interleaved repeat by repeat."""

    def __init__(self, repeats: int = 8):
        self.repeats = repeats

    def evaluate(self, method, run) -> None:
        rows = []
        for i in range(self.repeats):
            for name, factory in method.items():
                draws = random.Random(f"{run.seed}/{i}")
                agent, x = factory(), draws.uniform(1, 2)
                for _ in range(10):
                    x = agent.move(x, x)
                rows.append({"i": i, "method": name, "gap": x * x / 2 + 1e-3 * draws.random()})
        run.rows("repeat", rows)


class Prepared:
    """Uses an artifact and a data file."""

    def __init__(self, table=None, data=None):
        self.table, self.data = table, data

    def evaluate(self, method, run) -> None:
        numbers = json.loads((run.artifact(self.table) / "table.json").read_text())
        agent, x = method(), numbers[run.seed % len(numbers)]
        for step in range(10):
            x = agent.move(x, x)
            run.log(step=step, gap=x * x / 2)
        run.summary(gap=x * x / 2, first=numbers[0], letters=len(self.data.text()) if self.data else 0)


def build_table(out: Path, size: int = 5, seed: int = 0) -> None:
    """An expensive preparation: a table of starting points."""
    with open(out.parent / "built.log", "a") as log:
        log.write(f"{size}\n")
    draws = random.Random(seed)
    (out / "table.json").write_text(json.dumps([draws.uniform(1, 2) for _ in range(size)]))


class TextFile:
    """A dataset: one text file."""

    def __init__(self, path: str, files: dict | None = None):
        self.path, self.files = path, files

    @staticmethod
    def checksums(node: dict) -> dict:
        """Checksums of the files that the YAML does not pin."""
        import hashlib

        return {name: hashlib.sha256(Path(node["path"]).read_bytes()).hexdigest() for name in node["files"]}

    def text(self) -> str:
        return Path(self.path).read_text()
