"""What every test shares: quiet libraries, one thread a process, repeatable hypothesis, the data folder."""

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

# Before numpy and torch load: their thread pools are sized once. One thread a worker keeps the parallel
# tests from fighting over the cores and makes sums bitwise repeatable.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TEXTGRAD_LOG_DIR", str(Path(tempfile.gettempdir()) / "textgrad"))  # else ./logs
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

# A shell starts background commands with Ctrl-C ignored, and their children inherit that: tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("deterministic")


def _absent(what: str) -> None:
    """Skip by name; where REPRISE_REQUIRE_DATA is set (as in CI), absent data is a failure."""
    if os.environ.get("REPRISE_REQUIRE_DATA"):
        pytest.fail(f"data absent: {what}", pytrace=False)
    pytest.skip(f"data absent: {what}")


@pytest.fixture
def data_root() -> Path:
    """The folder of data sets named by REPRISE_DATA."""
    root = os.environ.get("REPRISE_DATA")
    if not root:
        _absent("REPRISE_DATA is not set")
    return Path(str(root))


@pytest.fixture
def require_data(data_root: Path) -> Callable[[str], Path]:
    """``require_data("libsvm/a2a")`` is the path of that file or folder; without it the test is skipped."""

    def require(relpath: str) -> Path:
        path = data_root / relpath
        if not path.exists():
            _absent(f"{relpath} is not in REPRISE_DATA")
        return path

    return require


@pytest.fixture(autouse=True)
def _own_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test never writes into the outputs of the person who runs it."""
    monkeypatch.setenv("REPRISE_OUTPUTS", str(tmp_path / "outputs"))
