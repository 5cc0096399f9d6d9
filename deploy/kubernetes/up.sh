#!/bin/sh
# Brings all of it up on the Kubernetes cluster that kubectl speaks to: up.sh OVERLAY IMAGE, such as up.sh trial registry.example.com/tuner:0.1.0
# May be called again, with another image to upgrade.
set -eu
overlay=${1:?"up.sh OVERLAY IMAGE: trial, aws or gcp"}
image=${2:?"up.sh OVERLAY IMAGE: the image that you pushed, with its tag"}
here=$(cd "$(dirname "$0")" && pwd)
operator="github.com/ray-project/kuberay/ray-operator/config/default?ref=v1.6.1"

kubectl get crd rayclusters.ray.io >/dev/null 2>&1 || kubectl create -k "$operator"
kubectl wait --for=condition=established --timeout=60s crd/rayclusters.ray.io
kubectl apply -f "$here/base/namespace.yaml"
kubectl -n tuner get secret tuner >/dev/null 2>&1 || "$here/secrets.sh" | kubectl apply -f -
kubectl -n tuner delete job tuner-migrate bucket --ignore-not-found
# KubeRay and Kubernetes take what is built here; only the image's name is put in.
built=$(kubectl kustomize "$here/overlays/$overlay" | sed "s|registry.example.com/tuner:[^\" ]*|$image|")
# The service reads the groups of workers that may come from the same.
printf '%s\n' "$built" | kubectl -n tuner create configmap tuner-node-types --from-file=objects.yaml=/dev/stdin --dry-run=client -o yaml |
  kubectl apply -f -
printf '%s\n' "$built" | kubectl apply -f -
kubectl -n tuner wait --for=condition=RayClusterProvisioned --timeout=15m raycluster/tuner
kubectl -n tuner rollout status deployment/tuner --timeout=15m
