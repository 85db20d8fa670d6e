"""Doors to the LIBSVM and scikit-learn sets."""

import bz2
import hashlib

import numpy as np
import pytest

from tasks.data.libsvm import LibSVM
from tasks.data.resolve import MissingData
from tasks.data.sklearn_sets import SklearnSet
from tasks.data.tabular import scale_columns, signs

TEXT = b"1 1:2 3:-1\n2 2:4 3:1\n2 1:1 3:0.5\n"
FACTS = {"name": "small", "size_mb": 0.0, "licence": "none"}


def sha(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("REPRISE_DATA", str(tmp_path))
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REPRISE_OFFLINE", "1")
    (tmp_path / "libsvm").mkdir()
    return tmp_path


def test_a_plain_file_is_read_and_its_labels_become_signs(root):
    (root / "libsvm/small").write_bytes(TEXT)
    table = LibSVM({"libsvm/small": sha(TEXT)}, **FACTS).load()
    assert table.X.toarray().tolist() == [[2, 0, -1], [0, 4, 1], [1, 0, 0.5]]
    assert table.y.tolist() == [-1, 1, 1]
    assert LibSVM({"libsvm/small": sha(TEXT)}, **FACTS).load() is table  # parsed once a process


def test_compressed_and_raw_files_are_the_same_table(root):
    packed = bz2.compress(TEXT)
    door = LibSVM({"libsvm/packed.bz2": sha(packed)}, raw={"libsvm/packed": sha(TEXT)}, **FACTS)
    with pytest.raises(MissingData, match="small is missing: libsvm/packed "):
        door.load()
    (root / "libsvm/packed").write_bytes(TEXT)
    raw = door.load()
    (root / "libsvm/packed.bz2").write_bytes(packed)
    assert door.load().X.toarray().tolist() == raw.X.toarray().tolist()


def test_features_positive_class_and_scaling(root):
    (root / "libsvm/scaled").write_bytes(TEXT)
    table = LibSVM({"libsvm/scaled": sha(TEXT)}, features=4, positive=1.0, scale=True, **FACTS).load()
    assert table.y.tolist() == [1, -1, -1]
    assert pytest.approx(np.array([[1, -1, -1, 0], [-1, 1, 1, 0], [0, -1, 0.5, 0]])) == table.X


def test_another_content_is_not_taken(root):
    (root / "libsvm/other").write_bytes(TEXT + b"\n")
    with pytest.raises(MissingData, match="another checksum"):
        LibSVM({"libsvm/other": sha(TEXT)}, **FACTS).load()


def test_sklearn_sets_check_their_numbers():
    wrong = SklearnSet("wine", positive=1, content="0" * 64, name="wine")
    with pytest.raises(MissingData, match="bundles other numbers"):
        wrong.fetch()


def test_signs():
    assert signs(np.array([0.0, 1.0, 0.0])).tolist() == [-1, 1, -1]
    with pytest.raises(ValueError, match="name the positive one"):
        signs(np.arange(3.0))
    with pytest.raises(ValueError, match="no label 7"):
        signs(np.arange(3.0), 7.0)


def test_constant_columns_scale_to_zero():
    assert scale_columns(np.array([[1.0, 5.0], [3.0, 5.0]])).tolist() == [[-1, 0], [1, 0]]
