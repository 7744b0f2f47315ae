#!/bin/sh
# Init of the lab's dom0: a small Xen host, then one scenario or a shell.
#
# Three channels lead out of the machine (virtio ports, named by xtask):
#   xylem.output   what the scenario prints
#   xylem.control  one line per event: "started", "failed REASON", "stopped",
#                  "exit STATUS"
#   xylem.results  a tar archive of /results
# Kernel and Xen talk on the serial line and never get between a scenario's lines.
# A line that comes in on xylem.output ends the scenario: it has taken too long.
# /lab/settings sets: store=xylem|c|oxen, mode=scenario|shell, columns and rows of a shell's
# terminal, and a scenario's arguments; and host=a|b, if this is one of two hosts.

# One of the last two exists.
export PATH=/usr/local/bin:/usr/bin:/usr/sbin:/usr/lib/xen-4.17/bin:/usr/lib/xen-4.20/bin
export HOME=/root TERM=linux LANG=C

mkdir -p /proc /sys /dev /tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm /run /var /tmp /root /results
# xenconsoled gives every guest a pseudo terminal.
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs tmpfs /run
ln -sfn /run /var/run
mkdir -p /run/xen /run/xenstored /run/lock /var/lib/xen /var/lib/xenstored /var/log/xen/console
ln -sfn /run/lock /var/lock
ln -sfn /proc/self/mounts /etc/mtab
ln -sfn /proc/self/fd /dev/fd
# The lock of xl's scripts spins for ever without /dev/stdin.
for number in 0:stdin 1:stdout 2:stderr; do
    ln -sfn "/proc/self/fd/${number%:*}" "/dev/${number#*:}"
done

# shellcheck disable=SC2046 # one word for each module
modprobe -a $(cat /modules) || echo "lab: not all modules could be loaded" >/dev/kmsg
mount -t xenfs xenfs /proc/xen

# port NAME: the device of a virtio port.
port() {
    for file in /sys/class/virtio-ports/*/name; do
        read -r name <"$file" 2>/dev/null || continue
        file=${file%/name}
        [ "$name" = "$1" ] && echo "/dev/${file##*/}"
    done
}

tries=100
until [ -n "$(port xylem.results)" ]; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || { echo "lab: no virtio ports" >/dev/kmsg; break; }
    sleep 0.05
done
exec 3>"$(port xylem.control)"

# end STATUS: hand out what /results holds, then the status.
end() {
    mkdir -p /results/logs
    cp -r /var/log/xen/. /results/logs/
    dmesg >/results/logs/dom0-dmesg.log
    tar -C /results -cf "$(port xylem.results)" .
    sync
    echo "exit $1" >&3
    poweroff -f
    while :; do sleep 1; done
}

fail() {
    echo "failed $*" >&3
    end 125
}

. /lab/settings
hostname "${host:-lab}"
case $host in b) number=2 ;; *) number=1 ;; esac

ldconfig
ip link set dev lo up
brctl addbr xenbr0
echo 0 >/sys/class/net/xenbr0/bridge/forward_delay
ip addr add 10.0.0.$number/24 dev xenbr0
ip link set dev xenbr0 up

# card NUMBER: the network interface that is a host's first or second.
card() {
    for file in /sys/class/net/*/address; do
        read -r address <"$file"
        case $address in "52:54:00:00:0$1:"*) file=${file%/address} && echo "${file##*/}" ;; esac
    done
}

# One of two hosts has the link in its bridge, a card on the network that nothing disturbs, a disk that outlives its
# power, and an sshd for the other.
join_pair() {
    modprobe -a virtio_net virtio_blk ext4 || fail "no drivers for a host of a pair"
    link=$(card 0) steady=$(card 1)
    [ -n "$link" ] && [ -n "$steady" ] || fail "no network cards"
    ip link set dev "$link" up master xenbr0 || fail "no link"
    ip addr add "10.0.1.$number/24" dev "$steady"
    ip link set dev "$steady" up
    mkdir -p /var/lib/xylem
    mount -t ext4 /dev/vda /var/lib/xylem || fail "no disk"
    printf '%s\n' '127.0.0.1 localhost' '10.0.0.1 a' '10.0.0.2 b' '10.0.1.1 steady-a' '10.0.1.2 steady-b' >/etc/hosts
    printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'sshd:x:100:65534::/run/sshd:/bin/false' >/etc/passwd
    printf '%s\n' 'root:x:0:' 'nogroup:x:65534:' >/etc/group
    mkdir -p /run/sshd
    chmod 700 /root /root/.ssh
    printf '%s\n' "ListenAddress 10.0.0.$number" "ListenAddress 10.0.1.$number" 'UsePAM no' 'UseDNS no' \
        'PasswordAuthentication no' 'PermitRootLogin prohibit-password' 'PrintMotd no' 'MaxStartups 100' \
        'HostKey /etc/ssh/ssh_host_ed25519_key' "SetEnv PATH=$PATH" >/etc/ssh/sshd_config
    printf '%s\n' 'BatchMode yes' 'KexAlgorithms curve25519-sha256' 'GlobalKnownHostsFile /etc/ssh/ssh_known_hosts' >/etc/ssh/ssh_config
    /usr/sbin/sshd -E /var/log/xen/sshd.log || fail "sshd does not start: $(tail -n 3 /var/log/xen/sshd.log | tr '\n' ' ')"
}
[ -z "$host" ] || join_pair

case $store in
    xylem)
        [ -x /usr/local/bin/xylem-xenstored ] || fail "there is no xylem-xenstored in the image"
        xylem-xenstored >/var/log/xen/xylem-xenstored.log 2>&1 </dev/null &
        store_pid=$!
        ;;
    c) xenstored --pid-file /run/xenstored/xenstored.pid ;;
    oxen) oxenstored --pid-file /run/xenstored/xenstored.pid ;;
    *) fail "unknown store '$store'" ;;
esac
tries=200
until [ -S /run/xenstored/socket ]; do
    tries=$((tries - 1))
    if [ -n "$store_pid" ] && ! kill -0 "$store_pid" 2>/dev/null; then
        fail "xylem-xenstored ended at once: $(tail -n 3 /var/log/xen/xylem-xenstored.log | tr '\n' ' ')"
    fi
    [ $tries -gt 0 ] || fail "the store ($store) opened no socket within 10 seconds"
    sleep 0.05
done
timeout 20 xen-init-dom0 >/var/log/xen/xen-init-dom0.log 2>&1 </dev/null ||
    fail "xen-init-dom0 failed: $(tail -n 3 /var/log/xen/xen-init-dom0.log | tr '\n' ' ')"
xenconsoled --log=all --log-dir=/var/log/xen/console --pid-file=/run/xenconsoled.pid

cd /root || fail "no /root"
echo "started $(cut -d ' ' -f 1 /proc/uptime)" >&3
if [ "$mode" = shell ]; then
    setsid -c sh -c 'stty -onlcr rows "$0" cols "$1"; exec bash -i' "$rows" "$columns" \
        <>/dev/hvc1 >&0 2>&1
    end 0
fi
exec 4<>"$(port xylem.output)"
sh /lab/scenario "$@" >&4 2>&1 </dev/null 3>&- 4>&- &
scenario=$!
# What a stopped scenario left and the logs still come out.
{ read -r _ <&4 && echo stopped >&3 && kill -KILL $scenario; } &
wait $scenario
end $?
