# What goes wrong on a host: no bridge and a read-only /etc at boot, a full /run, a clock that jumps, a full disk, also when the host
# goes down and comes up. Each is told in words that name it, loses no VM, and is over when it is mended.
. /lab/lib-debian.sh

uuid() { xy vm-list | awk -v name="$1" '$1 == name { print $2 }'; }
hello() { wait_for "[ \$(grep -c 'XYLEM-UNIKERNEL: hello' $(console_log "$1")) -ge $2 ]" 120; }
all_run() { for name in "$@"; do runs "$name" || return 1; done; }

# fill FOLDER: to the last block. Others come and go there meanwhile, and a file system gives back what it had set aside.
fill() {
    for fill_try in $(seq 100); do
        dd if=/dev/zero bs=64K of="$1/filler.$fill_try" 2>/dev/null
        dd if=/dev/zero bs=4096 of="$1/filler.more.$fill_try" 2>/dev/null
        sync -f "$1"
        sleep 0.3
        [ "$(df --output=avail -B 1 "$1" | tail -n 1 | tr -d ' ')" != 0 ] || return 0
    done
    df "$1"
    return 1
}
empty() { rm -f "$1"/filler.*; }

# another_works: a VM can be made, answers and ends.
another_works() {
    unikernel_cfg another "vif = ['bridge=xenbr0']"
    rm -f "$(console_log another)"
    xy create -q /tmp/another.cfg && console_wait another 'vif 0 connected' 120 && xy shutdown -w another
}

# nothing_lost: the same domains as before, all of which answer to the store.
nothing_lost() {
    [ "$(names | sort)" = "$(printf '%s\n' netted plain saver | sort)" ] || { names && return 1; }
    [ "$(xy vm-list | grep -c ' running ')" = 3 ] || { xy vm-list && return 1; }
}

# configurations: in /tmp, which is emptied at each boot.
configurations() {
    unikernel_cfg netted "vif = ['bridge=xenbr0']"
    unikernel_cfg plain
    unikernel_cfg saver "on_host_shutdown = 'save'"
    unikernel_cfg extra
}

