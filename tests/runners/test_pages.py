"""Scoreboard, paper pages and README files, built from synthetic published results."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from runners import formats, interval_strip, pages, places, published, report
from runners.errors import ConfigError

SVG = '<svg width="300pt" height="200pt" xmlns="http://www.w3.org/2000/svg"><title>t</title></svg>\n'


def entry(name, verdict="reproduced", **changes):
    found = {
        "id": name,
        "says": f"says {name}",
        "source": "Fig. 2",
        "reported": 2.0,
        "statistic": "ratio of steps",
        "unit": "seed",
        "value": 2.31,
        "low": 1.92,
        "high": 2.78,
        "expect": ">= 1.5",
        "set_by": "ours",
        "verdict": verdict,
        "runs": 20,
        "units": 10,
        "note": None,
        "method": "Student t on the log scale",
        "cells": [],
        "needed_units": None,
    }
    if verdict == "not run":
        found |= dict.fromkeys(("value", "low", "high", "method"))
    return found | changes


class Site:
    """A folder with papers' YAML files and published results."""

    def __init__(self, root: Path):
        self.root, self.results, self.conf = root, root / "results", root / "conf"
        (self.conf / "paper").mkdir(parents=True)
        self.results.mkdir()

    def paper(self, slug="alpha", **changes):
        spec = {
            "title": f"Title of {slug}",
            "venue": "ICML 2025",
            "experiments": {
                "main": {
                    "asks": "Which is faster?",
                    "grid": {"method": ["bandit/ours"], "task": ["bandit/arms"], "seed": "range(10)"},
                    "settings": [
                        {"when": {"method": "bandit/ours"}, "set": {"method.lr": 0.1}, "source": "Table 5"},
                        {"set": {"task.arms": 10, "task.noise": 0.5}, "source": "assumed"},
                    ],
                },
                "big": {"grid": {"method": "bandit/ours", "task": "bandit/arms"}}
                | {"scale": {"laptop": {"not_run": "needs 8 GPUs for a week"}}},
            },
            "claims": {
                "faster": {"says": "says faster", "expect": ">= 1.5", "experiment": "main"},
                "large": {"says": "says large", "expect": ">= 0", "experiment": "big"},
            },
            "findings": {"own": {"says": "says own", "expect": "<= 1", "experiment": "main"}},
            "figures": {"gap": {"title": "The gap", "y": "gap", "experiment": "main"}},
        } | changes
        (self.conf / "paper" / f"{slug}.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
        return spec

    def publish(self, slug="alpha", scale="laptop", claims=None, findings=None, folder=None, **changes):
        folder = folder or self.results / slug / scale
        (folder / "figures").mkdir(parents=True)
        (folder / "figures" / "gap.svg").write_text(SVG)
        verdicts = {
            "paper": slug,
            "scale": scale,
            "commit": "0123456789ab",
            "seconds": 100.0,
            "modified": False,
            "claims": claims if claims is not None else [entry("faster"), entry("large", "not run")],
            "findings": findings if findings is not None else [entry("own", "contradicted", expect="<= 1")],
            "experiments": {
                "main": {
                    "runs": 20,
                    "statuses": {"done": 19, "diverged": 1},
                    "seconds": 90.0,
                    "not_run": None,
                },
                "big": {"runs": 0, "not_run": "needs 8 GPUs for a week"},
            },
            "settings": [
                {"experiment": "main", "when": None, "set": {"task.arms": 10}, "source": "assumed"},
                {"experiment": "main", "when": {"method": "m"}, "set": {"method.lr": 1}, "source": "Table 5"},
            ],
            "provenance": {
                "python": "3.11.7",
                "packages": {"numpy": "2.4.6"},
                "hardware": {"cpu": "A processor", "cores": 2, "memory_gb": 24, "system": "Linux"},
                "cpu_seconds": 95.0,
                "peak_memory_mb": 512,
            },
        } | changes
        (folder / "verdicts.json").write_text(json.dumps(verdicts))
        (folder / "runs.csv").write_text(
            "id,experiment,method,task,seed,status,seconds\n"
            + "".join(f"{i},main,bandit/ours,bandit/arms,{i},done,1.5\n" for i in range(20))
        )
        return verdicts

    def page(self, slug="alpha"):
        pages.build_all(self.results)
        return (self.results / slug / "index.html").read_text(encoding="utf-8")

    def index(self):
        pages.build_all(self.results)
        return (self.results / "index.html").read_text(encoding="utf-8")


@pytest.fixture
def site(tmp_path, monkeypatch):
    made = Site(tmp_path)
    monkeypatch.setattr(places, "conf_roots", lambda: (made.conf,))
    monkeypatch.setattr(places, "results", lambda: made.results)
    return made


class Reader(HTMLParser):
    """Collects what a browser would load and where links lead; complains of crossed tags."""

    VOID = ("meta", "link", "img", "br", "input")

    def __init__(self, page):
        super().__init__()
        self.open, self.loads, self.links, self.ids, self.scripts, self.text = [], [], [], [], [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        self.loads += [found[key] for key in ("src", "srcset") if found.get(key)]
        self.loads += [found["href"]] if tag == "link" else []
        self.links += [found["href"]] if tag == "a" else []
        self.ids += [found["id"]] if "id" in found else []
        self.scripts += [""] if tag == "script" else []
        assert not [name for name in found if name.startswith("on")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.text.append(data)


def words(page):
    return " ".join(" ".join(Reader(page).text).split())


def test_pages_load_nothing_and_run_one_known_script(site):
    site.paper()
    site.publish()
    for page in (site.index(), site.page()):
        reader = Reader(page)
        assert all(load.startswith("data:") for load in reader.loads)
        assert not re.search(r"url\((?!data:)|@import", page)
        assert len(reader.scripts) == 1
        digest = base64.b64encode(hashlib.sha256(reader.scripts[0].encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in page
        assert len(set(reader.ids)) == len(reader.ids)


def test_links_lead_somewhere(site):
    site.paper("alpha")
    site.publish("alpha", "laptop")
    site.publish("alpha", "smoke", claims=[entry("faster", "shown")])
    site.paper("beta & co")
    pages.build_all(site.results)
    for path in site.results.rglob("index.html"):
        for link in Reader(path.read_text(encoding="utf-8")).links:
            if not re.match(r"https://|#", link):
                file, _, anchor = link.partition("#")
                target = path.parent / unquote(file)
                assert target.is_file(), link
                assert not anchor or unquote(anchor) in Reader(target.read_text(encoding="utf-8")).ids


def test_markup_in_names_shows_as_text(site):
    bad = "<script>alert(1)</script>"
    site.paper("evil", title=bad, authors=[bad], code={"url": "javascript:alert(1)", "commit": bad})
    claims = [entry("faster", note=bad, says=bad, statistic=bad, cells=[], reported=bad, source='"><b>')]
    site.publish(
        "evil", claims=claims, commit=bad, provenance={"packages": {bad: bad}, "hardware": {"cpu": bad}}
    )
    runs = site.results / "evil" / "laptop" / "runs.csv"
    runs.write_text(f"id,experiment,method,task,seed,status,seconds\n1,{bad},{bad},x,0,{bad},1\n")
    (runs.parent / "tuning.csv").write_text(f"experiment,{bad}\nmain,{bad}\n")
    for page in (site.index(), site.page("evil")):
        assert len(Reader(page).scripts) == 1
        assert "alert(1)" in words(page)
        assert "javascript:" not in page
    readme = pages.write_readme(
        runs.parent, json.loads((runs.parent / "verdicts.json").read_text()), {"title": bad}
    )
    assert "\\<script\\>" in readme.read_text(encoding="utf-8")
    assert "<script>" not in readme.read_text(encoding="utf-8")


def test_papers_without_results_show_every_claim_as_not_run(site):
    site.paper()
    assert 'data-v="not run"' in site.index()
    text = words(site.page())
    assert "says faster" in text
    assert "Not run. needs 8 GPUs for a week (laptop scale)" in text
    assert "3 settings: 1 from the paper, 2 assumed." in text
    assert "No results are published yet" in text
    board = (site.results / "README.md").read_text(encoding="utf-8")
    assert "| Title of alpha | ➖➖ |" in board


def test_a_paper_page_shows_what_was_found(site):
    site.paper()
    site.publish()
    text = words(site.page())
    for part in (
        "2.31 [1.92, 2.78]",
        "10 seeds, 20 runs",
        "≥ 1.5",
        "set by us",
        "Student t on the log scale",
        "needs 8 GPUs for a week",
        "2 settings: 1 from the paper, 1 assumed.",
        "make reproduce-alpha scale=laptop",
        "experiment=main",
        "19 done, 1 diverged",
        "A processor, 2 cores, 24 GB, Linux",
        "numpy 2.4.6",
        "512 MB",
        "At laptop scale 1 of 2 claims were judged from 20 runs, 1.6 min of CPU time",
    ):
        assert part in text, part


def test_the_largest_scale_that_judged_counts(site):
    site.paper()
    site.publish("alpha", "smoke", claims=[entry("faster", "shown", value=9.0)])
    site.publish("alpha", "laptop", claims=[entry("faster", "contradicted", value=1.0)])
    site.publish("alpha", "paper", claims=[entry("faster", "not run"), entry("large", "shown")])
    paper = published.read_papers([site.conf / "paper"], site.results)[0]
    faster, large = paper.claims
    assert (faster.scale, faster.verdict, faster.best["value"]) == ("laptop", "contradicted", 1.0)
    assert (large.scale, large.verdict) == ("paper", "shown")
    assert list(paper.scales) == ["paper", "laptop", "smoke"]
    assert paper.main.name == "laptop"
    page = site.index()
    assert 'data-at-paper="not run" data-at-laptop="contradicted" data-at-smoke="shown"' in page


def test_findings_never_count_among_claims(site):
    site.paper()
    site.publish()
    paper = published.read_papers([site.conf / "paper"], site.results)[0]
    assert paper.counts == {"reproduced": 1, "not run": 1}
    assert pages.totals([paper])["claims"] == 2
    page = site.index()
    assert page.index("Our findings") < page.index('class="cell finding contradicted"')


def test_expected_wrong_counts_judged_claims(site):
    site.paper()
    site.publish(claims=[entry("faster"), entry("large", "inconclusive")])
    assert "Of 2 judged verdicts at most 0.05" in words(site.index())


def test_a_changed_expectation_is_told(site):
    site.paper(claims={"faster": {"says": "says faster", "expect": ">= 1.2", "experiment": "main"}})
    site.publish(claims=[entry("faster")])
    assert "The paper’s file now says ≥ 1.2" in words(site.page())


@pytest.mark.parametrize(
    ("then", "now", "changed"),
    [
        (">= 1.5", ">= 1.50", False),
        (">= 1.5", "> 1.6", True),
        ("in [0, 1]", "in [0.0,1]", False),
        ("exact: == 0", "exact", False),
        ("exact: == 0", {"exact": "== 0"}, False),
        ("exact: == 0", {"exact": "== 1"}, True),
        ("population: >= 3", ">= 3", True),
        ("<= -2", "<= -2.0", False),
        (None, ">= 3", False),
    ],
)
def test_what_counts_as_a_changed_expectation(then, now, changed):
    statement = published.Statement("a", "claim", "a", {"expect": now}, {"laptop": entry("a", expect=then)})
    assert formats.changed(statement) == changed


def test_ten_thousand_runs(site):
    import pandas as pd

    site.paper()
    site.publish("alpha", "laptop")
    cells = [(f"bandit/m{i % 50}", f"bandit/t{i // 50 % 50}") for i in range(10_000)]
    frame = pd.DataFrame(cells, columns=["method", "task"]).assign(
        experiment="main", status="done", seconds=0.5
    )
    frame.to_csv(site.results / "alpha" / "laptop" / "runs.csv", index=False)
    (site.results / "alpha" / "laptop" / "tuning.csv").write_text("a,b\n" + "1,2\n" * 5000)
    page = site.page()
    assert len(page.encode()) <= 1_000_000
    assert "10,000 done" in words(page) or "10000 done" in words(page)
    assert "2350 more in runs.csv" in words(page)
    assert "4850 more rows in tuning.csv" in words(page)
    (site.results / "alpha" / "laptop" / "runs.csv").unlink()
    frame.to_parquet(site.results / "alpha" / "laptop" / "runs.parquet")
    assert site.page().count("<td>bandit/m") == page.count("<td>bandit/m") == 150


def test_large_figures_are_linked_not_embedded(site):
    site.paper()
    site.publish()
    folder = site.results / "alpha" / "laptop" / "figures"
    for name in ("a", "b", "c"):
        (folder / f"{name}.svg").write_text(SVG.replace("<title>", f"<!--{'x' * 500_000}--><title>"))
    page = site.page()
    assert len(page.encode()) <= 1_000_000
    assert page.count('src="data:image/svg+xml') == 2  # gap and the first of the large ones
    assert 'src="laptop/figures/c.svg"' in page


def test_the_scoreboard_stays_small(site):
    claims = [
        entry(f"c{i}", says="It is better than the other one by a good margin. " * 3) for i in range(20)
    ]
    for i in range(38):
        site.paper(f"p{i}", claims={c["id"]: {"says": c["says"], "expect": c["expect"]} for c in claims})
        site.publish(f"p{i}", claims=claims)
    assert len(site.index().encode()) <= 3_000_000


def test_empty_and_broken_folders(site):
    site.paper()
    assert published.read_papers([site.root / "none"], site.root / "nowhere") == []
    folder = site.results / "alpha" / "laptop"
    folder.mkdir(parents=True)
    (folder / "verdicts.json").write_text('{"claims": [')
    assert "No results are published yet" in site.page()
    (folder / "verdicts.json").write_text("{}")
    assert "says faster" in site.page()
    (site.results / "unknown" / "laptop").mkdir(parents=True)
    (site.results / "unknown" / "laptop" / "verdicts.json").write_text(json.dumps({"claims": [entry("x")]}))
    assert "says x" in site.page("unknown")


def test_building_twice_changes_nothing(site):
    site.paper()
    site.publish()
    first = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in pages.build_all(site.results)}
    again = pages.build_all(site.results)
    assert first == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in again}


def test_fresh_results_stand_beside_the_published(site):
    site.paper()
    reference = site.results / "alpha" / "laptop"
    site.publish()
    fresh = site.root / "outputs" / "alpha" / "laptop"
    site.publish(folder=fresh, claims=[entry("faster", "inconclusive", value=1.6, low=1.4, high=1.8)])
    out = pages.build_paper("alpha", "laptop", fresh, reference, fresh / "index.html")
    text = words(out.read_text(encoding="utf-8"))
    assert "Fresh against published results: 1 of 2 verdicts agree; 1 of 2 numbers" in text
    assert "published: reproduced" in text
    assert "1.60 [1.40, 1.80]" in text
    assert "2.31 [1.92, 2.78]" in text
    assert "At laptop scale, published" in text
    alone = pages.build_paper("alpha", "laptop", fresh, site.root / "none", fresh / "index.html")
    assert "Published" not in words(alone.read_text(encoding="utf-8"))
    with pytest.raises(FileNotFoundError):
        pages.build_paper("alpha", "laptop", site.root / "none", reference, out)


def test_modified_runs_are_labelled_and_compared_with_nothing(site):
    site.paper()
    site.publish()
    fresh = site.root / "fresh"
    site.publish(folder=fresh, modified=True)
    out = pages.build_paper("alpha", "laptop", fresh, site.results / "alpha" / "laptop", fresh / "index.html")
    text = words(out.read_text(encoding="utf-8"))
    assert "These runs were modified on the command line" in text
    assert "Fresh against published" not in text


def test_smoke_results_say_what_they_are_worth(site):
    spec = site.paper()
    verdicts = site.publish(scale="smoke")
    folder = site.results / "alpha" / "smoke"
    readme = pages.write_readme(folder, verdicts, spec).read_text(encoding="utf-8")
    page = pages.build_paper("alpha", "smoke", folder, site.root / "none", folder / "index.html")
    for text in (readme, words(page.read_text(encoding="utf-8"))):
        assert "too small to mean anything" in text
    site.publish()
    out = pages.build_paper(
        "alpha", "laptop", site.results / "alpha" / "laptop", site.root / "none", folder / "x.html"
    )
    assert "too small to mean anything" not in out.read_text(encoding="utf-8")


def test_readme_of_a_scale(site):
    spec = site.paper(claims={"faster": {"says": "a | b", "expect": ">= 1.5", "experiment": "main"}})
    verdicts = site.publish(claims=[entry("faster", "contradicted", note="tried *all*")])
    text = pages.write_readme(site.results / "alpha" / "laptop", verdicts, spec).read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if "contradicted" in line)
    assert row == "| ❌ contradicted | **a \\| b** (Fig. 2) | 2 | 2.31 [1.92, 2.78] | ≥ 1.5 | 10 seeds |"
    assert "tried \\*all\\*" in text
    assert "![The gap](figures/gap.svg)" in text
    assert "make reproduce-alpha scale=laptop" in text


def test_readme_block(site):
    site.paper()
    site.publish()
    readme = site.root / "README.md"
    readme.write_text(f"# Top\n\n{pages.START}\nold\n{pages.END}\n\nBottom\n")
    pages.build_all(site.results, readme)
    once = readme.read_text(encoding="utf-8")
    pages.build_all(site.results, readme)
    assert readme.read_text(encoding="utf-8") == once
    assert once.startswith("# Top\n\n<!-- scoreboard:start -->\n")
    assert once.endswith("<!-- scoreboard:end -->\n\nBottom\n")
    assert "old" not in once
    assert "✅ **1** reproduced" in once
    assert "not counted in these: 1 contradicted." in once
    assert "[Title of alpha](results/alpha/laptop/README.md) | ✅➖ | laptop |" in once
    for text in ("no marks\n", f"{pages.START} but no end\n"):
        assert pages.replace_block(text, "block") == text


def test_command_line(site, capsys):
    site.paper()
    assert report.run([f"results={site.results}"]) == 0
    assert "index.html" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="unknown option 'result'; nearest: results"):
        report.run(["result=x"])
    with pytest.raises(ConfigError, match="there is no file"):
        report.run([f"readme={site.root / 'none.md'}"])


def test_pages_need_no_heavy_library(site):
    site.paper()
    site.publish()
    code = (
        "import sys; from pathlib import Path; from runners import pages; pages.build_all(Path(sys.argv[1]));"
        "print([name for name in ('torch', 'pandas', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(site.results)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("expect", "region"),
    [
        (">= 1.5", (1.5, float("inf"))),
        ("< -2e-3", (float("-inf"), -0.002)),
        ("in [0.05, 0.06]", (0.05, 0.06)),
        ("exact: == 0", (0.0, 0.0)),
        ("population: >= 3", (3.0, float("inf"))),
        ("exact", None),
        (None, None),
    ],
)
def test_region(expect, region):
    assert interval_strip.region(expect) == region


def test_strip_places():
    found = interval_strip.strip(entry("a", value=2.0, low=1.0, high=3.0, reported=4.0, expect=">= 1.5"))
    row = found["rows"][0]["at"]
    assert 0 <= row["low"] < found["shade"][0] < row["value"] < row["high"] < row["reported"] <= 100
    assert found["shade"][1] == 100.0
    cells = [
        {"cell": {"task": "k/a"}, "value": 1e-6, "low": 1e-7, "high": 1e-5, "reported": None},
        {"cell": {"task": "k/b"}, "value": 1.0, "low": None, "high": None, "reported": 2.0},
        {"cell": {"task": "k/c"}, "value": None, "low": None, "high": None, "reported": None},
    ]
    found = interval_strip.strip(entry("a", cells=cells, reported=None, expect="<= 1"))
    assert found["log"]
    assert [row["name"] for row in found["rows"]] == ["a", "b"]
    assert found["rows"][1]["at"]["low"] is None
    assert interval_strip.strip(entry("a", "not run")) is None


def test_a_wide_interval_does_not_hide_the_rest():
    found = interval_strip.strip(entry("a", value=2.0, low=-1e9, high=1e9, reported=None, expect=">= 1.5"))
    row = found["rows"][0]["at"]
    assert (row["low"], row["high"]) == (0.0, 100.0)
    assert row["value"] - found["shade"][0] > 5


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2.314, "2.31"),
        (-0.5, "−0.500"),
        (12345, "12,345"),
        (1234.56, "1,235"),
        (1.234e-5, "1.23×10⁻⁵"),
        (5e9, "5.00×10⁹"),
        (0.0, "0"),
        (True, "yes"),
        (None, "—"),
        (float("inf"), "∞"),
        ("text", "text"),
    ],
)
def test_number(number, text):
    assert formats.number(number) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (2.31, 1.92, 2.78, "2.31 [1.92, 2.78]"),
        (0.05261, 0.0524, 0.0528, "0.05261 [0.05240, 0.05280]"),
        (1234.5, 1100.0, 1300.0, "1,234 [1,100, 1,300]"),
        (-0.11, -0.2, 0.02, "−0.11 [−0.20, 0.02]"),
        (3e-9, 1e-9, 9e-9, "3.00×10⁻⁹ [1.00×10⁻⁹, 9.00×10⁻⁹]"),
        (1e-3, 1e-8, 0.9, "0.00100 [1.00×10⁻⁸, 0.900]"),
        (2.388, 0.6679, 8.536, "2.39 [0.67, 8.54]"),
        (2.0, None, 5.0, "2.0 [−∞, 5.0]"),
        (2.0, None, None, "2"),
        (1.0, 1.0, 1.0, "1 [1, 1]"),
    ],
)
def test_number_and_interval(value, low, high, text):
    shown = {"value": value, "low": low, "high": high}
    assert formats.value(shown) + (f" [{formats.bounds(shown)}]" if formats.bounds(shown) else "") == text


