#!/usr/bin/env bash
# Unpacks Debian's prometheus (with promtool) into a directory for the tests, where neither is on the PATH. Nothing is installed, so no service
# is started and no root is needed but for the first `apt-get update`. Where it cannot be had, the tests that need it are skipped, in CI they fail.
set -euo pipefail
target=$(realpath -m "$1")

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
if ! apt-get download -qq prometheus >/dev/null 2>&1; then
    apt-get update -qq >/dev/null 2>&1 && apt-get download -qq prometheus >/dev/null 2>&1 || {
        echo "No prometheus on the PATH and none to be had from apt: tests with a real Prometheus will not run." >&2
        exit 0
    }
fi
dpkg-deb --extract prometheus_*.deb unpacked
mkdir -p "$(dirname "$target")"
rm -rf "$target"
mv unpacked/usr/bin "$target"
touch "$target"
