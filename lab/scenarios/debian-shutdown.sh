# Twenty VMs live through a shutdown of their host, a power cut while they run, and a power cut in the middle of a shutdown: each
# comes back as its configuration says, in order, and nothing else is left.
. /lab/lib-debian.sh

kinds="shutdown save ignore"
folder=/var/lib/xylem

# unikernel NAME ORDER [LINES...]
unikernel() {
    unikernel_cfg "$1" "vif = ['bridge=xenbr0']" "$3"
    check "define $1" xy define "/tmp/$1.cfg" --order="$2"
}

# linux NAME ORDER LINE: it writes to its disk all the time, and verifies what it reads.
linux() {
    cp /guest/disk.img "$state/$1.img"
    linux_cfg "$1" "type = 'pv'" "memory = 96" "extra = '$FAST_BOOT xylem.io=1 xylem.tick=2 xylem.rest=2'" \
        "disk = ['$state/$1.img,raw,xvda,w']" "vif = ['bridge=xenbr0']" "$3"
    check "define $1" xy define "/tmp/$1.cfg" --order="$2"
}

# define_all: sixteen unikernels and three of Linux to start with the host, and one that is not.
define_all() {
    for kind in $kinds; do
        for number in 1 2 3 4; do unikernel $kind-$number 1 "on_host_shutdown = '$kind'"; done
        linux linux-$kind 3 "on_host_shutdown = '$kind'"
    done
    for number in 1 2 3 4; do unikernel unset-$number 2 ""; done
    unikernel_cfg manual
    check "define manual" xy define /tmp/manual.cfg
}

# ready_linux KIND N: it booted so often, and its disk and network are well.
ready_linux() {
    wait_for "[ \$(said linux-$1 'XYLEM-GUEST: ready') -ge $2 ]" 600 &&
        ! said "linux-$1" '=missing\|=unmountable\|=unreachable' >/dev/null && no_failed_io "$(console_log "linux-$1")"
}

# all_but_manual: the names that come back.
all_but_manual() {
    for kind in $kinds; do
        for number in 1 2 3 4; do echo $kind-$number; done
        echo linux-$kind
    done
    for number in 1 2 3 4; do echo unset-$number; done
}

# back: all that should run do.
back() { [ "$(names | sort)" = "$(all_but_manual | cat - "$state/more" | sort)" ]; }
all_back() { wait_for back 900 || { xy vm-list && return 1; }; }

# in_order: a domain of each number is made after all of smaller numbers. Those that were saved come before.
in_order() {
    names | sed 's/^save-.*\|^linux-save$/0/; s/^\(shutdown\|ignore\)-.*/1/; s/^unset-.*/2/; s/^linux-.*/3/' >/tmp/numbers
    sort -c -n /tmp/numbers || { names && return 1; }
}
in_order_without_saved() {
    names | sed 's/^\(save\|shutdown\|ignore\)-.*/1/; s/^unset-.*/2/; s/^linux-.*/3/; s/^late.*/9/' >/tmp/numbers
    sort -c -n /tmp/numbers || { names && return 1; }
}

# definitions: the folder's files and what is in them.
definitions() { (cd $folder/vm && sha256sum -- * .[!.]* 2>/dev/null); }

# leftovers: files that belong to no VM. (Those in the last two folders do: a disk's users, and its owner.)
leftovers() {
    find $folder /run/xylem \( -path $folder/vm -o -path /run/xylem/cgroup -o -path /run/xylem/disks -o \
        -path /run/xylem/disk-owners \) -prune -o -type f -print
}
# users: how many disks have some.
users() { find /run/xylem/disks /run/xylem/disk-owners -type f | wc -l; }
none_left() {
    leftovers >/tmp/leftovers
    [ "$(users)" = $((2 * $(echo $kinds | wc -w))) ] || { find /run/xylem/disks /run/xylem/disk-owners -type f && return 1; }
    # xendomains saved nothing: it found none of ours.
    [ -z "$(ls -A /var/lib/xen/save)" ] || { ls -l /var/lib/xen/save && return 1; }
    losetup -n -O BACK-FILE -l | sort >/tmp/loops
    # Of each disk of Linux.
    for kind in $kinds; do echo "$state/linux-$kind.img"; done | sort | diff - /tmp/loops &&
        diff "$state/files" /tmp/leftovers
}

