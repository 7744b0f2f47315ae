# An earlier release becomes this one, and this one the earlier, while VMs run and others are made all the time: none is lost, and
# none refused without a word. The store serves on, and goes over to the installed program when it is asked. A guest whose disk and
# network are at work all the time gets nothing wrong.
#
#   cargo xtask lab debian --older OTHER/target/package upgrade
. /lab/lib-debian.sh
ls /lab/older/*.deb >/dev/null 2>&1 || fail "no packages of an earlier commit: --older FOLDER"

# store_program: the file that the running store was started from.
store_program() { readlink "/proc/$(store_pid)/exe"; }
version() { xy --version; }

# make N: one more VM; notes what was said. Every fourth stays.
make() {
    name=busy-$1
    unikernel_cfg "$name" "vif = ['bridge=xenbr0']"
    if xy create -q "/tmp/$name.cfg" >/tmp/busy.out 2>&1; then
        echo "$name made"
    elif [ -s /tmp/busy.out ]; then
        echo "$name refused: $(tr '\n' ' ' </tmp/busy.out)"
        return
    else
        echo "$name SILENT"
        return
    fi
    [ $(($1 % 4)) != 0 ] || { echo "$name" >>$state/kept && return; }
    until xy destroy "$name" >/tmp/busy.out 2>&1 || ! xl domid "$name" >/dev/null 2>&1; do
        echo "$name not destroyed: $(tr '\n' ' ' </tmp/busy.out)"
        sleep 0.5
    done
}
keep_making() {
    number=0
    until [ -e /run/enough ]; do
        number=$((number + 1))
        make $number >>$state/made
        # apt is to get on as well.
        sleep 2
    done
}

# all_live: those that run from the start, and what was made and stays, as Xen and xylemd have it.
all_live() {
    for name in defined created linux $(cat $state/kept 2>/dev/null); do
        runs "$name" || return 1
        xy vm-list | grep -q "^$name .* running " || { xy vm-list && return 1; }
    done
}

# change FOLDER WORDS...: another release is installed, and the store goes over to it.
change() {
    folder=$1
    shift
    store=$(store_pid)
    daemon=$(pidof xylemd)
    before=$(version)
    check "apt installs it" apt-get install -y "$@" $folder/*.deb
    echo "$lab_output" | grep -i 'xylem-xenstored' | tail -n 4
    echo "from $before to $(version)"
    check "it is another release" test "$before" != "$(version)"
    check "the store was not restarted" test "$(store_pid)" = "$store"
    check "xylemd was" test "$(pidof xylemd)" != "$daemon"
    check "it is the installed one" test "$(readlink /proc/$(pidof xylemd)/exe)" = /usr/sbin/xylemd
    check "all VMs live" all_live
    check "Linux writes and sends on" goes_on linux
    check "the store goes over to it" $control live-update /usr/sbin/xylem-xenstored
    check "it is the installed one" wait_for '[ "$(store_program)" = /usr/sbin/xylem-xenstored ]' 30
    check "systemd knows it" test "$(systemctl show --property MainPID --value xenstored)" = "$(store_pid)"
    check "systemd did not restart it" test "$(restart_count xenstored)" = 0
    check "all VMs live" all_live
    check "Linux writes and sends on" goes_on linux
    made=$(grep -c made $state/made)
    check "VMs are made" wait_for "[ \$(grep -c made $state/made) -gt $made ]" 120
}

first() {
    check "apt installs the earlier release" apt-get install -y /lab/older/*.deb
    reboot_host
}

second() {
    control=$(echo /usr/lib/xen-4.*/bin/xenstore-control)
    check "boot 2 is well" well
    check "our store serves" serves /usr/sbin/xylem-xenstored
    cp /guest/disk.img $state/linux.img
    repeat_at_port_7
    unikernel_cfg defined "vif = ['bridge=xenbr0']"
    unikernel_cfg created
    linux_cfg linux "type = 'pv'" "memory = 96" "vif = ['bridge=xenbr0']" "disk = ['$state/linux.img,raw,xvda,w']" \
        "extra = '$FAST_BOOT xylem.ip=10.0.0.5 xylem.io=1 xylem.net=1 xylem.rest=2'"
    check "define one" sh -c 'xy define /tmp/defined.cfg && xy start defined'
    check "create one" xy create -q /tmp/created.cfg
    check "and Linux" xy create -q /tmp/linux.cfg
    check "Linux is up" console_wait linux 'io=2' 600
    check "it writes and sends" goes_on linux
    : >$state/kept
    keep_making &
    check "VMs are made" wait_for "[ \$(grep -c made $state/made) -ge 3 ]" 120

    echo "== upgrade"
    change /lab/packages
    echo "== and back"
    change /lab/older --allow-downgrades
    echo "== and again"
    change /lab/packages

    touch /run/enough
    wait
    grep -v 'made$' $state/made
    echo "$(grep -c 'made$' $state/made) made, $(grep -c refused $state/made) refused"
    check "none was refused without a word" sh -c "! grep SILENT $state/made"
    check "no VM is lost" all_live
    # What was refused does not run all the same, and what was made and destroyed neither.
    check "there are no others" eval \
        '[ "$(names | sort)" = "$(printf "%s\n" defined created linux $(cat $state/kept) | sort)" ] || ! names'
    check "Linux got nothing wrong" no_failed_io "$(console_log linux)"
    journalctl -b -u xylemd -u xenstored --no-pager -o cat | grep -i 'warn\|error\|panic' | head
    check "no daemon was restarted by systemd" test "$(restart_count xenstored)$(restart_count xylemd)" = 00
}

case $boot in
    1) first ;;
    2) second ;;
esac
