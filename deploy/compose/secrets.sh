#!/bin/sh
# Create .env with new secrets, readable only by you. An existing .env is left unchanged.
set -eu
umask 077
file=$(cd "$(dirname "$0")" && pwd)/.env
if test -e "$file"; then
  echo "$file already exists" >&2
  exit 0
fi
secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
password=$(secret)
cat >"$file" <<END
TUNER_API_KEY=tk_$(secret)
RAY_AUTH_TOKEN=$(secret)
POSTGRES_PASSWORD=$password
TUNER_DATABASE_URL=postgresql://tuner:$password@database:5432/tuner
STORAGE_PASSWORD=$(secret)
GRAFANA_PASSWORD=$(secret)
END
echo "made $file"