first() {
    check "boot 1 is well" well
    check "apt installs our packages" apt-get install -y /lab/packages/*.deb
    : >$state/more
    leftovers >$state/files
    define_all
    definitions >$state/definitions
    check "all start" xy start --all
    check "they are twenty" test "$(names | wc -l)" = 20
    for kind in $kinds; do check "linux-$kind is ready" ready_linux $kind 1; done
    xl list
    date +%s >$state/down
    reboot_host
}

second() {
    check "boot 2 is well" well
    echo "from the order to reboot until the boot is complete: $(($(date +%s) - $(cat $state/down))) s"
    check "our store serves" serves /usr/sbin/xylem-xenstored
    check "all are back but the manual one" all_back
    check "in order" in_order
    for number in 1 2 3 4; do
        check "save-$number goes on where it was" wait_for "[ \$(said save-$number 'resumed elsewhere') = 1 ]" 60
        check "shutdown-$number had its time" test "$(said shutdown-$number bye)" = 1
        check "unset-$number, too" test "$(said unset-$number bye)" = 1
        check "ignore-$number had none" test "$(said ignore-$number bye)" = 0
    done
    check "linux-shutdown booted again" ready_linux shutdown 2
    check "linux-ignore booted again" ready_linux ignore 2
    check "linux-save did not" test "$(said linux-save 'init reached')" = 1
    io=$(said linux-save io=)
    check "it writes on" wait_for "[ \$(said linux-save io=) -gt $io ]" 120
    check "linux-shutdown was asked" test "$(said linux-shutdown 'shutdown=')" = 1
    check "no guest read anything wrong" no_failed_io /var/log/xen/console/guest-linux-*.log
    check "the definitions are as they were" eval "definitions | diff $state/definitions -"
    check "nothing is left of what was saved" none_left
    journalctl -b -1 -u xylem-host-shutdown -u xylemd --no-pager | grep -i 'error\|fail\|not saved' | head

    # What has been answered is on the disk.
    next_boot
    unikernel_cfg late-1
    echo late-1 >>$state/more
    check "a VM is defined at the last moment" xy define /tmp/late-1.cfg --order=9
    unikernel_cfg unset-1 "vif = ['bridge=xenbr0']" "extra = 'xylem.quiet'"
    check "and another one replaced" xy define /tmp/unset-1.cfg --order=2
    definitions >$state/definitions
    # These two belong to the scenario; those of the folder are for the daemon to sync.
    sync $state/more $state/definitions
    cut_power
}

third() {
    check "boot 3 is well" well
    check "our store serves" serves /usr/sbin/xylem-xenstored
    check "all are back but the manual one" all_back
    check "in order" in_order_without_saved
    check "the definitions are as they were answered" eval "definitions | diff $state/definitions -"
    check "linux-shutdown booted" ready_linux shutdown 3
    check "linux-save booted, too" ready_linux save 2
    check "nothing is left" none_left
    journalctl -b -u xylemd --no-pager | grep -i 'error\|fail\|warn' | head

    # In the middle of a shutdown: some are down, and some saved, in part.
    next_boot
    xy host-shutdown --timeout 300 >/dev/null 2>&1 &
    check "a VM is being saved" wait_for "[ -n \"\$(ls -A $folder/saved)\" ]" 60
    ls -lA $folder/saved
    cut_power
}

fourth() {
    check "boot 4 is well" well
    check "all are back but the manual one" all_back
    check "the definitions are as they were" eval "definitions | diff $state/definitions -"
    check "linux-ignore booted" ready_linux ignore 4
    ls -lA $folder/saved
    check "nothing is left of saves that were cut off" none_left
    journalctl -b -u xylemd --no-pager | grep -i 'error\|fail\|restore' | head -30
    check "manual starts" xy start manual
    for name in $(names); do xy destroy "$name"; done
    check "no loop device is left" test -z "$(losetup -a)"
    check "no interface" sh -c '! ls /sys/class/net | grep vif'
    check "and no domain" test -z "$(names)"
    xy doctor
}

case $boot in
    1) first ;;
    2) second ;;
    3) third ;;
    4) fourth ;;
esac