def test_expectation():
    texts = [
        formats.expectation(x) for x in (">= -1.5", {"exact": "== 0"}, "population: <= 2", "exact", None)
    ]
    assert texts == ["≥ −1.5", "= 0 in every unit", "≤ 2, no sampling", "exact", "—"]


def test_reported():
    assert formats.reported({"k/levy": 4.2, "k/ackley": None}) == "levy 4.20, ackley not given"
    assert formats.reported([1, 2.5]) == "[1, 2.50]"
    assert formats.reported(None) == "not given"


def test_origin_of_settings():
    texts = ["Table 5", "Fig. 2", "Eq. 3", "official code", "assumed", "derived", "the authors' mail"]
    found = [published.origin(text) for text in texts]
    assert found == ["paper", "paper", "paper", "official code", "assumed", "derived", "other"]


def test_durations():
    texts = [formats.duration(x) for x in (0.25, 12, 95, 5400, 200_000, None)]
    assert texts == ["0.25 s", "12 s", "1.6 min", "1.5 h", "2.3 d", "—"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_tuning_table_in_either_form(site, suffix):
    import pandas as pd

    site.paper()
    site.publish("alpha", "laptop")
    place = site.results / "alpha" / "laptop" / f"tuning{suffix}"
    table = pd.DataFrame({"method": ["a", "b"] * 100, "score": [0.1234567891, None] * 100})
    table.to_csv(place, index=False, float_format="%.6g") if suffix == ".csv" else table.to_parquet(place)
    page = words(site.page())
    assert "a 0.123457 b" in page
    assert f"50 more rows in tuning{suffix}" in page
