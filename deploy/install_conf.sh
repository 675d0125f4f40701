#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the sample configuration, but never over one that somebody may have changed.
# Usage: install_conf.sh SAMPLE TARGET (absolute; $DESTDIR goes before it)
set -eu
target=${DESTDIR:-}$2
mkdir -p "$(dirname "$target")"
if [ -e "$target" ] && ! cmp -s "$1" "$target"; then
    echo "$target is there already; the sample goes to $target.sample"
    target=$target.sample
fi
install -m 0644 "$1" "$target"
