# SPDX-License-Identifier: Apache-2.0
"""Writing a GGUF file: keys, tensors in a chosen type, and no half file left behind.

Tensors are declared with their shape and a function that makes the values, so that only one of
them is in memory at a time. The file is written beside its final name and renamed when it is
complete and on the disk; any failure (a full disk, an interrupt) removes it.

Types: one-dimensional tensors (norms, biases) always stay F32, as every reader of GGUF expects;
matrices get the asked type, or F16 where a row is no whole number of Q8_0 blocks (said on stderr).
"""
import os
import sys


class ConvertError(Exception):
    """The cause in one sentence; the command prints it and exits with `code` (6: bad file)."""

    def __init__(self, text, code=6):
        super().__init__(text)
        self.code = code


def need(module, package=None):
    """Imports a Python package where it is needed, or says how to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise ConvertError(
            f"the Python package '{package or module}' is needed for this conversion "
            f"(pip install {package or module}): {e}", 2) from e


# llama.cpp's numbers of general.file_type.
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
TYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
Q8_BLOCK = 32


class Output:
    """One GGUF file in the making. `writer` is gguf.GGUFWriter, for its add_* key methods."""

    def __init__(self, path, arch, type_name):
        gguf = need("gguf")
        self.gguf = gguf
        self.quants = need("gguf.quants", "gguf")
        self.path = path
        self.tmp = path + ".tmp"
        self.type_name = type_name
        self.tensors = []
        self.names = set()
        self.n_bytes = 0
        # The path is opened by write_header_to_file(), not here.
        self.writer = gguf.GGUFWriter(None, arch)

    def tensor(self, name, shape, make, keep_f32=False):
        """Declares a tensor. shape: rows first, as NumPy has it; make() returns f32 of that shape."""
        if name in self.names:
            raise ConvertError(f"two source tensors map to '{name}'")
        self.names.add(name)
        kind = self.type_name
        if keep_f32 or len(shape) == 1:
            kind = "f32"
        elif kind == "q8_0" and shape[-1] % Q8_BLOCK:
            print(f"pipit-convert: {name}: rows of {shape[-1]} are no whole blocks of {Q8_BLOCK}; "
                  "written as f16 instead of q8_0", file=sys.stderr)
            kind = "f16"
        self.tensors.append((name, tuple(int(n) for n in shape), kind, make))

    def _declare(self):
        import numpy as np

        for name, shape, kind, _ in self.tensors:
            qtype = self.gguf.GGMLQuantizationType[TYPES[kind]]
            if kind in ("f32", "f16"):
                dtype = np.dtype(np.float32 if kind == "f32" else np.float16)
                n = int(np.prod(shape)) * dtype.itemsize
                self.writer.add_tensor_info(name, shape, dtype, n)
            else:
                bytes_shape = self.gguf.quant_shape_to_byte_shape(shape, qtype)
                n = int(np.prod(bytes_shape))
                self.writer.add_tensor_info(name, bytes_shape, np.dtype(np.uint8), n, raw_dtype=qtype)
            self.n_bytes += n

    def _values(self, name, shape, kind, make):
        import numpy as np

        a = np.ascontiguousarray(make(), dtype=np.float32)
        if a.shape != shape:
            raise ConvertError(f"{name}: shape {a.shape} where {shape} was declared")
        if not np.isfinite(a).all():
            raise ConvertError(f"{name}: holds values that are not finite")
        if kind == "f16" and np.abs(a).max(initial=0) > 65504:
            raise ConvertError(f"{name}: values over 65504 do not fit f16; use --type bf16 or f32")
        return self.quants.quantize(a, self.gguf.GGMLQuantizationType[TYPES[kind]])

    def write(self):
        """Writes everything and renames; on any failure the unfinished file is removed."""
        from pathlib import Path

        try:
            if os.path.exists(self.path) and not os.path.isfile(self.path):
                raise ConvertError(f"{self.path}: cannot be written: it is there and is no regular file")
            self._declare()
            # The metadata is small; give it room before hours of quantising.
            free = os.statvfs(os.path.dirname(os.path.abspath(self.path)))
            if free.f_bavail * free.f_frsize < self.n_bytes:
                raise ConvertError(
                    f"{self.path}: {self.n_bytes} bytes are needed and "
                    f"{free.f_bavail * free.f_frsize} are free on that file system")
            w = self.writer
            w.write_header_to_file(path=Path(self.tmp))
            w.write_kv_data_to_file()
            w.write_ti_data_to_file()
            for t in self.tensors:
                w.write_tensor_data(self._values(*t))
            for f in w.fout or []:
                f.flush()
                os.fsync(f.fileno())
            w.close()
            os.replace(self.tmp, self.path)
        except BaseException as e:
            for f in self.writer.fout or []:
                try:
                    f.close()
                except OSError:
                    pass
            try:
                os.unlink(self.tmp)
            except FileNotFoundError:
                pass
            if isinstance(e, OSError):
                # NumPy's short writes come without an errno.
                cause = e.strerror or f"the file system is full or limits the file's size ({e})"
                raise ConvertError(f"{self.path}: cannot be written: {cause}") from e
            raise
        print(f"pipit-convert: {self.path}: {len(self.tensors)} tensors, {self.n_bytes} bytes of weights",
              file=sys.stderr)
