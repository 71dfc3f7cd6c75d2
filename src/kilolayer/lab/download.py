"""Finding the public data sets on this machine, or fetching them once, checked before they get their name."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kilolayer.lab.idx import IDX_FILES, decompress, find_idx

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Source:
    """Where a public data set is found.

    Attributes:
        md5: checksums of the uncompressed files: mirrors compress the same bytes differently.
        mirrors: folders that hold the compressed files, tried in turn.
        installed_at: where a system package puts the files.
        package: the name of that package.
    """

    md5: Mapping[str, str]
    mirrors: tuple[str, ...]
    installed_at: Path | None = None
    package: str | None = None


SOURCES: dict[str, Source] = {
    "mnist": Source(
        md5={
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    "fashion-mnist": Source(
        md5={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        mirrors=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        installed_at=Path("/usr/share/datasets/fashion-mnist"),
        package="dataset-fashion-mnist",
    ),
}
"""The data sets known by name that are IDX files."""


def locate(name: str, *, folder: Path | None = None) -> Path:
    """The folder that holds the files of a data set; downloaded when it is nowhere on this machine.

    Looked for, in this order: ``folder``, ``$KILOLAYER_DATA/NAME``, ``~/.cache/kilolayer/NAME``, where a
    system package puts it. The first that holds any of the files is taken; the cache only when complete.

    Raises:
        FileNotFoundError: ``folder`` does not exist, or nothing was found and the download failed.
    """
    if folder is not None and not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; name the one that holds {IDX_FILES[0]}")
    source = SOURCES[name]
    cache = cache_folder(name)
    for candidate in (folder, _shared_folder(name), cache, source.installed_at):
        # A download may have been interrupted between two files; only ours is taken for that.
        enough = all if candidate == cache else any
        if candidate is not None and enough(find_idx(candidate, file) for file in source.md5):
            return candidate
    try:
        download(name, cache)
    except OSError as error:
        raise FileNotFoundError(_where_to_put(name, error)) from error
    return cache


def cache_folder(name: str) -> Path:
    """Where downloads of a data set are kept."""
    return Path.home() / ".cache" / "kilolayer" / name


def download(name: str, folder: Path) -> None:
    """Fetch all files of a data set into ``folder``; none gets its name before all are there and checked.

    Raises:
        OSError: every mirror failed, or the folder cannot be written; nothing is left behind.
    """
    source = SOURCES[name]
    fetched = {file: _fetch_checked(file, md5, source.mirrors) for file, md5 in source.md5.items()}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
        for file, data in fetched.items():
            (Path(temporary) / file).write_bytes(data)
        for file in fetched:
            os.replace(Path(temporary) / file, folder / f"{file}.gz")


def _fetch_checked(file: str, md5: str, mirrors: tuple[str, ...]) -> bytes:
    """The compressed file from the first mirror whose content has the right checksum."""
    failures = []
    for mirror in mirrors:
        url = f"{mirror}{file}.gz"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
                data: bytes = response.read()
            found = hashlib.md5(decompress(data, url), usedforsecurity=False).hexdigest()
        except (OSError, ValueError, http.client.HTTPException) as error:
            failures.append(f"{url}: {' '.join(str(error).split()) or type(error).__name__}")
            continue
        if found == md5:
            return data
        failures.append(f"{url}: md5 {found} instead of {md5}")
    raise OSError("; ".join(failures))


def _shared_folder(name: str) -> Path | None:
    root = os.environ.get("KILOLAYER_DATA")
    return Path(root).expanduser() / name if root else None


def _where_to_put(name: str, error: OSError) -> str:
    package = SOURCES[name].package
    install = f", or install the Debian package {package}" if package else ""
    return (
        f"{name} is not on this machine and could not be downloaded: put {', '.join(IDX_FILES)} (raw or .gz) "
        f"into {cache_folder(name)} or $KILOLAYER_DATA/{name}{install} ({error})"
    )
