"""Text files, read with every fault named by its line."""

from __future__ import annotations

from pathlib import Path

PACKED = {
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "packed with gzip",
    b"\xfd7zXZ": "packed with xz",
    b"BZh": "packed with bzip2",
}
"""What the first bytes of a file say that is no text yet."""


def read_bytes(path: Path, name: str, *, wanted: str) -> bytes:
    """The content of a file.

    Args:
        path: the file.
        name: what to call it in messages.
        wanted: what it should be, such as ``"a file of UTF-8 text"``.

    Raises:
        OSError: no such file, or one that cannot be read.
        ValueError: a folder, or a device, which may have no end.
    """
    if path.is_dir():
        raise ValueError(f"{name} is a folder; name {wanted}")
    if path.is_char_device() or path.is_block_device():
        raise ValueError(f"{name} is a device; name {wanted}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {name!r}; data is {wanted}")
    return path.read_bytes()


def check_encodable(text: str, name: str) -> None:
    """Raises ``ValueError`` for what Python makes of bytes on a command line or a pipe that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not UTF-8 (character {error.start + 1}); give it as UTF-8") from error


def check_unpacked(content: bytes, name: str, *, remedy: str) -> None:
    """Raises ``ValueError`` for an archive, with what to do with it."""
    for start, kind in PACKED.items():
        if content.startswith(start):
            raise ValueError(f"{name} is {kind}; {remedy}")


def read_text(path: Path, name: str) -> str:
    """The text of a UTF-8 file; line ends become ``\\n`` and a byte order mark goes.

    Args:
        path: the file.
        name: what to call it in messages.

    Raises:
        OSError: no such file, or one that cannot be read.
        ValueError: not UTF-8, or not text; the line is named. A folder, a device, an archive.
    """
    content = read_bytes(path, name, wanted="a file of UTF-8 text")
    check_unpacked(content, name, remedy="unpack it, and name the text file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{name}: line {line} is not UTF-8 (byte 0x{content[error.start]:02x}); save the file as UTF-8"
        ) from error
    if (place := text.find("\0")) >= 0:
        line = text.count("\n", 0, place) + 1
        raise ValueError(f"{name}: line {line} holds a NUL character, which no text has; name a file of UTF-8 text")
    return text.replace("\r\n", "\n").replace("\r", "\n")
