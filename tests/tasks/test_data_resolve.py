"""Finding data: order of places, checksums and their cache, one clear line when it is missing, downloads."""

import hashlib
import http.server
import json
import os
import threading
import zipfile

import pytest

from tasks.data import resolve
from tasks.data.resolve import Door, MissingData

TEXT = b"label,x\n1,2\n"
SHA = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture
def places(tmp_path, monkeypatch):
    """An empty data folder and an empty cache."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    monkeypatch.setenv("REPRISE_DATA", str(data))
    monkeypatch.setenv("REPRISE_CACHE", str(cache))
    monkeypatch.setenv("REPRISE_OFFLINE", "1")
    monkeypatch.setattr(resolve, "_verified", {})
    return data, cache


def door(**options):
    return Door({"set/a.csv": SHA}, name="The set", size_mb=1.5, licence="MIT", **options)


def put(folder, content=TEXT):
    path = folder / "set/a.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_data_folder_comes_before_the_cache(places):
    data, cache = places
    in_cache = put(cache / "data")
    assert door().path("set/a.csv") == in_cache
    in_data = put(data)
    assert door().paths() == {"set/a.csv": in_data}


def test_a_file_with_another_checksum_is_passed_over(places):
    data, cache = places
    wrong = put(data, b"something else")
    with pytest.raises(MissingData) as caught:
        door().path("set/a.csv")
    assert f"{wrong} has another checksum" in str(caught.value)
    assert door().files == {"set/a.csv": SHA}
    good = put(cache / "data")
    assert door().path("set/a.csv") == good


def test_missing_data_is_one_clear_line(places):
    with pytest.raises(MissingData) as caught:
        door(source="somewhere").path("set/a.csv")
    message = str(caught.value)
    for part in ("The set", "set/a.csv", "1.5 MB", "MIT", "REPRISE_DATA", "make fetch-<paper>", "somewhere"):
        assert part in message
    assert "\n" not in message
    assert isinstance(caught.value, FileNotFoundError)


def test_checksums_are_remembered_until_the_file_changes(places, monkeypatch):
    data, cache = places
    path = put(data)
    door().path("set/a.csv")
    assert len(list((cache / "checksums").iterdir())) == 1
    monkeypatch.setattr(resolve, "_verified", {})  # as in a new process
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert door().path("set/a.csv") == path
    monkeypatch.undo()
    monkeypatch.setenv("REPRISE_DATA", str(data))
    monkeypatch.setenv("REPRISE_CACHE", str(cache))
    monkeypatch.setenv("REPRISE_OFFLINE", "1")
    path.write_bytes(TEXT[::-1])  # as long as before
    os.utime(path, ns=(1, 1))
    with pytest.raises(MissingData, match="another checksum"):
        door().path("set/a.csv")


@pytest.mark.parametrize(
    "note", ["", "{", "[]", '{"path": "/elsewhere", "size": 1, "mtime_ns": 1, "sha256": "0"}']
)
def test_a_torn_checksum_note_is_ignored(places, monkeypatch, note):
    data, cache = places
    put(data)
    door().path("set/a.csv")
    (path,) = (cache / "checksums").iterdir()
    path.write_text(note)
    monkeypatch.setattr(resolve, "_verified", {})
    door().path("set/a.csv")
    assert json.loads(path.read_text())["sha256"] == SHA


def test_a_cache_that_cannot_be_written_does_no_harm(places, monkeypatch, tmp_path):
    data, _ = places
    put(data)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path / "file"))
    assert door().path("set/a.csv").read_bytes() == TEXT


@pytest.fixture
def server(tmp_path):
    """A web server of one folder on this machine."""
    root = tmp_path / "web"
    root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, directory=str(root), **kwargs)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield root, f"http://127.0.0.1:{web.server_port}"
        web.shutdown()


def test_download_into_the_cache(places, server, monkeypatch):
    _, cache = places
    root, url = server
    (root / "a.csv").write_bytes(TEXT)
    urls = {"set/a.csv": f"{url}/a.csv"}
    with pytest.raises(MissingData):
        door(urls=urls).path("set/a.csv")  # REPRISE_OFFLINE
    monkeypatch.delenv("REPRISE_OFFLINE")
    door(urls=urls).fetch()
    assert (cache / "data/set/a.csv").read_bytes() == TEXT


def test_download_of_a_file_in_an_archive(places, server, monkeypatch):
    _, cache = places
    root, url = server
    with zipfile.ZipFile(root / "all.zip", "w") as archive:
        archive.writestr("inner/a.csv", TEXT)
        archive.writestr("inner/b.csv", b"another")
    monkeypatch.delenv("REPRISE_OFFLINE")
    with pytest.raises(MissingData, match="another checksum"):
        door(urls={"set/a.csv": f"{url}/all.zip#inner/b.csv"}).path("set/a.csv")
    path = door(urls={"set/a.csv": f"{url}/all.zip#inner/a.csv"}).path("set/a.csv")
    assert path == cache / "data/set/a.csv"
    assert path.read_bytes() == TEXT
    assert [entry.name for entry in path.parent.iterdir()] == ["a.csv"]


def test_a_failed_download_is_missing_data(places, server, monkeypatch):
    _, url = server
    monkeypatch.delenv("REPRISE_OFFLINE")
    with pytest.raises(MissingData, match="download failed"):
        door(urls={"set/a.csv": f"{url}/nothing.csv"}).path("set/a.csv")


def test_an_unknown_file_is_a_mistake(places):
    with pytest.raises(KeyError):
        door().path("set/b.csv")
    with pytest.raises(ValueError, match="without a checksum"):
        door(urls={"set/b.csv": "http://127.0.0.1/b.csv"})
