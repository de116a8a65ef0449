#!/bin/sh
# A launcher can begin before the names of its workers are known to the cluster's DNS, and MPICH asks for each once.
set -eu
if [ -n "${HYDRA_HOST_FILE:-}" ]; then
    for host in $(cut -d: -f1 "$HYDRA_HOST_FILE"); do
        waited=0
        until getent ahosts "$host" > /dev/null; do
            if [ "$waited" -ge "${DLEMU_DNS_SECONDS:-60}" ]; then
                echo "dlemu: $host (in $HYDRA_HOST_FILE) has no address after $waited s: is its pod running?" >&2
                exit 3
            fi
            waited=$((waited + 1))
            sleep 1
        done
    done
fi
exec "$@"
