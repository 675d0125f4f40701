# SPDX-License-Identifier: Apache-2.0
"""A run's state on disk, whole or not at all: written beside its name, synced, renamed. The previous one stays as
PATH.1 until the next, so that a crash in the middle costs one interval."""

import os

import torch


def save(path, state):
    tmp = f"{path}.tmp"
    with open(tmp, "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    if os.path.exists(path):
        os.replace(path, f"{path}.1")
    os.replace(tmp, path)


def write_text(path, text):
    tmp = f"{path}.tmp"
    with open(tmp, "w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(tmp, path)


def load(path, device):
    """The newest readable state, or None."""
    for p in (path, f"{path}.1"):
        try:
            return torch.load(p, map_location=device, weights_only=True)
        except FileNotFoundError:
            continue
        except (OSError, RuntimeError, EOFError) as e:
            print(f"distill: {p} is not readable, trying the one before: {e}")
    return None
