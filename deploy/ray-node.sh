#!/bin/bash
# Set up and start one machine of a cluster that Ray's autoscaler manages. The cluster.yaml calls this script on each machine, in a
# copy of this repository in ~/tuner:
#   ray-node.sh install EXTRAS   install Python, Ray and this project in ~/venv, with the versions of constraints.txt
#   ray-node.sh head             start Ray's head, which runs no trials, and the service, which listens on the loopback
#   ray-node.sh wait             on the head: wait until the service is ready, for at most half an hour
#   ray-node.sh worker CLOUD     join the head at $RAY_HEAD_IP, and watch for the cloud's interruption notices
# Settings are in ~/tuner.env. The autoscaler passes the machine's labels to Ray.
set -eu
cd "$(dirname "$0")/.."
venv=$HOME/venv

environment() {
  set -a
  # shellcheck source=/dev/null
  . "$HOME/tuner.env"
  set +a
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/.ray/auth_token RAY_USAGE_STATS_ENABLED=0
  # Disable Ray's memory monitor, which kills workers. The service's supervisor limits memory instead and reports the cause.
  export RAY_memory_monitor_refresh_ms=0
  # Detect a machine that disappeared without notice within about 10 s; the default is a minute.
  export RAY_health_check_period_ms=2000 RAY_health_check_timeout_ms=3000 RAY_health_check_failure_threshold=4
  PATH=$venv/bin:$PATH
  ulimit -n 65536 || true
}

# End the process that an earlier call of this script started, if it still runs, and wait for its end for at most a minute.
# While the old service runs, it keeps the lock of its home, and a new service would exit.
end() {
  if ! test -e "$1"; then return; fi
  pid=$(cat "$1")
  if ! kill "$pid" 2>/dev/null; then return; fi
  for _ in $(seq 120); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.5
  done
}

case ${1:-} in
install)
  if ! command -v rsync >/dev/null || ! python3 -c 'import ensurepip' 2>/dev/null; then
    sudo apt-get -qq update
    sudo apt-get -qq install -y --no-install-recommends python3-venv rsync
  fi
  test -x "$venv/bin/python" || python3 -m venv "$venv"
  # Ray's sync deletes nothing. The service must not find modules of another version, such as newer migrations of the database.
  find tuner trainables -type f -not -path '*/__pycache__/*' | grep -vxFf deploy/.files | xargs -r -d '\n' rm --
  rm -rf build ./*.egg-info
  "$venv/bin/pip" install --quiet --disable-pip-version-check -c constraints.txt ".[$2]"
  ;;
head)
  environment
  ray stop --grace-period 20
  # All processes that Ray starts get its environment. Drivers read the URL of the database from a file.
  env -u TUNER_DATABASE_URL ray start --head --port=6379 --dashboard-host=127.0.0.1 --num-cpus=0 --disable-usage-stats \
    --autoscaling-config="$HOME/ray_bootstrap_config.yaml"
  end "$HOME/tuner.pid"
  # Jobs continue while the service restarts.
  export TUNER_RAY_ADDRESS=http://127.0.0.1:8265
  # The machines that Ray's autoscaler may start, and how many seconds to wait for one: longer than its setup takes.
  export TUNER_NODE_TYPES=$HOME/ray_bootstrap_config.yaml TUNER_SPOT_WAIT=${TUNER_SPOT_WAIT:-900}
  setsid nohup tuner serve </dev/null >>"$HOME/tuner.log" 2>&1 &
  echo $! >"$HOME/tuner.pid"
  ;;
worker)
  # All machines get the same settings, but user code on workers must not be able to read the URL of the database.
  sed -i '/^TUNER_DATABASE_URL/d' "$HOME/tuner.env"
  environment
  ray stop --grace-period 20
  ray start --address="$RAY_HEAD_IP:6379" --disable-usage-stats
  end "$HOME/watch.pid"
  setsid nohup python -m tuner.cluster.notice_watch --address="$RAY_HEAD_IP:6379" --cloud="$2" \
    </dev/null >>"$HOME/watch.log" 2>&1 &
  echo $! >"$HOME/watch.pid"
  ;;
wait)
  # Workers are not waited for: they start only when a job needs them.
  environment
  ready="import urllib.request; urllib.request.urlopen('http://127.0.0.1:${TUNER_PORT:-8000}/readyz', timeout=5)"
  for _ in $(seq 180); do
    "$venv/bin/python" -c "$ready" 2>/dev/null && exit 0
    sleep 10
  done
  echo "the service is not ready: look at ~/tuner.log on the head" >&2
  exit 1
  ;;
*)
  echo "usage: ray-node.sh install EXTRAS, head, wait, or worker CLOUD" >&2
  exit 2
  ;;
esac
