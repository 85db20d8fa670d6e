"""Aligning the units of a claim's arms: pairing, and what is missing, left out or counted as never."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from runners.claim_spec import Claim


class Blocked(Exception):
    """The data do not allow the statistic; the message is the reason."""


@dataclass
class Sample:
    """Values of k arms (or levels): ``values[j]`` of arm j; entry i of each is unit i where ``paired``."""

    values: list[np.ndarray]
    paired: bool
    boolean: bool
    notes: list[str]

    @property
    def units(self) -> int:
        """Units per arm; of unpaired arms the smaller count."""
        return min(len(values) for values in self.values)


def align(claim: Claim, tables: list[pd.DataFrame], names: list[str], pair: bool = False) -> Sample:
    """Align k tables of units; leave out and count what ``censored`` says; refuse what is missing."""
    for table, name in zip(tables, names, strict=True):
        if not len(table):
            raise Blocked(f"no runs{f' of {name}' if name else ''}")
    notes: list[str] = []
    boolean = all(table.attrs.get("boolean", False) for table in tables)
    keys = [set(table["unit"]) for table in tables]
    shared = set.intersection(*keys)
    same = all(len(key) == len(shared) for key in keys)
    if (pair or claim.paired) and not same:
        raise Blocked(f"{len(set.union(*keys) - shared)} units are not shared by all arms")
    paired = len(tables) == 1 or pair or claim.paired or (same and claim.paired is not False)
    if paired:
        order = [unit for unit in tables[0]["unit"] if unit in shared]
        tables = [table.set_index("unit").loc[order] for table in tables]
        lost = np.array([table["lost"] for table in tables], dtype=bool).any(axis=0)
        never = np.array([table["never"] for table in tables], dtype=bool)
        enough = {"both": len(tables), "any": 1}.get(claim.drop or "", len(tables) + 1)
        gone = (never.sum(axis=0) >= enough) & ~lost
        if gone.any():
            which = "in every arm" if claim.drop == "both" else "in an arm"
            where = "" if len(tables) == 1 else f" {which}"
            notes.append(f"{int(gone.sum())} of {len(order)} units left out: metric missing{where}")
        tables = [table[~(lost | gone)] for table in tables]
    else:
        if claim.drop == "both":
            raise Blocked("units missing in both arms can only be left out where the arms share units")
        kept = []
        for table, name in zip(tables, names, strict=True):
            out = table["never"] & (claim.drop == "any")
            if out.any():
                notes.append(f"{int(out.sum())} of {len(table)} units of {name} left out: metric missing")
            kept.append(table[~(table["lost"] | out)])
        tables = kept
    for table, name in zip(tables, names, strict=True):
        who = f" of {name}" if name else ""
        missing = int(table["value"].isna().sum())
        if missing:
            why = (
                ""
                if claim.censored is not None or claim.statistic == "slope"
                else " (the claim has no `censored`)"
            )
            raise Blocked(f"{missing} of {len(table)} units{who} have no value{why}")
        if not len(table):
            raise Blocked(f"no units{who} are left")
        count = int(table["never"].sum())
        if count:
            notes.append(f"{count} of {len(table)} units{who} never get there and count as `censored`")
    values = [table["value"].to_numpy(dtype=float) for table in tables]
    return Sample(values, paired, boolean, notes)
