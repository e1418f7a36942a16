#!/usr/bin/env bash
# Unpacks Debian's chromium and chromium-driver, and the libraries that they need and this machine lacks, into a directory for the tests, where
# they are not on the PATH. Nothing is installed and nothing started; no root is needed but for the first `apt-get update`. Some 130 MB to fetch
# and 420 MB on disk. Where it cannot be had, the tests that need it are skipped, in CI they fail.
set -euo pipefail
target=$(realpath -m "$1")

if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/partial"
download() {
    apt-get install --quiet=2 --yes --download-only --no-install-recommends -o Dir::Cache::archives="$work" -o Debug::NoLocking=1 \
        chromium chromium-driver >/dev/null 2>&1
}
if ! download && ! { apt-get update -qq >/dev/null 2>&1 && download; }; then
    echo "No chromium on the PATH and none to be had from apt: tests in a browser will not run." >&2
    exit 0
fi
for package in "$work"/*.deb; do
    dpkg-deb --extract "$package" "$work/unpacked"
done
mkdir -p "$(dirname "$target")"
rm -rf "$target"
mv "$work/unpacked" "$target"
touch "$target"
