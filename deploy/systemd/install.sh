#!/bin/sh
# Install the service from this checkout on this machine: sudo deploy/systemd/install.sh. Run it again to upgrade.
# Environment variables, with defaults: PREFIX (/opt/tuner), PYTHON (python3, 3.11 or newer), EXTRAS (s3,gpu,postgresql).
set -eu
# The user tuner reads what root installs here, also if root's umask is 077.
umask 022
source=$(cd "$(dirname "$0")/../.." && pwd)
prefix=${PREFIX:-/opt/tuner}
extras=${EXTRAS:-s3,gpu,postgresql}
units=${UNITS:-/etc/systemd/system}
settings=${SETTINGS:-/etc/tuner}
programs=${PROGRAMS:-/usr/local/bin}

"${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "Python 3.11 or newer is needed: name it with PYTHON=/path/to/python3.11" >&2
  exit 1
}
id tuner >/dev/null 2>&1 || useradd --system --home-dir /var/lib/tuner --shell /usr/sbin/nologin tuner
install -d "$prefix" "$prefix/trainables"
test -x "$prefix/bin/python" || "${PYTHON:-python3}" -m venv "$prefix"
# pip builds in the checkout, and would install what the build of another version left there.
rm -rf "$source/build" "$source"/*.egg-info
"$prefix/bin/pip" install --quiet --disable-pip-version-check -c "$source/constraints.txt" "${source}[$extras]"
install -d -m 0750 -g tuner "$settings"
test -e "$settings/tuner.env" || install -m 0600 "$source/deploy/systemd/tuner.env" "$settings/tuner.env"
install -m 0644 "$source/deploy/digits.yaml" "$prefix/trainables/digits.yaml"
sed "s|/opt/tuner|$prefix|g" "$source/deploy/systemd/tuner.service" >"$units/tuner.service"
sed "s|/opt/tuner|$prefix|g" "$source/deploy/systemd/tuner-admin" >"$programs/tuner-admin"
chmod 0755 "$programs/tuner-admin"
systemctl daemon-reload
echo "installed in $prefix; settings are in $settings/tuner.env"
