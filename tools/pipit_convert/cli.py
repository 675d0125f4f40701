# SPDX-License-Identifier: Apache-2.0
"""The command line of pipit-convert. Exit codes as the other programs have them: 0 ok, 2 usage (or a
Python package is missing), 6 the model or a file is bad, 130 interrupted."""
import argparse
import os
import sys

from .output import ConvertError

EPILOG = """examples:
  pipit-convert stories260K.bin --tokenizer tok512.bin -o stories260K.gguf
  pipit-convert ~/models/Qwen3-0.6B --type q8_0 -o qwen3-0.6b.gguf
"""


def parse(argv):
    p = argparse.ArgumentParser(
        prog="pipit-convert", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EPILOG,
        description="Converts a llama2.c checkpoint (.bin) or a Hugging Face folder (config.json, "
                    "*.safetensors, tokenizer.json or tokenizer.model) to a GGUF file.")
    p.add_argument("input", help="the .bin file or the folder")
    p.add_argument("-o", "--output", required=True, help="the GGUF file to write")
    p.add_argument("--type", choices=["f32", "f16", "bf16", "q8_0"],
                   help="type of the matrices (default: f32 for .bin, else f16)")
    p.add_argument("--tokenizer", help="tokenizer file of a .bin (default: tokenizer.bin beside it)")
    p.add_argument("--name", help="the model's name (default: the input's)")
    p.add_argument("--force", action="store_true", help="overwrite an existing output")
    return p.parse_args(argv)


def run(args):
    if os.path.exists(args.output) and not args.force:
        raise ConvertError(f"{args.output} exists; --force overwrites it", 2)
    if os.path.isdir(args.input):
        from . import hf

        hf.convert(args.input, args.output, args.type or "f16", args.name)
    elif os.path.isfile(args.input):
        from . import llama2c

        llama2c.convert(args.input, args.output, args.type or "f32", args.tokenizer, args.name)
    else:
        raise ConvertError(f"{args.input}: no such file or folder")


def main(argv=None):
    args = parse(argv)
    try:
        run(args)
    except ConvertError as e:
        print(f"pipit-convert: {e}", file=sys.stderr)
        return e.code
    except OSError as e:
        print(f"pipit-convert: {e.filename or args.input}: {e.strerror}", file=sys.stderr)
        return 6
    except KeyboardInterrupt:
        return 130
    return 0
