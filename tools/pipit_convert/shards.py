# SPDX-License-Identifier: Apache-2.0
"""Tensors of a Hugging Face folder. A safetensors file is a length, a JSON header (name: dtype, shape,
offsets) and data; it is read by memory map, one tensor at a time, as F32. Read here rather than
with the package because NumPy has no bfloat16, which most published weights are; and a file is
checked against its size before anything is believed.
"""
import json
import math
import os

from .output import ConvertError

MAX_HEADER = 100 << 20
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
INDEX = "model.safetensors.index.json"


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as e:
        raise ConvertError(f"{path}: not valid JSON: {e}") from e


class Tensor:
    def __init__(self, path, name, info, base, size):
        self.path, self.name = path, name
        try:
            self.dtype, shape, (start, end) = info["dtype"], info["shape"], info["data_offsets"]
            self.shape = tuple(shape)
            sane = all(type(n) is int and n >= 0 for n in (*shape, start, end))
        except (KeyError, TypeError, ValueError) as e:
            raise ConvertError(f"{path}: tensor {name}: malformed header entry") from e
        if self.dtype not in SIZES:
            raise ConvertError(f"{path}: tensor {name} is {self.dtype}; read are {', '.join(SIZES)} "
                               "(quantised checkpoints cannot be converted)")
        if not sane or start > end or end > size - base or end - start != math.prod(shape) * SIZES[self.dtype]:
            raise ConvertError(f"{path}: tensor {name}: shape {shape} and bytes {start} to {end} do not agree with "
                               f"each other or with the file's {size} bytes")
        self.start = base + start

    def values(self):
        """F32, in the tensor's shape."""
        import numpy as np

        n = math.prod(self.shape)
        if n == 0:
            return np.zeros(self.shape, np.float32)
        kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}[self.dtype]
        raw = np.memmap(self.path, kind, "r", self.start, (n,))
        if self.dtype == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32).reshape(self.shape)


def read_file(path):
    size = os.path.getsize(path)
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        if size < 8 or n > min(size - 8, MAX_HEADER):
            raise ConvertError(f"{path}: no safetensors file, or cut (header of {n} bytes in a file of {size})")
        try:
            header = json.loads(f.read(n))
            header.pop("__metadata__", None)
            return {name: Tensor(path, name, info, 8 + n, size) for name, info in header.items()}
        except (ValueError, AttributeError, TypeError, RecursionError) as e:
            raise ConvertError(f"{path}: its header is no JSON object: {e}") from e


def read_folder(folder):
    """name -> Tensor of all shards."""
    index = os.path.join(folder, INDEX)
    if os.path.exists(index):
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
            raise ConvertError(f"{index}: no weight_map")
        names = sorted(set(weight_map.values()))
    else:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors"))
    if not names:
        raise ConvertError(f"{folder}: no *.safetensors file")
    out = {}
    for name in names:
        if os.path.basename(name) != name:
            raise ConvertError(f"{index}: shard '{name}' is no plain file name")
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise ConvertError(f"{path}: the shard is missing")
        for tensor, t in read_file(path).items():
            if tensor in out:
                raise ConvertError(f"{path}: tensor {tensor} is in {os.path.basename(out[tensor].path)} too")
            out[tensor] = t
    return out
