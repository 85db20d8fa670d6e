"""Daily prices of 20 stocks of the S&P 500 and of the index, 1990 to 2022, out of the package skfolio."""

import hashlib
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from tasks.data.resolve import Door, MissingData

STOCKS, INDEX = "sp500_dataset.csv.gz", "sp500_index.csv.gz"


@dataclass(frozen=True, eq=False)
class Returns:
    """Returns from one day to the next.

    Attributes:
        names: tickers of the stocks, (d,).
        stocks: (days, d).
        index: (days,).
    """

    names: list[str]
    stocks: np.ndarray
    index: np.ndarray


class SP500(Door):
    """The two tables as the installed package has them.

    Args:
        content: file name -> SHA-256 of the file in the package: it must be the one the results were made with.
        files: none; the package holds the data.
        name, size_mb, licence, source: as `Door`.
    """

    def __init__(
        self,
        content: dict[str, str],
        *,
        files: dict[str, str] | None = None,
        name: str = "S&P 500 of skfolio",
        size_mb: float = 0.5,
        licence: str = "BSD-3-Clause (skfolio)",
        source: str = "bundled with the package skfolio (pip install reprise[convex])",
    ) -> None:
        super().__init__(files or {}, name=name, size_mb=size_mb, licence=licence, source=source)
        self.content = content

    def fetch(self) -> None:
        """Check that the installed package has the data; raises `MissingData`."""
        self.load()

    def load(self) -> Returns:
        """Returns of stocks and index on the days that both have; the same object at every call in one process.

        Raises:
            MissingData: skfolio is not installed, or holds other files.
        """
        # The package's files are read in place: importing it loads a solver stack that nothing here uses.
        spec = importlib.util.find_spec("skfolio")
        if spec is None or not spec.submodule_search_locations:
            raise MissingData(
                f"{self.name} is missing: the package skfolio is not installed ({self.size_mb:g} MB, {self.licence}); "
                f"run: make fetch-<paper> (source: {self.source})"
            )
        folder = Path(spec.submodule_search_locations[0]) / "datasets" / "data"
        for file, wanted in self.content.items():
            path = folder / file
            found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
            if found != wanted:
                raise MissingData(
                    f"{self.name}: the installed skfolio bundles another {file} (SHA-256 {found[:16]})"
                )
        return _read(folder)


@lru_cache(maxsize=1)
def _read(folder: Path) -> Returns:
    import pandas as pd

    stocks = pd.read_csv(folder / STOCKS, index_col=0, parse_dates=True)
    index = pd.read_csv(folder / INDEX, index_col=0, parse_dates=True).iloc[:, 0]
    prices = stocks.join(index.rename("index"), how="inner").sort_index()
    returns = prices.pct_change().iloc[1:].to_numpy(np.float64)
    return Returns([str(name) for name in stocks.columns], returns[:, :-1].copy(), returns[:, -1].copy())
