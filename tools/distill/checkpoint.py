# SPDX-License-Identifier: Apache-2.0
"""Files of a run, each whole or not at all: written beside its name, synced, renamed. What does not fit on the disk raises OSError,
is removed again, and leaves the file that was there. Of a run's state the previous one stays as PATH.1 until the next, so that a
crash in the middle costs one interval; where the disk has room for two only, it goes before."""

import contextlib
import errno
import os


@contextlib.contextmanager
def whole(path, keep=False):
    """A file to fill that then has the name `path`. keep: the one of that name becomes PATH.1."""
    tmp = f"{path}.tmp"
    try:
        with open(tmp, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        if keep and os.path.exists(path):
            os.replace(path, f"{path}.1")
        os.replace(tmp, path)
    except BaseException as e:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(tmp)
        if isinstance(e, OSError) and e.filename is None:
            e.filename = str(path)
        raise


class Late:
    """A file whose first error waits for check(): PyTorch calls a full disk a RuntimeError about positions."""

    def __init__(self, f):
        self.f, self.error = f, None

    def write(self, raw):
        try:
            if self.error is None:
                self.f.write(raw)
        except OSError as e:
            self.error = e
        return len(raw)

    def flush(self):
        pass

    def check(self):
        if self.error:
            raise self.error


def write(path, state, keep=False):
    import torch
    with whole(path, keep) as f:
        late = Late(f)
        torch.save(state, late)
        late.check()


def save(path, state):
    try:
        write(path, state, keep=True)
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT) or not (os.path.exists(path) and os.path.exists(f"{path}.1")):
            raise
        os.unlink(f"{path}.1")
        write(path, state, keep=True)


def write_text(path, text):
    with whole(path) as f:
        f.write(text.encode())


def append(path, text):
    """Lines, whole or not at all: half a line would spoil those after it."""
    with open(path, "ab", buffering=0) as f:
        at, raw = f.tell(), text.encode()
        try:
            if f.write(raw) != len(raw):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError as e:
            f.truncate(at)
            e.filename = str(path)
            raise


def export(folder, write, place, before=None):
    """overlay.gguf, by write(path), and place.json, the text place(path): both anew, or both as they were. before: a name for the
    overlay that was there."""
    new = folder / "overlay.gguf.new"
    try:
        write(new)
        with whole(folder / "place.json") as f:
            f.write(place(new).encode())
            f.flush()
            os.fsync(f.fileno())
            if before and (folder / "overlay.gguf").exists():
                os.replace(folder / "overlay.gguf", folder / before)
            os.replace(new, folder / "overlay.gguf")
    finally:
        new.unlink(missing_ok=True)


def load(path, device):
    """The newest readable state, or None."""
    import torch
    for p in (path, f"{path}.1"):
        try:
            return torch.load(p, map_location=device, weights_only=True)
        except FileNotFoundError:
            continue
        except (OSError, RuntimeError, EOFError) as e:
            print(f"distill: {p} is not readable, trying the one before: {e}")
    return None
