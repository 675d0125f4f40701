# SPDX-License-Identifier: Apache-2.0
"""Converters from published checkpoints to GGUF; the command is tools/pipit-convert."""
