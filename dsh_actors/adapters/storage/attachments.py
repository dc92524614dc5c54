"""Images by content: `AttachmentStore` keeps each once below a home, `MemoryAttachments` in this process.

Native code, like the sessions. A file's name is the SHA-256 of its bytes, which are checked whenever
they are read; sessions hold references only.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator

from dsh_actors.adapters.storage.files import DRAFT_PREFIX, write_atomically
from dsh_actors.adapters.storage.layout import make_private_directories, open_to_read, storage_error
from dsh_actors.core.images import inspect_image
from dsh_actors.core.messages import ImageRef
from dsh_actors.errors import AttachmentError

__all__ = [
    "AttachmentStore",
    "MemoryAttachments",
    "open_attachments",
    "require_match",
]

GRACE_S = 24 * 3600
"""An image that nothing refers to stays for so long: the event that will refer to it may be on its way."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class AttachmentStore:
    """The images below ``root`` (``$DSH_HOME/attachments``). Creates nothing before the first `put`."""

    def __init__(self, root: str) -> None:
        self._root = os.path.join(root, "sha256")

    def path(self, ref: ImageRef) -> str:
        """Where the bytes are, or would be."""
        return self._path(ref.digest)

    def put(self, data: bytes, name: str | None = None) -> ImageRef:
        """Keep an image, durable on return. Equal bytes are stored once; a damaged copy is made good.

        Raises `ImageRefused` for what is no image within the limits, `StorageFull` or `StorageError`.
        """
        ref = _reference(data, name)
        self.keep(ref, data)
        return ref

    def keep(self, ref: ImageRef, data: bytes) -> None:
        """As `put`, for an image that was admitted elsewhere: today's limits do not bind it.

        Raises `AttachmentError` where the bytes are not what the reference says.
        """
        path = self.path(ref)
        require_match(ref, data, "what was given")
        try:
            if not self._is_there(path, ref):
                make_private_directories(os.path.dirname(path))
                write_atomically(path, (data,))
        except OSError as error:
            raise storage_error(error, "write", path) from error

    def read(self, ref: ImageRef) -> bytes:
        """The bytes, which are what the reference says. Raises `AttachmentError`."""
        path = self.path(ref)
        try:
            with os.fdopen(open_to_read(path, follow=True), "rb") as file:
                data = file.read(ref.size + 1)
        except FileNotFoundError as error:
            raise _missing(ref) from error
        except OSError as error:
            reason = f"cannot read {path}: {error.strerror}"
            raise AttachmentError(reason, code="ATTACHMENT_READ_FAILED") from error
        require_match(ref, data, path)
        return data

    def digests(self) -> Iterator[str]:
        """The digests of all stored images."""
        for folder in sorted(_names(self._root)):
            for name in sorted(_names(os.path.join(self._root, folder))):
                if _DIGEST.fullmatch(name) and name[:2] == folder:
                    yield name

    def remove_drafts(self) -> None:
        """Remove what killed writers left more than `GRACE_S` ago. Raises `StorageError`."""
        for folder in _names(self._root):
            for name in _names(os.path.join(self._root, folder)):
                path = os.path.join(self._root, folder, name)
                if name.startswith(DRAFT_PREFIX) and _age_s(path, time.time()) >= GRACE_S:
                    try:
                        os.unlink(path)
                    except FileNotFoundError:
                        continue  # another process is as tidy
                    except OSError as error:
                        raise storage_error(error, "remove", path) from error

    def idle(self) -> set[str]:
        """The digests of images that were not used for `GRACE_S`."""
        now_s = time.time()
        return {digest for digest in self.digests() if _age_s(self._path(digest), now_s) >= GRACE_S}

    def remove(self, digest: str) -> int:
        """Remove an image that is idle still; the bytes freed. Raises `StorageError`."""
        path = self._path(digest)
        try:
            if _age_s(path, time.time()) < GRACE_S:
                return 0
            size = os.lstat(path).st_size
            os.unlink(path)
        except FileNotFoundError:
            return 0  # another process is as tidy
        except OSError as error:
            raise storage_error(error, "remove", path) from error
        return size

    def _path(self, digest: str) -> str:
        return os.path.join(self._root, digest[:2], digest)

    def _is_there(self, path: str, ref: ImageRef) -> bool:
        """Whether it is there, whole; then it counts as used now. Raises OSError."""
        try:
            self.read(ref)
            os.utime(path, follow_symlinks=False)
        except (AttachmentError, FileNotFoundError):
            return False
        return not os.path.islink(path)


class MemoryAttachments:
    """Images of this process, for runs that keep nothing. Beyond ``limit_bytes`` the oldest are dropped."""

    def __init__(self, limit_bytes: int = 256 << 20) -> None:
        self._images: dict[str, bytes] = {}
        self._limit = limit_bytes

    def put(self, data: bytes, name: str | None = None) -> ImageRef:
        """Raises `ImageRefused`."""
        ref = _reference(data, name)
        self._images.pop(ref.digest, None)
        self._images[ref.digest] = data
        size = sum(map(len, tuple(self._images.values())))
        for digest in tuple(self._images)[:-1]:
            if size <= self._limit:
                break
            size -= len(self._images.pop(digest, b""))
        return ref

    def read(self, ref: ImageRef) -> bytes:
        """Raises `AttachmentError` for an image that is not here."""
        data = self._images.get(ref.digest)
        if data is None or len(data) != ref.size:
            raise _missing(ref)
        return data


def open_attachments(home: str) -> AttachmentStore:
    """The images kept in ``home``. Creates nothing."""
    return AttachmentStore(os.path.join(home, "attachments"))


def _reference(data: bytes, name: str | None) -> ImageRef:
    facts = inspect_image(data, name or "the data")
    digest = hashlib.sha256(data).hexdigest()
    return ImageRef(f"sha256:{digest}", facts.media_type, len(data), facts.width, facts.height, name)


def require_match(ref: ImageRef, data: bytes, place: str) -> None:
    """Raises `AttachmentError` where ``data`` are not the image's bytes. ``place``: where they are from."""
    if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.digest:
        raise AttachmentError(
            f"the image {ref.words()} is damaged: {place} has other bytes than were stored",
            code="ATTACHMENT_CORRUPT",
            hint="attach the same file again, which makes it good",
        )


def _age_s(path: str, now_s: float) -> float:
    try:
        return now_s - os.lstat(path).st_mtime
    except FileNotFoundError:
        return 0.0  # gone already


def _missing(ref: ImageRef) -> AttachmentError:
    return AttachmentError(f"the image {ref.words()} is not stored here", code="ATTACHMENT_NOT_FOUND")


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise storage_error(error, "read", directory) from error
