#!/bin/bash
# ./ssh.sh HOSTS FOLDER COMMAND...: starts Ray on all hosts, runs a command of katgym on the first one
# and stops Ray. HOSTS: a file with a host a line, the first one's name or address as all others
# reach it. FOLDER: that all hosts see, with .venv in it.
#
#   ./ssh.sh hosts.txt /shared/katgym train rl rl.toml --out runs/rl
set -euo pipefail
if [ "$#" -lt 3 ]; then
  sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
mapfile -t hosts < <(grep -v -e '^#' -e '^[[:space:]]*$' "$1")
folder=$2
shift 2
port=6379
address=${hosts[0]}:$port

on() { # HOST WORD...: in the folder, with its environment
  local host=$1
  shift
  # shellcheck disable=SC2029  # expanded here: %q has quoted every word
  ssh -o BatchMode=yes "$host" "cd $(printf %q "$folder") && . .venv/bin/activate && $(printf '%q ' "$@")"
}

stop() {
  for host in "${hosts[@]}"; do on "$host" ray stop > /dev/null || true; done
}
trap stop EXIT

on "${hosts[0]}" ray start --head --node-ip-address="${hosts[0]}" --port="$port"
for host in "${hosts[@]:1}"; do on "$host" ray start --address="$address"; done
# -tt: Ctrl-C here is Ctrl-C there, so that the run saves before it ends.
ssh -tt -o BatchMode=yes "${hosts[0]}" \
  "cd $(printf %q "$folder") && . .venv/bin/activate && katgym $(printf '%q ' "$@")"
