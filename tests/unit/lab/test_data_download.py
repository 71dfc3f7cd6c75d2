"""Where data are looked for, and downloads that are checked before they get their name; no network."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from data_files import draw_arrays, idx_bytes, write_folder

from kilolayer.lab import download
from kilolayer.lab.download import SOURCES, cache_folder, locate
from kilolayer.lab.idx import IDX_FILES, load_idx_folder

FILES = {name: idx_bytes(array) for name, array in draw_arrays(num_classes=10).items()}
MIRRORS = ("https://one.test/", "https://two.test/")


class Web:
    """Stands for the network: addresses with content, or with the error they raise."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes | Exception] = {}
        self.asked: list[str] = []

    def urlopen(self, url: str, timeout: float) -> io.BytesIO:
        assert timeout > 0
        self.asked.append(url)
        page = self.pages.get(url, urllib.error.HTTPError(url, 404, "Not Found", http.client.HTTPMessage(), None))
        if isinstance(page, Exception):
            raise page
        return io.BytesIO(page)

    def serve(self, mirror: str, files: dict[str, bytes] = FILES) -> None:
        self.pages.update({f"{mirror}{name}.gz": gzip.compress(data) for name, data in files.items()})


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Web:
    """A home without data, a network without pages, and sources with the checksums of small files."""
    web = Web()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KILOLAYER_DATA", raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", web.urlopen)
    md5 = {name: hashlib.md5(data).hexdigest() for name, data in FILES.items()}
    for name in list(SOURCES):
        installed_at = tmp_path / "usr" if name == "fashion-mnist" else None
        source = replace(SOURCES[name], md5=md5, mirrors=MIRRORS, installed_at=installed_at)
        monkeypatch.setitem(download.SOURCES, name, source)
    return web


def test_sources_are_complete() -> None:
    assert set(SOURCES) == {"mnist", "fashion-mnist"}
    for source in SOURCES.values():
        assert tuple(source.md5) == IDX_FILES
        assert all(len(md5) == 32 for md5 in source.md5.values())
        assert all(mirror.endswith("/") for mirror in source.mirrors)


def test_a_download_is_kept_and_not_repeated(web: Web) -> None:
    web.serve(MIRRORS[0])
    folder = locate("mnist")
    assert folder == cache_folder("mnist")
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.gz" for name in IDX_FILES)
    assert load_idx_folder(folder).x_train.shape == (60, 4, 5)
    assert len(web.asked) == 4
    assert locate("mnist") == folder
    assert len(web.asked) == 4


@pytest.mark.parametrize(
    "fault",
    [
        urllib.error.URLError("name\nresolution failed"),
        TimeoutError("timed out"),
        http.client.IncompleteRead(b"half"),
        gzip.compress(b"other content"),
        gzip.compress(FILES[IDX_FILES[1]])[:-5],
        b"<html>sign in to this network</html>",
    ],
    ids=["address", "timeout", "incomplete", "checksum", "truncated", "portal"],
)
def test_the_next_mirror_is_tried(web: Web, fault: Exception | bytes) -> None:
    web.serve(MIRRORS[0])
    web.serve(MIRRORS[1])
    web.pages[f"{MIRRORS[0]}{IDX_FILES[1]}.gz"] = fault
    assert load_idx_folder(locate("mnist")).y_train.shape == (60,)
    assert web.asked.count(f"{MIRRORS[1]}{IDX_FILES[1]}.gz") == 1
    assert len(web.asked) == 5


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (TimeoutError("timed out"), "timed out"),
        (http.client.BadStatusLine("x"), "x"),
        (urllib.error.URLError("no\nroute"), "no route"),
        (gzip.compress(b"other content"), "md5 [0-9a-f]{32} instead of"),
    ],
    ids=["timeout", "protocol", "newline", "checksum"],
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(web: Web, last: Exception | bytes, reason: str) -> None:
    web.serve(MIRRORS[0], {name: FILES[name] for name in IDX_FILES[:3]})
    web.pages[f"{MIRRORS[1]}{IDX_FILES[3]}.gz"] = last
    with pytest.raises(FileNotFoundError, match=f"could not be downloaded.*404.*{reason}") as caught:
        locate("mnist")
    message = str(caught.value)
    assert "\n" not in message
    assert f"(raw or .gz) into {cache_folder('mnist')} or $KILOLAYER_DATA/mnist (" in message
    assert all(name in message for name in IDX_FILES)
    assert not cache_folder("mnist").exists()


def test_the_package_is_suggested_where_there_is_one(web: Web) -> None:
    with pytest.raises(FileNotFoundError, match="or install the Debian package dataset-fashion-mnist"):
        locate("fashion-mnist")


def test_a_cache_that_cannot_be_written(web: Web, tmp_path: Path) -> None:
    web.serve(MIRRORS[0])
    (tmp_path / "home").write_text("a file")
    with pytest.raises(FileNotFoundError, match="could not be downloaded.*Not a directory"):
        locate("mnist")


def test_an_interrupted_download_is_made_good(web: Web) -> None:
    web.serve(MIRRORS[0])
    (locate("mnist") / f"{IDX_FILES[2]}.gz").unlink()
    assert load_idx_folder(locate("mnist")).x_test.shape == (20, 4, 5)


def test_the_order_in_which_folders_are_looked_at(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = write_folder(tmp_path / "usr", suffix=".gz")
    assert locate("fashion-mnist") == installed
    cached = write_folder(cache_folder("fashion-mnist"))
    assert locate("fashion-mnist") == cached
    shared = write_folder(tmp_path / "shared" / "fashion-mnist")
    monkeypatch.setenv("KILOLAYER_DATA", str(tmp_path / "shared"))
    assert locate("fashion-mnist") == shared
    own = write_folder(tmp_path / "own")
    assert locate("fashion-mnist", folder=own) == own
    empty = tmp_path / "empty"
    empty.mkdir()
    assert locate("fashion-mnist", folder=empty) == shared
    assert web.asked == []


def test_an_incomplete_folder_of_the_user_is_taken_so_that_its_gap_is_named(web: Web, tmp_path: Path) -> None:
    arrays = draw_arrays()
    del arrays[IDX_FILES[3]]
    folder = write_folder(tmp_path / "own", arrays)
    with pytest.raises(FileNotFoundError, match=f"{folder} has no {IDX_FILES[3]}"):
        load_idx_folder(locate("mnist", folder=folder))


def test_a_folder_that_does_not_exist(web: Web, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"there is no folder {tmp_path / 'nowhere'}"):
        locate("mnist", folder=tmp_path / "nowhere")
    assert web.asked == []
