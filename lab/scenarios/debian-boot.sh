# What systemd does for our daemons and they for it, on a Debian host: readiness and signs of life, a socket that outlives the
# daemon, the journal's fields, control groups, what a stop leaves, and VMs that start with the host.
#
# Boot 1 has Debian's store, boot 2 ours.
. /lab/lib-debian.sh

group=/sys/fs/cgroup/system.slice/xylemd.service

# main_pid UNIT
main_pid() { systemctl show --property MainPID --value "$1"; }

# in_group GROUP PROCESS
in_group() { grep -qx "$2" "$group/$1/cgroup.procs"; }

# journal_has TEXT ARGUMENT...: among what journalctl prints.
journal_has() { lab_text=$1 && shift && journalctl --sync && journalctl -b --no-pager -o cat "$@" | grep -q -- "$lab_text"; }

# impatient UNIT SECONDS: what a watchdog waits for, shorter for a test.
impatient() {
    mkdir -p "/run/systemd/system/$1.service.d"
    printf '[Service]\nWatchdogSec=%s\n' "$2" >"/run/systemd/system/$1.service.d/lab.conf"
    systemctl daemon-reload
}

# restarted_from PROCESS: another one is xylemd.
restarted_from() { case $(main_pid xylemd) in 0 | "$1") return 1 ;; esac && systemctl is-active xylemd; }

groups() {
    check "the daemon has a group of its own" in_group daemon "$(main_pid xylemd)"
    check "its parser is there too" sh -c "pgrep -x xylem-parser | grep -f - $group/daemon/cgroup.procs"
    check "programs can have limits" grep -q memory "$group/cgroup.subtree_control"
    check "no complaint about that" sh -c '! journalctl -b -u xylemd | grep "without limits"'
    # As a device model would be.
    mkdir $group/xylem-lab
    sleep 1000 &
    model=$!
    echo $model >$group/xylem-lab/cgroup.procs
    check "the daemon is restarted" systemctl restart xylemd
    check "its program is still there" in_group xylem-lab $model
    check "with limits" grep -qx 1073741824 "$group/xylem-lab/memory.max"
    before=$(main_pid xylemd)
    kill -9 "$before"
    check "it is restarted after a kill" wait_for "restarted_from $before" 120
    check "its program is still there" in_group xylem-lab $model
    check "with limits" grep -qx 1073741824 "$group/xylem-lab/memory.max"
    kill $model
    check "a VM is made" xy create /tmp/one.cfg
    check "its parser was replaced" in_group daemon "$(pgrep -x xylem-parser | head -n 1)"
    check "systemd says how many there are" sh -c 'systemctl show -P StatusText xylemd | grep "VMs have a domain"'
}

sockets() {
    check "the socket is systemd's" systemctl is-active xylemd.socket
    kill -9 "$(main_pid xylemd)"
    check "a client waits for a daemon that is restarted" xy list one
    check "and starts one that was stopped" sh -c 'systemctl stop xylemd && xy list one'
    check "systemctl reports no failure" sh -c '! systemctl --failed --plain --no-legend | grep xylem'
    systemctl stop xylemd.socket xylemd
    check "a stop leaves no process" sh -c "! cat $group/cgroup.procs $group/*/cgroup.procs 2>/dev/null | grep ."
    # But the one that stood for a device model.
    check "systemd found none" sh -c '! journalctl -b --no-pager | grep "remains running after unit stopped" | grep -v "(sleep)"'
    check "the VM runs on" xl domid one
    check "both are started" systemctl start xylemd
    check "a client is served" xy list one
}

journal() {
    check "a VM's lines are found by its name" journal_has 'one.*-> running' VM=one
    check "by what was asked" journal_has 'one: create by uid 0' OPERATION=create
    check "by its UUID" journal_has 'one.*running' "VM_UUID=$(xy vm-list --json | sed -n 's/.*"uuid": *"\([^"]*\)".*/\1/p' | head -n 1)"
    xy create /root/absent.cfg
    xy destroy nobody
    check "a failure is a warning" journal_has 'nobody' -p warning -u xylemd
    check "a success is none" sh -c '! journalctl -b --no-pager -p warning VM=one | grep running'
}

# hangs UNIT: it is stopped as if it hung, and restarted by systemd.
hangs() {
    impatient "$1" 15
    systemctl restart "$1"
    sleep 40
    check "$1 lives on for more than twice its watchdog's time" test "$(restart_count "$1")" = 0
    before=$(main_pid "$1")
    kill -STOP "$before"
    check "$1 is restarted when it hangs" wait_for "[ \$(systemctl show -P NRestarts $1) = 1 ] && systemctl is-active $1" 240
    check "by the watchdog" journal_has 'Watchdog timeout' -u "$1"
    check "another process is $1" test "$(main_pid "$1")" != "$before"
}

first() {
    check "apt installs our packages" apt-get install -y /lab/packages/*.deb
    unikernel_cfg one
    groups
    sockets
    journal
    hangs xylemd
    check "its VM was not harmed" xy list one
    for unit in xylemd xylem-host-shutdown; do
        systemd-analyze security --no-pager $unit.service >/results/security-$unit.txt
        tail -n 1 /results/security-$unit.txt
    done
    # Two for the next boot, and one that xendomains would have saved.
    mkdir -p /etc/xen/auto
    for name in early late; do
        unikernel_cfg $name
        cp /tmp/$name.cfg /etc/xen/auto/
    done
    unikernel_cfg saved
    check "xl makes a VM" xl create -q /tmp/saved.cfg
    check "it runs" console_wait saved hello 120
    mkdir -p /var/lib/xen/save
    check "and saves it" xl save saved /var/lib/xen/save/saved
    reboot_host
}

automatic() {
    check "VMs of /etc/xen/auto were started here" sh -c 'journalctl -b -u xylem-auto --no-pager | grep "early.cfg: started"'
    check "and what was saved was restored" sh -c 'journalctl -b -u xylem-auto --no-pager | grep "save/saved: restored"'
    journalctl -b -u xylem-auto -u xendomains -o cat --no-pager
    check "its file is gone" test ! -e /var/lib/xen/save/saved
    for name in early late saved; do
        check "$name is ours" sh -c "xy vm-list | grep -w $name"
        check "$name runs once" test "$(xl list | grep -cw $name)" = 1
    done
    check "xendomains has come after" wait_for 'systemctl is-active xendomains' 300
    check "and ours run on" sh -c 'xl domid early && xl domid late && xl domid saved'
    check "a restart of xylemd starts nothing again" sh -c 'xy destroy late && systemctl restart xylemd && sleep 5 && ! xl domid late'
}

second() {
    automatic
    check "our store serves" sh -c 'systemctl is-active xenstored'
    check "xylemd serves" xy list
    unikernel_cfg two
    check "a VM is made" xy create /tmp/two.cfg
    hangs xenstored
    check "guests and clients go on" xy list two
    check "the store says what it has" sh -c 'systemctl show -P StatusText xenstored | grep nodes'
    check "systemd reloads it" systemctl reload xenstored
    check "it runs" systemctl is-active xenstored
    systemd-analyze security --no-pager xenstored.service >/results/security-xenstored.txt
    tail -n 1 /results/security-xenstored.txt
}

case $boot in
    1) first ;;
    2) second ;;
esac
