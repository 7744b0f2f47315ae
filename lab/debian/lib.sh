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

# serving_store: the program that holds the store's socket, by its path; also if a reinstallation has put another file there.
serving_store() {
    for lab_process in /proc/[0-9]*; do
        lab_program=$(readlink "$lab_process/exe")
        case $lab_program in
            */xylem-xenstored* | */oxenstored* | */xenstored*) echo "${lab_program% (deleted)}" ;;
        esac
    done | sort -u
}

# serves PROGRAM: it is the only store that runs.
serves() { [ "$(serving_store)" = "$1" ] || { serving_store && return 1; }; }

# well: the boot is complete, and systemd found nothing wrong.
well() { grep -qx running /run/lab-state || { systemctl --failed --no-pager && return 1; }; }

# repeat_at_port_7: for guests with xylem.net=1.
repeat_at_port_7() {
    mkdir -p /run/systemd/system
    printf '[Socket]\nListenStream=10.0.0.1:7\nAccept=yes\n' >/run/systemd/system/lab-repeat.socket
    printf '[Service]\nExecStart=-/bin/cat\nStandardInput=socket\n' >/run/systemd/system/lab-repeat@.service
    systemctl daemon-reload
    systemctl start lab-repeat.socket
}

# said NAME TEXT: how often a guest's console has it, since the host was installed.
said() { grep -c -- "$2" "$(console_log "$1")"; }

# goes_on NAME: it writes to its disk and sends by its network (xylem.io=1, xylem.net=1), and all that came back was right.
goes_on() {
    for lab_word in io=[0-9] net=[0-9]; do
        lab_before=$(said "$1" $lab_word)
        wait_for "[ \$(said $1 $lab_word) -gt $((lab_before + 1)) ]" 300 || { tail -n 3 "$(console_log "$1")" && return 1; }
    done
    no_failed_io "$(console_log "$1")"
}

# Xen's own store, which a running one can be handed over to.
cxenstored=$(echo /usr/lib/xen-4.*/bin/xenstored)

# runs NAME: as Xen has it.
runs() { xl domid "$1"; }

# names: of the guests that run, in the order in which their domains were made.
names() { xl list | awk 'NR > 1 && $1 != "Domain-0" { print $2, $1 }' | sort -n | cut -d ' ' -f 2; }