first() {
    check "apt installs our packages" apt-get install -y /lab/packages/*.deb
    configurations
    check "define netted" xy define /tmp/netted.cfg --order=1
    check "define plain" xy define /tmp/plain.cfg --order=2
    check "define saver" xy define /tmp/saver.cfg --order=3
    cp /etc/network/interfaces $state/interfaces
    sed -i '/xenbr0/,$d' /etc/network/interfaces
    echo '/etc /etc none bind,ro 0 0' >>/etc/fstab
    reboot_host
}

no_bridge() {
    echo "== no bridge, and /etc read-only"
    check "/etc is read-only" sh -c '! touch /etc/touched'
    check "our store serves" serves /usr/sbin/xylem-xenstored
    check "xylemd runs" systemctl is-active xylemd
    check "the VMs that need no bridge run" wait_for "all_run plain saver" 300
    check "the other one does not" sh -c '! xl domid netted'
    journalctl -b -u xylemd --no-pager -o cat | grep -i 'netted\|xenbr0'
    check "the journal says why" sh -c 'journalctl -b -u xylemd --no-pager -o cat | grep netted | grep -q xenbr0'
    check "so does xy start" refused_with xenbr0 xy start netted
    xy doctor | grep -i bridge
    check "and xy doctor" sh -c 'xy doctor | grep -q xenbr0'
    check "nothing is left of it" sh -c '! xl list netted && ! ls /sys/class/net | grep vif'
    check "a VM is defined with /etc as it is" xy define /tmp/extra.cfg
    check "xylemd starts with it" systemctl restart xylemd
    check "a package is refused by dpkg, in its words" sh -c \
        'apt-get install -y --reinstall /lab/packages/xylem_*.deb 2>&1 | grep -i "read-only file system"; xy list plain'

    mount -o remount,bind,rw /etc
    sed -i '/bind,ro/d' /etc/fstab
    cp $state/interfaces /etc/network/interfaces
    check "the bridge is made" ifup xenbr0
    check "dpkg finishes" sh -c 'dpkg --configure -a && apt-get install -y --reinstall /lab/packages/xylem_*.deb'
    check "netted starts" xy start netted
    check "and is up" hello netted 1
    check "undefine" xy undefine extra
}

full_run() {
    echo "== /run is full"
    check "it is filled" fill /run
    check "the store answers" xenstore-write /test/full 1
    check "xy lists" xy list plain
    # What it needs there it says, or it does without.
    if another_works; then
        echo "another VM works all the same"
    else
        unikernel_cfg refused "vif = ['bridge=xenbr0']"
        check "a VM is refused with a reason" refused_with . xy create -q /tmp/refused.cfg
    fi
    for value in x y; do
        for number in $(seq 300); do xenstore-write /test/$number "$(head -c 2000 /dev/zero | tr '\0' $value)"; done
        journalctl -b -u xenstored --no-pager -o cat | tail -n 5
        check "the store says that there is no room" sh -c \
            'journalctl -b -u xenstored --no-pager -o cat | tail -n 5 | grep -q "ALARM: .* is full"'
        check "it is killed" kill -9 "$(store_pid)"
        check "it comes back" wait_for 'xenstore-read /local/domain/0/name' 120
        check "with all that was written" test "$(xenstore-list /test | wc -l)" = 301
    done
    check "xylemd starts again" systemctl restart xylemd
    check "and lists" wait_for "xy list plain" 60
    check "no VM is lost" nothing_lost
    empty /run
    for number in $(seq 300); do xenstore-write /test/$number "$(head -c 2000 /dev/zero | tr '\0' z)"; done
    check "it is killed" kill -9 "$(store_pid)"
    check "it comes back" wait_for 'xenstore-read /local/domain/0/name' 120
    check "with all that was written meanwhile" test "$(xenstore-list /test | wc -l)" = 301
    xenstore-rm /test
    check "another VM works" wait_for another_works 300
    check "no VM is lost" nothing_lost
}

# clock TIME: what hangs by the time of day hangs now.
clock() {
    echo "== the clock says $1"
    date -s "$1" >/dev/null
    check "another VM works" another_works
    check "xy's times are not absurd" sh -c 'xy uptime plain 2>&1 || xy list -v plain'
    echo "$lab_output"
    check "a save" xy save plain /var/lib/lab/plain.saved
    check "and a restore" xy restore /var/lib/lab/plain.saved
    check "xylemd starts again" systemctl restart xylemd
    check "the store is killed" kill -9 "$(store_pid)"
    check "and comes back" eval 'for try in $(seq 60); do sleep 1; xenstore-read /local/domain/0/name && break; done'
    check "no VM is lost" nothing_lost
    check "a wait ends when it should" eval 'start=$(now); ! xy wait --timeout=3 plain down && [ "$(seconds_since "$start" | cut -d . -f 1)" -lt 30 ]'
}

full_disk() {
    echo "== the disk is full"
    # journald that cannot write removes old files of its own, and there is room again.
    mkdir -p /run/systemd/journald.conf.d
    printf '[Journal]\nStorage=volatile\n' >/run/systemd/journald.conf.d/lab.conf
    systemctl restart systemd-journald
    lab_scratch=/run
    check "it is filled" fill /var
    check "a definition is refused, and says why" refused_with 'o space left' xy define /tmp/extra.cfg
    check "a save, too" refused_with 'o space left' xy save plain /var/lib/lab/full
    check "nothing is left of them" sh -c '! ls /var/lib/lab/full* && ! ls /var/lib/xylem/vm/*.new'
    check "its VM runs" runs plain
    check "a changed definition is refused" refused_with 'o space left' xy define /run/netted.cfg
    check "the old one is whole" sh -c 'grep -q xenbr0 /var/lib/xylem/vm/* && ! grep -q full-disk /var/lib/xylem/vm/*'
    check "a VM runs that needs no disk" eval 'cp /tmp/another.cfg /run/ && xy create -q /run/another.cfg && xy destroy another'
    check "xylemd starts again" systemctl restart xylemd
    check "no VM is lost" nothing_lost
    reboot_full
}

# reboot_full: the number of the next boot fits, as the file exists.
reboot_full() {
    printf '%s\n' $((boot + 1)) | dd of=$state/boot conv=notrunc 2>/dev/null
    printf '%s\n' "$lab_failed" | dd of=$state/failed conv=notrunc 2>/dev/null
    sync $state/boot $state/failed
    echo "-- reboot"
    systemctl reboot --no-block
    while :; do sleep 60; done
}

second() {
    configurations
    no_bridge
    full_run
    now=$(date +%s)
    clock "2001-01-01 00:00:00"
    clock "2037-01-01 00:00:00"
    date -s "@$((now + 600))" >/dev/null
    unikernel_cfg netted "vif = ['bridge=xenbr0']" "extra = 'full-disk'"
    cp /tmp/netted.cfg /run/
    full_disk
}

third() {
    echo "== the disk is full at boot"
    df /var | tail -n 1
    systemctl --failed --no-pager
    check "our store serves" serves /usr/sbin/xylem-xenstored
    check "xylemd runs" systemctl is-active xylemd
    check "all VMs run" wait_for "all_run netted plain saver" 300
    check "saver could not be saved, and was shut down" test "$(grep -c bye "$(console_log saver)")" -ge 1
    check "nothing is left of its save" sh -c '! find /var/lib/xylem/saved -type f | grep .'
    empty /var
    configurations
    check "another VM works" another_works
    check "netted can be changed" xy define /tmp/netted.cfg --order=1
    check "saver is saved" xy save saver $state/saver
    check "and restored" xy restore $state/saver
    check "no VM is lost" nothing_lost
    xy doctor
}

case $boot in
    1) first ;;
    2) second ;;
    3) third ;;
esac
