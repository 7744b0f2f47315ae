# A living Debian host changes hands and goes back. Five VMs run under xl on C xenstored, with disks and network interfaces at
# work, and verify what comes back; our packages are installed, the store and the VMs are taken over, used, and given back by the
# packages' removal. No guest notices, no reboot is needed, and nothing is left. Run with `--vmlinux`.
#
# Boot 1 has Debian's oxenstored, from which only a reboot leads to another store; boot 2 has C's.
. /lab/lib-debian.sh

linuxes="lin1 lin2"
unikernels="uni1 uni2 uni3"
all="$linuxes $unikernels"
ours=/usr/sbin/xylem-xenstored

# xl_create NAME: xl gives its scripts 10 seconds, which is not always enough where others work as well.
xl_create() { wait_for "xl create -q /tmp/$1.cfg 2>/tmp/xl.err" 300 || { cat /tmp/xl.err && return 1; }; }

domids() { for it in $all; do xl domid "$it"; done | tr '\n' ' '; }

# all_go_on STEP: the guests have not noticed it.
all_go_on() {
    for it in $linuxes; do
        check "$1: $it writes and sends on" goes_on "$it"
        check "$1: the network of $it works" ping -q -c 3 -i 0.5 -W 30 "10.0.0.1${it#lin}"
    done
    check "$1: they are the same domains" [ "$(domids)" = "$started" ]
}

# files: all that packages, and what they start, may leave.
files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/tmp -o -path /results -o -path $state \
        -o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd \) -prune \
        -o -print | sort
}

to_c() {
    echo "XENSTORED=$cxenstored" >>/etc/default/xen
    reboot_host
}

begin() {
    check "boot 2 is well" well
    check "C's store serves" serves "$cxenstored"
    for number in 1 2; do
        cp /guest/disk.img /tmp/disk$number.img
        xl_linux_cfg lin$number /tmp/disk$number.img
        sed -i -e "s/10.0.0.5/10.0.0.1$number/" -e 's/xylem.io=1/& xylem.net=1 xylem.rest=2/' /tmp/lin$number.cfg
    done
    for number in 1 2 3; do
        cp /guest/disk.img /tmp/small$number.img
        unikernel_cfg uni$number "type = 'pv'" "vif = ['bridge=xenbr0']" "disk = ['/tmp/small$number.img,raw,xvda,w']"
    done
    cp /guest/disk.img /tmp/more.img
    repeat_at_port_7
    files >$state/files.before
    host_state | grep -v '^/tool/xenstored' >$state/state.before
    # Those that write all the time come last.
    for it in $unikernels $linuxes; do check "xl create $it" xl_create "$it"; done
    started=$(domids)
    for it in $linuxes; do check "$it is up" console_wait "$it" 'XYLEM-GUEST: ready' 600; done
    all_go_on "xl, C's store"
}

take_over() {
    check "apt installs our packages" apt-get install -y /lab/packages/*.deb
    check "C's store still serves" serves "$cxenstored"
    check "xylemd lists all" sh -c "[ \$(xy list | wc -l) = 7 ]"
    all_go_on "installed"
    check "our store takes over" xenstore-control live-update $ours
    check "it serves" wait_for "serves $ours" 60
    all_go_on "our store"
    start=$(now)
    check "xy adopt --all" xy adopt --all
    echo "adopt --all took $(seconds_since "$start") s"
    check "all are ours" [ "$(xy vm-list | awk '$4 == "running"' | wc -l)" = 5 ]
    all_go_on "adopted"
    check "a disk is attached" xy block-attach lin1 format=raw,vdev=xvdb,access=r,target=/tmp/more.img
    check "and detached" xy block-detach lin1 xvdb
    check "xl changes one of ours" xl mem-set lin1 120
    check "xylemd is restarted" systemctl restart xylemd
    check "it has them" [ "$(xy vm-list | awk '$4 == "running"' | wc -l)" = 5 ]
    check "our packages are installed anew" apt-get install -y --reinstall /lab/packages/*.deb
    all_go_on "reinstalled"
}

give_back() {
    check "apt removes our packages" apt-get remove -y xylem-web xylem xylem-xenstored
    echo "$lab_output" | grep -e 'nobody watches' -e 'xenstored has'
    check "C's store serves" wait_for "serves $cxenstored" 60
    check "xylemd is gone" sh -c '! pidof xylemd'
    all_go_on "removed"
    check "xl attaches a disk" xl block-attach lin2 format=raw,vdev=xvdb,access=r,target=/tmp/more.img
    check "xl detaches it" xl block-detach lin2 xvdb
    check "apt purges our packages" apt-get purge -y xylem-web xylem xylem-xenstored
    for it in $linuxes; do check "xl shuts $it down" timeout 300 xl shutdown -w "$it"; done
    for it in $all; do check "xl destroys $it" xl destroy "$it"; done
    check "no guest got anything wrong" no_failed_io /var/log/xen/console/guest-lin*.log
    host_state | grep -v '^/tool/xenstored' >$state/state.now
    check "nothing is left on the host" diff $state/state.before $state/state.now
    files >$state/files.after
    check "no file is left" diff $state/files.before $state/files.after
    check "nor in /run" sh -c '! find /run -iname "*xylem*" ! -path "/run/udev/*" | grep . || ! ls -lR /run/xylem'
    check "no unit either" sh -c '! systemctl list-units --all --no-pager --plain | grep -v [.]device | grep -i xylem'
    check "no unit has failed" sh -c '[ -z "$(systemctl list-units --failed --plain --no-legend)" ] || ! systemctl --failed --no-pager'
}

case $boot in
    1) to_c ;;
    2)
        begin
        take_over
        give_back
        ;;
esac
