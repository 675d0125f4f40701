# SPDX-License-Identifier: Apache-2.0
"""A second, small reader of GGUF, written from the format's description, for the tests of tools."""

import struct

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
F32, F16, Q8_0, BF16 = 0, 1, 8, 30
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110), 12: (256, 144),
          13: (256, 176), 14: (256, 210), 20: (32, 18), 23: (256, 136), 30: (1, 2), 39: (32, 17)}


class Gguf:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        self.pos = 4
        assert self.data[:4] == b"GGUF"
        assert self.take("<I") == 3
        n_tensors, n_keys = self.take("<Q"), self.take("<Q")
        self.keys = {}
        for _ in range(n_keys):
            name = self.text().decode()
            assert name not in self.keys
            self.keys[name] = self.value(self.take("<I"))
        infos = [self.tensor_info() for _ in range(n_tensors)]
        alignment = self.keys.get("general.alignment", 32)
        begin = -(-self.pos // alignment) * alignment
        self.tensors = {}  # name -> (type, dims with the row length first, bytes)
        for name, dims, kind, offset in infos:
            n = 1
            for d in dims:
                n *= d
            length, size = BLOCKS[kind]
            at = begin + offset
            assert offset % alignment == 0 and at + n // length * size <= len(self.data)
            self.tensors[name] = (kind, dims, self.data[at:at + n // length * size])

    def take(self, fmt):
        v = struct.unpack_from(fmt, self.data, self.pos)[0]
        self.pos += struct.calcsize(fmt)
        return v

    def text(self):
        n = self.take("<Q")
        self.pos += n
        return self.data[self.pos - n:self.pos]

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            element, n = self.take("<I"), self.take("<Q")
            return [self.value(element) for _ in range(n)]
        return self.take(SCALARS[kind])

    def tensor_info(self):
        name = self.text().decode()
        dims = [self.take("<Q") for _ in range(self.take("<I"))]
        return name, dims, self.take("<I"), self.take("<Q")

    def array(self, name):
        """The tensor as a numpy array, last dimension fastest; F32, F16, BF16 and Q8_0 only."""
        import numpy as np

        kind, dims, raw = self.tensors[name]
        shape = dims[::-1]
        if kind == F32:
            return np.frombuffer(raw, "<f4").reshape(shape)
        if kind == F16:
            return np.frombuffer(raw, "<f2").astype(np.float32).reshape(shape)
        if kind == BF16:
            return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
        assert kind == Q8_0
        blocks = np.frombuffer(raw, np.uint8).reshape(-1, 34)
        d = blocks[:, :2].copy().view("<f2").astype(np.float32)
        return (blocks[:, 2:].view(np.int8) * d).reshape(shape)
