#!/bin/sh
# Print the secrets that the manifests refer to, for `kubectl apply -f -`: new keys and tokens, and the database's URL.
#   secrets.sh                         for the PostgreSQL and the storage of overlays/trial
#   DATABASE_URL=… secrets.sh          for an existing database: postgresql://user:password@host:5432/name?sslmode=require
# Run it only once, because each run generates new secrets. To change one of them, run `kubectl -n tuner edit secret tuner` and then
# `kubectl -n tuner rollout restart deployment/tuner`, because running services keep the old values. README.md says what else is needed.
set -eu
secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
password=$(secret)
url=${DATABASE_URL:-postgresql://tuner:$password@database:5432/tuner}
cat <<END
apiVersion: v1
kind: Secret
metadata: {name: tuner, namespace: tuner}
stringData:
  api_key: tk_$(secret)
  auth_token: $(secret)
  database_password: $password
  database_url: "$url"
END
test -z "${DATABASE_URL:-}" || exit 0
cat <<END
---
apiVersion: v1
kind: Secret
metadata: {name: tuner-storage, namespace: tuner}
stringData:
  AWS_ACCESS_KEY_ID: tuner
  AWS_SECRET_ACCESS_KEY: $(secret)
  AWS_ENDPOINT_URL: http://storage:9000
  AWS_DEFAULT_REGION: us-east-1
END
