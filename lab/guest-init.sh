#!/bin/sh
# Init of the lab's Linux guest. Says on the console what it finds, one line each:
#   XYLEM-GUEST: key=value
# then waits to be shut down. Kernel command line:
#   xylem.ip=10.0.0.N   address for eth0; dom0 is 10.0.0.1
#   xylem.gateway=ADDR  its default route; pings 192.0.2.2 by it and says "outside=ok" or "outside=unreachable"
#   xylem.spoof=ADDR    sends from an address that is not its own, IP and then MAC, and from its own again; says "spoof_ip=",
#                       "spoof_mac=" and "own=", each "answered" or "unanswered"
#   xylem.io=1          writes to the disk and reads it back all the time; says "io=N", or "io=failed"
#   xylem.net=1         sends to port 7 of dom0, and compares what comes back, all the time over one connection; says "net=N",
#                       or "net=failed"
#   xylem.rest=SECONDS  how long both of these rest in each round; 0.3 without it
#   xylem.mem=MIB       fills that much memory and verifies it all the time; says "mem=N", or "mem=failed"
#   xylem.gap=1         looks at its own clock all the time; says "gap=SECONDS" when it went on by more than 0.2 s at once
#   xylem.tick=SECONDS  prints "tick=N" that often, to show that time passes (suspend, migration)
#   xylem.channel=1     repeats on its first channel what it hears there, after "heard="
#   xylem.share=TAG     mounts that folder of dom0, reads hello.txt and writes guest.txt there
#   xylem.pci=1         says which devices of the host it has, "pci=BDF VENDOR:DEVICE", and reads from that which gives random bytes
#   xylem.pci=watch     says which it has whenever that changes, "pci_devices=COUNT BDF..."
#   xylem.disk=NAME     its data is on /dev/NAME, not on /dev/xvda
#   xylem.power=1       powers off when its ACPI button is pressed
#   xylem.cpus=1        with each tick, "cpus=N...": those on which a process has just run

export PATH=/bin:/sbin

say() { echo "XYLEM-GUEST: $*" >/dev/console; }

# The value of a word KEY=VALUE on the kernel command line.
option() {
    for word in $(cat /proc/cmdline); do
        case $word in "$1="*) echo "${word#*=}" ;; esac
    done
}

# Whether the toolstack gave us a device of this type.
has_device() { ls /sys/bus/xen/devices 2>/dev/null | grep -q "^$1-"; }

