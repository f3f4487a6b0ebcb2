"""Where an output lies: a file that is opened, locked and replaced, or a descriptor that is there already.

A name like /dev/stdout or /dev/fd/63 (a shell's `>(command)`) means a descriptor of this process, whatever it leads
to. Knows names, descriptors and locks; reads and writes nothing of an output.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import tempfile

from dgen.errors import UsageError

_NAMED = {"/dev/stdout": 1, "/dev/stderr": 2}
_NUMBERED = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,7})", re.ASCII)
_MOST_LINKS = 40  # as the system follows
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_NEW = ".dgen-new"


def descriptor_of(path: str) -> int | None:
    """The descriptor that a path or a link stands for, `-` being stdout; None for the name of a file."""
    if path == "-":
        return 1
    path = os.path.expanduser(path)
    for _ in range(_MOST_LINKS):
        path = os.path.normpath(path)
        if path in _NAMED:
            return _NAMED[path]
        if numbered := _NUMBERED.fullmatch(path):
            return int(numbered[1])
        if not os.path.islink(path):
            break
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return None


def copy_of(number: int, path: str) -> int:
    """A copy of a descriptor, to be written to.

    Raises:
        UsageError: it is not open, or not for writing.
    """
    try:
        only_read = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if not only_read:
            return os.dup(number)
        reason = "it is open for reading alone"
    except OSError:
        reason = "no such descriptor is open"
    raise UsageError(
        f"can't write to '{path}': {reason}", hint="Give a file, - for stdout, or a shell's >(command)."
    )


def open_output(path: str) -> int:
    """A descriptor of the file at `path`, made where there is none, and locked if it is a regular one.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: the system refuses.
    """
    while True:
        fresh = not os.path.exists(path)
        if not fresh and not os.path.isfile(path) and not os.path.isdir(path):
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            lock(descriptor)
            here = os.stat(path)
        except FileNotFoundError:
            here = None
        except OSError:
            os.close(descriptor)
            raise
        # The writer before us may have put another file in its place between our opening and our lock.
        if here is not None and os.path.samestat(here, os.fstat(descriptor)):
            if fresh:
                sync_folder(path)
            return descriptor
        os.close(descriptor)


def lock(descriptor: int) -> None:
    """Lock an open file until it is closed; without effect on a file system that has no locks.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the system refuses.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:  # else a second process is the user's to avoid
            raise


def new_beside(path: str) -> tuple[int, str]:
    """An empty file that is to take the place of the one at `path`: descriptor and name.

    Made in the same folder under a name that nothing has; what a killed predecessor left there goes.
    """
    folder, name = os.path.split(path)
    _remove_left_over(folder, name)
    descriptor, temporary = tempfile.mkstemp(prefix=f"{name}.", suffix=_NEW, dir=folder)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor, temporary


def _remove_left_over(folder: str, name: str) -> None:
    """Remove new files of this output that nobody has locked, so that nobody is writing them any more."""
    ours = re.compile(rf"{re.escape(name)}\.[a-z0-9_]{{8}}{re.escape(_NEW)}")
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # a folder may be for writing alone
        found = [e.path for e in entries if ours.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    for path in found:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(descriptor)


def sync_folder(path: str) -> None:
    """Make a file's name as durable as its content; some file systems can't."""
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
