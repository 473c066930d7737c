"""Names of files and anchors, derived from untrusted text."""

from __future__ import annotations

import re
from hashlib import blake2b

_MAX_CHARS = 80
_UNSAFE = re.compile(r"[^a-z0-9._]+")
_PLAIN_ANCHOR = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,200}")
# Matches a digest at the end of a text. A text that ends in a digest gets a second digest, because
# the text could equal the name of another text.
_DIGESTED = re.compile(r"-[0-9a-f]{8}$")
# Matches names that Windows does not accept for files, even with a suffix.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?$")


def file_name(text: str) -> str:
    """Return a name for a file or folder; different texts have different names.

    The name consists of lower-case letters, digits, dots, hyphens and underscores, so that it is
    valid and unambiguous on every file system. If the text has other characters, a digest of the
    text is appended.
    """
    plain = base_name(text)
    return plain if plain == text and not _DIGESTED.search(plain) else f"{plain}-{digest(text)}"


def base_name(text: str) -> str:
    """Return a readable beginning for a file name.

    Different texts may have the same beginning.
    """
    plain = _UNSAFE.sub("-", text.lower())[:_MAX_CHARS].strip("-.")
    return f"name-{plain}".rstrip("-") if not plain or _RESERVED.match(plain) else plain


def anchor(text: str) -> str:
    """Return an anchor of a page for a text.

    Different texts have different anchors.
    """
    if _PLAIN_ANCHOR.fullmatch(text) and not _DIGESTED.search(text):
        return text
    plain = re.sub(r"[^A-Za-z0-9_./-]+", "-", text)[:_MAX_CHARS].strip("-")
    return f"{plain}-{digest(text)}"


def digest(text: str) -> str:
    """Return a short digest of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
