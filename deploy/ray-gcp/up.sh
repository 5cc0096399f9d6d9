#!/bin/bash
# up.sh PROJECT REGION BUCKET: create the bucket, the accounts and the token if they do not exist, and start the cluster. Run it again
# after a change or an upgrade. Requires the gcloud command line, logged in with permission to create service accounts, and `make install`.
set -eu
project=${1:?"up.sh PROJECT REGION BUCKET, such as my-project us-central1 my-tuner-bucket"}
region=${2:?"up.sh PROJECT REGION BUCKET, such as my-project us-central1 my-tuner-bucket"}
bucket=${3:?"up.sh PROJECT REGION BUCKET, such as my-project us-central1 my-tuner-bucket"}
here=$(cd "$(dirname "$0")" && pwd)

gcloud storage buckets describe "gs://$bucket" >/dev/null 2>&1 ||
  gcloud storage buckets create "gs://$bucket" --project "$project" --location "$region" --uniform-bucket-level-access
worker=tuner-worker@$project.iam.gserviceaccount.com
gcloud iam service-accounts describe "$worker" --project "$project" >/dev/null 2>&1 ||
  gcloud iam service-accounts create tuner-worker --project "$project"
gcloud storage buckets add-iam-policy-binding "gs://$bucket" --member "serviceAccount:$worker" \
  --role roles/storage.objectAdmin >/dev/null

"$here/../ray-up.sh" gcp PROJECT="$project" REGION="$region" <<END
TUNER_STORAGE=gs://$bucket/tuner
TUNER_STORAGE_REGION=$region
END
