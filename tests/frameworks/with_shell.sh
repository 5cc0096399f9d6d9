#!/bin/bash
# A training in bash. Its metrics are read from its output: metrics_pattern: 'epoch (?P<step>\d+): loss (?P<loss>\S+)'
set -euo pipefail
rate=$1
state="$TUNER_CHECKPOINT_DIR/state"
weight=1000000 epoch=0
if [ -f "$state" ]; then read -r weight epoch < "$state"; fi

while [ "$epoch" -lt "$TUNER_STEPS" ]; do
    sleep 0.05 # train here
    weight=$((weight - weight * rate / 100))
    epoch=$((epoch + 1))
    echo "$weight $epoch" > "$state"
    echo "epoch $epoch: loss $weight"
done
