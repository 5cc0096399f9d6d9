#!/bin/bash
# up.sh REGION ACCOUNT: create the resource group, the storage account and the token if they do not exist, and start the cluster. Run
# it again after a change or an upgrade. Requires the Azure command line, logged in, a key in ~/.ssh/id_rsa, and `make install`.
set -eu
region=${1:?"up.sh REGION ACCOUNT, such as eastus mytunerstorage"}
account=${2:?"up.sh REGION ACCOUNT: the storage account, 3 to 24 small letters and digits"}
group=${GROUP:-tuner}
here=$(cd "$(dirname "$0")" && pwd)

az group create --name "$group" --location "$region" --output none
az storage account show --name "$account" --resource-group "$group" --output none 2>/dev/null ||
  az storage account create --name "$account" --resource-group "$group" --location "$region" --sku Standard_LRS \
    --allow-blob-public-access false --output none
key=$(az storage account keys list --account-name "$account" --resource-group "$group" --query "[0].value" --output tsv)
az storage container create --name tuner --account-name "$account" --account-key "$key" --output none

"$here/../ray-up.sh" azure REGION="$region" GROUP="$group" <<END
TUNER_STORAGE=abfs://tuner/checkpoints
TUNER_STORAGE_REGION=$region
AZURE_STORAGE_ACCOUNT_NAME=$account
AZURE_STORAGE_ACCOUNT_KEY=$key
END
