#!/bin/bash
# PID 1 of the outer net, pid and mount namespaces that hold the whole cluster: just a bridge that leads nowhere.
# Killing this process ends every process of every host. Hosts are started by the lines it reads: NAME IP MAC CLOCK.
set -eu
read -r pid _ </proc/self/stat
mount --make-rprivate /
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null || :
ip -batch - <<X
link set lo up
link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
link set br0 up
X
echo "SITE_PID=$pid" >>"$STATE/site.env"
if [ -n "$OWNED" ]; then
    exec 9<&0 0</dev/null # our owner's pipe: its end is ours
else
    mkfifo "$STATE/boot"
    exec 9<>"$STATE/boot"
fi
echo "$pid" >"$STATE/site.tmp"
mv "$STATE/site.tmp" "$STATE/site.pid"
while :; do
    read -r -u 9 name ip mac clock || exit 0
    # shellcheck disable=SC2086 # the clock's options, or none
    unshare --net --mount --uts --ipc --pid ${clock:+--time --monotonic $clock --boottime $clock} \
        --fork --kill-child "$HERE/nodeinit.sh" "$name" "$ip" "$mac" 9>&- &
    disown
done
