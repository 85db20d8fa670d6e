"""Everything is registered: each YAML composes and fits its code; each public method has a YAML that reaches it.

What a module of ``methods/<kind>`` defines without a leading underscore is reached by the ``_target_`` of some YAML, or
it is named in the module's ``__all__`` as something that other code or people use (estimators, base classes). In
``methods/common`` stand helpers of several kinds only.
"""

import ast
import functools
import importlib
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runners import build, compose, places, yamls
from runners.errors import ConfigError
from runners.fingerprint import targets
from runners.paper import SCALES, Paper

CONF = places.HOME / "conf"


def options(group: str) -> list[str]:
    """Our own options of a group, without those of plug-ins."""
    folder = CONF / group
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def any_task() -> str:
    """Some task to compose methods with: only the method's part is looked at."""
    return options("task")[0]


@functools.cache
def composed(group: str, name: str) -> dict[str, Any]:
    """One method's or task's node, as a run would have it; what a run must give is left open."""
    other = {"method": options("method")[0], "task": any_task()}
    tree: dict[str, Any] = compose.base(other | {group: name}).tree[group]
    return tree


def skip_if_missing(error: ConfigError) -> None:
    """An optional package that is not installed is a reason to skip, and is named."""
    if found := re.search(r"needs the package '([^']+)'", str(error)):
        pytest.skip(f"package absent: {found[1]}")


@pytest.mark.parametrize("name", options("method"))
def test_a_method_fits_its_code(name: str) -> None:
    node = composed("method", name)
    try:
        build.check(node, f"method {name}", top=True)
    except ConfigError as error:
        skip_if_missing(error)
        raise
    interface(node, name)
    slots = (
        [node]
        if "_target_" in node
        else [v for k, v in node.items() if isinstance(v, dict) and k != "tunable"]
    )
    for slot in slots:
        assert slot.get("_partial_") is True, "a method is a factory: _partial_: true"
    if compose._has_interpolation(node):
        return  # its values come from the task
    made = build.build(node, f"method {name}", resolve_run=_no_run, top=True)
    for factory in made.values() if isinstance(made, dict) else [made]:
        assert callable(factory)


def _no_run(node: dict[str, Any]) -> Any:
    pytest.fail(f"a method takes no finished run: {node}")


@pytest.mark.parametrize("name", options("task"))
def test_a_task_fits_its_code(name: str) -> None:
    node = composed("task", name)
    try:
        build.check(node, f"task {name}", top=True)
        target = build.locate(node["_target_"])
    except ConfigError as error:
        skip_if_missing(error)
        raise
    assert callable(getattr(target, "evaluate", None)), f"{node['_target_']} has no evaluate(method, run)"
    interface(node, name)


def interface(node: dict[str, Any], name: str) -> None:
    """The interface that a YAML names (or its kind's own) is a Protocol, or an alias of callables' types."""
    dotted = build.interface(node, name)
    found = build.locate(dotted, name)
    callables = [typing.get_origin(part) for part in (found, *typing.get_args(found))]
    assert getattr(found, "_is_protocol", False) or Callable in callables, f"{dotted} is no typing.Protocol"


@pytest.mark.parametrize("name", options("method"))
def test_some_task_takes_the_method(name: str) -> None:
    wanted = build.interface(composed("method", name), name)
    takers = [task for task in options("task") if build.interface(composed("task", task), task) == wanted]
    assert takers, f"no task has the interface {wanted}"


@pytest.mark.parametrize("name", [*options("data"), *options("model"), *options("llm")])
def test_a_door_fits_its_code(name: str) -> None:
    group = next(group for group in ("data", "model", "llm") if name in options(group))
    node = yamls.load(CONF / group / f"{name}.yaml")
    node = {key: value for key, value in node.items() if key != "defaults"}
    assert "_target_" in node
    try:
        build.check(node, f"{group} {name}")
    except ConfigError as error:
        skip_if_missing(error)
        raise
    for file, checksum in (node.get("files") or {}).items():
        assert checksum is None or re.fullmatch(r"[0-9a-f]{64}", str(checksum)), f"{file}: {checksum}"


@pytest.mark.parametrize(
    "name", [*(f"launcher/{n}" for n in options("launcher")), *(f"tracker/{n}" for n in options("tracker"))]
)
def test_launchers_and_trackers_fit_their_code(name: str) -> None:
    node = yamls.load(CONF / f"{name}.yaml")
    if node["_target_"] is not None:
        try:
            build.check(node | {"_partial_": True}, name)
        except ConfigError as error:
            skip_if_missing(error)
            raise


@pytest.mark.parametrize(
    "scale", [scale if scale == "smoke" else pytest.param(scale, marks=pytest.mark.slow) for scale in SCALES]
)
@pytest.mark.parametrize("slug", options("paper"))
def test_a_paper_passes_its_check(slug: str, scale: str) -> None:
    from runners.reproduce import group_config
    from runners.sweep import Sweep

    try:
        Sweep(Paper(slug), scale, launcher=group_config("launcher", "local", {})).check()
    except ConfigError as error:
        skip_if_missing(error)
        raise


# -- every public method has a YAML ------------------------------------------------------------------------------------


def modules() -> Iterator[tuple[str, Path]]:
    """Modules of ``methods/<kind>``: (dotted name, file)."""
    for path in sorted((places.HOME / "methods").rglob("*.py")):
        parts = path.relative_to(places.HOME).with_suffix("").parts
        if len(parts) > 2 and parts[1] != "common" and parts[-1] != "__init__":
            yield ".".join(parts), path


def public(path: Path) -> tuple[set[str], set[str]]:
    """Names that a module defines in public, and those that its ``__all__`` lists."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined, listed = set(), set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            defined.add(node.name)
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            listed = set(ast.literal_eval(node.value))
    return defined, listed


@functools.cache
def reached() -> set[str]:
    """Every ``_target_`` of every method and task YAML."""
    found: set[str] = set()
    for group in ("method", "task"):
        for name in options(group):
            found |= targets(yamls.load(CONF / group / f"{name}.yaml"))
    return found


@pytest.mark.parametrize("module", [name for name, _ in modules()])
def test_public_names_are_reached_or_named_as_helpers(module: str) -> None:
    path = dict(modules())[module]
    defined, listed = public(path)
    package = module.rpartition(".")[0]
    for name in sorted(defined):
        by_yaml = {f"{module}.{name}", f"{package}.{name}"} & reached()
        assert by_yaml or name in listed, (
            f"{module}.{name} is public: give it a YAML under conf/method, an underscore, or a place in __all__"
        )


@pytest.mark.parametrize("module", [name for name, _ in modules()])
def test_every_module_of_methods_serves_some_yaml(module: str) -> None:
    """A module is reached from a YAML, directly or through the modules that import it: none is dead."""
    from runners.fingerprint import Fingerprinter

    assert module in Fingerprinter().modules(reached())


def test_names_in_all_exist() -> None:
    for module, path in modules():
        _, listed = public(path)
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for name in listed:
            assert hasattr(loaded, name), f"{module}.__all__ names {name}, which does not exist"
