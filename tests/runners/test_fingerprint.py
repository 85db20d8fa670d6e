"""Fingerprints: what changes numbers changes them, directly or not; comments and docstrings do not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from runners import fingerprint, places
from runners.fingerprint import Fingerprinter

FILES = {
    "__init__.py": "",
    "methods.py": '"""Doc."""\nfrom prints.helpers import scale\n\n\nclass A:\n    """Doc."""\n    lr = scale(2)\n',
    "helpers.py": "from . import deep\n\n\ndef scale(x):\n    return x * deep.FACTOR\n",
    "deep.py": "FACTOR = 3\n",
    "lazy.py": "def run():\n    from .deep import FACTOR\n    import prints.folder.inside as x\n    return FACTOR\n",
    "folder/inside.py": "X = 1\n",
    "other.py": "Y = 1\n",
    "sub/__init__.py": "from .part import B\n",
    "sub/part.py": "from ..deep import FACTOR as B\n",
}


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """``edit(file, text)`` writes a file of a package of our own, ``prints``."""
    root = tmp_path / "prints"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(places, "our_packages", lambda: ("prints",))
    counter = iter(range(1, 1000))

    def write(name: str, text: str) -> None:
        import os

        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=(10**9 * next(counter),) * 2)  # two writes within the clock's grain still differ

    for name, text in FILES.items():
        write(name, text)
    return write


def of(*targets: str) -> str:
    """The fingerprint of a config with these targets."""
    return Fingerprinter().of({"method": {"x": [{"_target_": target} for target in targets]}, "task": {}})


@pytest.mark.parametrize("file", ["methods.py", "helpers.py", "deep.py", "__init__.py"])
def test_every_module_on_the_way_counts(edit: Callable[[str, str], None], file: str) -> None:
    before = of("prints.methods.A")
    edit(file, FILES[file] + "\nCHANGED = 1\n")
    assert of("prints.methods.A") != before
    edit(file, FILES[file])
    assert of("prints.methods.A") == before


@pytest.mark.parametrize("file", ["other.py", "lazy.py", "folder/inside.py", "sub/part.py"])
def test_nothing_else_counts(edit: Callable[[str, str], None], file: str) -> None:
    before = of("prints.methods.A")
    edit(file, FILES[file] + "\nCHANGED = 1\n")
    assert of("prints.methods.A") == before


@pytest.mark.parametrize(
    "text",
    [
        "# a comment\nfrom . import deep\n\n\ndef scale(x):  # another\n    return x * deep.FACTOR\n",
        '"""A docstring."""\nfrom . import deep\n\n\ndef scale(x):\n    """Doc."""\n    return x * deep.FACTOR\n',
        "from . import deep\ndef scale( x ) :\n\n    return (x * deep.FACTOR)\n",
    ],
)
def test_words_about_the_code_do_not_count(edit: Callable[[str, str], None], text: str) -> None:
    before = of("prints.methods.A")
    edit("helpers.py", text)
    assert of("prints.methods.A") == before


@pytest.mark.parametrize(
    "text",
    [
        "from . import deep\n\n\ndef scale(x):\n    return x + deep.FACTOR\n",
        "from . import deep\n\n\ndef scale(x=1):\n    return x * deep.FACTOR\n",
        "from . import deep\n\n\ndef scale(x):\n    'text'\n    'text'\n    return x * deep.FACTOR\n",
        "from . import deep\n\n\n@staticmethod\ndef scale(x):\n    return x * deep.FACTOR\n",
    ],
)
def test_the_code_counts(edit: Callable[[str, str], None], text: str) -> None:
    before = of("prints.methods.A")
    edit("helpers.py", text)
    assert of("prints.methods.A") != before


def test_imports_inside_functions_and_folders_without_init(edit: Callable[[str, str], None]) -> None:
    for file in ("deep.py", "folder/inside.py"):
        before = of("prints.lazy.run")
        edit(file, FILES[file] + "\nCHANGED = 1\n")
        assert of("prints.lazy.run") != before
    before = of("prints.folder.inside.X")
    edit("folder/inside.py", "X = 2\n")
    assert of("prints.folder.inside.X") != before


def test_names_that_a_package_passes_on(edit: Callable[[str, str], None]) -> None:
    before = of("prints.sub.B")
    edit("deep.py", "FACTOR = 4\n")
    assert of("prints.sub.B") != before


def test_targets_at_any_depth_and_in_any_order() -> None:
    config = {
        "a": [{"b": {"_target_": "x.Y", "_panel_": {"c": {"_target_": "x.Z"}}}}],
        "d": {"_target_": None},
    }
    assert fingerprint.targets(config) == {"x.Y", "x.Z"}


def test_libraries_do_not_count(edit: Callable[[str, str], None]) -> None:
    assert of("prints.methods.A") == of("prints.methods.A", "json.dumps", "nowhere.at.all")


def test_a_fingerprinter_keeps_to_the_code_it_has_seen(edit: Callable[[str, str], None]) -> None:
    config = {"_target_": "prints.methods.A"}
    other = {"_target_": "prints.sub.B"}
    early = Fingerprinter()
    before = early.of(config)
    assert early.unchanged(config)
    edit("deep.py", "FACTOR = 4\n")
    assert early.of(config) == before
    assert not early.unchanged(config)
    assert not early.unchanged(other)  # it shares the file that was seen before the edit
    assert Fingerprinter().of(config) != before
    assert Fingerprinter().unchanged(config)


def test_a_file_that_is_gone_is_a_change(edit: Callable[[str, str], None], tmp_path: Path) -> None:
    early = Fingerprinter()
    early.of({"_target_": "prints.methods.A"})
    (tmp_path / "prints" / "deep.py").unlink()
    assert not early.unchanged({"_target_": "prints.methods.A"})


def test_a_shared_module_is_one_version_in_one_fingerprinter(edit: Callable[[str, str], None]) -> None:
    early, config = Fingerprinter(), {"_target_": "prints.sub.B"}
    expected = Fingerprinter().of(config)
    early.of({"_target_": "prints.methods.A"})
    edit("deep.py", "FACTOR = 4\n")
    assert early.of(config) == expected