# wait_for COMMAND...: up to ten seconds.
wait_for() {
    tries=100
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

# The kernel lists devices from a thread of its own, which may come to them after init: wait three
# seconds for both types before calling one absent.
devices() {
    tries=30
    until has_device vbd && has_device vif; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return
        sleep 0.1
    done
}

disk() {
    has_device vbd || { say disk=absent; return; }
    wait_for test -b "/dev/$disk" || { say disk=missing; return; }
    say "disk_bytes=$(($(cat "/sys/block/$disk/size") * 512))"
    mkdir -p /mnt
    if [ "$(cat "/sys/block/$disk/ro")" = 1 ]; then mode=ro; else mode=rw; fi
    say "disk_mode=$mode"
    mount -t ext4 -o $mode "/dev/$disk" /mnt || { say disk=unmountable; return; }
    say "disk_text=$(head -n 1 /mnt/hello.txt)"
    if [ $mode = rw ]; then
        echo "written by a guest" >/mnt/guest.txt && sync
        umount /mnt && mount -t ext4 "/dev/$disk" /mnt
        say "disk_written=$(cat /mnt/guest.txt)"
    fi
    umount /mnt
    say disk=ok
}

network() {
    has_device vif || { say network=absent; return; }
    wait_for test -e /sys/class/net/eth0 || { say network=missing; return; }
    say "network_mac=$(cat /sys/class/net/eth0/address)"
    address=$(option xylem.ip)
    [ -n "$address" ] || { say network=unconfigured; return; }
    ip addr add "$address/24" dev eth0
    ip link set dev eth0 up
    gateway=$(option xylem.gateway)
    [ -z "$gateway" ] || ip route add default via "$gateway"
    # The backend may take a moment until it forwards.
    tries=10
    until ping -c 1 -W 1 10.0.0.1 >/dev/null; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { say network=unreachable; return; }
    done
    say "network_address=$address"
    say network=ok
    [ -z "$gateway" ] || outside
    [ -z "$(option xylem.spoof)" ] || spoof "$address" "$(option xylem.spoof)"
}

outside() {
    if ping -c 3 -W 2 192.0.2.2 >/dev/null; then say outside=ok; else say outside=unreachable; fi
}

# answered ADDRESS: whether dom0 answers what comes from there.
answered() {
    if ping -c 3 -W 2 -I "$1" 10.0.0.1 >/dev/null; then echo answered; else echo unanswered; fi
}

# address_of_eth0 MAC: an interface that is up keeps its own.
address_of_eth0() {
    ip link set dev eth0 down
    ip link set dev eth0 address "$1"
    ip link set dev eth0 up
}

# spoof OWN OTHER
spoof() {
    mac=$(cat /sys/class/net/eth0/address)
    ip addr add "$2/24" dev eth0
    say "spoof_ip=$(answered "$2")"
    ip addr del "$2/24" dev eth0
    address_of_eth0 00:16:3e:66:66:66
    say "spoof_mac=$(answered "$1")"
    address_of_eth0 "$mac"
    say "own=$(answered "$1")"
}

# Four files of random bytes, one of them written anew in each round and all of them verified. What is read back comes from the
# disk, not from memory.
keep_writing() {
    mount -t ext4 "/dev/$disk" /mnt || { say io=failed; return; }
    number=0
    while :; do
        number=$((number + 1))
        file=io.$((number % 4))
        sum=$(head -c 32768 /dev/urandom | tee "/mnt/$file" | md5sum)
        echo "${sum%-}/mnt/$file" >"/tmp/$file" && sync
        echo 3 >/proc/sys/vm/drop_caches
        if cat /tmp/io.* | md5sum -c -s; then say "io=$number"; else say io=failed; fi
        sleep "$rest"
    done
}

# TCP sends again what is lost on the way, and gives up after minutes only.
keep_sending() {
    mkfifo /tmp/to /tmp/from
    nc 10.0.0.1 7 </tmp/to >/tmp/from &
    exec 5>/tmp/to 6</tmp/from
    # A connection that was lost is told, too.
    trap '' PIPE
    number=0
    while :; do
        number=$((number + 1))
        sent=$(head -c 3000 /dev/urandom | base64 | tr -d '\n')
        echo "$sent" >&5
        read -r -t 120 received <&6
        if [ "$received" = "$sent" ]; then say "net=$number"; else say net=failed; fi
        sleep "$rest"
    done
}

# The kernel has a device of input events for the button: 24 bytes for each event.
keep_listening() {
    modprobe -a button evdev || { say power=unsupported; return; }
    wait_for sh -c 'grep -q "Power Button" /sys/class/input/event*/device/name'
    for name in /sys/class/input/event*/device/name; do
        [ "$(cat "$name")" = "Power Button" ] || continue
        event=${name%/device/name}
        say power=listening
        head -c 24 "/dev/input/${event##*/}" >/dev/null && say power=pressed && exec /sbin/poweroff
    done
    say power=absent
}

# In each round every MiB is verified as the round before left it, and written anew.
keep_filling() {
    mkdir -p /mem && mount -t tmpfs -o size=90% tmpfs /mem
    round=0
    while :; do
        result=$round
        for number in $(seq "$1"); do
            [ $round = 0 ] || md5sum -c -s "/mem/$number.sum" || result=failed
            head -c 1048576 /dev/urandom >"/mem/$number"
            md5sum "/mem/$number" >"/mem/$number.sum"
        done
        [ $round = 0 ] || say "mem=$result"
        round=$((round + 1))
    done
}

# No process is made in the loop: it would take longer than what is measured.
keep_looking() {
    mkfifo /tmp/never
    exec 3<>/tmp/never
    read -r before _ </proc/uptime
    while :; do
        # Nothing comes: it waits.
        read -r -t 0.02 _ <&3
        read -r after _ </proc/uptime
        gap=$((${after%.*}${after#*.} - ${before%.*}${before#*.}))
        [ $gap -lt 20 ] || say "gap=$((gap / 100)).$(printf %02d $((gap % 100)))"
        before=$after
    done
}

keep_repeating() {
    wait_for test -c /dev/hvc1 || { say channel=missing; return; }
    # It is closed when the guest goes on in another domain.
    while :; do
        # Its settings last for as long as it is open.
        exec 4<>/dev/hvc1
        stty raw -echo <&4
        say channel=open
        while read -r line <&4; do echo "heard=$line" >&4; done
        exec 4>&-
        sleep 1
    done
}

share() {
    modprobe -a 9pnet_xen 9p || { say share=unsupported; return; }
    mkdir -p /share
    # The driver asks for its backend when it is loaded.
    wait_for mount -t 9p -o trans=xen,version=9p2000.L "$1" /share || { say share=unmountable; return; }
    say "share_text=$(head -n 1 /share/hello.txt)"
    echo "written by a guest" >/share/guest.txt && sync
    say share=ok
}

pci() {
    modprobe -a xen-pcifront virtio_pci virtio-rng || { say pci=unsupported; return; }
    wait_for ls /sys/bus/pci/devices/*/vendor || { say pci=absent; return; }
    for device in /sys/bus/pci/devices/*; do
        say "pci=${device##*/} $(cat "$device/vendor"):$(cat "$device/device")"
    done
    wait_for grep -q virtio /sys/class/misc/hw_random/rng_current || { say rng=absent; return; }
    say "rng=$(head -c 64 /dev/hwrng | sort -u | wc -c)"
}

watch_pci() {
    modprobe -a xen-pcifront virtio_pci virtio-rng || { say pci=unsupported; return; }
    before=
    while :; do
        now=$(cd /sys/bus/pci/devices && echo *)
        [ "$now" != '*' ] || now=
        # shellcheck disable=SC2086 # one word for each device
        set -- $now
        [ "$#$now" = "$before" ] || say "pci_devices=$# $now"
        before=$#$now
        sleep 1
    done
}

# A process that may only run there ran there.
working_cpus() {
    for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
        cpu=${cpu##*cpu}
        ! taskset "$(printf %x $((1 << cpu)))" true 2>/dev/null || printf %s "$cpu"
    done
}

mkdir -p /proc /sys /dev /tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# Only the lines of this script belong on the console from here on.
echo 1 >/proc/sys/kernel/printk
say "init reached"
say "vcpus=$(grep -c ^processor /proc/cpuinfo)"
say "memory_kib=$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)"
ip link set dev lo up
# shellcheck disable=SC2046 # one word for each module
modprobe -a $(cat /modules) || say modules=failed
disk=$(option xylem.disk)
disk=${disk:-xvda}
devices
disk
network
say "disks=$(ls /sys/block | grep -E '^(sd|vd|xvd)' | tr '\n' ' ')"
say "clock=$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
[ ! -e /sys/class/graphics/fb0 ] || say "screen=$(cat /sys/class/graphics/fb0/name)"
say ready
rest=$(option xylem.rest)
rest=${rest:-0.3}
[ -z "$(option xylem.channel)" ] || keep_repeating &
[ -z "$(option xylem.share)" ] || share "$(option xylem.share)"
case $(option xylem.pci) in
    watch) watch_pci & ;;
    ?*) pci & ;;
esac
[ -z "$(option xylem.power)" ] || keep_listening &
[ -z "$(option xylem.io)" ] || keep_writing &
[ -z "$(option xylem.net)" ] || keep_sending &
[ -z "$(option xylem.gap)" ] || keep_looking &
[ -z "$(option xylem.mem)" ] || keep_filling "$(option xylem.mem)" &

tick=$(option xylem.tick)
number=0
while :; do
    sleep "${tick:-3600}"
    number=$((number + 1))
    [ -z "$tick" ] || say "tick=$number"
    [ -z "$(option xylem.cpus)" ] || say "cpus=$(working_cpus)"
done
