#!/bin/bash
# The last part of each cloud's up.sh, after storage and permissions were created: ray-up.sh CLOUD WORD=value… <settings
# Creates Ray's token if there is none. Writes the machines' settings (.tuner.env), and a copy of the cloud's cluster.yaml in which each
# WORD is replaced by its value (.cluster.yaml), next to cluster.yaml, and a list of the project's files (deploy/.files). Then starts the
# cluster and waits for its service.
set -eu
cloud=${1:?"ray-up.sh CLOUD WORD=value… <settings"}
shift
source=$(cd "$(dirname "$0")/.." && pwd)
here=$source/deploy/ray-$cloud
bin=$source/.venv/bin

umask 077
mkdir -p "$HOME/.ray"
test -s "$HOME/.ray/auth_token" || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$HOME/.ray/auth_token"
{
  cat
  for name in TUNER_DATABASE_URL TUNER_NODE_PRICES TUNER_ALLOWED_MODULES TUNER_PACKAGES; do
    test -z "${!name:-}" || printf '%s=%q\n' "$name" "${!name}"
  done
} >"$here/.tuner.env"
priced_region=$(sed -n 's/^# Prices are those of \(.*\)\.$/\1/p' "$here/cluster.yaml")
edits="s|SOURCE|$source|g; s|SETTINGS|$here/.tuner.env|g"
for given in "$@"; do
  edits="$edits; s|${given%%=*}|${given#*=}|g"
  case $given in
  REGION="$priced_region") ;;
  # Machines are billed by their price label if they have one, so the prices of another region are removed. The first edit is for a
  # label that another one follows.
  REGION=*) edits="$edits; s|usd-per-hour: [^,}]*, *||; s|, *usd-per-hour: [^,}]*||" ;;
  esac
done
sed "$edits" "$here/cluster.yaml" >"$here/.cluster.yaml"
# The machines delete all other files of these folders before they install the project.
(cd "$source" && find tuner trainables -type f) >"$source/deploy/.files"
"$bin/pip" install --quiet --disable-pip-version-check -c "$source/constraints.txt" -e "${source}[$cloud]"
"$bin/ray" up --yes "$here/.cluster.yaml"
"$bin/ray" exec "$here/.cluster.yaml" "bash ~/tuner/deploy/ray-node.sh wait"
