# Shell functions for scenarios on a Debian host: . /lab/lib-debian.sh
#
# A scenario that calls reboot_host or cut_power is run again, from its start, with the next number in $boot: 1, 2, ...
. /lab/lib.sh

export DEBIAN_FRONTEND=noninteractive
state=/var/lib/lab
mkdir -p $state
boot=$(cat $state/boot 2>/dev/null || echo 1)
lab_failed=$(cat $state/failed 2>/dev/null || echo 0)

# next_boot: what the scenario is to know after it, on the disk.
next_boot() {
    echo $((boot + 1)) >$state/boot
    echo "$lab_failed" >$state/failed
    sync $state/boot $state/failed
}

# reboot_host: as an operator does it. Never returns.
reboot_host() {
    next_boot
    echo "-- reboot"
    systemctl reboot --no-block
    while :; do sleep 60; done
}

# cut_power: nothing is told, and nothing written that was not synced. Call next_boot before: afterwards, and before whatever is
# to be lost. Never returns.
cut_power() {
    [ "$(cat $state/failed)" = "$lab_failed" ] || next_boot
    echo "-- power cut"
    # The last lines leave the host.
    sleep 1
    echo b >/proc/sysrq-trigger
    while :; do sleep 60; done
}

# restart_count UNIT: how often systemd started it again by itself.
restart_count() { systemctl show --property NRestarts --value "$1"; }

# serving_store: the program that holds the store's socket, by its path.
serving_store() {
    for lab_process in /proc/[0-9]*; do
        case $(readlink "$lab_process/exe") in
            */xylem-xenstored* | */oxenstored* | */xenstored*) readlink "$lab_process/exe" ;;
        esac
    done | sort -u
}

# serves PROGRAM: it is the only store that runs.
serves() { [ "$(serving_store)" = "$1" ] || { serving_store && return 1; }; }

# well: the boot is complete, and systemd found nothing wrong.
well() { grep -qx running /run/lab-state || { systemctl --failed --no-pager && return 1; }; }

# Xen's own store, which a running one can be handed over to.
cxenstored=$(echo /usr/lib/xen-4.*/bin/xenstored)

# runs NAME: as Xen has it.
runs() { xl domid "$1"; }

# names: of the guests that run, in the order in which their domains were made.
names() { xl list | awk 'NR > 1 && $1 != "Domain-0" { print $2, $1 }' | sort -n | cut -d ' ' -f 2; }
