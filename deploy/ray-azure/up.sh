#!/bin/bash
# up.sh REGION ACCOUNT: makes what is missing of resource group, storage account and token, and brings the cluster up. Again after a
# change or an upgrade. Needs the Azure command line, logged in, a key in ~/.ssh/id_rsa, and `make install`.
set -eu
region=${1:?"up.sh REGION ACCOUNT, such as eastus mytunerstorage"}
account=${2:?"up.sh REGION ACCOUNT: the storage account, 3 to 24 small letters and digits"}
group=${GROUP:-tuner}
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)

az group create --name "$group" --location "$region" --output none
az storage account show --name "$account" --resource-group "$group" --output none 2>/dev/null ||
  az storage account create --name "$account" --resource-group "$group" --location "$region" --sku Standard_LRS \
    --allow-blob-public-access false --output none
key=$(az storage account keys list --account-name "$account" --resource-group "$group" --query "[0].value" --output tsv)
az storage container create --name tuner --account-name "$account" --account-key "$key" --output none
"$source/.venv/bin/pip" install --quiet --disable-pip-version-check -c "$source/constraints.txt" "${source}[azure]"

umask 077
mkdir -p "$HOME/.ray"
test -s "$HOME/.ray/auth_token" || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$HOME/.ray/auth_token"
cat >"$here/.tuner.env" <<END
TUNER_STORAGE=abfs://tuner/checkpoints
TUNER_STORAGE_REGION=$region
AZURE_STORAGE_ACCOUNT_NAME=$account
AZURE_STORAGE_ACCOUNT_KEY=$key
END
test -z "${TUNER_DATABASE_URL:-}" || printf 'TUNER_DATABASE_URL=%q\n' "$TUNER_DATABASE_URL" >>"$here/.tuner.env"
sed "s|REGION|$region|g; s|GROUP|$group|g; s|SOURCE|$source|g; s|SETTINGS|$here/.tuner.env|g" \
  "$here/cluster.yaml" >"$here/.cluster.yaml"
"$source/.venv/bin/ray" up --yes "$here/.cluster.yaml"
"$source/.venv/bin/ray" exec "$here/.cluster.yaml" "bash ~/tuner/deploy/ray-node.sh wait"
