"""Text files, read with every fault named by its line."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path, name: str) -> str:
    """The text of a UTF-8 file; line ends become ``\\n`` and a byte order mark goes.

    Args:
        path: the file.
        name: what to call it in messages.

    Raises:
        OSError: no such file, or one that cannot be read.
        ValueError: not UTF-8, or not text; the line is named.
    """
    content = path.read_bytes()
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
