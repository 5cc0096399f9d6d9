#!/bin/sh
# Deploy everything to kubectl's current cluster: up.sh OVERLAY IMAGE, such as up.sh trial registry.example.com/tuner:0.1.0
# Run it again with another image to upgrade.
set -eu
overlay=${1:?"up.sh OVERLAY IMAGE: trial, aws or gcp"}
image=${2:?"up.sh OVERLAY IMAGE: the image that you pushed, with its tag"}
here=$(cd "$(dirname "$0")" && pwd)
operator="github.com/ray-project/kuberay/ray-operator/config/default?ref=v1.6.1"

test -d "$here/overlays/$overlay" || {
  echo "unknown overlay $overlay: use trial, aws or gcp" >&2
  exit 2
}
if grep -rqE 'example-(bucket|project)|123456789012' "$here/overlays/$overlay"; then
  echo "replace the example bucket and account in $here/overlays/$overlay with your own, then run this again" >&2
  exit 2
fi
there=$(kubectl -n tuner get secret tuner --ignore-not-found -o name)
if test -z "$there" && test "$overlay" != trial && test -z "${DATABASE_URL:-}"; then
  echo "the overlay $overlay does not include a database: give one with DATABASE_URL=postgresql://user:password@host:5432/name up.sh …" >&2
  exit 2
fi

kubectl get crd rayclusters.ray.io >/dev/null 2>&1 || kubectl create -k "$operator"
kubectl wait --for=condition=established --timeout=60s crd/rayclusters.ray.io
kubectl apply -f "$here/base/namespace.yaml"
test -n "$there" || "$here/secrets.sh" | kubectl apply -f -
kubectl -n tuner delete job tuner-migrate bucket --ignore-not-found
# Build the manifests of the overlay, with the given image.
built=$(kubectl kustomize "$here/overlays/$overlay")
built=$(printf '%s\n' "$built" | sed "s|registry.example.com/tuner:[^\" ]*|$image|")
# Check first whether the cluster accepts everything, so that a refusal, such as by a KubeRay that is too old, changes nothing.
printf '%s\n' "$built" | kubectl apply --dry-run=server -f - >/dev/null
# The service reads from the same manifests which workers may be started.
printf '%s\n' "$built" | kubectl -n tuner create configmap tuner-node-types --from-file=objects.yaml=/dev/stdin --dry-run=client -o yaml |
  kubectl apply -f -
printf '%s\n' "$built" | kubectl apply -f -
kubectl -n tuner wait --for=condition=RayClusterProvisioned --timeout=15m raycluster/tuner
kubectl -n tuner rollout status deployment/tuner --timeout=15m
