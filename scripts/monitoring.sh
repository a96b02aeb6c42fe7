#!/usr/bin/env bash
# A real scrape: the module under load, its metrics in Prometheus, and each expression of the Grafana dashboard asked:
# `make test-monitoring`. Prometheus is Debian's, unpacked under target/ and not installed.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "monitoring.sh: $*" >&2; exit 1; }
out=$PWD/target/monitoring
rm -rf "$out/data" "$out/site"
mkdir -p "$out/site"
if [ ! -x "$out/usr/bin/prometheus" ]; then
  (cd "$out" && apt-get -o APT::Sandbox::User=root download prometheus && dpkg -x prometheus_*.deb .) ||
    fail "prometheus cannot be had with apt: its lists may be too old"
fi
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
redis=$(free) site=$(free) prometheus=$(free)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
await() {
  local tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "never came true: $*"
    sleep 0.1
  done
}

"${REDIS_SERVER:-redis-server}" --port "$redis" --bind 127.0.0.1 --save '' --loadmodule target/release/libredis_rl.so >"$out/redis.log" &
pids+=($!)
await redis-cli -p "$redis" ping
publish() {
  packaging/redis-rl-metrics -p "$redis" >"$out/site/new"
  mv "$out/site/new" "$out/site/metrics"
}
publish
"$out/usr/bin/promtool" check metrics <"$out/site/metrics"
python3 -m http.server --bind 127.0.0.1 --directory "$out/site" "$site" >"$out/site.log" 2>&1 &
pids+=($!)
cat >"$out/prometheus.yml" <<CONF
global: { scrape_interval: 1s }
scrape_configs:
  - job_name: redis-rl
    static_configs: [{ targets: ["127.0.0.1:$site"] }]
CONF
"$out/usr/bin/promtool" check config "$out/prometheus.yml"
"$out/usr/bin/prometheus" --config.file="$out/prometheus.yml" --storage.tsdb.path="$out/data" \
  --web.listen-address="127.0.0.1:$prometheus" >"$out/prometheus.log" 2>&1 &
pids+=($!)
ask() { python3 scripts/monitoring.py "$prometheus" "$@"; }
await ask up

echo "--- load for ${LOAD_S:-12} s"
end=$((SECONDS + ${LOAD_S:-12}))
while [ "$SECONDS" -lt "$end" ]; do
  for key in 1 1 2 3; do
    for algorithm in FIXED SLIDINGLOG SLIDINGCOUNTER TOKEN GCRA; do
      echo "RL.$algorithm $algorithm:$key $key 1000 *"
    done
    echo "RL.GCRA GCRA:$key 10 1000 * COST 3 FORCE"
    echo "RL.TOKEN FIXED:$key 10 1000 *"
  done | redis-cli -p "$redis" >/dev/null
  publish
  sleep 0.2
done
ask dashboard docs/grafana/redis-rl.json
if [ -n "${KEEP:-}" ]; then echo "Prometheus: http://127.0.0.1:$prometheus"; wait; fi
