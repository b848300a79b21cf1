#!/bin/bash
# A Redis server under load, with background saves while it is written to: copy on write between two processes.
#   redis-load.sh REQUESTS
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
socket=$directory/socket
ask() { redis-cli -s "$socket" "$@"; }

redis-server --port 0 --unixsocket "$socket" --dir "$directory" --save '' --appendonly no --daemonize no \
    >"$directory/log" &
until ask ping >/dev/null 2>&1; do sleep 0.01; done
load() { redis-benchmark -s "$socket" -q -n "$1" -c 8 -P 16 -t set -d 512 -r 50000 >"$directory/result"; }
load "$1"
ask bgsave >/dev/null
load "$1"
while [[ $(ask info persistence | tr -d '\r' | sed -n 's/^rdb_bgsave_in_progress://p') != 0 ]]; do sleep 0.01; done
ask shutdown nosave
wait
