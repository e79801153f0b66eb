#!/bin/sh
# Installs helm, built from its Go module, and kubernetes-validate of PyPI for test/long/chart.test.ts, and prints their
# directory below the temporary one. A later run finds them there. It takes a minute and a half on two quiet cores.
set -eu
helm=v3.22.0
validate=1.37.0
directory="${TMPDIR:-/tmp}/millrace-chart-tools-$helm-$validate-$(id -u)"

works() {
  "$directory/helm" version >/dev/null 2>&1 && "$directory/python/bin/python" -m kubernetes_validate --version >/dev/null 2>&1
}

# Another user must not choose what runs here.
if ! { [ -O "$directory" ] && works; }; then
  for command in go python3; do
    command -v "$command" >/dev/null && continue
    echo "The test of the chart needs $command, to build helm $helm (Go 1.26) and to install kubernetes-validate." >&2
    exit 1
  done
  echo "Building helm $helm and installing kubernetes-validate $validate into $directory." >&2
  made="$(mktemp -d "$directory.XXXXXX")"
  trap 'rm -rf "$made"' EXIT
  # A cache of its own, which can be removed and needs no home directory.
  GOPATH="$made/go" GOCACHE="$made/go/cache" GOBIN="$made" GOFLAGS=-modcacherw \
    go install -ldflags='-s -w' "helm.sh/helm/v3/cmd/helm@$helm" >&2
  rm -rf "$made/go"
  python3 -m venv "$made/python" >&2
  "$made/python/bin/python" -m pip install --quiet --disable-pip-version-check "kubernetes-validate==$validate" >&2
  rm -rf "$directory"
  # Another run may have been faster.
  mv -T "$made" "$directory" || works
fi
echo "$directory"
