#!/bin/bash
# nodeinit.sh NAME IP MAC: PID 1 of one host.
#
# Started by siteinit.sh, in namespaces of its own. /proc is still the site's here, which is how the host learns the
# pid that the tests know it by. Sets up network, mounts and daemons, says that it is ready, and from then on only
# reaps orphans, as an init does.
set -eu
name=$1 ip=$2 mac=$3
. "$STATE/site.env" # SITE_PID PREFIX PRIVATE SLURM SLURM_GPUS RUNAS
dir=$STATE/nodes/$name
exec </dev/null >"$dir/init.log" 2>&1
trap 'echo "nodeinit: line $LINENO failed" | tee "$dir/failed"' ERR
read -r pid _ </proc/self/stat

# Network: a veth whose other end sits on the site's bridge.
ip link add eth0 address "$mac" type veth peer name "v-$name" netns "/proc/$SITE_PID/ns/net"
nsenter --net="/proc/$SITE_PID/ns/net" ip link set "v-$name" master br0 up
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 || :
[ -z "$RUNAS" ] || echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
ip -batch - <<X
link set lo up
addr add $ip/$PREFIX broadcast + dev eth0
link set eth0 up
X
hostname "$name"

# Mounts: private directories, except for the shared ones in them, which are parked in /mnt meanwhile.
mount --make-rprivate /
mapfile -t share <"$STATE/share"
mount -t tmpfs tmpfs /mnt
for i in "${!share[@]}"; do
    mkdir "/mnt/$i"
    mount --rbind "${share[i]}" "/mnt/$i"
done
for directory in $PRIVATE; do mount -t tmpfs -o mode=1777 tmpfs "$directory"; done
for i in "${!share[@]}"; do
    mkdir -p "${share[i]}"
    mount --move "/mnt/$i" "${share[i]}"
done
umount /mnt
if [ "$name" != login ]; then # what is installed on login only
    while read -r path; do mount -t tmpfs tmpfs "$path"; done <"$STATE/hide"
fi
mount -t proc proc /proc
mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts && mount --bind /dev/pts/ptmx /dev/ptmx
mount --bind "$STATE/etc/hosts" /etc/hosts
mount --bind "$STATE/etc/passwd" /etc/passwd
mount --bind "$STATE/etc/group" /etc/group
mount --bind "$STATE/etc/ssh_config" /etc/ssh/ssh_config
echo "$name" >"$dir/hostname"
[ ! -e /etc/hostname ] || mount --bind "$dir/hostname" /etc/hostname
[ ! -e /etc/nsswitch.conf ] || mount --bind "$STATE/etc/nsswitch.conf" /etc/nsswitch.conf
mkdir -p -m 755 /run/sshd /run/munge /run/lock

# Daemons, as root or as the user that has started the cluster.
as() { "$@"; }
[ -z "$RUNAS" ] || as() { unshare --user --map-user="${RUNAS%:*}" --map-group="${RUNAS#*:}" -- "$@"; }
if [ -n "$SLURM" ]; then
    mount --bind "$STATE/slurm" /etc/slurm
    as /usr/sbin/munged ${RUNAS:+--force} --key-file="$STATE/keys/munge.key" --pid-file=/run/munge/munged.pid \
        --seed-file=/run/munge/seed --log-file=/run/munge/munged.log --num-threads=1
fi
as /usr/sbin/sshd -r -f "$STATE/etc/sshd_config" -E "$dir/sshd.log" # -r: a fork for each connection, which is cheaper
for _ in $(seq 1000); do # it listens before it writes this, but after it has gone into the background
    [ ! -s /run/sshd.pid ] || break
    sleep 0.01
done
if [ -n "$SLURM" ]; then
    mkdir -p /run/gpu
    for gpu in $(seq 0 $((SLURM_GPUS - 1))); do ln -s /dev/null "/run/gpu/gpu$gpu"; done # slurmd wants device files
    if [ "$name" = login ]; then
        mkdir -p /run/slurmctld
        as /usr/sbin/slurmctld -L "$dir/slurmctld.log"
    else
        for _ in $(seq 1000); do # who does not find slurmctld at once tries again only much later
            ! (: <>/dev/tcp/login/6817) 2>/dev/null || break
            sleep 0.02
        done
        as /usr/sbin/slurmd -L "$dir/slurmd.log"
    fi
fi

echo "$pid" >"$dir/ready.tmp"
mv "$dir/ready.tmp" "$dir/ready"
trap - ERR
set +e
while :; do
    (exec -a testbed-idle sleep infinity) &
    wait $! # it reaps adopted orphans too, which read -t does not
done
